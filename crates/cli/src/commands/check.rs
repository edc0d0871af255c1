//! `papilio check`: compares the structures of a file system with one another.

use crate::commands::check_extents;
use crate::commands::inspect::paths_of;
use crate::commands::rescue_change::{self, Consent, SpaceCache};
use crate::context::Context;
use crate::holder;
use crate::output::{Output, escaped};
use indicatif::{ProgressBar, ProgressStyle};
use papilio::format::TreeId;
use papilio::{
    AddressUse, CheckOptions, CheckProgress, CheckReport, CheckStage, FileSystem, Finding, OpenOptions,
    RescueChange, TreeRootChoice,
};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

/// The most addresses whose files are named, and the most files of each.
const MOST_NAMED: usize = 100;

/// Check a file system, and repair it if asked to
///
/// Reads every copy of every tree block, and compares extents with their references, free space
/// with extents, and chunks with device extents. Checks inodes, directories, link counts,
/// checksums, subvolumes and superblocks. A file system that is too damaged to be opened is checked
/// as far as possible.
///
/// An error means that data is at risk or that the kernel refuses the file system; a warning, that
/// something is out of date or wasteful; a note is informational. The exit status is 0 without
/// errors, 1 with errors or if the check could not run, and 2 for wrong usage.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("repairs").multiple(true).args(["repair", "init_extent_tree", "init_csum_tree"]))]
pub struct Args {
    /// The image or device
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Accepted for compatibility with btrfs-check(8); nothing is written without --repair
    #[arg(long, visible_alias = "readonly")]
    read_only: bool,
    /// Check or repair a device without asking even if the kernel has mounted it; findings may come
    /// from changes in progress, and a repair can damage a file system that is in use
    #[arg(long)]
    force: bool,
    /// Use this copy of the superblock (0 at 64 KiB, 1 at 64 MiB, 2 at 256 GiB)
    #[arg(short = 's', long = "super", value_name = "N", value_parser = clap::value_parser!(u8).range(0..=2))]
    copy: Option<u8>,
    /// Fall back to the superblock's backup roots if the current tree root cannot be read
    #[arg(short = 'b', long)]
    backup: bool,
    /// Check what the root tree at this address or of this generation leads to; the same as
    /// --tree-root
    #[arg(short = 'r', value_name = "ADDRESS|GENERATION", conflicts_with = "repair")]
    root: Option<TreeRootChoice>,
    /// Repair: print the plan, ask, save the old blocks in the undo file, write, and check again
    #[arg(long, group = "writes", conflicts_with_all = ["read_only", "check_data_csum"])]
    repair: bool,
    /// Repair: write the extent tree, the block groups and the free-space tree anew
    #[arg(long, conflicts_with_all = ["read_only", "check_data_csum"])]
    init_extent_tree: bool,
    /// Repair: write the checksums anew from the data as it is; the plan lists the files
    #[arg(long, conflicts_with_all = ["read_only", "check_data_csum"])]
    init_csum_tree: bool,
    /// The undo file to write; it must not exist [default: IMAGE.undo; for a device, its name with
    /// .undo in the working directory]
    #[arg(long, value_name = "FILE", requires = "writes", value_hint = clap::ValueHint::FilePath)]
    undo: Option<PathBuf>,
    /// Repair even if that loses files that `restore` and `rescue clone` can still read; the exit
    /// status is then 1
    #[arg(long, requires = "repairs")]
    accept_loss: bool,
    /// Repair without asking
    #[arg(short, long, requires = "repairs")]
    yes: bool,
    /// Remove the v1 free-space caches, or the free-space tree (v2), with an undo file
    #[arg(long, value_name = "VERSION", group = "writes", conflicts_with_all = ["check_data_csum", "qgroup_report", "json", "read_only"])]
    clear_space_cache: Option<SpaceCache>,
    /// Remove the caches of free inode numbers, with an undo file
    #[arg(long, group = "writes", conflicts_with_all = ["check_data_csum", "qgroup_report", "json", "read_only"])]
    clear_ino_cache: bool,
    /// Verify the checksums of all copies of all data, and decode what is compressed
    #[arg(long)]
    check_data_csum: bool,
    /// With --check-data-csum, do not decode compressed data, which takes most of the time
    #[arg(long, requires = "check_data_csum")]
    no_decode: bool,
    /// Only print the numbers of quotas, as they are stored and as they are counted
    #[arg(short = 'Q', long, conflicts_with_all = ["repair", "check_data_csum", "json"])]
    qgroup_report: bool,
    /// Only print the extents of this subvolume, each with the subvolumes that use it
    #[arg(short = 'E', long = "subvol-extents", value_name = "SUBVOLID")]
    #[arg(conflicts_with_all = ["repair", "check_data_csum", "qgroup_report", "json"])]
    subvol_extents: Option<u64>,
    /// Accepted for compatibility with btrfs-check(8); memory is bounded in either mode
    #[arg(long, value_name = "MODE", value_parser = ["original", "lowmem"])]
    mode: Option<String>,
    /// Show the progress
    #[arg(short, long)]
    progress: bool,
    /// Print at most N findings; count the others
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    max_findings: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Checks the file system.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if let Some(mount) = holder::kernel_mount_of(&self.image) {
            let (image, point) = (self.image.display(), mount.point.display());
            if !self.force {
                anyhow::bail!("{image}: the kernel has mounted it on {point}; --force checks it anyway");
            }
            let risk = if self.repair || self.init_extent_tree || self.init_csum_tree {
                ", and a repair can damage what changes meanwhile"
            } else {
                ""
            };
            context.warning(format_args!("{image}: the kernel has mounted it on {point}{risk}"));
        }
        if self.repair || self.init_extent_tree || self.init_csum_tree {
            return self.repair(context);
        }
        let cleared = match self.clear_space_cache {
            Some(version) => Some(version.clear()),
            None => self.clear_ino_cache.then_some(RescueChange::ClearInodeCache),
        };
        if let Some(change) = cleared {
            let undo = self.undo_file(context);
            return rescue_change::make(context, &self.images(context), Some(&undo), change, Consent::Given);
        }
        context.confine_to_images([self.image.clone()]);
        if self.qgroup_report {
            return self.report_quotas(context);
        }
        if let Some(id) = self.subvol_extents {
            return check_extents::report(context, &self.image, &self.open_options(context), TreeId(id));
        }
        let _ = &self.mode;
        let bar = (self.progress && std::io::stderr().is_terminal()).then(new_bar);
        let mut options = CheckOptions::new()
            .data_csum(self.check_data_csum)
            .decode(!self.no_decode)
            .max_findings(self.max_findings);
        if let Some(bar) = bar.clone() {
            options = options.progress(move |progress| show(&bar, progress));
        }
        context.set_progress(bar.clone());
        let opened = self.open_options(context);
        let devices = context.devices_of(&self.image, || papilio::open_devices(&self.image, &opened));
        let report = devices.and_then(|devices| {
            let read = |opened: &OpenOptions| papilio::check_devices(devices.clone(), opened, &options);
            context.or_degraded(&self.image, &opened, read)
        });
        context.set_progress(None);
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        let report = report?;
        let mut output = Output::new()?;
        if self.json {
            output.text(format_args!("{:#}\n", json_report(&report)))?;
        } else {
            self.print(&report, &mut output)?;
            self.print_files(context, &report, &mut output)?;
        }
        output.finish()?;
        if !report.is_clean() {
            context.error(format_args!("{}: {} errors found", self.image.display(), report.errors()));
        }
        Ok(())
    }

    fn open_options(&self, context: &Context) -> OpenOptions {
        let options = context.options_for(&self.image);
        let options = if self.backup { options.use_backup_root(true) } else { options };
        let options = match self.root {
            Some(root) => options.tree_root(root),
            None => options,
        };
        match self.copy {
            Some(copy) => options.superblock_mirror(copy.into()),
            None => options,
        }
    }

    /// Prints stored and counted numbers of each qgroup.
    fn report_quotas(&self, context: &Context) -> anyhow::Result<()> {
        let fs = context.open(&self.image)?;
        let named = |error: papilio::Error| crate::context::of_image(&self.image, error);
        let status = fs.quota_status().map_err(named)?;
        let outdated = status.is_some_and(|status| status.is_inconsistent() || status.is_rescanning());
        if outdated {
            context.warning("the stored numbers are inconsistent until a rescan, so they may differ");
        }
        let stored = fs.qgroups().map_err(named)?;
        let mut different = 0;
        let mut output = Output::new()?;
        for (group, (id, referenced, exclusive)) in stored.iter().zip(fs.count_qgroups().map_err(named)?) {
            let same = (group.referenced, group.exclusive) == (referenced, exclusive);
            different += usize::from(!same);
            let verdict = if same { "" } else { "are different" };
            output.text(format_args!("Counts for qgroup id: {id} {verdict}\n"))?;
            for (name, counted, stored) in
                [("referenced", referenced, group.referenced), ("exclusive", exclusive, group.exclusive)]
            {
                output.text(format_args!("our:\t\t{name} {counted} {name} compressed {counted}\n"))?;
                output.text(format_args!("disk:\t\t{name} {stored} {name} compressed {stored}\n"))?;
            }
        }
        output.finish()?;
        if different > 0 && !outdated {
            context.error(format_args!("{}: {different} qgroups are different", self.image.display()));
        }
        Ok(())
    }

    /// Plans a repair, and makes it if it is wanted.
    fn repair(&self, context: &Context) -> anyhow::Result<()> {
        let images = self.images(context);
        let devices = match self.force {
            true => rescue_change::open_forced(context, &images)?,
            false => rescue_change::open(context, &images)?,
        };
        let options = self.open_options(context);
        let wishes = papilio::RepairOptions::new()
            .init_extent_tree(self.init_extent_tree)
            .init_csum_tree(self.init_csum_tree);
        let plan = papilio::plan_repair_with(&devices, &options, &wishes)?;
        if self.json {
            return self.repair_for_programs(context, &devices, &options, &plan);
        }
        let mut output = Output::new()?;
        self.print(&plan.before, &mut output)?;
        plan.changes.iter().try_for_each(|change| output.text(format_args!("will {change}\n")))?;
        plan.refused.iter().try_for_each(|change| output.text(format_args!("cannot {change}\n")))?;
        plan.losses.iter().try_for_each(|loss| output.text(format_args!("lost: {loss}\n")))?;
        let (left, warnings) = (plan.after.errors(), plan.after.warnings());
        if plan.changes.is_empty() || !plan.better {
            output.text(format_args!("nothing was written\n"))?;
            output.finish()?;
            if plan.before.is_clean() {
                return Ok(());
            }
            anyhow::bail!("{}: it cannot be repaired: {} errors", self.image.display(), plan.before.errors());
        }
        print_kept(&plan, &mut output)?;
        output.text(format_args!("afterwards {left} errors, {warnings} warnings\n"))?;
        output.finish()?;
        self.refuse_losses(&plan)?;
        if !self.agrees(context) && !rescue_change::confirmed("Repair?", false)? {
            anyhow::bail!("{}: not repaired: nothing was written", self.image.display());
        }
        let undo = self.undo_file(context);
        let made = papilio::repair(&devices, &options, &plan, &undo)?;
        context.changed_devices.note(self.images(context));
        let mut output = Output::new()?;
        let (changes, undo) = (made.changes.len(), undo.display());
        output.text(format_args!("repaired with {changes} changes; {undo} takes them back\n"))?;
        output.finish()?;
        if lost_files(&plan) > 0 {
            let count = lost_files(&plan);
            context.error(format_args!("{}: the repair lost {count} files or parts", self.image.display()));
        }
        if !made.after.is_clean() {
            context.error(format_args!("{}: {left} errors are left", self.image.display()));
        }
        Ok(())
    }

    /// Returns whether the repair needs no consent. Scripts for `btrfs check` answer no questions.
    fn agrees(&self, context: &Context) -> bool {
        self.yes || self.force || context.arguments().drop_in && !std::io::stdin().is_terminal()
    }

    /// Refuses a repair that would lose what a reader still gets, unless that is accepted.
    fn refuse_losses(&self, plan: &papilio::RepairPlan) -> anyhow::Result<()> {
        let count = lost_files(plan);
        if count == 0 || self.accept_loss {
            return Ok(());
        }
        anyhow::bail!(
            "{}: not repaired: {count} files or parts that can be read now would be lost; copy them \
             first with `papilio restore` or `papilio rescue clone`, then use --accept-loss",
            self.image.display()
        )
    }

    /// Returns all images and devices of the file system that were named or are found.
    fn images(&self, context: &Context) -> Vec<PathBuf> {
        let named: Vec<_> =
            std::iter::once(&self.image).chain(&context.arguments().device).cloned().collect();
        crate::devices::with_siblings(&named)
    }

    /// Returns the undo file to write.
    fn undo_file(&self, context: &Context) -> PathBuf {
        self.undo.clone().unwrap_or_else(|| rescue_change::undo_of(context, &self.image))
    }

    /// Prints the plan as one JSON object; makes the repair with `--yes`.
    fn repair_for_programs(
        &self,
        context: &Context,
        devices: &[std::sync::Arc<dyn papilio::device::Device>],
        options: &OpenOptions,
        plan: &papilio::RepairPlan,
    ) -> anyhow::Result<()> {
        let allowed = self.refuse_losses(plan);
        let made = match plan.better && !plan.changes.is_empty() && self.yes && allowed.is_ok() {
            true => {
                let undo = self.undo_file(context);
                papilio::repair(devices, options, plan, &undo)?;
                context.changed_devices.note(self.images(context));
                Some(undo)
            }
            false => None,
        };
        let left = if made.is_some() { &plan.after } else { &plan.before };
        let value = json!({
            "before": json_report(&plan.before),
            "after": json_report(&plan.after),
            "changes": plan.changes,
            "refused": plan.refused,
            "losses": plan.losses,
            "better": plan.better,
            "kept": plan.kept.as_ref().map(|kept| json!({
                "files_before": kept.before.0,
                "bytes_before": kept.before.1,
                "files_after": kept.after.0,
                "bytes_after": kept.after.1,
                "lost": kept.lost,
            })),
            "repaired": made.is_some(),
            "undo": made.as_ref().map(|undo| undo.to_string_lossy()),
        });
        let mut output = Output::new()?;
        output.text(format_args!("{value:#}\n"))?;
        output.finish()?;
        if !left.is_clean() {
            context.error(format_args!("{}: {} errors are left", self.image.display(), left.errors()));
        }
        if lost_files(plan) > 0 && self.accept_loss {
            context.fail_silently();
        }
        allowed
    }

    /// Prints the files whose data does not match its checksums.
    fn print_files(
        &self,
        context: &Context,
        report: &CheckReport,
        output: &mut Output,
    ) -> anyhow::Result<()> {
        let is_data = |kind: &str| ["data-checksum", "data-read"].contains(&kind);
        let bad = report.findings.iter().filter(|finding| is_data(finding.kind.name()));
        let bad: Vec<_> = bad.filter_map(|finding| finding.place.address).take(MOST_NAMED).collect();
        if bad.is_empty() {
            return Ok(());
        }
        // The check reads file systems that nothing opens.
        let options = self.open_options(context);
        let devices = context.devices_of(&self.image, || papilio::open_devices(&self.image, &options));
        let opened = devices.and_then(|devices| FileSystem::from_devices(devices, &options));
        let Ok(fs) = opened else { return Ok(()) };
        for address in bad {
            let mut unread = 0;
            let owners = fs.extent_owners_leaving_out(address, false, |_, _| unread += 1);
            let Ok(AddressUse::Data(owners)) = owners else { continue };
            if unread > 0 {
                output.text(format_args!(
                    "logical address {address}: files in subvolumes that cannot be read are not named\n"
                ))?;
            }
            for owner in owners.iter().take(MOST_NAMED) {
                let paths = paths_of(&fs, owner.tree, owner.inode).unwrap_or_default();
                for path in paths {
                    let path = escaped(&path).into_owned();
                    output.text(format_args!("logical address {address}: file "))?;
                    output.bytes(&path)?;
                    output.text(format_args!(", offset {}\n", owner.offset))?;
                }
            }
        }
        Ok(())
    }

    fn print(&self, report: &CheckReport, output: &mut Output) -> anyhow::Result<()> {
        for finding in &report.findings {
            let mut line = escaped(finding.to_string().as_bytes()).into_owned();
            line.push(b'\n');
            output.bytes(&line)?;
        }
        if report.dropped() > 0 {
            output.text(format_args!("{} further findings are not shown\n", report.dropped()))?;
        }
        for note in &report.notes {
            output.text(format_args!("note: {note}\n"))?;
        }
        let seen = &report.statistics;
        output.text(format_args!(
            "{} trees, {} blocks ({} bytes), {} data extents ({} bytes), {} subvolumes, {} inodes, {} files\n",
            seen.trees,
            seen.blocks,
            seen.metadata_bytes,
            seen.data_extents,
            seen.data_bytes,
            seen.subvolumes,
            seen.inodes,
            seen.files
        ))?;
        if self.check_data_csum {
            let (sums, read) = (seen.csum_bytes, seen.data_bytes_read);
            output.text(format_args!("{read} bytes of data read, all copies of {sums} with checksums\n"))?;
            if seen.extents_decoded > 0 {
                output.text(format_args!("{} compressed extents decoded\n", seen.extents_decoded))?;
            }
        }
        let (errors, warnings) = (report.errors(), report.warnings());
        match (errors, warnings) {
            // The words that scripts look for in the output of btrfs-check(8).
            (0, 0) => output.text(format_args!("no error found\n"))?,
            _ => output.text(format_args!("{errors} errors, {warnings} warnings\n"))?,
        }
        Ok(())
    }
}

