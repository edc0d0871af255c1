//! The descriptor of a VMDK: the text that names the extents of a disk.
//!
//! Owns [`ExtentsDevice`], the disk that its extents make.
//!
//! **Invariants**
//! - The extents follow one another without gaps. Each has its own file, which [`Companions`]
//!   opens, or none and reads as zeros.
//! - The first change gives the descriptor another content identifier, so that an image that has
//!   this one as its parent is recognised as stale.
//!
//! **Lock**: `renewed`, held while the identifier is written. Nothing else is locked under it but
//! the file.

use super::super::blocks::read_range;
use super::super::companion::Companions;
use super::content::{ContentId, MAX_DESCRIPTOR, fault, refuse_parents};
use super::header::SECTOR;
use super::sparse_file;
use crate::device::{Access, Device, check_read, check_write, read_only};
use crate::error::OpenErrorKind;
use crate::file::FileDevice;
use crate::partition::PartitionDevice;
use papilio_format::PhysicalAddress;
use papilio_locks::Mutex;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A line of the descriptor.
#[derive(Debug, PartialEq, Eq)]
struct Extent {
    writable: bool,
    sectors: u64,
    data: Data,
}

#[derive(Debug, PartialEq, Eq)]
enum Data {
    Zero,
    /// Name, and the sector in the file at which the extent begins.
    Flat(String, u64),
    Sparse(String),
}

impl Extent {
    /// Parses a line; `None` if it names no extent.
    fn parse(line: &str) -> Result<Option<Self>, OpenErrorKind> {
        let mut words = line.splitn(4, char::is_whitespace);
        let writable = match words.next() {
            Some("RW") => true,
            Some("RDONLY") => false,
            Some("NOACCESS") => return Err(fault("it has an extent that may not be read")),
            _ => return Ok(None),
        };
        let wrong = || fault(format!("its descriptor has a wrong line: {line:?}"));
        let sectors = words.next().and_then(|sectors| sectors.parse().ok()).ok_or_else(wrong)?;
        let kind = words.next().ok_or_else(wrong)?;
        let name = || {
            let (name, rest) = words.clone().next()?.trim().strip_prefix('"')?.split_once('"')?;
            Some((name.to_owned(), rest.trim().to_owned()))
        };
        let data = match kind {
            "ZERO" => Data::Zero,
            "FLAT" | "VMFS" => {
                let (name, rest) = name().ok_or_else(wrong)?;
                let sector = if rest.is_empty() { 0 } else { rest.parse().map_err(|_| wrong())? };
                Data::Flat(name, sector)
            }
            "SPARSE" => Data::Sparse(name().ok_or_else(wrong)?.0),
            other => return Err(fault(format!("its extents of type {other} are not supported"))),
        };
        Ok(Some(Self { writable, sectors, data }))
    }
}

/// A disk that consists of extents.
#[derive(Debug)]
pub(in super::super) struct ExtentsDevice {
    descriptor: FileDevice,
    access: Access,
    size: u64,
    /// End on the disk, and the device; `None` reads as zeros.
    extents: Vec<(u64, Option<Arc<dyn Device>>)>,
    content: Option<ContentId>,
    /// Whether the content identifier was changed.
    renewed: Mutex<bool>,
}

/// Opens a disk by its descriptor.
pub(in super::super) fn open(
    path: &Path,
    file: FileDevice,
    allow_all: bool,
) -> Result<ExtentsDevice, OpenErrorKind> {
    let length = file.size();
    if length > MAX_DESCRIPTOR {
        return Err(fault("its descriptor is too large"));
    }
    let bytes = read_range(&file, 0, length).map_err(OpenErrorKind::Io)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    refuse_parents(&text)?;
    let (access, content) = (file.access(), ContentId::find(&file, 0, length)?);
    let mut files = Companions::new("vmdk", &file, allow_all)?;
    let (mut size, mut extents) = (0u64, Vec::new());
    for line in text.lines() {
        let Some(extent) = Extent::parse(line.trim())? else { continue };
        let length = extent.sectors.checked_mul(SECTOR);
        let end = length.and_then(|length| size.checked_add(length));
        let (Some(length), Some(end)) = (length, end) else { return Err(fault("its size is wrong")) };
        let access = if extent.writable { access } else { Access::ReadOnly };
        extents.push((end, device(&extent.data, length, path, access, &mut files)?));
        size = end;
    }
    if extents.is_empty() {
        return Err(fault("its descriptor names no extents"));
    }
    Ok(ExtentsDevice { descriptor: file, access, size, extents, content, renewed: Mutex::new(false) })
}

/// Opens the device of an extent of `length` bytes.
fn device(
    data: &Data,
    length: u64,
    image: &Path,
    access: Access,
    files: &mut Companions,
) -> Result<Option<Arc<dyn Device>>, OpenErrorKind> {
    let small = |name: &str| fault(format!("its extent {name:?} is too small"));
    Ok(Some(match data {
        Data::Zero => return Ok(None),
        Data::Flat(name, sector) => {
            let file = files.open_device(image, name, access)?.1;
            let start = sector.checked_mul(SECTOR).ok_or_else(|| small(name))?;
            let title = file.name().to_owned();
            let device = PartitionDevice::new(Arc::new(file), title, PhysicalAddress(start), length);
            Arc::new(device.map_err(|_| small(name))?)
        }
        Data::Sparse(name) => {
            let file = Arc::new(files.open_device(image, name, access)?.1);
            let device: Arc<dyn Device> = match access {
                Access::ReadOnly => sparse_file::open(file)?,
                Access::ReadWrite => Arc::new(sparse_file::open_writable(file)?),
            };
            if device.size() < length {
                return Err(small(name));
            }
            device
        }
    }))
}

