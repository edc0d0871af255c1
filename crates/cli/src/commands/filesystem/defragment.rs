//! `papilio filesystem defragment`.

use crate::context::{Context, of_image};
use crate::mounted::{Mounted, Target};
use crate::operands::for_each_target;
use crate::output::{Output, human_size};
use crate::tree::{Recursion, for_each_inode};
use crate::units::parse_size;
use anyhow::bail;
use papilio::format::items::file_extent::Compression;
use papilio::{
    CompressionChoice, DefragmentOptions, FileKind, FileSystem, Inode, SharedDefragmentOptions,
    SharedDefragmentReport, StayReason,
};
use papilio_ioctl::client::MountedPath;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Rewrite the small extents of files as larger ones
///
/// Neither the content nor the times change. Where a file shares data with snapshots or clones,
/// all of them follow to the new extents, also to compressed ones, so that no more space is needed.
/// --unshare copies such data for the file alone, as the kernel does.
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
    /// Keep shared data shared: the default where a file shares any. Files of read-only snapshots
    /// are defragmented as well
    #[arg(long, conflicts_with = "unshare")]
    keep_shared: bool,
    /// Copy data that snapshots or clones share, which then needs more space
    #[arg(long)]
    unshare: bool,
    /// Stop before more bytes are written; with -c, before they are compressed
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "unshare")]
    max_bytes: Option<u64>,
    /// Stop before more extents are replaced
    #[arg(long, value_name = "N", conflicts_with = "unshare")]
    max_extents: Option<u64>,
    /// Begin nothing after so many seconds
    #[arg(long, value_name = "SECONDS", conflicts_with = "unshare")]
    max_time: Option<u64>,
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
        self.run_images(context, &images, &options)
    }

    /// Whether shared data is always kept shared.
    fn keeps_shared(&self) -> bool {
        let limited = self.max_bytes.is_some() || self.max_extents.is_some() || self.max_time.is_some();
        self.keep_shared || limited
    }

    fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.length.unwrap_or(u64::MAX))
    }

    fn run_images(
        &self,
        context: &Context,
        images: &[OsString],
        options: &DefragmentOptions,
    ) -> anyhow::Result<()> {
        let how = Recursion { one_subvolume: true, recursive: self.recursive, follow: true };
        let unshares = self.unshare || context.arguments().drop_in && !self.keeps_shared();
        let mut total = Merged::default();
        for image in images {
            let mut files = Vec::new();
            let mut known = None;
            for_each_inode(context, std::slice::from_ref(image), how, |inode| {
                if inode.file_type() != FileKind::Regular || unshares {
                    return self.one(inode, options);
                }
                let known = match &mut known {
                    Some(known) => known,
                    None => known.insert(inode.file_system().shared_extents()?),
                };
                if !self.keeps_shared() && !inode.shares_data(known)? {
                    return self.one(inode, options);
                }
                files.push(inode.clone());
                Ok(())
            })?;
            if let Some(file) = files.first() {
                let fs = file.file_system().clone();
                let done = self.merge(context, &fs, &files, options, &total);
                total.add(done.map_err(|error| of_image(Path::new(image), error))?);
            }
        }
        total.print(context)
    }

    /// Merges extents of files without unsharing them.
    fn merge(
        &self,
        context: &Context,
        fs: &FileSystem,
        files: &[Inode],
        options: &DefragmentOptions,
        before: &Merged,
    ) -> papilio::Result<SharedDefragmentReport> {
        let options = self.shared_options(options, before);
        let bar = context.show_bar("{spinner} {msg}");
        let report = fs.defragment_shared(files, self.range(), &options, |report| {
            if let Some(bar) = &bar {
                bar.set_message(format!("{} extents became {}", report.replaced, report.made));
                bar.tick();
            }
            true
        });
        context.set_progress(None);
        let report = report?;
        for staying in &report.staying {
            let path = fs.staying_path(staying);
            let text = format!("{path}: the extent at {}: stays: {}", staying.offset, staying.reason);
            if matches!(staying.reason, StayReason::Damaged(_)) {
                context.error(text);
            } else if context.verbosity > 0 {
                context.note(text);
            }
        }
        Ok(report)
    }

    /// The options for files that keep shared data shared, after the work that was done before.
    fn shared_options(&self, options: &DefragmentOptions, before: &Merged) -> SharedDefragmentOptions {
        SharedDefragmentOptions {
            threshold: options.threshold,
            max_bytes: self.max_bytes.map(|most| most.saturating_sub(before.bytes)),
            max_extents: self.max_extents.map(|most| most.saturating_sub(before.replaced)),
            max_time: self
                .max_time
                .map(|most| Duration::from_secs(most).saturating_sub(before.since.elapsed())),
            compression: options.compression,
        }
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
        let is_ours = mounted.mount.is_papilio();
        if !is_ours && (self.max_bytes.is_some() || self.max_extents.is_some()) {
            bail!(
                "{mounted}: --max-bytes and --max-extents are for images and for mounts of papilio; \
                 --max-time works here, too"
            );
        }
        if self.keep_shared && !is_ours {
            bail!(
                "{mounted}: the kernel copies shared data; unmount, or mount with papilio, to keep it shared"
            );
        }
        let drops_in = context.arguments().drop_in && !self.keeps_shared();
        let how = MountedWay { is_ours, unshares: self.unshare || drops_in, ..MountedWay::default() };
        let mut pending = vec![mounted.path.clone()];
        while let Some(path) = pending.pop() {
            let here = Mounted { path, mount: mounted.mount.clone() };
            match self.step(&here.path, &mounted.path, top.dev(), options, &how) {
                Ok(below) => pending.extend(below.into_iter().rev()),
                Err(error) => context.failure(&here.at(&error)),
            }
            if how.done.borrow().stopped {
                break;
            }
            let since = how.done.borrow().since;
            let late = self.max_time.is_some_and(|most| since.elapsed() >= Duration::from_secs(most));
            if late && !pending.is_empty() {
                tell(context, format_args!("{mounted}: stopped after --max-time; the rest is as it was"))?;
                break;
            }
        }
        let unshared = how.unshared.get();
        if unshared > 0 {
            tell(context, format_args!("{mounted}: the kernel {}", copies(unshared)))?;
        }
        let done = how.done.into_inner();
        for (reason, count) in &done.stay {
            if reason == DAMAGED {
                context.error(format!("{mounted}: {count} extents stay because they are damaged"));
            }
        }
        done.print(context)
    }

    /// Defragments a file. Returns the entries of a directory.
    fn step(
        &self,
        path: &Path,
        top: &Path,
        device: u64,
        options: &DefragmentOptions,
        how: &MountedWay,
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
            let file = MountedPath::open(path)?;
            let shares = || file.mapped_extents().map(|extents| extents.iter().any(|(_, shared)| *shared));
            if how.is_ours && !how.unshares && (self.keeps_shared() || shares()?) {
                let options = self.shared_options(options, &how.done.borrow());
                let report = file.defragment_shared(self.range(), &options)?;
                how.done.borrow_mut().add(report);
                return Ok(Vec::new());
            }
            let copied = !how.is_ours && !how.unshares && shares()?;
            how.unshared.set(how.unshared.get() + u64::from(copied));
            file.defragment(self.range(), options, self.flush, how.unshares && how.is_ours)?;
        }
        Ok(Vec::new())
    }
}

