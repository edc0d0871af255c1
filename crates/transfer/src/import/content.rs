//! Making file systems with content: [`MkfsContent`].
//!
//! Without a given size, the size is estimated from the content. If the estimate turns out too
//! small, the file system is created again with twice the size. It has a temporary magic until it
//! is complete, so that an interruption leaves nothing that looks complete.
//!
//! Counterpart: btrfs-progs' `mkfs/main.c` with `--rootdir`.

use super::layers::Layer;
use super::options::{Populate, PopulateObserver, Populated};
use crate::fakeroot;
use papilio_device::{is_inside_image, is_url, split_partition};
use papilio_engine::errors::{Error, Result};
use papilio_engine::options::{CompressionChoice, OpenOptions};
use papilio_format::DeviceId;
use papilio_format::items::inode::Timespec;
use papilio_fs::FileSystem;
use papilio_progs::mkfs::{Made, MkfsOptions, mkfs_many};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The device of a new file system on one device.
pub(super) const DEVICE: DeviceId = DeviceId(1);
/// The size in bytes of the sparse image for content from a stream, whose size is unknown. The
/// image is shrunk afterwards.
const STREAM_BYTES: u64 = 48 << 30;
/// The chunks that the content is spread over if the file system is shrunk: each kind of them
/// leaves at most one partly empty.
const CHUNKS: u64 = 128;
const CHUNK_MIN: u64 = 2 << 20;
const CHUNK_MAX: u64 = 1 << 30;
/// The most bytes of a chunk for content from a stream.
const STREAM_CHUNK: u64 = 16 << 20;
/// The maximal number of estimates to try.
const ATTEMPTS: u32 = 5;
/// The size in bytes of the cache of tree blocks. It holds the blocks of one commit and the next,
/// and some that were written. Files arrive in the order of their names, so few blocks are needed
/// again.
pub(super) const NODE_CACHE_BYTES: usize = 48 << 20;

/// The content of a new file system.
#[non_exhaustive]
pub enum ContentSource<'a> {
    /// A directory of the host.
    Directory(PathBuf),
    /// A tar archive in a regular file, plain or compressed.
    Archive(PathBuf),
    /// A tar archive from a pipe, which is read once. The path names it in errors.
    Stream(PathBuf, Box<dyn Read + 'a>),
    /// Several contents on top of one another, the lowest first.
    Layers(Vec<Layer>),
}

impl ContentSource<'static> {
    /// Returns the directory, the archive or, for another kind of file, the stream at `path`.
    ///
    /// # Errors
    /// The host's, such as for a path that does not exist.
    pub fn at(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let metadata = path.metadata().map_err(host_error(path))?;
        if metadata.is_dir() {
            return Ok(Self::Directory(path.to_path_buf()));
        }
        match metadata.is_file() {
            true => Ok(Self::Archive(path.to_path_buf())),
            false => Ok(Self::Stream(path.to_path_buf(), Box::new(open(path)?))),
        }
    }
}

impl ContentSource<'_> {
    /// Returns the directories of the host that are copied.
    fn directories(&self) -> Vec<&Path> {
        match self {
            Self::Directory(directory) => vec![directory],
            Self::Layers(layers) => {
                let directories = layers.iter().filter_map(|layer| match layer {
                    Layer::Directory(path) => Some(path.as_path()),
                    _ => None,
                });
                directories.collect()
            }
            Self::Archive(_) | Self::Stream(..) => Vec::new(),
        }
    }

    /// Returns the size of a file system for the content; `None` for a stream.
    fn estimated_size(&self, populate: &Populate) -> Result<Option<u64>> {
        Ok(Some(match self {
            Self::Directory(directory) => populate.estimated_size(directory)?,
            Self::Archive(archive) => populate.estimated_size_of_tar(archive, open(archive)?)?,
            Self::Layers(layers) => populate.estimated_size_of_layers(layers)?,
            Self::Stream(..) => return Ok(None),
        }))
    }

    fn fill(
        &mut self,
        fs: &FileSystem,
        populate: &Populate,
        observer: &mut dyn PopulateObserver,
    ) -> Result<Populated> {
        let top = fs.inode("/")?;
        match self {
            Self::Layers(layers) => populate.layers(layers, &top, observer),
            Self::Directory(directory) => populate.directory(directory, &top, observer),
            Self::Archive(path) => populate.tar(&path, open(path)?, &top, observer),
            Self::Stream(name, stream) => populate.tar(name, stream, &top, observer),
        }
    }
}