impl ExtentsDevice {
    /// Calls `part(extent, offset in it, done, length)` for the part of the range in each extent.
    fn parts(
        &self,
        offset: PhysicalAddress,
        length: u64,
        mut part: impl FnMut(Option<&dyn Device>, PhysicalAddress, u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < length {
            let at = offset.get() + done;
            let index = self.extents.partition_point(|(end, _)| *end <= at);
            let start = index.checked_sub(1).map_or(0, |before| self.extents[before].0);
            let (end, device) = &self.extents[index];
            let count = (end - at).min(length - done);
            part(device.as_deref(), PhysicalAddress(at - start), done, count)?;
            done += count;
        }
        Ok(())
    }

    /// Changes the content identifier before the first change.
    fn begin(&self) -> io::Result<()> {
        let Some(content) = &self.content else { return Ok(()) };
        let mut renewed = self.renewed.lock();
        if !*renewed {
            content.renew(&self.descriptor)?;
            self.descriptor.flush()?;
            *renewed = true;
        }
        Ok(())
    }
}

impl Device for ExtentsDevice {
    fn name(&self) -> &str {
        self.descriptor.name()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn access(&self) -> Access {
        self.access
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.size, offset, buffer.len())?;
        self.parts(offset, buffer.len() as u64, |extent, at, done, length| {
            let part = &mut buffer[done as usize..][..length as usize];
            match extent {
                Some(extent) => extent.read_at(part, at),
                None => {
                    part.fill(0);
                    Ok(())
                }
            }
        })
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        check_write(self.access, self.size, offset, buffer.len() as u64)?;
        self.begin()?;
        self.parts(offset, buffer.len() as u64, |extent, at, done, length| match extent {
            Some(extent) => extent.write_at(&buffer[done as usize..][..length as usize], at),
            None => Err(no_file()),
        })
    }

    fn flush(&self) -> io::Result<()> {
        if self.access == Access::ReadOnly {
            return Err(read_only());
        }
        let writable = |extent: &&Arc<dyn Device>| extent.access() == Access::ReadWrite;
        self.extents
            .iter()
            .filter_map(|(_, extent)| extent.as_ref())
            .filter(writable)
            .try_for_each(|e| e.flush())
    }

    fn write_zeroes(&self, offset: PhysicalAddress, length: u64, keep_space: bool) -> io::Result<()> {
        check_write(self.access, self.size, offset, length)?;
        self.begin()?;
        self.parts(offset, length, |extent, at, _, length| match extent {
            Some(extent) => extent.write_zeroes(at, length, keep_space),
            None => Ok(()),
        })
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        check_write(self.access, self.size, offset, length)?;
        self.begin()?;
        self.parts(offset, length, |extent, at, _, length| match extent {
            Some(extent) => extent.discard(at, length),
            None => Ok(()),
        })
    }

    fn next_data(&self, offset: PhysicalAddress) -> Option<PhysicalAddress> {
        let mut start = 0;
        for (end, extent) in &self.extents {
            let within = offset.get().max(start);
            if within < *end
                && let Some(found) =
                    extent.as_ref().and_then(|e| e.next_data(PhysicalAddress(within - start)))
                && found.get() < end - start
            {
                return Some(PhysicalAddress(start + found.get()));
            }
            start = *end;
        }
        None
    }
}

/// The error of a write to an extent of type ZERO.
fn no_file() -> io::Error {
    io::Error::new(
        io::ErrorKind::ReadOnlyFilesystem,
        "this extent of the VMDK has no file, so it cannot be written",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_extents_are_parsed() {
        let parse = |line: &str| Extent::parse(line);
        let flat = |name: &str, sector| Data::Flat(name.to_owned(), sector);
        let line = parse("RW 16384 FLAT \"a b-flat.vmdk\" 128").unwrap().unwrap();
        assert_eq!(line, Extent { writable: true, sectors: 16384, data: flat("a b-flat.vmdk", 128) });
        let line = parse("RDONLY 5 VMFS \"a\"").unwrap().unwrap();
        assert_eq!(line, Extent { writable: false, sectors: 5, data: flat("a", 0) });
        let line = parse("RW 7 SPARSE \"b.vmdk\"").unwrap().unwrap();
        assert_eq!(line.data, Data::Sparse("b.vmdk".to_owned()));
        assert_eq!(parse("RW 7 ZERO").unwrap().unwrap().data, Data::Zero);
        for line in ["", "# RW 1 ZERO", "CID=00000001", "RWX 1 ZERO"] {
            assert_eq!(parse(line).unwrap(), None, "{line}");
        }
        for line in
            ["RW", "RW x ZERO", "RW 1", "RW 1 FLAT a", "RW 1 FLAT \"a", "RW 1 FLAT \"a\" x", "RW 1 SPARSE"]
        {
            assert!(parse(line).unwrap_err().to_string().contains("wrong line"), "{line}");
        }
        assert!(parse("RW 1 SESPARSE \"a\"").unwrap_err().to_string().contains("SESPARSE"));
        assert!(parse("NOACCESS 1 ZERO").is_err());
    }
}