/// Prints a line, unless the command is quiet.
fn tell(context: &Context, line: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    if context.tells_more() {
        let mut output = Output::new()?;
        output.text(format_args!("{line}\n"))?;
        output.finish()?;
    }
    Ok(())
}

/// Says that files that shared data do so no longer.
fn copies(files: u64) -> String {
    format!("copies shared data: {files} files shared some, and need more space now")
}

/// How the files of a mount are defragmented.
#[derive(Default)]
struct MountedWay {
    is_ours: bool,
    unshares: bool,
    /// Files that shared data, which was copied.
    unshared: Cell<u64>,
    /// The work on files that kept shared data shared.
    done: RefCell<Merged>,
}

/// Why damaged extents stay, all of them together.
const DAMAGED: &str = "it is damaged";

/// The work done on all images.
struct Merged {
    since: Instant,
    replaced: u64,
    made: u64,
    bytes: u64,
    freed: u64,
    saved: u64,
    grown: u64,
    apart: u64,
    stay: BTreeMap<String, u64>,
    stopped: bool,
    any: bool,
}

impl Default for Merged {
    fn default() -> Self {
        let (replaced, made, bytes, freed, saved, grown) = Default::default();
        let (apart, stay, stopped, any) = Default::default();
        let since = Instant::now();
        Self { since, replaced, made, bytes, freed, saved, grown, apart, stay, stopped, any }
    }
}

impl Merged {
    fn add(&mut self, report: SharedDefragmentReport) {
        self.any = true;
        self.replaced += report.replaced;
        self.made += report.made;
        self.bytes += report.bytes;
        self.freed += report.freed;
        self.saved += report.saved;
        self.grown += report.grown;
        self.apart += report.apart;
        self.stopped |= report.stopped;
        for (reason, count) in report.stay {
            let text = match reason {
                StayReason::Damaged(_) => DAMAGED.to_owned(),
                reason => reason.to_string(),
            };
            *self.stay.entry(text).or_default() += count;
        }
    }

    fn print(&self, context: &Context) -> anyhow::Result<()> {
        if !self.any || !context.tells_more() {
            return Ok(());
        }
        let mut output = Output::new()?;
        let bytes = human_size(self.bytes);
        output.text(format_args!(
            "{} extents became {} ({bytes} written); they are shared as before\n",
            self.replaced, self.made
        ))?;
        if self.freed > 0 {
            let freed = human_size(self.freed);
            output.text(format_args!("{freed} of the old extents, which nothing used, are free now\n"))?;
        }
        if self.saved > 0 {
            output.text(format_args!("they need {} less\n", human_size(self.saved)))?;
        }
        if self.grown > 0 {
            let grown = human_size(self.grown);
            output.text(format_args!("they need {grown} more without compression\n"))?;
        }
        if self.apart > 0 {
            let apart = self.apart;
            output.text(format_args!(
                "{apart} times, neighbours stay apart because other files or snapshots have only one\n"
            ))?;
        }
        for (reason, count) in &self.stay {
            output.text(format_args!("extents that stay, each because {reason}: {count}\n"))?;
        }
        if self.stopped {
            output.text(format_args!("stopped at the limit; the rest is as it was\n"))?;
        }
        Ok(output.finish()?)
    }
}
