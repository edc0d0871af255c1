//! `papilio restore`: copies what can be read out of a damaged file system.
//!
//! The copy is that of [`papilio::export`], which reads around faults. This command chooses roots
//! and devices, and which of the rules of `btrfs restore` apply.

use crate::args;
use crate::commands::deleted;
use crate::context::{ALL_OLDER, Context, LOST_CHECKSUMS};
use crate::copy;
use crate::copy::CopyReport;
use crate::copy::progress::Progress;
use crate::output::{Output, OutputError, escaped};
use crate::path::ImagePath;
use crate::usage_error::UsageError;
use anyhow::Context as _;
use papilio::device::split_partition;
use papilio::format::{LogicalAddress, TreeId};
use papilio::{
    DeletedFile, Event, ExportError, FileSystem, HostOptions, HostPlace, HostSink, OpenOptions, PathFilter,
    Sink, Source, SourceOptions, SubvolumeChoice, TreeRootChoice,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Copy what can be read out of a damaged file system
///
/// Skips what it cannot read: a bad sector, a leaf, or a node with everything below it. Files get
/// zeros in place of what is missing. Each missing range is listed with its reason, and the exit
/// status is then 1. Data whose checksum is lost is copied and listed as not verified.
///
/// Where the superblock, the chunk tree or the root tree is gone, --scan looks for them on the
/// whole device. --tree-root, --fs-root and --subvolid choose other roots than those of the last
/// commit.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// The directory of the host that receives the files; it is created
    #[arg(value_name = "DIR", required_unless_present_any = ["list_roots", "dry_run"])]
    #[arg(value_hint = clap::ValueHint::DirPath)]
    directory: Option<PathBuf>,
    /// Only list what would be copied
    #[arg(short = 'D', long)]
    dry_run: bool,
    /// Only list the trees and their roots
    #[arg(short = 'l', long, conflicts_with = "dry_run")]
    list_roots: bool,
    /// Restore only files that were deleted and that older states still have; scans the whole
    /// device
    #[arg(long, conflicts_with_all = ["list_roots", "tree", "files", "root", "snapshots"])]
    deleted: bool,
    /// Copy other subvolumes and snapshots, too, each whole
    #[arg(short, long)]
    snapshots: bool,
    /// Restore owners, modes and times; always done, except under the name btrfs
    #[arg(short, long)]
    metadata: bool,
    /// Restore extended attributes; always done, except under the name btrfs
    #[arg(short, long)]
    xattr: bool,
    /// Restore symbolic links; always done, except under the name btrfs
    #[arg(short = 'S', long)]
    symlink: bool,
    /// Overwrite existing files; without it they stay
    #[arg(short, long)]
    overwrite: bool,
    /// Go on after errors; always done
    #[arg(short, long)]
    ignore_errors: bool,
    /// Find the top directory; always done
    #[arg(short = 'd')]
    find_dir: bool,
    /// Read the root tree at this address; the same as --tree-root
    #[arg(short, value_name = "ADDRESS", value_parser = args::address)]
    tree: Option<u64>,
    /// Show the subvolume whose root block is there; the same as --fs-root
    #[arg(short, value_name = "ADDRESS", value_parser = args::address)]
    files: Option<u64>,
    /// Use this copy of the superblock (0 at 64 KiB, 1 at 64 MiB, 2 at 256 GiB)
    #[arg(short = 'u', long = "super", value_name = "N", value_parser = clap::value_parser!(u8).range(0..=2))]
    copy: Option<u8>,
    /// Restore the subvolume with this id; the same as --subvolid
    #[arg(short, long = "root", value_name = "ID")]
    root: Option<u64>,
    /// Restore only files whose absolute path matches this expression
    ///
    /// The expression must match the directories on the way, too:
    /// ^/(|home(|/user(|/Desktop(|/.*))))$
    #[arg(long, value_name = "REGEX")]
    path_regex: Option<String>,
    /// Ignore case in --path-regex
    #[arg(short = 'c', requires = "path_regex")]
    ignore_case: bool,
    /// List what is missing on standard output, one JSON object per line
    #[arg(long)]
    json: bool,
    /// Show no progress bar; it is shown only if standard error is a terminal
    #[arg(long)]
    no_progress: bool,
}

