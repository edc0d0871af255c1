//! Disk images as people have them: the format of the file, then the partition in it.
//!
//! Owns [`OpenOptions::open_image`].
//!
//! The steps, in order:
//! 1. Open and lock the file, as for any device.
//! 2. If the superblock of Btrfs is in its place, the file is a raw image and nothing else: its
//!    first 64 KiB are not read.
//! 3. Recognise the format by its magic number, and open the disk that it describes.
//! 4. Look for the superblock again, then for a partition table, and choose a partition.
//! 5. Open the layers over it, such as an encrypted volume, if the program installed layers.
//!
//! A guest decides about the first bytes of a raw disk, so it can make its disk look like a qcow2
//! image that names other files as its parts. Therefore an image names only files of its own
//! directory and below, unless [`ImageOptions::allow_backing`] is set, and a file that looks like
//! both a qcow2 image and a partitioned disk is refused.

mod archived;
#[cfg(feature = "images")]
mod blocks;
mod choice;
#[cfg(feature = "images")]
mod companion;
mod disk;
mod format;
mod layered;
mod options;
#[cfg(feature = "images")]
mod qcow2;
mod remote;
#[cfg(feature = "images")]
mod remote_qcow2;
#[cfg(feature = "images")]
mod sparse;
#[cfg(feature = "images")]
mod vhdx;
#[cfg(feature = "images")]
mod vmdk;
#[cfg(feature = "images")]
mod xz;
#[cfg(feature = "images")]
mod zstd_frames;

pub use choice::{ImagePart, PartitionChoice, split_partition};
pub use disk::OpenedImage;
pub use format::ImageFormat;
pub use options::ImageOptions;

use crate::archive;
use crate::device::{Access, Device};
use crate::error::{OpenError, OpenErrorKind};
use crate::file::FileDevice;
use crate::layers::{LayerChoice, LayerRequest};
use crate::open::OpenOptions;
use crate::url::{is_store_url, is_url};
use disk::is_raw_btrfs;
use papilio_format::PhysicalAddress;
use std::path::Path;
use std::sync::Arc;

/// A device whose content is to be replaced.
#[derive(Debug)]
pub enum ImageTarget {
    /// A file, which may be extended, or a block device.
    File(Box<FileDevice>),
    /// A part of an image, a disk in one, or a device in an object store. Its size is fixed.
    Inside(Arc<dyn Device>),
}

impl ImageTarget {
    /// Returns the device.
    pub fn into_device(self) -> Arc<dyn Device> {
        match self {
            Self::File(file) => Arc::from(file as Box<dyn Device>),
            Self::Inside(device) => device,
        }
    }
}

enum TargetKind {
    File,
    Disk,
    Partition,
}

fn target_kind(path: &Path) -> TargetKind {
    if split_partition(path).1.is_some() {
        return TargetKind::Partition;
    }
    if is_store_url(path) {
        return TargetKind::Disk;
    }
    let is_container = || {
        let file = OpenOptions::new(Access::ReadOnly).lock(false).open(path).ok()?;
        let mut start = [0; format::LONGEST_MAGIC];
        let length = file.size().min(start.len() as u64) as usize;
        file.read_at(&mut start[..length], PhysicalAddress(0)).ok()?;
        // A raw image of a file system may begin with any bytes.
        let is_raw = file.is_block_device() || is_raw_btrfs(&file);
        let format = format::by_magic(&start)?;
        Some(format.holds_a_disk() && !is_raw)
    };
    if is_container() == Some(true) { TargetKind::Disk } else { TargetKind::File }
}

/// Returns whether [`OpenOptions::open_target`] opens something inside `path`, whose size is fixed.
pub fn is_inside_image(path: &Path) -> bool {
    !matches!(target_kind(path), TargetKind::File)
}

/// Returns whether `path` is a regular file in which Btrfs begins at the first byte, so that the
/// file's length may follow the size of the file system. The other bytes of a disk with partitions
/// or of a qcow2 image belong to others.
pub fn is_raw_file(path: &Path) -> bool {
    !is_inside_image(path)
        && OpenOptions::new(Access::ReadOnly)
            .lock(false)
            .open(path)
            .is_ok_and(|file| !file.is_block_device() && is_raw_btrfs(&file))
}