/// Makes file systems with content: a directory, an archive, or layers of them.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let (image, source) = (folder.path().join("new.img"), folder.path().join("source"));
/// # std::fs::create_dir(&source)?;
/// # std::fs::write(source.join("file"), "content")?;
/// use papilio::{ContentSource, FileSystem, MkfsContent, MkfsOptions};
///
/// let content = ContentSource::Directory(source);
/// let make = MkfsContent::new().shrink(true);
/// let (made, done) = make.make(&[&image], &MkfsOptions::new(), content, &mut ())?;
/// assert_eq!((done.entries, image.metadata()?.len()), (1, made.total_bytes));
/// assert_eq!(FileSystem::open(&image)?.read("/file")?, b"content");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct MkfsContent {
    pub(super) populate: Populate,
    pub(super) compress: Option<CompressionChoice>,
    pub(super) timestamp: Option<Timespec>,
    pub(super) shrink: bool,
    pub(super) sized: bool,
}

impl MkfsContent {
    /// The defaults: all attributes are kept, nothing is compressed, and the size of new images is
    /// estimated from the content.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how the content is copied.
    pub fn populate(mut self, populate: Populate) -> Self {
        self.populate = populate;
        self
    }

    /// Compresses the files.
    pub fn compress(mut self, choice: Option<CompressionChoice>) -> Self {
        self.compress = choice;
        self
    }

    /// Sets the time of all changes (default: the clock's).
    pub fn timestamp(mut self, time: Option<Timespec>) -> Self {
        self.timestamp = time;
        self
    }

    /// Sets whether the file system, and the image if it is a regular file, shrink to the content
    /// (default false). This works on one device only.
    pub fn shrink(mut self, shrink: bool) -> Self {
        self.shrink = shrink;
        self
    }

    /// Sets whether the size in the options of mkfs counts (default false). Otherwise a missing or
    /// empty image, or a file that is too short, gets the size that the content needs.
    pub fn sized(mut self, sized: bool) -> Self {
        self.sized = sized;
        self
    }

    /// Makes the file system on `images` and fills it. After a failure, images that were missing
    /// are missing again, and files that were empty are empty.
    ///
    /// # Errors
    /// Errors of mkfs, of the source, and those that the observer does not skip; no space left, if
    /// the size was given. [`Error::Invalid`] for several images that are to shrink, or to be as
    /// large as the content of a stream, and as [`Populate::directory`].
    pub fn make(
        &self,
        images: &[impl AsRef<Path>],
        options: &MkfsOptions,
        mut source: ContentSource<'_>,
        observer: &mut dyn PopulateObserver,
    ) -> Result<(Made, Populated)> {
        if self.populate.keep_attributes && self.populate.manifest.is_none() {
            source.directories().into_iter().try_for_each(fakeroot::refuse)?;
        }
        let images: Vec<PathBuf> = images.iter().map(|image| image.as_ref().to_path_buf()).collect();
        if self.shrink && images.len() > 1 {
            return Err(Error::Invalid("only a file system on one device shrinks to its content".into()));
        }
        let missing: Vec<_> = images.iter().filter(|image| is_to_be_made(image)).collect();
        let new = missing.len() == images.len();
        if new && !self.sized && images.len() > 1 && matches!(source, ContentSource::Stream(..)) {
            let text = "content from a stream on several devices needs a size";
            return Err(Error::Invalid(text.to_owned()));
        }
        let existed: Vec<_> = missing.iter().map(|image| image.exists()).collect();
        let mut build = Build { options: self, images: &images, source: &mut source, observer };
        let grows = !self.sized && (new || build.outgrows_file()?);
        let made = match grows {
            _ if self.shrink => build.shrunk(options, grows),
            true => build.sized_by_content(options),
            false => match build.once(options, None) {
                Err(error) if !self.sized && is_full(&error) && build.empty_file()? => {
                    build.sized_by_content(options)
                }
                made => made,
            },
        };
        if made.is_err() {
            for (image, existed) in missing.into_iter().zip(existed) {
                // Removes a partial image. That may fail because the image was never created.
                let _ = match existed {
                    true => File::options().write(true).truncate(true).open(image).map(drop),
                    false => std::fs::remove_file(image),
                };
            }
        }
        made
    }
}

/// The creation of a file system with content.
struct Build<'b, 's> {
    options: &'b MkfsContent,
    images: &'b [PathBuf],
    source: &'b mut ContentSource<'s>,
    observer: &'b mut dyn PopulateObserver,
}

/// Returns whether an image is missing, or an empty regular file, which stands for a missing one.
pub fn is_to_be_made(image: &Path) -> bool {
    image.metadata().map_or(true, |metadata| metadata.is_file() && metadata.len() == 0)
}

impl Build<'_, '_> {
    /// Returns whether the only image is a regular file that is too short for the content.
    fn outgrows_file(&self) -> Result<bool> {
        let [image] = self.images else { return Ok(false) };
        if is_inside_image(image) || split_partition(image).1.is_some() {
            return Ok(false);
        }
        let length = match image.metadata() {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            _ => return Ok(false),
        };
        let Some(needed) = self.source.estimated_size(&self.options.populate)? else { return Ok(false) };
        // An estimate is generous. A file that is nearly long enough is tried as it is.
        Ok(length < needed / 2)
    }

