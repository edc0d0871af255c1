//! `mkfs`: makes a new, empty file system on one or several devices.
//!
//! Owns [`mkfs`], [`mkfs_many`] and [`mkfs_devices`], and their result, [`Made`]. The work has
//! three steps: [`options`] resolves the options, [`layout`] makes all blocks in memory without
//! I/O, and [`write`] writes them.
//!
//! Counterpart: btrfs-progs' `mkfs/`.

pub(super) mod block;
mod chunks;
mod facts;
mod features;
pub mod in_place;
mod kernel_version;
mod layout;
mod options;
mod rows;

#[cfg(test)]
mod tests;
mod trees;
mod write;

pub use features::{FeatureMeaning, FeatureName, FeatureVersions, MkfsFeature};
pub use kernel_version::KernelVersion;
pub use options::MkfsOptions;

use layout::MkfsLayout;
use options::Choice;
use papilio_device::{
    Access, Device, FileDevice, ImageOptions, ImageTarget, OpenError, OpenErrorKind, RemoteOptions,
    is_inside_image, object_stores, url_text,
};
use papilio_engine::errors::{Error, Result};
use papilio_engine::jobs::signature::find_signature;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::RaidProfile;
use papilio_format::superblock::Superblock;
use papilio_format::{ChecksumType, Uuid};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A description of a new file system.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Made {
    /// The UUID of the file system.
    pub fsid: Uuid,
    /// The UUID in tree blocks; it equals `fsid` unless the options set another.
    pub metadata_uuid: Uuid,
    /// The UUID of the first device.
    pub device_uuid: Uuid,
    /// The label.
    pub label: Vec<u8>,
    /// Bytes of the file system.
    pub total_bytes: u64,
    /// Bytes of tree blocks, one copy of each.
    pub bytes_used: u64,
    /// Bytes of a tree block.
    pub node_size: u32,
    /// Bytes of a sector.
    pub sector_size: u32,
    /// The checksum algorithm.
    pub checksum: ChecksumType,
    /// The features that are on.
    pub features: Vec<MkfsFeature>,
    /// The devices, by devid from 1 on.
    pub devices: Vec<MadeDevice>,
    /// The block groups, by address.
    pub block_groups: Vec<MadeBlockGroup>,
}

/// A device of a new file system.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MadeDevice {
    /// The device's UUID.
    pub uuid: Uuid,
    /// The path, or another name.
    pub name: String,
    /// Bytes of the file system on this device.
    pub total_bytes: u64,
}

/// A block group of a new file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MadeBlockGroup {
    /// Its type: data, metadata, system, or data and metadata.
    pub kind: BlockGroupFlags,
    /// Its profile.
    pub profile: RaidProfile,
    /// Its capacity in bytes; each copy takes as many bytes on the device.
    pub length: u64,
}

/// Makes a file system in the image or on the block device at `path`.
///
/// With [`MkfsOptions::size`], creates a missing regular file and extends a shorter one. A later
/// error undoes that.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let image = folder.path().join("new.img");
/// use papilio::MkfsOptions;
///
/// let made = papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20).label("backup"))?;
/// assert_eq!(made.total_bytes, 256 << 20);
///
/// let fs = papilio::FileSystem::open(&image)?;
/// assert_eq!(fs.read_dir("/")?.count(), 0);
/// // An existing file system is not overwritten by accident.
/// assert!(papilio::mkfs(&image, &MkfsOptions::new()).is_err());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// - Invalid options, or options that contradict each other.
/// - The device cannot be opened, or is in use.
/// - [`Error::TooSmall`].
/// - [`Error::Occupied`] where the device has content, unless [`MkfsOptions::force`] is set.
/// - I/O errors.
pub fn mkfs(path: impl AsRef<Path>, options: &MkfsOptions) -> Result<Made> {
    mkfs_many(&[path.as_ref()], options)
}

