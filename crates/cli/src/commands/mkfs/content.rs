//! Fills a new file system from directories of the host, tar archives and container images.
//!
//! Owns [`ContentArgs`]. Without a given size, the size is estimated from the content. If the
//! estimate turns out too small, the file system is created again with twice the size.

use crate::context::Context;
use crate::fakeroot;
use crate::filling::Report;
use crate::usage_error::UsageError;
use anyhow::{Context as _, anyhow};
use papilio::device::{is_inside_image, is_url, split_partition};
use papilio::format::DeviceId;
use papilio::{
    CompressionChoice, Error, FileSystem, InodeFlags, Layer, Made, Manifest, MkfsOptions, NewSubvolume,
    OpenOptions, Populate, Populated, Timespec,
};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The device of a new file system on one device.
const DEVICE: DeviceId = DeviceId(1);
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
const NODE_CACHE_BYTES: usize = 48 << 20;

/// The content of the file system.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Content")]
pub struct ContentArgs {
    /// Fill the file system from a directory or a tar archive (plain, gzip, zstd, xz, bzip2 or
    /// lzma); - means an archive on standard input
    ///
    /// Several are layers, the lowest first: each replaces what is below it, and whiteouts delete.
    /// oci:PATH[:NAME] is an image in an OCI layout (a directory or a tar archive),
    /// docker-archive:FILE[:NAME] one that docker save wrote.
    ///
    /// Keeps owners, modes, times, extended attributes, ACLs, hard links, device files and holes.
    /// Copies the entries of a directory in the order of their names, and those of an archive in
    /// its order.
    #[arg(short, long, value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
    pub rootdir: Vec<PathBuf>,
    /// Take owners and modes from lines of PATH UID GID MODE
    ///
    /// A - keeps a value, and the path * means all other files. An image with any owners can thus
    /// be built without root.
    #[arg(long, value_name = "FILE", requires = "rootdir", value_hint = clap::ValueHint::FilePath)]
    manifest: Option<PathBuf>,
    /// Make this directory a subvolume
    ///
    /// TYPE is rw (default), ro, default (the subvolume that a mount without options shows) or
    /// default-ro.
    #[arg(id = "subvol", short = 'u', long = "subvol", value_name = "[TYPE:]DIR", requires = "rootdir")]
    subvolumes: Vec<OsString>,
    /// Give the file or directory PATH in the content these flags: nodatacow (data is overwritten
    /// in place, and files have no checksums), nodatasum (no checksums), or both with a comma
    ///
    /// Everything in a directory with nodatacow has the flag, too, except subvolumes.
    #[arg(long = "inode-flags", value_name = "FLAGS:PATH", requires = "rootdir", value_parser = parse_inode_flags)]
    inode_flags: Vec<InodeFlagsOf>,
    /// Let files share their blocks with those of --rootdir instead of copying them
    ///
    /// The directory and all images, regular files, have to be in one file system that can do so,
    /// such as Btrfs or XFS. Profiles with parity cannot.
    #[arg(long, requires = "rootdir", conflicts_with = "compress")]
    reflink: bool,
    /// Compress files: zlib[:1-9], lzo or zstd[:-15-15]
    #[arg(long, value_name = "ALGORITHM[:LEVEL]", requires = "rootdir")]
    compress: Option<CompressionChoice>,
    /// Shrink the file system and the image to its content, whatever --size says
    ///
    /// Little is free in it before `filesystem resize` makes it larger.
    #[arg(long, requires = "rootdir")]
    shrink: bool,
    /// Show no progress; it is shown only if standard error is a terminal
    #[arg(long)]
    no_progress: bool,
}

/// Flags of a path in the content.
#[derive(Clone, Debug)]
struct InodeFlagsOf {
    flags: InodeFlags,
    path: Vec<u8>,
}

/// The source of the content.
enum Source<'a> {
    Directory(&'a Path),
    Archive(&'a Path),
    /// A pipe or a device; `None` is standard input.
    Stream(Option<&'a Path>),
    /// Several contents on top of one another, the lowest first.
    Layers(Vec<Layer>),
}

impl<'a> Source<'a> {
    /// Returns the source that the operands of --rootdir name.
    fn of(rootdirs: &'a [PathBuf]) -> anyhow::Result<Self> {
        let layers = || rootdirs.iter().map(|path| layer(path)).collect::<anyhow::Result<_>>();
        let [rootdir] = rootdirs else { return layers().map(Self::Layers) };
        match rootdir.metadata() {
            _ if rootdir == Path::new("-") => Ok(Self::Stream(None)),
            Ok(metadata) if metadata.is_dir() => Ok(Self::Directory(rootdir)),
            Ok(metadata) if metadata.is_file() => Ok(Self::Archive(rootdir)),
            Ok(_) => Ok(Self::Stream(Some(rootdir))),
            Err(_) if image(rootdir).is_some() => layers().map(Self::Layers),
            Err(error) => Err(error).with_context(|| rootdir.display().to_string()),
        }
    }

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
            Self::Archive(_) | Self::Stream(_) => Vec::new(),
        }
    }
}