/// Returns whether layers lie on the file or block device at `path`, or on its partitions, and no
/// Btrfs file system is on it otherwise.
pub fn has_layers(path: &Path) -> bool {
    if is_url(path) || !layered::are_installed() {
        return false;
    }
    let options = OpenOptions::new(Access::ReadOnly).lock(false);
    let Ok(file) = options.open(path) else { return false };
    if is_raw_btrfs(&file) {
        return layered::is_layer(&file);
    }
    options.opened(path, file, &ImageOptions::default()).is_ok_and(|image| layered::is_on(&image))
}

impl OpenOptions {
    /// Opens a disk image of any format that is known, or a block device, and the partition in it
    /// that has the file system. A raw image of a file system is opened as by [`Self::open`].
    ///
    /// # Errors
    /// As [`Self::open`]; a format that cannot be opened, or not for writing; a damaged image; no
    /// such partition, or several with Btrfs and no choice.
    pub fn open_image(
        &self,
        path: impl AsRef<Path>,
        options: &ImageOptions,
    ) -> Result<Arc<dyn Device>, OpenError> {
        let path = path.as_ref();
        let (path, part) = split_partition(path);
        let failed = |kind| OpenError::new(path, kind);
        if is_url(path) {
            return self.open_url(path, options, part).map_err(failed);
        }
        let file = self.open(path)?;
        let is_found = options.partition == PartitionChoice::Found;
        if options.partition != PartitionChoice::Whole && archive::has_magic(&file) && !is_raw_btrfs(&file) {
            return archived::open_member(path, file, part, options).map_err(failed);
        }
        if part.is_none()
            && (options.partition == PartitionChoice::Whole
                || (is_found && is_raw_btrfs(&file) && !layered::is_layer(&file)))
        {
            return Ok(Arc::new(file));
        }
        let image = self.opened(path, file, options).map_err(failed)?;
        layered::choose(
            image,
            part,
            &LayerRequest { path, open: self, image: options, choice: LayerChoice::Btrfs },
        )
        .map_err(failed)
    }

    /// Opens a disk image and reads its partition table.
    ///
    /// # Errors
    /// As [`Self::open_image`].
    pub fn open_disk(
        &self,
        path: impl AsRef<Path>,
        options: &ImageOptions,
    ) -> Result<OpenedImage, OpenError> {
        let path = path.as_ref();
        if is_url(path) {
            return self.open_url_disk(path, options).map_err(|kind| OpenError::new(path, kind));
        }
        let opened = self.opened(path, self.open(path)?, options);
        let image = opened.map_err(|kind| OpenError::new(path, kind))?;
        match format::is_encrypted(&*image.disk) {
            true => Err(OpenError::new(path, OpenErrorKind::Encrypted)),
            false => Ok(image),
        }
    }

    /// As [`Self::open_disk`], without the check for encryption: the disk's layers are looked at
    /// next. URLs are not opened.
    ///
    /// # Errors
    /// As [`Self::open_image`].
    pub fn open_base(
        &self,
        path: impl AsRef<Path>,
        options: &ImageOptions,
    ) -> Result<OpenedImage, OpenError> {
        let path = path.as_ref();
        self.opened(path, self.open(path)?, options).map_err(|kind| OpenError::new(path, kind))
    }

    /// Opens a device whose content is to be replaced: the partition of `IMAGE@N`, the volume of
    /// `IMAGE@GROUP/VOLUME`, the disk in a qcow2, VMDK or VHDX image, a device in an object store,
    /// or else the file or block device itself. Only `GROUP/VOLUME` and `top` name devices over
    /// others.
    ///
    /// # Errors
    /// As [`Self::open_image`].
    pub fn open_target(
        &self,
        path: impl AsRef<Path>,
        options: &ImageOptions,
    ) -> Result<ImageTarget, OpenError> {
        let path = path.as_ref();
        match target_kind(path) {
            TargetKind::File => Ok(ImageTarget::File(Box::new(self.open(path)?))),
            TargetKind::Disk => self.open_disk(path, options).map(|disk| ImageTarget::Inside(disk.disk)),
            TargetKind::Partition => match split_partition(path) {
                (file, Some(part @ (ImagePart::Number(_) | ImagePart::Offset(_)))) if !is_url(file) => {
                    let failed = |kind| OpenError::new(file, kind);
                    let image = self.opened(file, self.open(file)?, options).map_err(failed)?;
                    layered::part_itself(image, &part).map(ImageTarget::Inside).map_err(failed)
                }
                _ => self.open_image(path, options).map(ImageTarget::Inside),
            },
        }
    }