/// Makes a file system on several images or block devices. The first has devid 1.
///
/// [`MkfsOptions::size`] is the size on each of them, and has the effects of [`mkfs`]. It makes a
/// device at a `slatedb+` URL, which needs the crate `papilio-store`. `IMAGE@N` is a partition, and
/// a qcow2 image the disk in it. Nothing is written unless all devices can be used.
///
/// # Errors
/// - As [`mkfs`]; an image at a URL.
/// - A device twice, or too few devices for a profile.
pub fn mkfs_many(paths: &[impl AsRef<Path>], options: &MkfsOptions) -> Result<Made> {
    let choice = options.resolve(paths.len())?;
    let is_image = |path: &&Path| papilio_device::is_url(path) && !papilio_device::is_store_url(path);
    if let Some(path) = paths.iter().map(AsRef::as_ref).find(is_image) {
        return Err(OpenError { path: path.to_owned(), kind: OpenErrorKind::RemoteReadOnly }.into());
    }
    let mut undos = Vec::new();
    let size = options.size_of(None).map(|size| whole_sectors(size, &choice));
    for path in paths.iter().map(AsRef::as_ref) {
        let name = path.display().to_string();
        if let Some(size) = size {
            check_size(&name, size, &choice)?;
        }
        if is_inside_image(path) {
            continue;
        }
        if let Some(size) = size {
            undos.extend(make_file(path, size)?);
        } else if !path.exists() {
            return Err(Error::Invalid(format!("{name}: no such file; give a size to create it")));
        }
    }
    refuse_twice(paths)?;
    let mut files = Vec::new();
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for path in paths.iter().map(AsRef::as_ref) {
        let device: Arc<dyn Device> = if papilio_device::is_store_url(path) {
            open_store(path, size)?
        } else {
            let options = papilio_device::OpenOptions::new(Access::ReadWrite);
            match options.open_target(path, &ImageOptions::default())? {
                ImageTarget::Inside(device) => device,
                ImageTarget::File(file) => {
                    let file: Arc<FileDevice> = file.into();
                    files.push((path, Arc::clone(&file)));
                    file
                }
            }
        };
        refuse_occupied(&*device, options)?;
        devices.push(device);
    }
    for (path, file) in files {
        if let Some(size) = size
            && size > file.size()
            && !file.is_block_device()
        {
            let path = path.to_owned();
            undos.push(Undo { path: path.clone(), length: Some(file.size()) });
            file.resize(size).map_err(|source| Error::Host { path, source })?;
        }
    }
    let devices: Vec<_> = devices.iter().map(|device| &**device).collect();
    let made = make(&devices, options, &choice)?;
    undos.into_iter().for_each(Undo::disarm);
    Ok(made)
}

/// Makes a file system on a device that the caller opened for writing.
///
/// # Errors
/// As [`mkfs`]. The device is not extended.
pub fn mkfs_device(device: &Arc<dyn Device>, options: &MkfsOptions) -> Result<Made> {
    mkfs_devices(std::slice::from_ref(device), options)
}

/// Makes a file system on different devices that the caller opened for writing.
///
/// # Errors
/// As [`mkfs_many`]. No device is extended.
pub fn mkfs_devices(devices: &[Arc<dyn Device>], options: &MkfsOptions) -> Result<Made> {
    let choice = options.resolve(devices.len())?;
    let devices: Vec<_> = devices.iter().map(|device| &**device).collect();
    for device in &devices {
        refuse_occupied(*device, options)?;
    }
    make(&devices, options, &choice)
}

fn make(devices: &[&dyn Device], options: &MkfsOptions, choice: &Choice) -> Result<Made> {
    let mut totals = Vec::new();
    for device in devices {
        let size = options.size_of(Some(device.size())).unwrap_or_default();
        let total_bytes = whole_sectors(size, choice);
        check_size(device.name(), total_bytes, choice)?;
        if total_bytes > device.size() {
            return Err(Error::Invalid(format!(
                "{}: a file system of {total_bytes} bytes does not fit into {} bytes",
                device.name(),
                device.size()
            )));
        }
        totals.push(total_bytes);
    }
    let sum = totals.iter().try_fold(0u64, |sum, bytes| sum.checked_add(*bytes));
    if sum.is_none_or(|sum| i64::try_from(sum).is_err()) {
        return Err(Error::Invalid("the sizes of the devices together exceed a file system's".to_owned()));
    }
    let layout = MkfsLayout::new(&totals, choice)?;
    write::write(devices, &layout, !options.keep_content)?;
    Ok(describe(devices, &layout, choice))
}

/// Opens the device at a URL of an object store for writing. Makes it if `size` is given, or gives
/// it that size.
fn open_store(path: &Path, size: Option<u64>) -> Result<Arc<dyn Device>> {
    let options = RemoteOptions::default();
    let open = || {
        let (stores, url) = (object_stores()?, url_text(path)?);
        match size {
            Some(size) => stores.create(url, size, &options),
            None => stores.open(url, Access::ReadWrite, &options),
        }
    };
    Ok(open().map_err(|kind| OpenError { path: path.to_owned(), kind })?)
}

