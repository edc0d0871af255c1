//! The devices in a disk archive, opened as disk images are.
//!
//! Owns [`OpenOptions::open_members`]. `ARCHIVE@N` is the device with the id N.

use super::{ImageOptions, ImagePart, PartitionChoice, split_partition};
use crate::archive::{ArchiveChain, ArchiveError, ArchiveFault, is_archive};
use crate::device::{Access, Device};
use crate::error::{OpenError, OpenErrorKind};
use crate::file::FileDevice;
use crate::open::OpenOptions;
#[cfg(feature = "images")]
use crate::partclone::{PartcloneDevice, PartcloneFault};
use crate::url::is_url;
use std::path::Path;
use std::sync::Arc;

const FORMAT: &str = "Papilio archive";

impl OpenOptions {
    /// Opens a disk image as [`Self::open_image`] does. Of an archive it opens all devices, unless
    /// `ARCHIVE@N` or the options name one.
    ///
    /// # Errors
    /// As [`Self::open_image`].
    pub fn open_members(
        &self,
        path: impl AsRef<Path>,
        options: &ImageOptions,
    ) -> Result<Vec<Arc<dyn Device>>, OpenError> {
        let path = path.as_ref();
        let is_whole =
            options.partition == PartitionChoice::Found && !is_url(path) && split_partition(path).1.is_none();
        if is_whole && is_archive(path) {
            let failed = |kind| OpenError::new(path, kind);
            return open_chain(path, self.open(path)?)
                .and_then(|chain| chain.devices().map_err(open_error))
                .map_err(failed);
        }
        Ok(vec![self.open_image(path, options)?])
    }
}

fn open_error(error: ArchiveError) -> OpenErrorKind {
    match error.fault {
        ArchiveFault::Io(source) => OpenErrorKind::Io(source),
        _ => OpenErrorKind::Image { format: FORMAT, reason: error.to_string() },
    }
}

fn open_chain(path: &Path, file: FileDevice) -> Result<Arc<ArchiveChain>, OpenErrorKind> {
    if file.access() == Access::ReadWrite {
        let why = "it can only be opened for reading; papilio image restore makes an image of it";
        return Err(OpenErrorKind::UnsupportedFormat(FORMAT, why));
    }
    ArchiveChain::open_path(path, Arc::new(file), &[]).map(Arc::new).map_err(open_error)
}

/// Opens a device of an archive: the one that is named, or else the first.
pub(super) fn open_member(
    path: &Path,
    file: FileDevice,
    part: Option<ImagePart>,
    options: &ImageOptions,
) -> Result<Arc<dyn Device>, OpenErrorKind> {
    let chain = open_chain(path, file)?;
    let wanted = match (&part, &options.partition) {
        (Some(ImagePart::Number(number)), _) => Some(*number),
        (None, PartitionChoice::Number(number)) => Some(*number),
        (None, PartitionChoice::Found | PartitionChoice::Whole) => None,
        (Some(part), _) => return Err(no_device(&chain, part.to_string())),
        (None, PartitionChoice::Named(name)) => return Err(no_device(&chain, name.clone())),
    };
    member(&chain, wanted)
}

/// Opens the first device of an archive at a URL, which must be a full one of one device.
#[cfg(feature = "images")]
pub(super) fn open_object(object: Arc<dyn Device>) -> Result<Arc<dyn Device>, OpenErrorKind> {
    let chain = ArchiveChain::open(object, &mut |_| Ok(None)).map_err(open_error)?;
    let count = chain.newest().map().devices().len();
    if count > 1 {
        let reason = format!("it has {count} devices: download it, to read it");
        return Err(OpenErrorKind::Image { format: FORMAT, reason });
    }
    member(&Arc::new(chain), None)
}

/// Opens the device in an image of partclone.
#[cfg(feature = "images")]
pub(super) fn open_partclone(file: Arc<dyn Device>) -> Result<Arc<dyn Device>, OpenErrorKind> {
    let opened = PartcloneDevice::open(file).map_err(|error| match error.fault {
        PartcloneFault::Io(source) => OpenErrorKind::Io(source),
        _ => OpenErrorKind::Image { format: "partclone", reason: error.to_string() },
    })?;
    Ok(Arc::new(opened))
}

fn member(chain: &Arc<ArchiveChain>, wanted: Option<u32>) -> Result<Arc<dyn Device>, OpenErrorKind> {
    let items = chain.newest().map().devices();
    let index = match wanted {
        None => Some(0),
        Some(number) => items.iter().position(|item| item.devid.0 == u64::from(number)),
    };
    let devices = chain.devices().map_err(open_error)?;
    let found = index.and_then(|index| devices.get(index).cloned());
    found.ok_or_else(|| no_device(chain, wanted.unwrap_or_default().to_string()))
}

fn no_device(chain: &ArchiveChain, wanted: String) -> OpenErrorKind {
    let ids = chain.newest().map().devices().iter().map(|item| item.devid.to_string());
    let found = format!("the archive has the devices {}", ids.collect::<Vec<_>>().join(", "));
    OpenErrorKind::NoPartition { wanted, found }
}