    /// Opens the device of a file system that exists: as [`Self::open_image`] where a partition, a
    /// container or a layer is in between, and otherwise the file or block device itself, whatever
    /// it contains.
    ///
    /// # Errors
    /// As [`Self::open_image`].
    pub fn open_existing(
        &self,
        path: impl AsRef<Path>,
        options: &ImageOptions,
    ) -> Result<Arc<dyn Device>, OpenError> {
        let path = path.as_ref();
        match target_kind(path) {
            TargetKind::File if !has_layers(path) => Ok(Arc::new(self.open(path)?)),
            TargetKind::Disk => self.open_disk(path, options).map(|disk| disk.disk),
            _ => self.open_image(path, options),
        }
    }

    fn opened(
        &self,
        path: &Path,
        file: FileDevice,
        options: &ImageOptions,
    ) -> Result<OpenedImage, OpenErrorKind> {
        let format = format::recognise(&file, file.is_block_device())?;
        let disk: Arc<dyn Device> = match format {
            ImageFormat::Raw => Arc::new(file),
            _ => {
                // The host's page cache serves the small reads of the format's tables. The lock
                // ends with the file, so the file is not opened again where it is buffered already.
                let file = match file.alignment() {
                    1 => file,
                    _ => {
                        drop(file);
                        self.clone()
                            .direct(false)
                            .without_fallback()
                            .open(path)
                            .map_err(|error| error.kind)?
                    }
                };
                open_format(format, path, file, options)?
            }
        };
        OpenedImage::of(disk, format)
    }
}

#[cfg(feature = "images")]
fn open_format(
    format: ImageFormat,
    path: &Path,
    file: FileDevice,
    options: &ImageOptions,
) -> Result<Arc<dyn Device>, OpenErrorKind> {
    let access = file.access();
    match format {
        ImageFormat::Qcow2 => Ok(Arc::new(qcow2::open(path, file, options.allow_backing)?)),
        ImageFormat::VmdkDescriptor => {
            Ok(Arc::new(vmdk::open_descriptor(path, file, options.allow_backing)?))
        }
        ImageFormat::VmdkSparse if access == Access::ReadWrite => {
            Ok(Arc::new(vmdk::open_writable(Arc::new(file))?))
        }
        ImageFormat::Vhdx if access == Access::ReadWrite => {
            Ok(Arc::new(vhdx::open_writable(Arc::new(file))?))
        }
        _ if access == Access::ReadWrite => {
            Err(OpenErrorKind::UnsupportedFormat(format.name(), "it can only be opened for reading"))
        }
        ImageFormat::VmdkSparse => vmdk::open(Arc::new(file)),
        ImageFormat::Vhdx => Ok(Arc::new(vhdx::open(Arc::new(file))?)),
        ImageFormat::Xz => Ok(Arc::new(xz::open(Arc::new(file))?)),
        ImageFormat::Zstd => Ok(Arc::new(zstd_frames::open(Arc::new(file))?)),
        ImageFormat::Raw => Ok(Arc::new(file)),
        ImageFormat::Archive => archived::open_member(path, file, None, options),
        ImageFormat::Partclone => archived::open_partclone(Arc::new(file)),
    }
}

#[cfg(not(feature = "images"))]
fn open_format(
    format: ImageFormat,
    _path: &Path,
    file: FileDevice,
    _options: &ImageOptions,
) -> Result<Arc<dyn Device>, OpenErrorKind> {
    match format {
        ImageFormat::Raw => Ok(Arc::new(file)),
        _ => Err(OpenErrorKind::UnsupportedFormat(
            format.name(),
            "this program was built without the feature \"images\"",
        )),
    }
}

#[cfg(all(test, feature = "images"))]
mod tests;