/// Refuses paths of the same file or block device.
fn refuse_twice(paths: &[impl AsRef<Path>]) -> Result<()> {
    let mut seen = Vec::new();
    for path in paths.iter().map(AsRef::as_ref).filter(|path| !is_inside_image(path)) {
        let host = |source| Error::Host { path: path.to_owned(), source };
        let metadata = std::fs::metadata(path).map_err(host)?;
        let identity = match metadata.file_type().is_block_device() {
            true => (None, metadata.rdev()),
            false => (Some(metadata.dev()), metadata.ino()),
        };
        if seen.contains(&identity) {
            return Err(Error::Invalid(format!("{}: the device is given twice", path.display())));
        }
        seen.push(identity);
    }
    Ok(())
}

/// Rounds a size down to whole sectors, as `mkfs.btrfs` does.
fn whole_sectors(bytes: u64, choice: &Choice) -> u64 {
    bytes - bytes % u64::from(choice.sector_size)
}

fn check_size(device: &str, size: u64, choice: &Choice) -> Result<()> {
    let minimum = chunks::minimum_size(choice);
    if size < minimum {
        return Err(Error::TooSmall { device: device.to_owned(), size, minimum });
    }
    // The kernel's file offsets, and so the sizes of its block devices, are signed.
    if i64::try_from(size).is_err() {
        return Err(Error::Invalid(format!("{device}: a size of {size} bytes exceeds the largest device")));
    }
    Ok(())
}

fn refuse_occupied(device: &dyn Device, options: &MkfsOptions) -> Result<()> {
    if options.force {
        return Ok(());
    }
    match find_signature(device)? {
        Some(found) => Err(Error::Occupied { device: device.name().to_owned(), found }),
        None => Ok(()),
    }
}

fn describe(devices: &[&dyn Device], layout: &MkfsLayout, choice: &Choice) -> Made {
    let Superblock { raw, .. } = &layout.superblocks[0];
    let block_group = |chunk: &chunks::Chunk| MadeBlockGroup {
        kind: chunk.flags.intersection(BlockGroupFlags::TYPE_MASK),
        profile: RaidProfile::from_flags(chunk.flags).expect("the flags of a chunk have a profile"),
        length: chunk.length,
    };
    Made {
        fsid: choice.uuids.fsid,
        metadata_uuid: choice.uuids.in_blocks(),
        device_uuid: choice.uuids.devices[0],
        label: choice.label.clone(),
        total_bytes: raw.total_bytes,
        bytes_used: raw.bytes_used,
        node_size: raw.node_size,
        sector_size: raw.sector_size,
        checksum: choice.checksum,
        features: choice.features.clone(),
        devices: devices
            .iter()
            .zip(&layout.superblocks)
            .map(|(device, Superblock { raw, .. })| MadeDevice {
                uuid: raw.dev_item.uuid,
                name: device.name().to_owned(),
                total_bytes: raw.dev_item.total_bytes,
            })
            .collect(),
        block_groups: layout.chunks.chunks.iter().map(block_group).collect(),
    }
}

/// Creates a missing regular file, or extends an empty one, to `size` bytes. Other files are
/// extended only after they are locked.
fn make_file(path: &Path, size: u64) -> Result<Option<Undo>> {
    let host = |source| Error::Host { path: path.to_owned(), source };
    let (file, undo) = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(host)?;
            (file, Undo { path: path.to_owned(), length: None })
        }
        Ok(found) if found.is_file() && found.len() == 0 => {
            let file = OpenOptions::new().write(true).open(path).map_err(host)?;
            (file, Undo { path: path.to_owned(), length: Some(0) })
        }
        // If it is not a usable device, opening it gives the best error.
        _ => return Ok(None),
    };
    file.set_len(size).map_err(host)?;
    Ok(Some(undo))
}

/// When dropped, undoes the creation or extension of a file.
struct Undo {
    path: PathBuf,
    /// Its length in bytes before, or `None` if the file did not exist.
    length: Option<u64>,
}

impl Undo {
    fn disarm(mut self) {
        self.path = PathBuf::new();
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.path.as_os_str().is_empty() {
            return;
        }
        // The caller reports the error that led here, not one of the cleanup.
        let _ = match self.length {
            None => std::fs::remove_file(&self.path),
            Some(length) => {
                OpenOptions::new().write(true).open(&self.path).and_then(|file: File| file.set_len(length))
            }
        };
    }
}
