//! Updating a file system with content: [`MkfsContent::update`].
//!
//! The file system is opened as for any change, so an interruption leaves a file system that a
//! mount shows, with a part of the update. Another run does the rest.
//!
//! An image that is a regular file grows where the new content does not fit, and the update goes
//! on.

use super::content::{DEVICE, MkfsContent, NODE_CACHE_BYTES, exclude_images, host_error, is_full};
use super::options::PopulateObserver;
use super::update::Updated;
use crate::fakeroot;
use papilio_device::{is_inside_image, is_url, split_partition};
use papilio_engine::errors::{Error, Result};
use papilio_engine::options::OpenOptions;
use papilio_fs::FileSystem;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The most often that an image grows: to more than 2,000 times its size.
const GROWTHS: u32 = 11;
/// The least bytes that an image grows by.
const GROWTH_MIN: u64 = 128 << 20;

impl MkfsContent {
    /// Makes the content of the file system on `images` that of the directory `source`. Returns the
    /// amount of work.
    ///
    /// Every file is compared with the source, byte by byte, and only what differs is written.
    /// Names that the source lacks are removed. The time of the last access alone is no difference.
    /// Where files are compressed, parts of 128 KiB are compared and written, else whole sectors.
    ///
    /// The only image may grow if it is a regular file, unless the size is given
    /// ([`MkfsContent::sized`]). With [`MkfsContent::shrink`], its unused end is cut off. No data
    /// is moved for it.
    ///
    /// # Errors
    /// Errors of opening the file system, of the source, and those that the observer does not skip;
    /// no space left. The file system then has a part of the update. [`Error::Invalid`] if there
    /// are subvolumes that these options do not name, or blocks are to be shared with the source.
    pub fn update(
        &self,
        images: &[impl AsRef<Path>],
        source: impl AsRef<Path>,
        observer: &mut dyn PopulateObserver,
    ) -> Result<Updated> {
        let source = source.as_ref();
        let images: Vec<PathBuf> = images.iter().map(|image| image.as_ref().to_path_buf()).collect();
        if self.populate.reflink {
            return Err(Error::Invalid("an update compares files; it shares no blocks with them".into()));
        }
        if self.shrink && images.len() > 1 {
            return Err(Error::Invalid("only a file system on one device shrinks to its content".into()));
        }
        if self.populate.keep_attributes && self.populate.manifest.is_none() {
            fakeroot::refuse(source)?;
        }
        let mut done = Updated::default();
        let mut growths = 0;
        loop {
            match self.update_once(&images, source, growths > 0, observer, &mut done) {
                Err(error) if growths < GROWTHS && is_full(&error) && self.grow(&images)? => growths += 1,
                result => return result.map(|()| done),
            }
        }
    }

    /// Makes the only image longer. Returns whether it is a file that can become longer.
    fn grow(&self, images: &[PathBuf]) -> Result<bool> {
        let ([image], false) = (images, self.sized) else { return Ok(false) };
        if !is_plain_file(image) {
            return Ok(false);
        }
        let file = File::options().write(true).open(image).map_err(host_error(image))?;
        let length = file.metadata().map_err(host_error(image))?.len();
        file.set_len(length + length.max(GROWTH_MIN)).map_err(host_error(image))?;
        Ok(true)
    }

    fn update_once(
        &self,
        images: &[PathBuf],
        source: &Path,
        grown: bool,
        observer: &mut dyn PopulateObserver,
        done: &mut Updated,
    ) -> Result<()> {
        let image = &images[0];
        let populate = exclude_images(self.populate.clone(), images)?;
        let mut options = OpenOptions::new()
            .write(true)
            .commit_interval(None)
            .node_cache_bytes(NODE_CACHE_BYTES)
            .timestamp(self.timestamp);
        for device in &images[1..] {
            options = options.device(device);
        }
        if let Some(choice) = self.compress {
            options = options.compress(choice);
        }
        let fs = FileSystem::open_with(image, &options)?;
        if grown {
            fs.resize(DEVICE, image.metadata().map_err(host_error(image))?.len())?;
        }
        let updated = populate.update(source, &fs.inode("/")?, self.compress.is_some(), observer, done);
        let is_cut = updated.is_ok() && self.shrink;
        let length = match is_cut {
            true => fs.sync().and_then(|()| fs.resize(DEVICE, fs.minimum_size(DEVICE)?)).map(Some),
            false => Ok(None),
        };
        let closed = fs.close();
        updated?;
        closed?;
        if let Some(length) = length?
            && is_plain_file(image)
        {
            let file = File::options().write(true).open(image).map_err(host_error(image))?;
            file.set_len(length).map_err(host_error(image))?;
        }
        Ok(())
    }
}

/// Returns whether an image is a regular file that has nothing but the device.
fn is_plain_file(image: &Path) -> bool {
    !is_url(image)
        && !is_inside_image(image)
        && split_partition(image).1.is_none()
        && image.metadata().is_ok_and(|metadata| metadata.is_file())
}