impl Args {
    /// Restores the files.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if self.deleted {
            return self.restore_deleted(context);
        }
        let options = self.open_options(context);
        self.confine(context)?;
        let system = context.open_any_state(&self.image, &context.arguments().device, &options)?;
        if self.list_roots {
            return list_roots(context, &system);
        }
        self.mark_lost_checksums(context, &system)?;
        self.mark_older(context, &system)?;
        let path = ImagePath { image: self.image.clone(), path: b"/".to_vec() };
        let inode = system.inode("/").map_err(|error| context.at(&path, &error))?;
        let options = self.source_options(context)?;
        let matched = std::sync::Arc::clone(&options.matched);
        let source = Source { path: path.clone(), inode };
        if self.dry_run {
            let mut list = List { output: Output::new()?, path: Vec::new() };
            let progress = Progress::new(false);
            let report = CopyReport { context, progress: &progress, json: self.json };
            papilio::export(vec![source], options, &mut list, &report).map_err(unlisted)?;
            list.output.finish()?;
            self.report_no_match(context, matched.load(Ordering::Relaxed));
            return Ok(());
        }
        let Some(directory) = &self.directory else {
            return Err(UsageError::new("restore: the directory is missing").into());
        };
        std::fs::create_dir_all(directory)
            .with_context(|| format!("{}: cannot create the directory", directory.display()))?;
        let place = HostPlace::Content(directory.clone());
        self.copy(context, vec![source], options, vec![(path, place)])?;
        self.list_item_faults(&system)?;
        self.report_no_match(context, matched.load(Ordering::Relaxed));
        Ok(())
    }

    /// Leaves this run with the right to read the image, and to write to the directory. It is
    /// created now, because later the run cannot create it.
    fn confine(&self, context: &Context) -> anyhow::Result<()> {
        let image = [self.image.clone()];
        match &self.directory {
            Some(directory) if !self.list_roots && !self.dry_run => {
                if std::fs::metadata(split_partition(&self.image).0).is_ok() {
                    std::fs::create_dir_all(directory)
                        .with_context(|| format!("{}: cannot create the directory", directory.display()))?;
                }
                context.confine_to_output(directory, image);
            }
            _ => context.confine_to_images(image),
        }
        Ok(())
    }

    /// Lists the parts of trees that the copy went without as JSON. The end of the run reports them
    /// as messages.
    fn list_item_faults(&self, system: &FileSystem) -> anyhow::Result<()> {
        if !self.json {
            return Ok(());
        }
        let path = ImagePath { image: self.image.clone(), path: b"/".to_vec() }.to_string();
        let mut output = Output::new()?;
        for fault in system.item_faults() {
            let line = serde_json::json!({ "path": path, "reason": fault.to_string(), "item": true });
            output.text(format_args!("{line}\n"))?;
        }
        Ok(output.finish()?)
    }

    /// Reports that the expression let no file through.
    fn report_no_match(&self, context: &Context, matched: u64) {
        if let Some(expression) = self.path_regex.as_ref().filter(|_| matched == 0) {
            let image = self.image.display();
            context.error(format_args!(
                "{image}: --path-regex {expression}: no file matches; the expression has to match the \
                 directories on the way, too"
            ));
        }
    }

    /// If the checksum tree is lost, lists everything as not verified, and makes the exit status 1.
    /// The warning was printed when the file system was opened.
    fn mark_lost_checksums(&self, context: &Context, system: &FileSystem) -> anyhow::Result<()> {
        if !system.has_lost_checksums() {
            return Ok(());
        }
        context.fail_silently();
        if self.json {
            let path = ImagePath { image: self.image.clone(), path: b"/".to_vec() }.to_string();
            let line = serde_json::json!({ "path": path, "reason": LOST_CHECKSUMS, "unverified": true });
            let mut output = Output::new()?;
            output.text(format_args!("{line}\n"))?;
            output.finish()?;
        }
        Ok(())
    }

    /// Lists the files whose newest content the copy will not have, unless the options ask for that
    /// state, and makes the exit status 1.
    fn mark_older(&self, context: &Context, system: &FileSystem) -> anyhow::Result<()> {
        context.report_older(&self.image, system, ALL_OLDER);
        if !self.json {
            return Ok(());
        }
        let mut output = Output::new()?;
        let mut line = |path: &[u8], reason: String| {
            let mut object = serde_json::Map::new();
            let path = ImagePath { image: self.image.clone(), path: [b"/", path].concat() };
            object.insert("path".into(), path.to_string().into());
            object.insert("reason".into(), reason.into());
            object.insert("older".into(), true.into());
            output.text(format_args!("{}\n", serde_json::Value::Object(object)))
        };
        for state in system.older_states().iter().filter(|state| !state.is_asked()) {
            line(b"", state.to_string())?;
            for file in system.older_files(state) {
                line(&file.path, file.reason())?;
            }
        }
        Ok(output.finish()?)
    }

    fn source_options(&self, context: &Context) -> anyhow::Result<SourceOptions> {
        let all = !context.arguments().drop_in;
        Ok(SourceOptions {
            recursive: true,
            links: all || self.metadata,
            xattrs: all || self.xattr,
            unverified: true,
            skip_subvolumes: !self.snapshots,
            only_files: !(all || self.symlink),
            filter: self
                .filter()?
                .map(|filter| -> PathFilter { Arc::new(move |path| filter.is_match(path)) }),
            ..SourceOptions::default()
        })
    }

    /// Copies the sources to their places on the host.
    fn copy(
        &self,
        context: &Context,
        sources: Vec<Source>,
        options: SourceOptions,
        places: Vec<(ImagePath, HostPlace)>,
    ) -> anyhow::Result<()> {
        let all = !context.arguments().drop_in;
        let host = HostOptions { archive: all || self.metadata || self.xattr, no_clobber: !self.overwrite };
        let shown = !self.no_progress && context.verbosity == 0 && std::io::stderr().is_terminal();
        let progress = Progress::new(shown);
        context.set_progress(progress.bar());
        let report = CopyReport { context, progress: &progress, json: self.json };
        let mut sink = HostSink::new(&report, host, places)?;
        let copied = copy::run(sources, options, &mut sink, &report);
        sink.finish();
        context.set_progress(None);
        if let Some(bar) = progress.bar() {
            bar.finish_and_clear();
        }
        copied
    }

    /// Restores the files that only older root trees have, to their paths below the directory.
    fn restore_deleted(&self, context: &Context) -> anyhow::Result<()> {
        let options = self.open_options(context);
        let filter = self.filter()?;
        self.confine(context)?;
        let mut found = deleted::find(context, &self.image, &options)?;
        found.retain(|file| {
            let path = [b"/", &file.path[..]].concat();
            filter.as_ref().is_none_or(|filter| filter.is_match(&path))
        });
        self.report_no_match(context, found.len() as u64);
        if self.dry_run {
            let mut list = List { output: Output::new()?, path: Vec::new() };
            found.iter().try_for_each(|file| list.line(&file.path)).map_err(unlisted)?;
            return Ok(list.output.finish()?);
        }
        let Some(directory) = &self.directory else {
            return Err(UsageError::new("restore: the directory is missing").into());
        };
        let mut roots: BTreeMap<_, Vec<DeletedFile>> = BTreeMap::new();
        for file in found {
            roots.entry((file.generation, file.tree_root)).or_default().push(file);
        }
        let mut taken = BTreeSet::new();
        for ((_, address), files) in roots.into_iter().rev() {
            let options = options.clone().tree_root(TreeRootChoice::Address(address));
            // The user asked for older states.
            let system = context.open_any_state(&self.image, &context.arguments().device, &options)?;
            self.mark_lost_checksums(context, &system)?;
            let (mut sources, mut places) = (Vec::new(), Vec::new());
            for file in files {
                let path = ImagePath { image: self.image.clone(), path: [b"/", &file.path[..]].concat() };
                let inode = match system.inode_nofollow(std::ffi::OsStr::from_bytes(&path.path)) {
                    Ok(inode) => inode,
                    Err(error) => {
                        context.failure(&context.at(&path, &error));
                        continue;
                    }
                };
                let (parent, name) = deleted::place_of(directory, &file, &mut taken);
                std::fs::create_dir_all(&parent)
                    .with_context(|| format!("{}: cannot create the directory", parent.display()))?;
                places.push((path.clone(), HostPlace::Named { parent, name, in_place: false }));
                sources.push(Source { path, inode });
            }
            self.copy(context, sources, self.source_options(context)?, places)?;
        }
        Ok(())
    }

    fn open_options(&self, context: &Context) -> OpenOptions {
        let mut options = context.options_for(&self.image).ignore_bad_roots(true);
        if let Some(address) = self.tree {
            options = options.tree_root(TreeRootChoice::Address(LogicalAddress(address)));
        }
        if let Some(address) = self.files {
            options = options.fs_root(LogicalAddress(address));
        }
        if let Some(copy) = self.copy {
            options = options.superblock_mirror(copy.into());
        }
        if let Some(id) = self.root {
            options = options.subvolume(SubvolumeChoice::Id(TreeId(id)));
        }
        options
    }

    fn filter(&self) -> anyhow::Result<Option<regex::bytes::Regex>> {
        let Some(text) = &self.path_regex else { return Ok(None) };
        let built = regex::bytes::RegexBuilder::new(text).case_insensitive(self.ignore_case).build();
        built.map(Some).map_err(|error| {
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default();
            UsageError::new(format_args!("restore: --path-regex: {reason}")).into()
        })
    }
}

