//! `papilio dedupe`: shares equal data. [`papilio::ChecksumDedupe`] and [`papilio::Dedupe`] do the
//! work.

use crate::context::{Context, of_image};
use crate::mounted::{Target, device_paths, explain_walk};
use crate::output::{Output, escaped};
use crate::units::{Units, parse_size};
use crate::usage_error::UsageError;
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use papilio::{
    ChecksumDedupe, ChecksumDedupeReport, Dedupe, DedupeError, DedupeObserver, DedupePlace, DedupePlan,
    DedupeReport, DedupeStage, FileSystem, WalkError, WalkRoot,
};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Reads of a mount that changes meanwhile.
const ATTEMPTS: u32 = 4;

/// Share the data of extents and blocks that are equal
///
/// Candidates come from the checksums that the file system has, without reading data: whole extents
/// first, and then the longest runs of equal sectors. The file system compares the data before it
/// shares it. Content and times stay. An extent is only given up whole: all references to it are
/// led to others, also those of read-only snapshots and of files elsewhere. Parts that no other
/// extent has are written anew, if they are the smaller half.
///
/// The top of an image, or a mount point, means the whole file system. Other arguments restrict the
/// extents that are given up to those that files below them use. All must be in one file system: in
/// an image, or in a mount of the kernel's Btrfs, where that takes the rights of an administrator.
///
/// Extents without checksums are read in blocks instead, of which equal ones share their data. With
/// --read all files are read in this way: then space is free once no file uses any part of an
/// extent.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files and directories, in an image or in a mount
    #[arg(value_name = "IMAGE:/PATH|PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// The shortest run of equal data that counts (16K); with --read, the size of a block (128K): a
    /// power of two from 4K to 16M
    #[arg(short, long, value_name = "SIZE", value_parser = parse_block)]
    block_size: Option<u64>,
    /// Only count what is equal, by checksums or hashes
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Read all files in blocks, and ignore the checksums that are stored
    #[arg(long)]
    read: bool,
    /// Keep what is known of the checksums of the whole file system in FILE, so that the next run
    /// looks only at newer ones
    #[arg(long, value_name = "FILE", conflicts_with = "read", value_hint = clap::ValueHint::FilePath)]
    state: Option<PathBuf>,
    /// The memory for checksums, 16 bytes for each sector; more go to a temporary file
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    #[arg(conflicts_with = "read")]
    memory: u64,
    /// Write nothing anew: leave extents of which others have only a part
    #[arg(long, conflicts_with = "read")]
    no_copy: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_block(text: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    let fits = size.is_power_of_two() && Dedupe::BLOCK_SIZES.contains(&size);
    if fits { Ok(size) } else { Err("not a power of two from 4K to 16M".to_owned()) }
}

/// The file system and the paths that the arguments name.
struct Operands {
    /// The first of them.
    first: Target,
    roots: Vec<WalkRoot>,
    /// They are the whole file system.
    all: bool,
}