/// Returns the container image that `oci:PATH[:NAME]` and the like name.
fn image(operand: &Path) -> Option<Layer> {
    let text = operand.to_str()?;
    let kinds = ["oci:", "oci-archive:", "docker-archive:"];
    let rest = kinds.into_iter().find_map(|kind| text.strip_prefix(kind))?;
    let whole = Layer::Image { path: rest.into(), reference: None };
    if Path::new(rest).exists() {
        return Some(whole);
    }
    // A name may have colons itself.
    let mut ends = rest.match_indices(':').map(|(at, _)| at);
    let split = ends.rfind(|&at| Path::new(&rest[..at]).exists());
    Some(split.map_or(whole, |at| {
        let reference = Some(rest[at + 1..].to_owned());
        Layer::Image { path: rest[..at].into(), reference }
    }))
}

/// Returns the layer that an operand names.
fn layer(operand: &Path) -> anyhow::Result<Layer> {
    match operand.metadata() {
        Ok(metadata) if metadata.is_dir() => Ok(Layer::Directory(operand.to_path_buf())),
        Ok(metadata) if metadata.is_file() => Ok(Layer::Archive(operand.to_path_buf())),
        Ok(_) => Err(UsageError::new(format_args!(
            "{}: a layer is a directory or a file; a stream can only be the whole content",
            operand.display()
        ))
        .into()),
        Err(_) if operand == Path::new("-") => {
            Err(UsageError::new("--rootdir -: an archive on standard input can only be the whole content")
                .into())
        }
        Err(error) => match image(operand) {
            Some(image) => Ok(image),
            None => Err(error).with_context(|| operand.display().to_string()),
        },
    }
}

/// The creation of a file system with content.
struct Build<'a> {
    arguments: &'a ContentArgs,
    context: &'a Context,
    images: &'a [PathBuf],
    /// The time of all changes, if it is fixed.
    timestamp: Option<Timespec>,
    source: Source<'a>,
    populate: Populate,
}