/// Returns how many files, or parts of files, a repair would lose that a reader still gets.
fn lost_files(plan: &papilio::RepairPlan) -> usize {
    plan.kept.as_ref().map_or(0, |kept| kept.lost.len())
}

/// Prints the files that can be read before and after a repair, and those that it would lose.
fn print_kept(plan: &papilio::RepairPlan, output: &mut Output) -> anyhow::Result<()> {
    let Some(kept) = &plan.kept else { return Ok(()) };
    for line in &kept.lost {
        let mut line = [b"lost file: ", &*escaped(line.as_bytes())].concat();
        line.push(b'\n');
        output.bytes(&line)?;
    }
    let ((files, bytes), (files_after, bytes_after)) = (kept.before, kept.after);
    output.text(format_args!(
        "before {files} files with {bytes} bytes can be read, afterwards {files_after} with {bytes_after}\n"
    ))?;
    Ok(())
}

fn new_bar() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn show(bar: &ProgressBar, progress: CheckProgress) {
    match progress.stage {
        CheckStage::Trees => bar.set_message(format!("{} tree blocks", progress.done)),
        CheckStage::Space => bar.set_message("references, extents, free space"),
        CheckStage::Data => {
            if bar.length() != progress.total {
                let form = "{elapsed_precise} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta}";
                if let Ok(style) = ProgressStyle::with_template(form) {
                    bar.set_style(style.progress_chars("=> "));
                }
                bar.set_length(progress.total.unwrap_or_default());
            }
            bar.set_position(progress.done);
        }
    }
}