impl Args {
    /// Finds what is equal, and shares it.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let operands = self.operands(context)?;
        let mut watch = Watch { context, bar: context.is_interactive().then(new_bar) };
        context.set_progress(watch.bar.clone());
        let result = if self.read {
            self.by_reading(operands.roots, None, &mut watch).and_then(|read| self.report_read(&read))
        } else {
            self.by_checksums(context, operands, &mut watch)
        };
        if let Some(bar) = &watch.bar {
            bar.finish_and_clear();
        }
        context.set_progress(None);
        result
    }

    fn operands(&self, context: &Context) -> anyhow::Result<Operands> {
        let targets: Vec<Target> =
            self.paths.iter().map(|path| Target::parse(path)).collect::<Result<_, _>>()?;
        let first = targets.first().context("no argument")?.clone();
        if let (Target::Image(path), false) = (&first, self.dry_run) {
            context.change(&path.image)?;
        }
        let is_top = |target: &Target| match target {
            Target::Image(path) => path.path.iter().all(|byte| *byte == b'/'),
            Target::Mounted(mounted) => {
                mounted.path.canonicalize().is_ok_and(|path| path == mounted.mount.point)
            }
        };
        let all = targets.iter().any(is_top);
        let roots = targets.into_iter().map(|target| target.walk_root(context));
        let roots: Vec<WalkRoot> = roots.collect::<anyhow::Result<_>>()?;
        let mut systems = Vec::new();
        for root in &roots {
            systems.push((root.file_system().map_err(explain_walk)?, matches!(root, WalkRoot::Image(..))));
        }
        if systems.iter().any(|system| *system != systems[0]) {
            return Err(UsageError::new("dedupe: the arguments are in several file systems").into());
        }
        Ok(Operands { first, roots, all })
    }

    fn by_reading(
        &self,
        roots: Vec<WalkRoot>,
        extents: Option<&[u64]>,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<DedupeReport> {
        let mut dedupe = Dedupe::new().dry_run(self.dry_run);
        if let (Some(size), true) = (self.block_size, self.read) {
            dedupe = dedupe.block_size(size);
        }
        let mut report = DedupeReport::default();
        match dedupe.run_on(roots, extents, &mut report, watch) {
            Ok(()) => Ok(report),
            Err(error) => {
                self.report_read(&report)?;
                Err(explain(error))
            }
        }
    }

    fn by_checksums(
        &self,
        context: &Context,
        operands: Operands,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<()> {
        let mut dedupe = ChecksumDedupe::new()
            .memory_bytes(usize::try_from(self.memory).unwrap_or(usize::MAX))
            .copies(!self.no_copy)
            .dry_run(self.dry_run)
            .state(self.state.clone());
        if let Some(size) = self.block_size {
            dedupe = dedupe.shortest_run(size);
        }
        let Operands { first, roots, all } = operands;
        if self.state.is_some() && !all {
            let reason = "dedupe: --state is for a whole file system: IMAGE:/ or a mount point";
            return Err(UsageError::new(reason).into());
        }
        let wanted = || if all { None } else { Some(roots.clone()) };
        let (plan, report);
        let unsummed: Vec<u64>;
        match &first {
            Target::Image(path) => {
                let fs = match self.dry_run {
                    true => context.open(&path.image)?,
                    false => context.change(&path.image)?,
                };
                plan = dedupe.plan(&fs, wanted(), watch).map_err(explain)?;
                unsummed = plan.unsummed().to_vec();
                report = dedupe.share(plan, DedupePlace::Image(&fs), watch).map_err(explain)?;
            }
            Target::Mounted(mounted) => {
                let open = || {
                    let (device, further) = device_paths(mounted)?;
                    let opened = context.open_last_commit(&device, &further, true);
                    opened.context("the devices of the mount cannot be read; --read works without them")
                };
                plan = plan_of_mount(&dedupe, &open, &wanted, watch)?;
                unsummed = plan.unsummed().to_vec();
                let place = DedupePlace::Mounted(&mounted.path);
                report = dedupe.share(plan, place, watch).map_err(explain)?;
            }
        }
        let read = match unsummed.is_empty() {
            true => None,
            false => Some(self.by_reading(roots, Some(&unsummed), watch)?),
        };
        if report.faults > 0 {
            let faults = report.faults;
            context.failure(&anyhow::anyhow!(
                "{faults} tree blocks or items cannot be read; extents that they describe were left out"
            ));
        }
        self.report(&report, read.as_ref())
    }

    fn report(&self, counts: &ChecksumDedupeReport, read: Option<&DedupeReport>) -> anyhow::Result<()> {
        let mut output = Output::new()?;
        if self.json {
            let left = counts.left.iter().map(|(reason, (extents, bytes))| {
                let reason = format!("{reason:?}");
                json!({ "reason": reason, "extents": extents, "bytes": bytes })
            });
            let object = json!({
                "extents": counts.extents,
                "extent_bytes": counts.extent_bytes,
                "extents_planned": counts.planned_extents,
                "extents_freed": counts.freed_extents,
                "bytes_freed": counts.freed_bytes,
                "bytes_written_anew": counts.copied_bytes,
                "references": counts.references,
                "bytes_compared": counts.compared_bytes,
                "extents_with_equal_checksums_only": counts.differing_extents,
                "extents_without_checksums": counts.unsummed_extents,
                "tree_blocks_unreadable": counts.faults,
                "left": left.collect::<Vec<_>>(),
                "read": read.map(|read| self.read_json(read)),
                "dry_run": self.dry_run,
            });
            output.text(format_args!("{object:#}\n"))?;
            return Ok(output.finish()?);
        }
        let text = |bytes| Units::HUMAN.text(bytes);
        output.text(format_args!(
            "{} extents looked at, {} compared: {} extents, {} ({} bytes) {}, {} written anew\n",
            counts.extents,
            text(counts.compared_bytes),
            counts.freed_extents,
            text(counts.freed_bytes),
            counts.freed_bytes,
            if self.dry_run { "could be freed" } else { "freed" },
            text(counts.copied_bytes),
        ))?;
        for (reason, (extents, bytes)) in &counts.left {
            output.text(format_args!("{extents} extents ({}) {}\n", text(*bytes), reason.text()))?;
        }
        if let Some(read) = read.filter(|read| read.files > 0) {
            output.text(format_args!("without checksums: "))?;
            self.text_read(&mut output, read)?;
        }
        Ok(output.finish()?)
    }

    fn report_read(&self, counts: &DedupeReport) -> anyhow::Result<()> {
        let mut output = Output::new()?;
        match self.json {
            true => output.text(format_args!("{:#}\n", self.read_json(counts)))?,
            false => self.text_read(&mut output, counts)?,
        }
        Ok(output.finish()?)
    }

    fn read_json(&self, counts: &DedupeReport) -> Value {
        let mut object = Map::new();
        for (name, value) in [
            ("files", counts.files),
            ("bytes_read", counts.read_bytes),
            ("bytes_shared", counts.shared_bytes),
            ("blocks_with_equal_hashes_only", counts.differing_blocks),
        ] {
            object.insert(name.into(), value.into());
        }
        object.insert("dry_run".into(), self.dry_run.into());
        Value::Object(object)
    }

    fn text_read(&self, output: &mut Output, counts: &DedupeReport) -> anyhow::Result<()> {
        let text = |bytes| Units::HUMAN.text(bytes);
        output.text(format_args!(
            "{} files, {} read: {} ({} bytes) {}\n",
            counts.files,
            text(counts.read_bytes),
            text(counts.shared_bytes),
            counts.shared_bytes,
            if self.dry_run { "could be shared" } else { "shared" },
        ))?;
        Ok(())
    }
}

/// Makes a plan from the devices of a mount. It begins again if the mount changes meanwhile.
fn plan_of_mount(
    dedupe: &ChecksumDedupe,
    open: &dyn Fn() -> anyhow::Result<FileSystem>,
    wanted: &dyn Fn() -> Option<Vec<WalkRoot>>,
    watch: &mut Watch<'_>,
) -> anyhow::Result<DedupePlan> {
    let mut attempts_left = ATTEMPTS;
    loop {
        attempts_left -= 1;
        let plan = dedupe.plan(&open()?, wanted(), watch);
        match plan {
            Ok(plan) if plan.faults() == 0 => return Ok(plan),
            Err(DedupeError::Library(_)) | Ok(_) if attempts_left > 0 => {}
            plan => return plan.map_err(explain),
        }
    }
}

fn new_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{elapsed_precise} {spinner} {wide_msg}");
    let bar = ProgressBar::new_spinner().with_style(style.expect("the template is valid"));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Returns the message for an error that ended the work, or left a file out.
fn explain(error: DedupeError) -> anyhow::Error {
    match error {
        // The path shows the image.
        DedupeError::File(WalkError::Image { path, error })
            if !matches!(*error, papilio::Error::Path { .. }) =>
        {
            of_image(path.to_string().as_ref(), *error)
        }
        DedupeError::File(error) => explain_walk(error),
        other => other.into(),
    }
}

/// The messages and the bar on standard error.
struct Watch<'a> {
    context: &'a Context,
    bar: Option<ProgressBar>,
}

impl DedupeObserver for Watch<'_> {
    fn file(&mut self, path: &[u8], before: &DedupeReport) -> std::io::Result<()> {
        if let Some(bar) = &self.bar {
            let text = |bytes| Units::HUMAN.text(bytes);
            let name = String::from_utf8_lossy(&escaped(path)).into_owned();
            let (read, shared) = (text(before.read_bytes), text(before.shared_bytes));
            bar.set_message(format!("{read} read, {shared} shared  {name}"));
        }
        Ok(())
    }

    fn stage(&mut self, stage: DedupeStage, done: u64) -> std::io::Result<()> {
        if let Some(bar) = &self.bar {
            bar.set_message(match stage {
                DedupeStage::Extents | DedupeStage::Seeds => format!("reading checksums: {done} extents"),
                DedupeStage::Whole => "looking for equal extents".to_owned(),
                DedupeStage::Runs => format!("looking for equal runs: {done} places"),
                _ => format!("sharing: {} free", Units::HUMAN.text(done)),
            });
        }
        Ok(())
    }

    fn note(&mut self, text: &str) {
        self.context.warning(format_args!("{text}"));
    }

    fn failed(&mut self, error: DedupeError) {
        self.context.failure(&explain(error));
    }
}
