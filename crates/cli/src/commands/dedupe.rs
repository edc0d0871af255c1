//! `papilio dedupe`: shares the data of equal blocks.
//!
//! **Invariants**
//! - Nothing is shared by its hash alone: the file system compares both ranges, locked, first.
//! - Blocks that share their data already are not counted, and are read once.

use crate::context::{Context, of_image};
use crate::file_walk::{FileWalk, UsedExtent, Visitor, Wanted};
use crate::mounted::{Mounted, Target};
use crate::output::Output;
use crate::path::parse_image_path;
use crate::units::{Units, parse_size};
use crate::usage_error::UsageError;
use indicatif::{ProgressBar, ProgressStyle};
use papilio::{ChecksumType, FileExtent, FileExtentKind};
use papilio_ioctl::client::MountedPath;
use rustix::io::Errno;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// Most bytes of one request, which the kernel compares at once.
const BATCH: u64 = 16 << 20;
/// Sizes of blocks in bytes.
const BLOCKS: std::ops::RangeInclusive<u64> = 4096..=BATCH;

/// Share the data of blocks that are equal
///
/// All files below the arguments are read in blocks. Blocks with equal hashes are compared by the
/// file system, and share their data from then on if they are equal. Content and times stay. The
/// arguments must be in one file system: in an image, or in a mount of the kernel's Btrfs. Space is
/// free once no file uses any part of an extent.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files and directories, in an image or in a mount
    #[arg(value_name = "IMAGE:/PATH|PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// The size of a block: a power of two from 4K to 16M
    #[arg(short, long, value_name = "SIZE", default_value = "128K", value_parser = parse_block)]
    block_size: u64,
    /// Only count equal blocks, by their hashes
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_block(text: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    let fits = size.is_power_of_two() && BLOCKS.contains(&size);
    if fits { Ok(size) } else { Err("not a power of two from 4K to 16M".to_owned()) }
}

/// A block that was seen: its file, where it begins, and where its data is.
#[derive(Clone, Copy)]
struct Seen {
    file: usize,
    start: u64,
    data: (u64, u64),
}

/// Adjacent equal blocks that were not shared yet.
struct Run {
    source: usize,
    from: u64,
    target: usize,
    to: u64,
    length: u64,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    files: u64,
    read: u64,
    shared: u64,
    differing: u64,
}

/// An open file.
enum Opened {
    Image(papilio::File),
    Mounted(Mounted, MountedPath),
}

struct Dedupe<'a> {
    context: &'a Context,
    block_size: u64,
    dry_run: bool,
    /// Whether the operands are in an image.
    in_image: bool,
    files: Vec<Vec<u8>>,
    /// The first block with a hash and a length.
    seen: HashMap<(u64, u64), Seen>,
    /// The hashes of blocks that lie in one extent, by address, offset in it, and length.
    hashes: HashMap<(u64, u64, u64), u64>,
    run: Option<Run>,
    /// The files of the last run, which the next one often uses again.
    opened: Vec<(usize, Opened)>,
    counts: Counts,
    bar: Option<ProgressBar>,
}

