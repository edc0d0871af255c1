//! `papilio filesystem defragment`.

use crate::context::Context;
use crate::mounted::{Mounted, Target};
use crate::operands::for_each_target;
use crate::tree::{Recursion, for_each_inode};
use crate::units::parse_size;
use anyhow::bail;
use papilio::format::items::file_extent::Compression;
use papilio::{CompressionChoice, DefragmentOptions, FileKind, Inode};
use papilio_ioctl::client::MountedPath;
use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Rewrite the small extents of files as larger ones
///
/// Neither the content nor the times change. Extents that snapshots or clones share are copied, so
/// that the files need more space afterwards.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files, or directories with -r
    #[arg(value_name = "IMAGE:/PATH|PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Defragment all files below directories; other subvolumes are left out
    #[arg(short, long)]
    recursive: bool,
    /// Compress all extents, with zlib, lzo or zstd (-czstd; zlib if none is named)
    #[arg(short, long, value_name = "ALGORITHM", num_args = 0..=1, default_missing_value = "zlib")]
    #[arg(require_equals = true, value_parser = parse_algorithm)]
    compress: Option<Compression>,
    /// The level of compression
    #[arg(short = 'L', long, requires = "compress", allow_negative_numbers = true)]
    level: Option<i32>,
    /// Store all extents without compression
    #[arg(long, conflicts_with = "compress")]
    nocomp: bool,
    /// Write the data to the devices before the command ends
    #[arg(short, long)]
    flush: bool,
    /// The first byte
    #[arg(short, long, value_parser = parse_size, default_value = "0")]
    start: u64,
    /// The number of bytes; without it, all that follow
    #[arg(short = 'l', long = "len", value_parser = parse_size)]
    length: Option<u64>,
    /// Leave extents of at least this size alone
    #[arg(short, long, value_parser = parse_size, default_value = "32M")]
    target: u64,
}

fn parse_algorithm(text: &str) -> Result<Compression, String> {
    let known = Compression::ALL.into_iter().find(|one| *one != Compression::None && one.name() == text);
    known.ok_or_else(|| match text {
        "none" | "no" => "not one of zlib, lzo and zstd; --nocomp stores without compression".to_owned(),
        _ if text.contains(':') => "not one of zlib, lzo and zstd; -L LEVEL sets the level".to_owned(),
        _ => "not one of zlib, lzo and zstd".to_owned(),
    })
}

impl Args {
    /// Defragments the files.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let compression = match (self.compress, self.nocomp) {
            (Some(algorithm), _) => {
                Some(CompressionChoice::with_level(algorithm, self.level.unwrap_or_default())?)
            }
            (None, true) => Some(CompressionChoice::NONE),
            (None, false) => None,
        };
        let options = DefragmentOptions { threshold: self.target, compression };
        let mut images = Vec::new();
        for_each_target(context, &self.paths, Target::parse, |target| match target {
            Target::Image(_) => Ok(()),
            Target::Mounted(mounted) => self.run_mounted(context, &mounted, &options),
        })?;
        for path in &self.paths {
            if matches!(Target::parse(path)?, Target::Image(_)) {
                images.push(path.clone());
            }
        }
        let how = Recursion { one_subvolume: true, recursive: self.recursive, follow: true };
        for_each_inode(context, &images, how, |inode| self.one(inode, &options))
    }

    fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.length.unwrap_or(u64::MAX))
    }

    fn one(&self, inode: &Inode, options: &DefragmentOptions) -> papilio::Result<()> {
        match inode.file_type() {
            FileKind::Regular => {
                let file = inode.open()?;
                file.defragment(self.range(), options, |_| true)?;
                if self.flush { file.sync_data() } else { Ok(()) }
            }
            FileKind::Directory if !self.recursive => {
                Err(papilio::Error::Invalid("is a directory; -r defragments the files below it".to_owned()))
            }
            _ => Ok(()),
        }
    }

    fn run_mounted(
        &self,
        context: &Context,
        mounted: &Mounted,
        options: &DefragmentOptions,
    ) -> anyhow::Result<()> {
        let top = fs::metadata(&mounted.path).map_err(|error| mounted.at(&error))?;
        if top.is_dir() && !self.recursive {
            bail!("{mounted}: is a directory; -r defragments the files below it");
        }
        let mut pending = vec![mounted.path.clone()];
        while let Some(path) = pending.pop() {
            let here = Mounted { path, mount: mounted.mount.clone() };
            match self.step(&here.path, &mounted.path, top.dev(), options) {
                Ok(below) => pending.extend(below.into_iter().rev()),
                Err(error) => context.failure(&here.at(&error)),
            }
        }
        Ok(())
    }

    /// Defragments a file. Returns the entries of a directory.
    fn step(
        &self,
        path: &Path,
        top: &Path,
        device: u64,
        options: &DefragmentOptions,
    ) -> std::io::Result<Vec<std::path::PathBuf>> {
        let metadata = fs::symlink_metadata(path)?;
        if metadata.is_dir()
            && (metadata.dev() != device || path != top && MountedPath::open(path)?.is_subvolume_root()?)
        {
            return Ok(Vec::new());
        }
        if metadata.is_dir() {
            let mut below = fs::read_dir(path)?
                .map(|entry| entry.map(|entry| entry.path()))
                .collect::<std::io::Result<Vec<_>>>()?;
            below.sort();
            return Ok(below);
        }
        if metadata.is_file() {
            MountedPath::open(path)?.defragment(self.range(), options, self.flush)?;
        }
        Ok(Vec::new())
    }
}