/// Prints the trees as `btrfs restore -l` does.
fn list_roots(context: &Context, system: &FileSystem) -> anyhow::Result<()> {
    let mut output = Output::new()?;
    match system.tree_roots() {
        Ok(roots) => {
            for root in roots {
                let Some(key) = root.key else { continue };
                let name = papilio::format::objectid::Objectid(key.objectid);
                let (address, level) = (root.address, root.level);
                let line =
                    format_args!(" tree key ({name} ROOT_ITEM {}) {address} level {level}\n", key.offset);
                output.text(line)?;
            }
        }
        Err(error) => context.error(error),
    }
    Ok(output.finish()?)
}

/// Returns the error of standard output that ended a list.
fn unlisted(error: ExportError) -> anyhow::Error {
    match error {
        ExportError::Stopped(error) => OutputError::from(error).into(),
        other => other.into(),
    }
}

/// A sink that prints the paths of what would be copied.
struct List {
    output: Output,
    path: Vec<Vec<u8>>,
}

impl List {
    fn line(&mut self, name: &[u8]) -> Result<(), ExportError> {
        let mut line = Vec::new();
        for part in self.path.iter().map(Vec::as_slice).chain([name]).filter(|part| !part.is_empty()) {
            line.push(b'/');
            line.extend(part);
        }
        if line.is_empty() {
            return Ok(());
        }
        let mut line = escaped(&line).into_owned();
        line.push(b'\n');
        self.output.bytes(&line).map_err(|error| ExportError::Stopped(error.into_io()))
    }
}

impl Sink for List {
    fn begin(&mut self, _source: usize) -> Result<(), ExportError> {
        Ok(())
    }

    fn data(&mut self, _offset: u64, _bytes: &[u8]) -> Result<(), ExportError> {
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<(), ExportError> {
        match event {
            Event::EnterDirectory { name, .. } => {
                self.line(&name)?;
                self.path.push(name);
            }
            Event::LeaveDirectory => drop(self.path.pop()),
            Event::File { name, .. }
            | Event::Link { name, .. }
            | Event::Symlink { name, .. }
            | Event::Special { name, .. } => self.line(&name)?,
            _ => {}
        }
        Ok(())
    }
}