impl Args {
    /// Reads the files, and shares what is equal.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let targets: Vec<Target> =
            self.paths.iter().map(|path| Target::parse(path)).collect::<Result<_, _>>()?;
        if let (Some(Target::Image(path)), false) = (targets.first(), self.dry_run) {
            context.change(&path.image)?;
        }
        let mut walk = FileWalk::new(context, Wanted::Items);
        let mut systems = Vec::new();
        for target in &targets {
            systems.push((walk.file_system(target)?, matches!(target, Target::Image(_))));
        }
        if systems.iter().any(|system| *system != systems[0]) {
            return Err(UsageError::new("dedupe: the arguments are in several file systems").into());
        }
        let bar = context.is_interactive().then(|| {
            let style = ProgressStyle::with_template("{elapsed_precise} {spinner} {wide_msg}");
            let bar = ProgressBar::new_spinner().with_style(style.expect("the template is valid"));
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        context.set_progress(bar.clone());
        let mut dedupe = Dedupe {
            context,
            block_size: self.block_size,
            dry_run: self.dry_run,
            in_image: systems[0].1,
            files: Vec::new(),
            seen: HashMap::new(),
            hashes: HashMap::new(),
            run: None,
            opened: Vec::new(),
            counts: Counts::default(),
            bar,
        };
        let mut result = Ok(());
        for target in targets {
            result = walk.walk(target, &mut dedupe);
            if result.is_err() {
                break;
            }
        }
        let result = result.and_then(|()| dedupe.flush());
        if let Some(bar) = &dedupe.bar {
            bar.finish_and_clear();
        }
        context.set_progress(None);
        self.report(dedupe.counts)?;
        result
    }

    fn report(&self, counts: Counts) -> anyhow::Result<()> {
        let mut output = Output::new()?;
        if self.json {
            let mut object = Map::new();
            for (name, value) in [
                ("files", counts.files),
                ("bytes_read", counts.read),
                ("bytes_shared", counts.shared),
                ("blocks_with_equal_hashes_only", counts.differing),
            ] {
                object.insert(name.into(), value.into());
            }
            object.insert("dry_run".into(), self.dry_run.into());
            output.text(format_args!("{:#}\n", Value::Object(object)))?;
        } else {
            let text = |bytes| Units::HUMAN.text(bytes);
            let done = if self.dry_run { "could be shared" } else { "shared" };
            output.text(format_args!(
                "{} files, {} read: {} ({} bytes) {done}\n",
                counts.files,
                text(counts.read),
                text(counts.shared),
                counts.shared
            ))?;
        }
        Ok(output.finish()?)
    }
}

impl Visitor for Dedupe<'_> {
    fn enter(&mut self, _path: &[u8], _depth: usize) -> anyhow::Result<()> {
        Ok(())
    }

    fn leave(&mut self, _path: &[u8], _depth: usize) -> anyhow::Result<()> {
        Ok(())
    }

    fn file(&mut self, path: &[u8], _depth: usize, extents: &[UsedExtent]) -> anyhow::Result<()> {
        self.counts.files += 1;
        let index = self.files.len();
        self.files.push(path.to_vec());
        if let Err(error) = self.read_file(index, extents) {
            // One file that cannot be read does not end the work.
            self.run = None;
            self.context.failure(&error);
        }
        Ok(())
    }
}