impl ContentArgs {
    /// Creates the file system and fills it. `sized` says whether its size was given.
    pub fn make(
        &self,
        context: &Context,
        images: &[PathBuf],
        options: MkfsOptions,
        timestamp: Option<Timespec>,
        sized: bool,
    ) -> anyhow::Result<(Made, Populated)> {
        if self.rootdir.is_empty() {
            return Ok((papilio::mkfs_many(images, &options)?, Populated::default()));
        }
        if self.shrink && images.len() > 1 {
            return Err(UsageError::new("--shrink cuts off the end of an image, which works on one device only; leave it out, or give --size").into());
        }
        let source = Source::of(&self.rootdir)?;
        if self.manifest.is_none() {
            source.directories().into_iter().try_for_each(fakeroot::refuse)?;
        }
        let mut populate = Populate::new().steady_access_times(timestamp.is_some());
        if let Some(path) = &self.manifest {
            let text = std::fs::read(path).with_context(|| path.display().to_string())?;
            let manifest = Manifest::parse(&text);
            let manifest = manifest.map_err(|error| anyhow!("{}: {error}", path.display()))?;
            populate = populate.manifest(manifest);
        }
        check_subvolumes(&self.subvolumes)?;
        for argument in &self.subvolumes {
            let (path, subvolume) = parse_subvolume(argument);
            populate = populate.subvolume(path, subvolume);
        }
        for InodeFlagsOf { flags, path } in &self.inode_flags {
            populate = populate.inode_flags(&path[..], *flags);
        }
        if self.reflink {
            self.check_reflink(&source, images)?;
            populate = populate.reflink(true);
        }
        if !sized && let Some(url) = images.iter().find(|image| is_url(image)) {
            return Err(
                UsageError::new(format_args!("{}: a device there needs --size", url.display())).into()
            );
        }
        let missing: Vec<_> = images.iter().filter(|image| is_to_be_made(image)).collect();
        let new = missing.len() == images.len();
        if new && !sized && images.len() > 1 && matches!(source, Source::Stream(_)) {
            return Err(UsageError::new("content from a stream on several devices needs --size").into());
        }
        let build = Build { arguments: self, context, images, timestamp, source, populate };
        let existed: Vec<_> = missing.iter().map(|image| image.exists()).collect();
        let grows = !sized && (new || build.outgrows_file()?);
        let made = match grows {
            _ if self.shrink => build.shrunk(&options, grows),
            true => build.sized_by_content(&options),
            false => match build.once(&options, None) {
                Err(error) if !sized && is_full(&error) && build.empty_file()? => {
                    build.sized_by_content(&options)
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

impl ContentArgs {
    /// Refuses sources and images that can share no blocks, before anything is written.
    fn check_reflink(&self, source: &Source<'_>, images: &[PathBuf]) -> anyhow::Result<()> {
        if !matches!(source, Source::Directory(_)) {
            return Err(UsageError::new(
                "--reflink: an archive shares no blocks with an image, nor do layers; name one directory",
            )
            .into());
        }
        for image in images {
            if image.metadata().is_ok_and(|metadata| !metadata.is_file()) {
                let image = image.display();
                return Err(UsageError::new(format_args!(
                    "--reflink: {image} is no regular file, so that it shares no blocks"
                ))
                .into());
            }
        }
        Ok(())
    }
}

/// Returns whether an image is missing, or an empty regular file, which stands for a missing one.
fn is_to_be_made(image: &Path) -> bool {
    image.metadata().map_or(true, |metadata| metadata.is_file() && metadata.len() == 0)
}

impl Build<'_> {
    /// Returns whether the only image is a regular file that is too short for the content.
    fn outgrows_file(&self) -> anyhow::Result<bool> {
        let [image] = self.images else { return Ok(false) };
        if is_inside_image(image) || split_partition(image).1.is_some() {
            return Ok(false);
        }
        let length = match image.metadata() {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            _ => return Ok(false),
        };
        let Some(needed) = self.estimated_size()? else { return Ok(false) };
        // An estimate is generous. A file that is nearly long enough is tried as it is.
        Ok(length < needed / 2)
    }

    /// Empties the only image if it is a regular file, so that it can be made with another size.
    fn empty_file(&self) -> anyhow::Result<bool> {
        let [image] = self.images else { return Ok(false) };
        let is_file = image.metadata().is_ok_and(|metadata| metadata.is_file());
        if !is_file || is_inside_image(image) || matches!(self.source, Source::Stream(_)) {
            return Ok(false);
        }
        let emptied = File::options().write(true).truncate(true).open(image);
        emptied.with_context(|| image.display().to_string())?;
        Ok(true)
    }

    /// Returns the size of a file system for the content; `None` for a stream.
    fn estimated_size(&self) -> anyhow::Result<Option<u64>> {
        Ok(Some(match &self.source {
            Source::Directory(directory) => self.populate.estimated_size(directory)?,
            Source::Archive(archive) => self.populate.estimated_size_of_tar(archive, open(archive)?)?,
            Source::Layers(layers) => self.populate.estimated_size_of_layers(layers)?,
            Source::Stream(_) => return Ok(None),
        }))
    }

    /// Makes a file system that is shrunk to its content. It begins with the size that the content
    /// is estimated to need, so that the result does not depend on the size that was asked for.
    /// `grows` says that the image is a file that may become longer.
    fn shrunk(&self, options: &MkfsOptions, grows: bool) -> anyhow::Result<(Made, Populated)> {
        let default = |size| if grows { options.clone().default_size(size) } else { options.clone() };
        let Some(mut size) = self.estimated_size()? else {
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

    fn sized_by_content(&self, options: &MkfsOptions) -> anyhow::Result<(Made, Populated)> {
        let Some(mut size) = self.estimated_size()? else {
            return self.once(&options.clone().size(STREAM_BYTES), Some(STREAM_CHUNK));
        };
        let mut attempt = 1;
        loop {
            match self.once(&options.clone().size(size), None) {
                Err(error) if attempt < ATTEMPTS && is_full(&error) => {
                    for image in self.images {
                        std::fs::remove_file(image).with_context(|| image.display().to_string())?;
                    }
                }
                made => return made,
            }
            attempt += 1;
            size *= 2;
        }
    }

    /// Makes the file system once. With `chunk`, the most bytes of a chunk, it is shrunk.
    fn once(&self, options: &MkfsOptions, chunk: Option<u64>) -> anyhow::Result<(Made, Populated)> {
        let image = &self.images[0];
        let shrink = chunk.is_some();
        // Under a temporary magic, so that an interruption leaves nothing that looks complete.
        let mut made =
            papilio::mkfs_many(self.images, &options.clone().unfinished(true).small_chunks(shrink))?;
        let host = || image.display().to_string();
        let is_file = image.metadata().is_ok_and(|metadata| metadata.is_file()) && !is_inside_image(image);
        let mut populate = self.populate.clone();
        for image in self.images.iter().filter(|image| !is_url(image)) {
            let (file, _) = split_partition(image);
            let metadata = file.metadata().with_context(|| image.display().to_string())?;
            populate = populate.exclude(metadata.dev(), metadata.ino());
        }
        let mut open_options = OpenOptions::new()
            .write(true)
            .unfinished(true)
            .commit_interval(None)
            .node_cache_bytes(NODE_CACHE_BYTES)
            .chunk_bytes(chunk)
            .timestamp(self.timestamp);
        for device in &self.images[1..] {
            open_options = open_options.device(device);
        }
        if let Some(choice) = self.arguments.compress {
            open_options = open_options.compress(choice);
        }
        let fs = FileSystem::open_with(image, &open_options)?;
        let filled = match self.fill(&fs, &populate) {
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
            let file = File::options().write(true).open(image).with_context(host)?;
            file.set_len(made.total_bytes).with_context(host)?;
        }
        Ok((made, filled))
    }

    fn fill(&self, fs: &FileSystem, populate: &Populate) -> anyhow::Result<Populated> {
        let mut report = Report::new(self.context, self.arguments.no_progress, true, b"");
        let top = fs.inode("/")?;
        Ok(match &self.source {
            Source::Layers(layers) => populate.layers(layers, &top, &mut report)?,
            Source::Directory(directory) => populate.directory(directory, &top, &mut report)?,
            Source::Archive(path) | Source::Stream(Some(path)) => {
                populate.tar(path, open(path)?, &top, &mut report)?
            }
            Source::Stream(None) => {
                populate.tar("standard input", std::io::stdin().lock(), &top, &mut report)?
            }
        })
    }
}

/// Parses `FLAG[,FLAG]:PATH`, as in mkfs.btrfs(8).
fn parse_inode_flags(argument: &str) -> Result<InodeFlagsOf, String> {
    let (names, path) = argument.split_once(':').ok_or("not FLAGS:PATH")?;
    let mut flags = InodeFlags::empty();
    for name in names.split(',') {
        flags |= match name {
            "nodatacow" => InodeFlags::NODATACOW,
            "nodatasum" => InodeFlags::NODATASUM,
            _ => return Err(format!("{name:?} is neither nodatacow nor nodatasum")),
        };
    }
    Ok(InodeFlagsOf { flags, path: path.as_bytes().to_vec() })
}

/// Parses `TYPE:DIR`, as in mkfs.btrfs(8).
fn parse_subvolume(argument: &OsStr) -> (&[u8], NewSubvolume) {
    let bytes = argument.as_bytes();
    let types = [
        (&b"rw:"[..], NewSubvolume::default()),
        (b"ro:", NewSubvolume { read_only: true, default: false }),
        (b"default:", NewSubvolume { read_only: false, default: true }),
        (b"default-ro:", NewSubvolume { read_only: true, default: true }),
    ];
    let found = types.into_iter().find_map(|(prefix, kind)| Some((bytes.strip_prefix(prefix)?, kind)));
    found.unwrap_or((bytes, NewSubvolume::default()))
}

/// Refuses a directory that is named twice, and a second default: only one of them would count.
fn check_subvolumes(arguments: &[OsString]) -> Result<(), UsageError> {
    let shown = |path: &[u8]| path.escape_ascii().to_string();
    let mut default: Option<&[u8]> = None;
    let mut named = BTreeSet::new();
    for (path, subvolume) in arguments.iter().map(|argument| parse_subvolume(argument)) {
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
        if !named.insert(parts.collect::<Vec<_>>()) {
            return Err(UsageError::new(format_args!("--subvol names {} twice", shown(path))));
        }
        if let Some(first) = default.filter(|_| subvolume.default) {
            let (first, second) = (shown(first), shown(path));
            return Err(UsageError::new(format_args!(
                "--subvol: only one subvolume can be the default, not both {first} and {second}"
            )));
        }
        default = default.or(subvolume.default.then_some(path));
    }
    Ok(())
}

fn open(path: &Path) -> anyhow::Result<File> {
    File::open(path).with_context(|| path.display().to_string())
}

fn is_full(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<Error>(), Some(Error::NoSpace { .. }))
}