    /// Empties the only image if it is a regular file, so that it can be made with another size.
    fn empty_file(&self) -> Result<bool> {
        let [image] = self.images else { return Ok(false) };
        let is_file = image.metadata().is_ok_and(|metadata| metadata.is_file());
        if !is_file || is_inside_image(image) || matches!(self.source, ContentSource::Stream(..)) {
            return Ok(false);
        }
        let emptied = File::options().write(true).truncate(true).open(image);
        emptied.map_err(host_error(image))?;
        Ok(true)
    }

    /// Makes a file system that is shrunk to its content. It begins with the size that the content
    /// is estimated to need, so that the result does not depend on the size that was asked for.
    /// `grows` says that the image is a file that may become longer.
    fn shrunk(&mut self, options: &MkfsOptions, grows: bool) -> Result<(Made, Populated)> {
        let default = |size| if grows { options.clone().default_size(size) } else { options.clone() };
        let Some(mut size) = self.source.estimated_size(&self.options.populate)? else {
            return self.once(&default(STREAM_BYTES), Some(STREAM_CHUNK));
        };
        let mut attempt = 1;
        loop {
            let chunk = (size / CHUNKS).next_multiple_of(1 << 20).clamp(CHUNK_MIN, CHUNK_MAX);
            let limited = default(size).size_at_most(Some(size));
            // An earlier attempt left no content that anybody keeps.
            let limited = if attempt > 1 { limited.force(true) } else { limited };
            match self.once(&limited, Some(chunk)) {
                Err(error) if attempt < ATTEMPTS && is_full(&error) => {}
                made => return made,
            }
            attempt += 1;
            size *= 2;
        }
    }

    fn sized_by_content(&mut self, options: &MkfsOptions) -> Result<(Made, Populated)> {
        let Some(mut size) = self.source.estimated_size(&self.options.populate)? else {
            return self.once(&options.clone().size(STREAM_BYTES), Some(STREAM_CHUNK));
        };
        let mut attempt = 1;
        loop {
            match self.once(&options.clone().size(size), None) {
                Err(error) if attempt < ATTEMPTS && is_full(&error) => {
                    for image in self.images {
                        std::fs::remove_file(image).map_err(host_error(image))?;
                    }
                }
                made => return made,
            }
            attempt += 1;
            size *= 2;
        }
    }

    /// Makes the file system once. With `chunk`, the most bytes of a chunk, it is shrunk.
    fn once(&mut self, options: &MkfsOptions, chunk: Option<u64>) -> Result<(Made, Populated)> {
        let image = &self.images[0];
        let shrink = chunk.is_some();
        // Under a temporary magic, so that an interruption leaves nothing that looks complete.
        let mut made = mkfs_many(self.images, &options.clone().unfinished(true).small_chunks(shrink))?;
        let is_file = image.metadata().is_ok_and(|metadata| metadata.is_file()) && !is_inside_image(image);
        let populate = exclude_images(self.options.populate.clone(), self.images)?;
        let mut open_options = OpenOptions::new()
            .write(true)
            .unfinished(true)
            .commit_interval(None)
            .node_cache_bytes(NODE_CACHE_BYTES)
            .chunk_bytes(chunk)
            .timestamp(self.options.timestamp);
        for device in &self.images[1..] {
            open_options = open_options.device(device);
        }
        if let Some(choice) = self.options.compress {
            open_options = open_options.compress(choice);
        }
        let fs = FileSystem::open_with(image, &open_options)?;
        let filled = match self.source.fill(&fs, &populate, self.observer) {
            Ok(filled) => filled,
            Err(error) => {
                // The partial file system is useless, and so is an error of saving it.
                let _ = fs.close();
                return Err(error);
            }
        };
        if shrink {
            fs.sync()?;
            made.total_bytes = fs.resize(DEVICE, fs.minimum_size(DEVICE)?)?;
        }
        fs.finish_making()?;
        fs.close()?;
        if shrink && is_file {
            let file = File::options().write(true).open(image).map_err(host_error(image))?;
            file.set_len(made.total_bytes).map_err(host_error(image))?;
        }
        Ok((made, filled))
    }
}

/// Leaves the images out of the content.
pub(super) fn exclude_images(mut populate: Populate, images: &[PathBuf]) -> Result<Populate> {
    for image in images.iter().filter(|image| !is_url(image)) {
        let (file, _) = split_partition(image);
        let metadata = file.metadata().map_err(host_error(image))?;
        populate = populate.exclude(metadata.dev(), metadata.ino());
    }
    Ok(populate)
}

pub(super) fn host_error(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_path_buf();
    |source| Error::Host { path, source }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(host_error(path))
}

pub(super) fn is_full(error: &Error) -> bool {
    matches!(error, Error::NoSpace { .. })
}