fn json_report(report: &CheckReport) -> Value {
    let counts: serde_json::Map<String, Value> =
        report.counts.iter().map(|(kind, count)| (kind.to_string(), json!(count))).collect();
    let seen = &report.statistics;
    json!({
        "verdict": report.verdict().map_or("clean".to_owned(), |worst| worst.to_string()),
        "errors": report.errors(),
        "warnings": report.warnings(),
        "counts": counts,
        "findings": report.findings.iter().map(json_finding).collect::<Vec<_>>(),
        "findings_not_kept": report.dropped(),
        "notes": report.notes.iter().map(|note| json!({ "code": note.code, "message": note.message })).collect::<Vec<_>>(),
        "statistics": {
            "trees": seen.trees,
            "blocks": seen.blocks,
            "metadata_bytes": seen.metadata_bytes,
            "data_extents": seen.data_extents,
            "data_bytes": seen.data_bytes,
            "subvolumes": seen.subvolumes,
            "inodes": seen.inodes,
            "files": seen.files,
            "csum_bytes": seen.csum_bytes,
            "data_bytes_read": seen.data_bytes_read,
            "extents_decoded": seen.extents_decoded,
        },
    })
}

fn json_finding(finding: &Finding) -> Value {
    let place = &finding.place;
    let key = place.key.map(
        |key| json!({ "objectid": key.objectid, "type": key.item_type.to_string(), "offset": key.offset }),
    );
    let all = json!({
        "kind": finding.kind.name(),
        "severity": finding.severity.to_string(),
        "message": finding.message,
        "tree": place.tree.map(|tree| tree.0),
        "logical": place.address.map(|address| address.0),
        "key": key,
        "inode": place.inode.map(|inode| inode.0),
        "device": place.device,
        "physical": place.offset.map(|offset| offset.0),
    });
    match all {
        Value::Object(fields) => fields.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        other => other,
    }
}
