//! Disk images at URLs.
//!
//! Owns the steps of [`OpenOptions::open_image`] for them. They are those for files, without locks:
//! the object stores tell whether an object has changed.

use super::disk::{OpenedImage, is_raw_btrfs};
use super::format::{self, ImageFormat};
use super::{ImageOptions, ImagePart, PartitionChoice, layered};
use crate::device::Device;
use crate::error::OpenErrorKind;
use crate::layers::{LayerChoice, LayerRequest};
use crate::object_stores::{object_stores, url_text};
use crate::open::OpenOptions;
use std::path::Path;
use std::sync::Arc;

impl OpenOptions {
    fn object(&self, path: &Path, options: &ImageOptions) -> Result<Arc<dyn Device>, OpenErrorKind> {
        object_stores()?.open(url_text(path)?, self.access, &options.remote)
    }

    /// Opens the file system in the image at a URL.
    pub(super) fn open_url(
        &self,
        path: &Path,
        options: &ImageOptions,
        part: Option<ImagePart>,
    ) -> Result<Arc<dyn Device>, OpenErrorKind> {
        let object = self.object(path, options)?;
        let is_found = options.partition == PartitionChoice::Found;
        if part.is_none()
            && (options.partition == PartitionChoice::Whole || (is_found && is_raw_btrfs(&*object)))
        {
            return Ok(object);
        }
        let request = LayerRequest { path, open: self, image: options, choice: LayerChoice::Btrfs };
        layered::choose(opened(object, options)?, part, &request)
    }

    /// Opens the disk in the image at a URL.
    pub(super) fn open_url_disk(
        &self,
        path: &Path,
        options: &ImageOptions,
    ) -> Result<OpenedImage, OpenErrorKind> {
        opened(self.object(path, options)?, options)
    }
}

fn opened(object: Arc<dyn Device>, options: &ImageOptions) -> Result<OpenedImage, OpenErrorKind> {
    let format = format::recognise(&*object, false)?;
    let disk = match format {
        ImageFormat::Raw => object,
        _ => open_format(format, object, options)?,
    };
    OpenedImage::of(disk, format)
}

#[cfg(feature = "images")]
fn open_format(
    format: ImageFormat,
    object: Arc<dyn Device>,
    options: &ImageOptions,
) -> Result<Arc<dyn Device>, OpenErrorKind> {
    Ok(match format {
        ImageFormat::Raw => object,
        ImageFormat::Qcow2 => {
            let sibling = |image: &dyn Device, name: &str| -> Result<Arc<dyn Device>, OpenErrorKind> {
                let directory = image.name().rsplit_once('/').map_or("", |(directory, _)| directory);
                object_stores()?.open(
                    &format!("{directory}/{name}"),
                    crate::device::Access::ReadOnly,
                    &options.remote,
                )
            };
            Arc::new(super::remote_qcow2::open(object, &sibling)?)
        }
        ImageFormat::VmdkSparse => super::vmdk::open(object)?,
        ImageFormat::VmdkDescriptor => {
            return Err(OpenErrorKind::UnsupportedFormat(
                format.name(),
                "one of several files cannot be read from a URL",
            ));
        }
        ImageFormat::Vhdx => Arc::new(super::vhdx::open(object)?),
        ImageFormat::Xz => Arc::new(super::xz::open(object)?),
        ImageFormat::Zstd => Arc::new(super::zstd_frames::open(object)?),
        ImageFormat::Archive => super::archived::open_object(object)?,
        ImageFormat::Partclone => super::archived::open_partclone(object)?,
    })
}

#[cfg(not(feature = "images"))]
fn open_format(
    format: ImageFormat,
    _: Arc<dyn Device>,
    _: &ImageOptions,
) -> Result<Arc<dyn Device>, OpenErrorKind> {
    const WITHOUT: &str = "this program was built without the feature \"images\"";
    Err(OpenErrorKind::UnsupportedFormat(format.name(), WITHOUT))
}
