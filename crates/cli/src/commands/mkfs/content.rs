//! What a new file system holds: a directory of the host, or a tar archive.
//!
//! Owns [`ContentArgs`] and [`fill`]. Where no size is given, the content decides; should the estimate be
//! too small after all, it is made again, twice as large.

use crate::context::Context;
use crate::filling::Report;
use anyhow::{Context as _, anyhow};
use papilio::format::DeviceId;
use papilio::{
    CompressionChoice, Error, FileSystem, Made, Manifest, MkfsOptions, NewSubvolume, OpenOptions, Populate,
    Populated, Timespec,
};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The one device of a new file system.
const DEVICE: DeviceId = DeviceId(1);
/// A stream's content is not known beforehand: an image of so many bytes, of which only what is used takes
/// space, is made for it and cut.
const STREAM_BYTES: u64 = 48 << 30;
/// How often an estimate is doubled.
const ATTEMPTS: u32 = 5;
/// Tree blocks in all: those of a commit and of the next, and some that are kept after they were written. Files come
/// in the order of their names, so that few are asked for again.
const NODE_CACHE_BYTES: usize = 48 << 20;

/// What the file system holds.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Content")]
pub struct ContentArgs {
    /// Fill it from a directory, a tar archive (plain, gzip or zstd), or with - from an archive on
    /// standard input
    ///
    /// Owners, modes, times, extended attributes, ACLs, hard links, device files and holes are kept. Entries
    /// are taken in the order of their names, those of an archive in its own.
    #[arg(short, long, value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
    pub rootdir: Option<PathBuf>,
    /// Owners and modes: lines of PATH UID GID MODE, with - for what stays, and * as the path of all
    /// others; so an image with any owners can be built without root
    #[arg(long, value_name = "FILE", requires = "rootdir", value_hint = clap::ValueHint::FilePath)]
    manifest: Option<PathBuf>,
    /// Make this directory a subvolume. TYPE: is rw (default), ro, default (the one that a mount without
    /// options shows) or default-ro
    #[arg(id = "subvol", short = 'u', long = "subvol", value_name = "[TYPE:]DIR", requires = "rootdir")]
    subvolumes: Vec<OsString>,
    /// Compress files: zlib[:1-9], lzo or zstd[:-15-15]
    #[arg(long, value_name = "ALGORITHM[:LEVEL]", requires = "rootdir")]
    compress: Option<CompressionChoice>,
    /// Cut the file system, and the image, behind the last chunk that is in use
    #[arg(long, requires = "rootdir")]
    shrink: bool,
    /// No progress display (there is none anyway where standard error is no terminal)
    #[arg(long)]
    no_progress: bool,
}

/// Where the content comes from.
enum Source<'a> {
    Directory(&'a Path),
    Archive(&'a Path),
    /// A pipe or a device; none is standard input.
    Stream(Option<&'a Path>),
}

/// One building of a file system with content.
struct Build<'a> {
    arguments: &'a ContentArgs,
    context: &'a Context,
    image: &'a Path,
    /// What all changes bear.
    timestamp: Option<Timespec>,
    source: Source<'a>,
    populate: Populate,
}

impl ContentArgs {
    /// Makes the file system and fills it. `sized` says that its size was given.
    pub fn make(
        &self,
        context: &Context,
        image: &Path,
        options: MkfsOptions,
        timestamp: Option<Timespec>,
        sized: bool,
    ) -> anyhow::Result<(Made, Populated)> {
        let Some(rootdir) = &self.rootdir else {
            return Ok((papilio::mkfs(image, &options)?, Populated::default()));
        };
        let source = match rootdir.metadata() {
            _ if rootdir == Path::new("-") => Source::Stream(None),
            Ok(metadata) if metadata.is_dir() => Source::Directory(rootdir),
            Ok(metadata) if metadata.is_file() => Source::Archive(rootdir),
            Ok(_) => Source::Stream(Some(rootdir)),
            Err(error) => return Err(error).with_context(|| rootdir.display().to_string()),
        };
        let mut populate = Populate::new().steady_access_times(timestamp.is_some());
        if let Some(path) = &self.manifest {
            let text = std::fs::read(path).with_context(|| path.display().to_string())?;
            let manifest = Manifest::parse(&text);
            let manifest = manifest.map_err(|error| anyhow!("{}: {error}", path.display()))?;
            populate = populate.manifest(manifest);
        }
        for argument in &self.subvolumes {
            let (path, subvolume) = parse_subvolume(argument);
            populate = populate.subvolume(path, subvolume);
        }
        let new = !image.exists();
        let build = Build { arguments: self, context, image, timestamp, source, populate };
        let made = match new && !sized {
            true => build.sized_by_content(&options),
            false => build.once(&options, self.shrink),
        };
        if made.is_err() && new {
            // Nothing half made stays. That it may never have come to be is no other error.
            let _ = std::fs::remove_file(image);
        }
        made
    }
}

impl Build<'_> {
    fn sized_by_content(&self, options: &MkfsOptions) -> anyhow::Result<(Made, Populated)> {
        let shrink = self.arguments.shrink;
        let mut size = match self.source {
            Source::Directory(directory) => self.populate.estimated_size(directory)?,
            Source::Archive(archive) => self.populate.estimated_size_of_tar(archive, open(archive)?)?,
            Source::Stream(_) => return self.once(&options.clone().size(STREAM_BYTES), true),
        };
        let mut attempt = 1;
        loop {
            match self.once(&options.clone().size(size), shrink) {
                Err(error) if attempt < ATTEMPTS && is_full(&error) => {
                    std::fs::remove_file(self.image).with_context(|| self.image.display().to_string())?;
                }
                made => return made,
            }
            attempt += 1;
            size *= 2;
        }
    }

    fn once(&self, options: &MkfsOptions, shrink: bool) -> anyhow::Result<(Made, Populated)> {
        let image = self.image;
        let mut made = papilio::mkfs(image, options)?;
        let host = || image.display().to_string();
        let metadata = image.metadata().with_context(host)?;
        let populate = self.populate.clone().exclude(metadata.dev(), metadata.ino());
        let mut open_options = OpenOptions::new()
            .write(true)
            .commit_interval(None)
            .node_cache_bytes(NODE_CACHE_BYTES)
            .timestamp(self.timestamp);
        if let Some(choice) = self.arguments.compress {
            open_options = open_options.compress(choice);
        }
        let fs = FileSystem::open_with(image, &open_options)?;
        let filled = match self.fill(&fs, &populate) {
            Ok(filled) => filled,
            Err(error) => {
                // What came of it so far is of no use to anybody, and neither is why it cannot be saved.
                let _ = fs.close();
                return Err(error);
            }
        };
        if shrink {
            fs.sync()?;
            made.total_bytes = fs.resize(DEVICE, fs.minimum_size(DEVICE)?)?;
        }
        fs.close()?;
        if shrink && metadata.is_file() {
            let file = File::options().write(true).open(image).with_context(host)?;
            file.set_len(made.total_bytes).with_context(host)?;
        }
        Ok((made, filled))
    }

    fn fill(&self, fs: &FileSystem, populate: &Populate) -> anyhow::Result<Populated> {
        let mut report = Report::new(self.context, self.arguments.no_progress, true, b"");
        let top = fs.inode("/")?;
        Ok(match self.source {
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

/// `TYPE:DIR`, as `mkfs.btrfs` has it.
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

fn open(path: &Path) -> anyhow::Result<File> {
    File::open(path).with_context(|| path.display().to_string())
}

fn is_full(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<Error>(), Some(Error::NoSpace { .. }))
}
