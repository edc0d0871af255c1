//! `ImageDevice`: the disk in a qcow2 image, by the crate imago.
//!
//! It owns the driver of the format, and the locked files of the image.
//!
//! **Invariants**
//! - The driver opens no file itself: each is opened by [`Companions`].
//! - Backing files are open for reading only.
//!
//! **Locks**
//! - `disk`: shared for reads, writes and flushes, exclusive for a discard, which the driver wants
//!   for itself. The driver has locks of its own below it.

use super::companion::Companions;
use crate::device::{Access, Device, check_read, check_write, read_only};
use crate::error::OpenErrorKind;
use crate::file::FileDevice;
use imago::file::File;
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::{DenyImplicitOpenGate, FormatAccess, Mapping, StorageOpenOptions};
use papilio_format::PhysicalAddress;
use papilio_locks::RwLock;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

type Disk = Arc<FormatAccess<File>>;

/// The disk in an image.
#[derive(Debug)]
pub(super) struct ImageDevice {
    name: String,
    access: Access,
    size: u64,
    disk: RwLock<FormatAccess<File>>,
    /// Whether all data of the image itself is in its own file, which may get holes.
    punches: bool,
    /// The image itself, and further files. They hold the locks.
    files: (FileDevice, Companions),
}

/// Opens a qcow2 image.
pub(super) fn open(path: &Path, file: FileDevice, allow_all: bool) -> Result<ImageDevice, OpenErrorKind> {
    let (name, access) = (file.name().to_owned(), file.access());
    let host = file.host_file().try_clone().map_err(OpenErrorKind::Io)?;
    let mut files = Companions::new("qcow2", &file, allow_all)?;
    let image = driver(path, host, access, &mut files)?;
    let punches = !image.requires_external_data_file() && !file.is_block_device();
    let disk = FormatAccess::new(image);
    let size = disk.size();
    Ok(ImageDevice { name, access, size, disk: RwLock::new(disk), punches, files: (file, files) })
}

fn storage(path: &Path, host: std::fs::File, access: Access) -> io::Result<File> {
    let options = StorageOpenOptions::new().filename(path).write(access == Access::ReadWrite);
    File::from_open_file(host, options)
}

/// Opens one qcow2 file with its backing files.
fn driver(
    path: &Path,
    host: std::fs::File,
    access: Access,
    files: &mut Companions,
) -> Result<Qcow2<File, Disk>, OpenErrorKind> {
    let fault = |files: &Companions, error: io::Error| files.fault(format!("{}: {error}", path.display()));
    let image = storage(path, host, access).map_err(OpenErrorKind::Io)?;
    let opened = Qcow2::<File, Disk>::open_image(image, access == Access::ReadWrite);
    let mut image = opened.map_err(|error| fault(files, error))?;
    if image.requires_external_data_file() {
        let Some(name) = image.implicit_external_data_file().cloned() else {
            return Err(files.fault("it needs a data file and does not name it"));
        };
        let (path, host) = files.open(path, &name, access)?;
        image.set_data_file(Some(storage(&path, host, access).map_err(OpenErrorKind::Io)?));
    } else {
        image.set_data_file(None);
    }
    let backing = match image.implicit_backing_file().cloned() {
        None => None,
        Some(name) => {
            let (below, host) = files.open(path, &name, Access::ReadOnly)?;
            let declared = image.implicit_backing_format().map(String::as_str);
            let is_qcow2 = match declared {
                Some("qcow2") => true,
                Some("raw" | "file" | "host_device") => false,
                Some(other) => {
                    return Err(files.fault(format!("its backing file has the format {other:?}")));
                }
                // Images of QEMU before 6.1 need not say.
                None => {
                    let mut magic = [0; 4];
                    host.read_at(&mut magic, 0).map_err(OpenErrorKind::Io)?;
                    &magic == b"QFI\xfb"
                }
            };
            let disk = if is_qcow2 {
                FormatAccess::new(driver(&below, host, Access::ReadOnly, files)?)
            } else {
                let raw = storage(&below, host, Access::ReadOnly);
                let raw = raw.and_then(|raw| Raw::open_image(raw, false)).map_err(OpenErrorKind::Io)?;
                FormatAccess::new(raw)
            };
            Some(Arc::new(disk))
        }
    };
    image.set_backing(backing);
    // Opens nothing that was not set above.
    let gate = DenyImplicitOpenGate::default();
    image.open_implicit_dependencies_gated(gate).map_err(|error| fault(files, error))?;
    Ok(image)
}

/// A run of clusters of the image that nothing else refers to, neither a snapshot nor an image on
/// top of this one.
struct Own {
    /// Offset in the disk.
    guest: u64,
    /// Offset in the file.
    host: u64,
    length: u64,
}

/// Returns the clusters of a range that may be written in place, which has them to itself.
fn own_ranges(disk: &FormatAccess<File>, offset: u64, length: u64) -> Vec<Own> {
    let (mut at, end, mut own) = (offset, offset + length, Vec::new());
    while at < end {
        match disk.get_mapping(at, end - at) {
            Ok((_, 0)) | Err(_) => break,
            Ok((mapping, length)) => {
                if let Mapping::Raw { offset: host, writable: true, .. } = mapping {
                    own.push(Own { guest: at, host, length });
                }
                at += length;
            }
        }
    }
    own
}

impl Device for ImageDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn access(&self) -> Access {
        self.access
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.size, offset, buffer.len())?;
        self.disk.read().read(buffer, offset.get())
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        check_write(self.access, self.size, offset, buffer.len() as u64)?;
        self.disk.read().write(buffer, offset.get())
    }

    /// Writes the tables of the format, then makes data and tables durable.
    fn flush(&self) -> io::Result<()> {
        if self.access == Access::ReadOnly {
            return Err(read_only());
        }
        let disk = self.disk.read();
        disk.flush()?;
        disk.sync()
    }

    /// Marks whole clusters as zero, and writes zeros to the rest.
    fn write_zeroes(&self, offset: PhysicalAddress, length: u64, _keep_space: bool) -> io::Result<()> {
        check_write(self.access, self.size, offset, length)?;
        self.disk.read().write_zeroes(offset.get(), length)
    }

    /// Looks the clusters up in the tables of the image and of those below it.
    fn next_data(&self, offset: PhysicalAddress) -> Option<PhysicalAddress> {
        let disk = self.disk.read();
        let mut at = offset.get();
        while at < self.size {
            match disk.get_mapping(at, self.size - at) {
                Ok((Mapping::Zero { .. }, length)) if length > 0 => at += length,
                // A table that cannot be read is an error of the read that follows.
                _ => return Some(PhysicalAddress(at)),
            }
        }
        None
    }

    /// Frees the clusters that lie within the range, and punches those that nothing else uses out
    /// of the file.
    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        check_write(self.access, self.size, offset, length)?;
        let mut disk = self.disk.write();
        let own = if self.punches { own_ranges(&disk, offset.get(), length) } else { Vec::new() };
        disk.discard_to_any(offset.get(), length)?;
        for Own { guest, host, length } in own {
            let mut skip = 0;
            while skip < length {
                // Clusters that are still mapped were not within the range as a whole. No writer
                // takes a freed one meanwhile: the lock is exclusive.
                let (is_free, step) = match disk.get_mapping(guest + skip, length - skip) {
                    Ok((_, 0)) | Err(_) => break,
                    Ok((mapping, step)) => (matches!(mapping, Mapping::Zero { .. }), step),
                };
                if is_free {
                    self.files.0.punch(host + skip, step)?;
                }
                skip += step;
            }
        }
        Ok(())
    }
}
