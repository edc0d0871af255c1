//! Fills a new file system from directories of the host, tar archives and container images.
//!
//! Owns [`ContentArgs`]. [`papilio::MkfsContent`] does the work.

use crate::context::Context;
use crate::filling::Report;
use crate::usage_error::UsageError;
use anyhow::{Context as _, anyhow};
use papilio::device::is_url;
use papilio::{
    CompressionChoice, ContentSource, InodeFlags, Layer, Made, Manifest, MkfsContent, MkfsOptions,
    NewSubvolume, Populate, Populated, Timespec, Updated,
};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

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
    /// Update the file system on IMAGE instead of making it: compare it with the directory of
    /// --rootdir, and write only what differs
    ///
    /// Files that the directory lacks are removed. Files are compared byte by byte, since builds
    /// often give all of them the same time. An image file grows where that is necessary. Name
    /// subvolumes as when the image was made; others are refused. After an interruption, another
    /// run does the rest.
    #[arg(
        long,
        requires = "rootdir",
        conflicts_with_all = [
            "size", "label", "uuid", "device_uuid", "metadata_uuid", "nodesize", "sectorsize", "csum",
            "features", "kernel", "data", "metadata", "mixed", "force", "nodiscard", "encrypt", "reflink",
        ]
    )]
    pub update: bool,
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

/// Returns the source that the operands of --rootdir name.
fn source_of(rootdirs: &[PathBuf]) -> anyhow::Result<ContentSource<'static>> {
    let layers = || rootdirs.iter().map(|path| layer(path)).collect::<anyhow::Result<_>>();
    let [rootdir] = rootdirs else { return layers().map(ContentSource::Layers) };
    match rootdir.metadata() {
        _ if rootdir == Path::new("-") => {
            Ok(ContentSource::Stream("standard input".into(), Box::new(std::io::stdin())))
        }
        Ok(_) => Ok(ContentSource::at(rootdir)?),
        Err(_) if image(rootdir).is_some() => layers().map(ContentSource::Layers),
        Err(error) => Err(error).with_context(|| rootdir.display().to_string()),
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
        let source = source_of(&self.rootdir)?;
        let mut populate = self.populate(timestamp)?;
        if self.reflink {
            self.check_reflink(&source, images)?;
            populate = populate.reflink(true);
        }
        if !sized && let Some(url) = images.iter().find(|image| is_url(image)) {
            return Err(
                UsageError::new(format_args!("{}: a device there needs --size", url.display())).into()
            );
        }
        let new = images.iter().all(|image| papilio::is_to_be_made(image));
        if new && !sized && images.len() > 1 && matches!(source, ContentSource::Stream(..)) {
            return Err(UsageError::new("content from a stream on several devices needs --size").into());
        }
        let make = self.mkfs_content(populate, timestamp).sized(sized);
        let mut report = Report::new(context, self.no_progress, true, b"");
        Ok(make.make(images, &options, source, &mut report)?)
    }

    /// Updates the file system on `images`.
    pub fn update(
        &self,
        context: &Context,
        images: &[PathBuf],
        timestamp: Option<Timespec>,
    ) -> anyhow::Result<Updated> {
        let source = match &self.rootdir[..] {
            [source] if source != Path::new("-") && image(source).is_none() => {
                match source.metadata().with_context(|| source.display().to_string())? {
                    metadata if metadata.is_dir() => source,
                    _ => return Err(Self::one_directory().into()),
                }
            }
            _ => return Err(Self::one_directory().into()),
        };
        if self.shrink && images.len() > 1 {
            return Err(UsageError::new("--shrink works on one device only").into());
        }
        let content = self.mkfs_content(self.populate(timestamp)?, timestamp);
        let mut report = Report::new(context, self.no_progress, true, b"");
        Ok(content.update(images, source, &mut report)?)
    }

    fn one_directory() -> UsageError {
        UsageError::new("--update: --rootdir names one directory")
    }

    fn mkfs_content(&self, populate: Populate, timestamp: Option<Timespec>) -> MkfsContent {
        MkfsContent::new().populate(populate).compress(self.compress).timestamp(timestamp).shrink(self.shrink)
    }

    /// Returns the options of copying that do not depend on the source's kind.
    fn populate(&self, timestamp: Option<Timespec>) -> anyhow::Result<Populate> {
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
        Ok(populate)
    }
}

impl ContentArgs {
    /// Refuses sources and images that can share no blocks, before anything is written.
    fn check_reflink(&self, source: &ContentSource<'_>, images: &[PathBuf]) -> anyhow::Result<()> {
        if !matches!(source, ContentSource::Directory(_)) {
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