impl Dedupe<'_> {
    fn read_file(&mut self, index: usize, extents: &[UsedExtent]) -> anyhow::Result<()> {
        if let Some(bar) = &self.bar {
            let text = |bytes| Units::HUMAN.text(bytes);
            let name = String::from_utf8_lossy(&crate::output::escaped(&self.files[index])).into_owned();
            bar.set_message(format!(
                "{} read, {} shared  {name}",
                text(self.counts.read),
                text(self.counts.shared)
            ));
        }
        let on_disk = |extent: &&UsedExtent| extent.0.kind == FileExtentKind::Regular;
        let extents: Vec<&FileExtent> = extents.iter().filter(on_disk).map(|(extent, _)| extent).collect();
        let mut buffer = vec![0; self.block_size as usize];
        let mut next = 0;
        let size = self.open(index)?.size()?;
        for extent in extents {
            let end = extent.start.0.saturating_add(extent.length).min(size);
            // A block belongs to the extent in which it begins.
            let mut start = extent.start.0.next_multiple_of(self.block_size).max(next);
            while start < end {
                let length = self.block_size.min(size - start);
                let data = (extent.address.0, extent.offset.saturating_add(start - extent.start.0));
                let key = (data.0, data.1, length);
                let known = if start + length <= end { self.hashes.get(&key).copied() } else { None };
                let hash = match known {
                    Some(hash) => hash,
                    None => {
                        let bytes = &mut buffer[..length as usize];
                        self.open(index)?.read(bytes, start)?;
                        self.counts.read += length;
                        hash_of(bytes)
                    }
                };
                if start + length <= end {
                    self.hashes.insert(key, hash);
                }
                self.block(index, start, length, hash, data)?;
                start += self.block_size;
                next = start;
            }
        }
        Ok(())
    }

    fn block(
        &mut self,
        file: usize,
        start: u64,
        length: u64,
        hash: u64,
        data: (u64, u64),
    ) -> anyhow::Result<()> {
        let first = *self.seen.entry((hash, length)).or_insert(Seen { file, start, data });
        if (first.file, first.start) == (file, start) || first.data == data {
            return Ok(());
        }
        if let Some(run) = &mut self.run {
            let adjacent = (run.source, run.from + run.length) == (first.file, first.start)
                && (run.target, run.to + run.length) == (file, start);
            if adjacent && run.length + length <= BATCH {
                run.length += length;
                return Ok(());
            }
        }
        self.flush()?;
        self.run = Some(Run { source: first.file, from: first.start, target: file, to: start, length });
        Ok(())
    }

    /// Shares the blocks of the run.
    fn flush(&mut self) -> anyhow::Result<()> {
        let Some(run) = self.run.take() else { return Ok(()) };
        if self.dry_run {
            self.counts.shared += run.length;
            return Ok(());
        }
        if self.share(&run)? {
            return Ok(());
        }
        // One block of the run has another content: the others may be equal all the same.
        let mut done = 0;
        while done < run.length {
            let length = self.block_size.min(run.length - done);
            let part = Run { from: run.from + done, to: run.to + done, length, ..run };
            if !self.share(&part)? {
                self.counts.differing += 1;
            }
            done += length;
        }
        Ok(())
    }

    /// Returns whether the bytes were equal.
    fn share(&mut self, run: &Run) -> anyhow::Result<bool> {
        self.open(run.source)?;
        self.open(run.target)?;
        let file = |index| {
            let found = self.opened.iter().find(|(known, _)| *known == index);
            &found.expect("opened above").1
        };
        let shared = match (file(run.source), file(run.target)) {
            (Opened::Image(source), Opened::Image(target)) => {
                let shared = target.dedupe_range(source, run.from, run.length, run.to);
                shared.map_err(|error| of_image(&self.shown(run.target), error))?
            }
            (Opened::Mounted(_, source), Opened::Mounted(mounted, target)) => source
                .dedupe_range(run.from, run.length, target, run.to)
                .map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
                    Some(Errno::OPNOTSUPP | Errno::NOTTY) => anyhow::anyhow!(
                        "{mounted}: the mount cannot compare and share; unmount it, and name the image"
                    ),
                    _ => mounted.at(&error),
                })?,
            _ => unreachable!("all operands are in one file system"),
        };
        self.counts.shared += shared.unwrap_or_default();
        Ok(shared.is_some())
    }

    fn shown(&self, index: usize) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&self.files[index]))
    }

    /// Opens a file, and keeps the last few open.
    fn open(&mut self, index: usize) -> anyhow::Result<&Opened> {
        if let Some(at) = self.opened.iter().position(|(known, _)| *known == index) {
            let opened = self.opened.remove(at);
            self.opened.push(opened);
        } else {
            if self.opened.len() > 8 {
                self.opened.remove(0);
            }
            let path = OsStr::from_bytes(&self.files[index]);
            let opened = if self.in_image {
                let path = parse_image_path(path)?;
                let inode = self.context.inode(&path, false)?;
                Opened::Image(inode.open().map_err(|error| self.context.at(&path, &error))?)
            } else {
                let mount = papilio_ioctl::mount_table::MountEntry::of(path.as_ref())?;
                let mount = mount.ok_or_else(|| anyhow::anyhow!("{}: not in a mount", path.display()))?;
                let mounted = Mounted { path: path.into(), mount };
                let file = mounted.open()?;
                Opened::Mounted(mounted, file)
            };
            self.opened.push((index, opened));
        }
        Ok(&self.opened.last().expect("pushed above").1)
    }
}

impl Opened {
    fn size(&self) -> anyhow::Result<u64> {
        match self {
            Self::Image(file) => Ok(file.size()?),
            Self::Mounted(mounted, file) => {
                let stat = rustix::fs::fstat(file.as_fd()).map_err(|error| mounted.at(&error.into()))?;
                Ok(stat.st_size as u64)
            }
        }
    }

    fn read(&self, buffer: &mut [u8], start: u64) -> anyhow::Result<()> {
        match self {
            Self::Image(file) => Ok(file.read_exact_at(buffer, start)?),
            Self::Mounted(mounted, file) => {
                let mut done = 0;
                while done < buffer.len() {
                    let count = rustix::io::pread(file.as_fd(), &mut buffer[done..], start + done as u64);
                    match count.map_err(|error| mounted.at(&error.into()))? {
                        0 => anyhow::bail!("{mounted}: the file became shorter"),
                        count => done += count,
                    }
                }
                Ok(())
            }
        }
    }
}

fn hash_of(bytes: &[u8]) -> u64 {
    let sum = ChecksumType::XxHash64.compute(bytes);
    let bytes = sum.as_bytes().first_chunk().expect("XxHash64 has 8 bytes");
    u64::from_le_bytes(*bytes)
}
