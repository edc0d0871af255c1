//! Disk archives of file systems: the public functions of `papilio_progs::archive`.
//!
//! Owns [`FileSystem::archive`], [`restore_archive`], and [`SpillDevice`], by which an archive is
//! restored to a device that is smaller than the one that it was made of. The bytes that do not fit
//! go to a temporary file first, and are moved by shrinking the file system.

use crate::file_system::FileSystem;
use papilio_device::archive::ArchiveChain;
use papilio_device::partclone::PartcloneReader;
use papilio_device::{Access, Device, check_read, check_write};
use papilio_engine::errors::{Error, Result};
use papilio_engine::options::OpenOptions;
use papilio_engine::volume::superblock_of;
use papilio_format::PhysicalAddress;
use papilio_format::superblock::{SUPERBLOCK_MIRRORS, SUPERBLOCK_SIZE, superblock_offset};
use papilio_progs::archive::{
    ArchiveCreated, ArchiveOptions, ArchiveParent, ArchiveRestored, ArchiveSource, create_archive,
    restore_archive as restore_frames, restore_partclone as restore_blocks, restore_sizes, write_superblocks,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

impl FileSystem {
    /// Commits, and writes an archive of that commit: the used bytes of all devices, from which
    /// [`restore_archive`] makes the same file system again. With `parent`, it has only what that
    /// archive does not have. Calls `progress` with the bytes done and all.
    ///
    /// The file system may change meanwhile: the space of the commit is not reused until the
    /// archive is written. Only data that is overwritten in place (files without copy-on-write) is
    /// archived as it is when it is read.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let fs = papilio::FileSystem::open("/dev/sdb1")?;
    /// let mut out = std::io::BufWriter::new(std::fs::File::create("sdb1.pbk")?);
    /// fs.archive(None, &mut out, &papilio::archive::ArchiveOptions::new(), |_, _| {})?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A file system on seeds; a parent of another file system, or a newer one; a tree or data that
    /// cannot be read; `out` fails; the commit fails.
    pub fn archive(
        &self,
        parent: Option<Arc<ArchiveChain>>,
        out: &mut dyn io::Write,
        options: &ArchiveOptions,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<ArchiveCreated> {
        let mut options = *options;
        let (view, _pin) = match self.info.trees.transactions() {
            None => (self.clone(), None),
            Some(transactions) => {
                self.sync()?;
                // An fsync may write a log at any time, and the next commit frees its blocks.
                options = options.log(false);
                // The superblock and the chunks that this handle keeps are those in memory.
                transactions.between_commits(|_| {
                    let pin = transactions.pin();
                    let devices = self.info.volume().devices();
                    let present = devices.iter().filter_map(|slot| slot.device.clone()).collect();
                    let open = OpenOptions::new().degraded(true).replay_log(false).allow_older(true);
                    Ok::<_, Error>((FileSystem::from_devices(present, &open)?, Some(pin)))
                })?
            }
        };
        let opened = match &parent {
            None => None,
            Some(chain) => {
                let devices = chain.devices().map_err(|error| Error::Invalid(error.to_string()))?;
                let open = OpenOptions::new().replay_log(false).allow_older(true);
                Some(FileSystem::from_devices(devices, &open)?)
            }
        };
        let parent = parent.as_deref().zip(opened.as_ref());
        let parent = parent.map(|(chain, opened)| ArchiveParent { chain, trees: &opened.info.trees });
        create_archive(&view.info.trees, parent, out, &options, &mut progress)
    }
}

/// Restores an archive to devices, in the order of their ids. `sources` are a chain, the full
/// archive first. A device may be larger, and keeps its rest unused; or smaller, if the used bytes
/// fit: the file system is then shrunk to it, with temporary files in `temporary` for what lies
/// behind its end. Calls `progress` with the bytes that were read of the archives.
///
/// # Errors
/// Archives that are damaged or no chain; another number of devices;
/// [`Error::NoSpace`](papilio_engine::Error::NoSpace) if a device is too small; a device fails.
/// The devices have no superblock then.
pub fn restore_archive(
    sources: &mut [ArchiveSource],
    devices: &[Arc<dyn Device>],
    temporary: &Path,
    mut progress: impl FnMut(u64),
) -> Result<ArchiveRestored> {
    let sizes = sources.last().map(restore_sizes).unwrap_or_default();
    let is_smaller = devices.len() == sizes.len()
        && devices.iter().zip(&sizes).any(|(device, size)| device.size() < *size);
    let map_of = |sources: &[ArchiveSource]| sources.last().map(|source| source.map().clone());
    if !is_smaller {
        let restored = restore_frames(sources, devices, &mut progress)?;
        if let Some(map) = map_of(sources) {
            write_superblocks(&map, devices)?;
        }
        return Ok(restored);
    }
    let spills = devices
        .iter()
        .zip(&sizes)
        .map(|(device, size)| SpillDevice::new(Arc::clone(device), *size, temporary).map(Arc::new));
    let spills = spills.collect::<Result<Vec<_>>>()?;
    let shown: Vec<_> = spills.iter().map(|spill| Arc::clone(spill) as Arc<dyn Device>).collect();
    let restored = restore_frames(sources, &shown, &mut progress)?;
    if let Some(map) = map_of(sources) {
        write_superblocks(&map, &shown)?;
    }
    shrink(&spills)?;
    Ok(restored)
}

/// Restores an image of partclone to a device, and returns the bytes that were written. A smaller
/// device than that of the image is filled as by [`restore_archive`]. Calls `progress` with the
/// bytes that were read of the image, decompressed.
///
/// # Errors
/// As [`restore_archive`].
pub fn restore_partclone<R: io::Read>(
    reader: &mut PartcloneReader<R>,
    device: &Arc<dyn Device>,
    temporary: &Path,
    mut progress: impl FnMut(u64),
) -> Result<u64> {
    let size = reader.layout().device_size();
    if device.size() >= size {
        return restore_blocks(reader, &**device, &mut progress);
    }
    let spill = Arc::new(SpillDevice::new(Arc::clone(device), size, temporary)?);
    let written = restore_blocks(reader, &*spill, &mut progress)?;
    shrink(&[spill])?;
    Ok(written)
}

/// Shrinks the file system on devices to those below them.
fn shrink(spills: &[Arc<SpillDevice>]) -> Result<()> {
    let shown = spills.iter().map(|spill| Arc::clone(spill) as Arc<dyn Device>).collect();
    let options = OpenOptions::new().write(true).commit_interval(None);
    let system = FileSystem::from_devices(shown, &options)?;
    for spill in spills {
        let item = superblock_of(&**spill, 0)?.raw.dev_item;
        if spill.base.size() < item.total_bytes {
            system.shrink(item.devid, spill.base.size(), |_| true)?;
        }
    }
    system.close()?;
    spills.iter().try_for_each(|spill| spill.settle())
}

/// A device that continues in a temporary file, and keeps its superblocks in memory until
/// [`SpillDevice::settle`].
#[derive(Debug)]
struct SpillDevice {
    base: Arc<dyn Device>,
    size: u64,
    rest: File,
    superblocks: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl SpillDevice {
    fn new(base: Arc<dyn Device>, size: u64, temporary: &Path) -> Result<Self> {
        let host = |source| Error::Host { path: temporary.to_path_buf(), source };
        let rest = tempfile::tempfile_in(temporary).map_err(host)?;
        let size = size.max(base.size());
        rest.set_len(size - base.size()).map_err(host)?;
        Ok(Self { base, size, rest, superblocks: Mutex::default() })
    }

    /// Writes the superblocks to the device, which has all else by now.
    fn settle(&self) -> Result<()> {
        let failed = |offset, length, source| Error::Device {
            device: self.base.name().to_owned(),
            operation: "write",
            offset,
            length,
            source,
        };
        self.base.flush().map_err(|source| failed(PhysicalAddress(0), 0, source))?;
        let held = self.superblocks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (place, bytes) in held.iter().rev() {
            if place + bytes.len() as u64 <= self.base.size() {
                let place = PhysicalAddress(*place);
                self.base.write_at(bytes, place).map_err(|source| failed(place, bytes.len(), source))?;
            }
        }
        self.base.flush().map_err(|source| failed(PhysicalAddress(0), 0, source))
    }

    /// Returns whether a range is a whole superblock.
    fn is_superblock(&self, offset: u64, length: usize) -> bool {
        let mut places = (0..SUPERBLOCK_MIRRORS).map(superblock_offset);
        length == SUPERBLOCK_SIZE && places.any(|place| place.0 == offset)
    }

    /// Returns how much of a range is on the device itself.
    fn on_base(&self, offset: u64, length: usize) -> usize {
        self.base.size().saturating_sub(offset).min(length as u64) as usize
    }
}

impl Device for SpillDevice {
    fn name(&self) -> &str {
        self.base.name()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn access(&self) -> Access {
        self.base.access()
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.size, offset, buffer.len())?;
        if self.is_superblock(offset.0, buffer.len()) {
            let held = self.superblocks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match held.get(&offset.0) {
                Some(bytes) => buffer.copy_from_slice(bytes),
                None => buffer.fill(0),
            }
            return Ok(());
        }
        let split = self.on_base(offset.0, buffer.len());
        let (head, tail) = buffer.split_at_mut(split);
        if !head.is_empty() {
            self.base.read_at(head, offset)?;
        }
        match tail.is_empty() {
            true => Ok(()),
            false => self.rest.read_exact_at(tail, offset.0 + split as u64 - self.base.size()),
        }
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        check_write(self.access(), self.size, offset, buffer.len() as u64)?;
        if self.is_superblock(offset.0, buffer.len()) {
            let mut held = self.superblocks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            held.insert(offset.0, buffer.to_vec());
            if offset.0 + buffer.len() as u64 <= self.base.size() && buffer.iter().all(|byte| *byte == 0) {
                // The old superblock goes at once.
                return self.base.write_at(buffer, offset);
            }
            return Ok(());
        }
        let split = self.on_base(offset.0, buffer.len());
        let (head, tail) = buffer.split_at(split);
        if !head.is_empty() {
            self.base.write_at(head, offset)?;
        }
        match tail.is_empty() {
            true => Ok(()),
            false => self.rest.write_all_at(tail, offset.0 + split as u64 - self.base.size()),
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.base.flush()
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        check_write(self.access(), self.size, offset, length)
    }
}
