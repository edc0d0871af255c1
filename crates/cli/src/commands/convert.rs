//! `papilio convert`: converts ext2, ext3, ext4 and XFS to Btrfs in place, and back.
//!
//! Owns its options, which are those of btrfs-convert(8), and the plan that it prints.

use crate::context::Context;
use crate::output::{Output, human_size};
use crate::units;
use crate::usage_error::UsageError;
use indicatif::ProgressBar;
use papilio::conversion::{
    Conversion, ConvertError, ConvertOptions, ConvertPlan, ConvertProgress, ConvertStage, Finished, IMAGE,
    TargetLabel, TargetUuid, find_interrupted, finish_interrupted, rollback, undo_interrupted,
};
use papilio::device::{Access, Device, DeviceOptions, ImageOptions};
use papilio::format::ChecksumType;
use papilio::{MkfsFeature, Uuid};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Convert ext2, ext3, ext4 or XFS to Btrfs in place, or back
///
/// Data stays where it is, and what files of XFS share stays shared. The subvolume ext2_saved or
/// xfs_saved keeps the old file system as an image that shares the data, and --rollback brings
/// every byte of it back, as long as that subvolume lives and no balance has moved data. Changes
/// made since are lost then.
///
/// First the source is read and checked in full, and the plan is printed. The new file system then
/// grows in free space of the old one and is checked there. A single write of 4 KiB makes it
/// valid: an error or a power cut before it leaves the old file system, one after it the new. If
/// the device tears that write, the next run completes it, and --rollback undoes it. The device
/// must not be mounted. Make a backup nevertheless.
///
/// The source needs blocks of 4096 bytes or more, and about 1 % of its size free, in runs of 256
/// KiB or more. Btrfs has no project ids, preallocated space of files is given up, and extended
/// attributes in inodes of their own (ea_inode), encryption, a real-time section, and a log
/// of XFS that needs a replay are refused. A journal of ext that needs one is replayed in memory.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Compute no checksums of data, and set the NODATASUM flag of files
    #[arg(short = 'd', long)]
    no_datasum: bool,
    /// Leave out extended attributes and access control lists
    #[arg(short = 'i', long)]
    no_xattr: bool,
    /// Keep small files out of the trees
    #[arg(short = 'n', long)]
    no_inline: bool,
    /// The checksum algorithm: crc32c (default), xxhash, sha256 or blake2
    #[arg(long, visible_alias = "checksum", value_name = "TYPE", value_parser = super::mkfs::parse_checksum)]
    csum: Option<ChecksumType>,
    /// The size of a tree block: 4K, 8K, 16K (default), 32K or 64K
    #[arg(short = 'N', long, value_name = "SIZE", value_parser = units::parse_size)]
    nodesize: Option<u64>,
    /// Bring the old file system back
    #[arg(short, long, conflicts_with_all = [
        "no_datasum", "no_xattr", "no_inline", "csum", "nodesize", "label", "copy_label", "uuid", "features",
        "dry_run",
    ])]
    rollback: bool,
    /// The label of the new file system
    #[arg(short, long, conflicts_with = "copy_label")]
    label: Option<OsString>,
    /// Keep the label
    #[arg(short = 'L', long)]
    copy_label: bool,
    /// The UUID of the new file system: new (default), copy, or a UUID
    #[arg(short, long, value_name = "SPEC", value_parser = parse_uuid)]
    uuid: Option<Spec>,
    /// The features to switch on, or off with a leading ^, as for mkfs; list-all describes them all
    #[arg(short = 'O', long, value_name = "LIST")]
    features: Vec<String>,
    /// Show progress, which is the default on a terminal
    #[arg(short, long, overrides_with = "no_progress")]
    progress: bool,
    /// Show no progress
    #[arg(long)]
    no_progress: bool,
    /// Only print the plan
    #[arg(long)]
    dry_run: bool,
    /// The image or device
    #[arg(required_unless_present = "features", value_hint = clap::ValueHint::FilePath)]
    device: Option<PathBuf>,
}

/// The value of `--uuid`.
#[derive(Clone, Copy, Debug)]
struct Spec(TargetUuid);

fn parse_uuid(text: &str) -> Result<Spec, String> {
    Ok(Spec(match text {
        "new" => TargetUuid::New,
        "copy" => TargetUuid::Copied,
        text => TargetUuid::Given(text.parse::<Uuid>().map_err(|error| error.to_string())?),
    }))
}

impl Args {
    /// Runs the command.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if self.features.iter().flat_map(|list| list.split(',')).any(|name| name == "list-all") {
            return super::mkfs::list_features();
        }
        let Some(path) = self.device.clone() else {
            return Err(UsageError::new("convert: name an image or a device").into());
        };
        if let Some(mount) = crate::holder::kernel_mount_of(&path) {
            anyhow::bail!("{}: the kernel has mounted it on {}", path.display(), mount.point.display());
        }
        let options = self.options()?;
        let device = open(&path, self.dry_run)?;
        let bar = if self.no_progress { None } else { context.show_bar("{msg}") };
        let mut report = |progress| show(bar.as_ref(), progress);
        let result = match self.rollback {
            true => roll_back(&device, &path, &mut report),
            false => self.convert(context, &device, &path, &options, &mut report),
        };
        context.set_progress(None);
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        result?.finish()?;
        Ok(())
    }

    fn options(&self) -> anyhow::Result<ConvertOptions> {
        let mut options = ConvertOptions::new()
            .data_checksums(!self.no_datasum)
            .xattrs(!self.no_xattr)
            .inline(!self.no_inline)
            .features(self.features.join(","))
            .uuid(self.uuid.map_or(TargetUuid::New, |spec| spec.0))
            .label(match (&self.label, self.copy_label) {
                (Some(label), _) => TargetLabel::Given(label.clone().into_vec()),
                (None, true) => TargetLabel::Copied,
                (None, false) => TargetLabel::Empty,
            });
        if let Some(checksum) = self.csum {
            options = options.checksum(checksum);
        }
        if let Some(size) = self.nodesize {
            let size = u32::try_from(size).map_err(|_| UsageError::new("the node size is too large"))?;
            options = options.node_size(size);
        }
        for name in self.features.iter().flat_map(|list| list.split(',')).map(str::trim) {
            let bare = name.strip_prefix('^').unwrap_or(name);
            if !bare.is_empty() && MkfsFeature::from_name(bare).is_err() {
                return Err(UsageError::new(format_args!("-O {bare}: no such feature")).into());
            }
        }
        Ok(options)
    }

    fn convert(
        &self,
        context: &Context,
        device: &Arc<dyn Device>,
        path: &Path,
        options: &ConvertOptions,
        report: &mut dyn FnMut(ConvertProgress),
    ) -> anyhow::Result<Output> {
        let mut output = Output::new()?;
        if self.dry_run {
            if let Some(state) = find_interrupted(device)? {
                output.text(format_args!("{}: {state}\nNothing was written.\n", path.display()))?;
                return Ok(output);
            }
        } else if let Some(finished) = finish_interrupted(device)? {
            context.changed_devices.note([path]);
            say_finished(&mut output, path, finished)?;
            return Ok(output);
        }
        let conversion = Conversion::prepare(device, options, report).map_err(usage_of)?;
        let plan = conversion.plan().clone();
        self.print_plan(&mut output, &plan, &conversion)?;
        if self.dry_run {
            output.text(format_args!("Nothing was written.\n"))?;
            return Ok(output);
        }
        // The plan is shown before anything is written.
        output.finish()?;
        let mut output = Output::new()?;
        context.changed_devices.note([path]);
        let converted = conversion.run(report)?;
        output.text(format_args!(
            "Conversion complete\n  Metadata:       {} in one copy\n",
            human_size(converted.metadata_used)
        ))?;
        print_advice(&mut output, path, plan.variant, plan.saved)?;
        Ok(output)
    }

    fn print_plan(
        &self,
        output: &mut Output,
        plan: &ConvertPlan,
        conversion: &Conversion,
    ) -> anyhow::Result<()> {
        let yes = |on: bool| if on { "yes" } else { "no" };
        let checksum = self.csum.unwrap_or(ChecksumType::Crc32c);
        let label = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let target = match (&self.label, self.copy_label) {
            (Some(label), _) => label.to_string_lossy().into_owned(),
            (None, true) => label(&plan.source_label),
            (None, false) => String::new(),
        };
        output.text(format_args!(
            "Source filesystem:\n  Type:           {}\n  Label:          {}\n  Blocksize:      {}\n  UUID:           {}\n",
            plan.variant,
            label(&plan.source_label),
            plan.block_size,
            plan.source_uuid
        ))?;
        output.text(format_args!(
            "Target filesystem:\n  Label:          {target}\n  Blocksize:      4096\n  Nodesize:       {}\n  UUID:           {}\n  Checksum:       {}\n",
            self.nodesize.unwrap_or(16384),
            conversion.fsid(),
            checksum.name()
        ))?;
        output.text(format_args!(
            "    Data csum:    {}\n    Inline data:  {}\n    Copy xattr:   {}\n",
            yes(!self.no_datasum),
            yes(!self.no_inline),
            yes(!self.no_xattr)
        ))?;
        let share = plan.free_bytes as f64 * 100.0 / plan.total_bytes as f64;
        output.text(format_args!(
            "Reported stats:\n  Total space:    {:12}\n  Free space:     {:12} ({share:.2}%)\n  Inode count:    {:12}\n  Free inodes:    {:12}\n  Block count:    {:12}\n",
            plan.total_bytes,
            plan.free_bytes,
            plan.inodes.0,
            plan.inodes.1,
            plan.total_bytes / plan.block_size
        ))?;
        let copies = if plan.metadata_copies > 1 { "two copies" } else { "one copy" };
        output.text(format_args!(
            "Plan:\n  Metadata:       about {} in {copies}, {} set aside for each\n  Moved:          {} that superblocks need\n",
            human_size(plan.metadata_bytes),
            human_size(plan.metadata_room),
            human_size(plan.moved_bytes)
        ))?;
        if let Some(time) = plan.reading_time {
            let bytes = human_size(plan.used_bytes);
            output.text(format_args!(
                "  Reading:        {bytes}, about {:.0} s\n",
                time.as_secs_f64().ceil()
            ))?;
        }
        if plan.replayed {
            output.text(format_args!(
                "  Journal:        replayed in memory; going back leads to the bytes before\n"
            ))?;
        }
        for line in plan.losses.lines() {
            output.text(format_args!("  Not kept:       {line}\n"))?;
        }
        Ok(())
    }
}

/// Says which file system a device has after an interruption.
fn say_finished(output: &mut Output, path: &Path, finished: Finished) -> anyhow::Result<()> {
    match finished {
        Finished::Btrfs => {
            output.text(format_args!("finished a conversion that was interrupted\n"))?;
            print_advice(output, path, "old", "ext2_saved or xfs_saved")
        }
        Finished::Source => {
            let path = path.display();
            output.text(format_args!("{path} has the old file system again, as before an interruption\n"))?;
            Ok(())
        }
    }
}

/// Says where the old file system is, and how to give it up or go back to it.
fn print_advice(output: &mut Output, path: &Path, variant: &str, saved: &str) -> anyhow::Result<()> {
    let path = path.display();
    output.text(format_args!(
        "The {variant} file system is in {saved}/{IMAGE}.\n  To go back:     papilio convert -r {path}\n  To give it up:  papilio subvolume delete {path}:/{saved}\n"
    ))?;
    Ok(())
}

/// Opens the device; nothing else may use it.
fn open(path: &Path, only_reads: bool) -> anyhow::Result<Arc<dyn Device>> {
    if !only_reads {
        return crate::devices::open_for_writing(path);
    }
    let options = DeviceOptions::new(Access::ReadOnly);
    Ok(options.open_target(path, &ImageOptions::default())?.into_device())
}

/// Options that make no sense are wrong usage.
fn usage_of(error: ConvertError) -> anyhow::Error {
    match error {
        ConvertError::Invalid(text) => UsageError::new(text).into(),
        other => other.into(),
    }
}

fn roll_back(
    device: &Arc<dyn Device>,
    path: &Path,
    report: &mut dyn FnMut(ConvertProgress),
) -> anyhow::Result<Output> {
    let mut output = Output::new()?;
    if let Some(finished) = undo_interrupted(device)? {
        say_finished(&mut output, path, finished)?;
        return Ok(output);
    }
    let back = rollback(device, report)?;
    output.text(format_args!(
        "Open filesystem for rollback:\n  Label:           {}\n  UUID:            {}\n  Restoring from:  {}/{IMAGE}\n",
        String::from_utf8_lossy(&back.btrfs_label),
        back.btrfs_uuid,
        back.saved
    ))?;
    output.text(format_args!(
        "Rollback succeeded\n  {} is {} again, with the UUID {}\n",
        path.display(),
        back.variant,
        back.uuid
    ))?;
    Ok(output)
}

/// Shows progress.
fn show(bar: Option<&ProgressBar>, progress: ConvertProgress) {
    let Some(bar) = bar else { return };
    let ConvertProgress { stage, done, total, .. } = progress;
    let counts = match stage {
        ConvertStage::Reading | ConvertStage::Inodes => format!("[{done:>10}/{total:>10}]"),
        _ if total > 0 => format!("[{:>10}/{:>10}]", human_size(done), human_size(total)),
        _ => String::new(),
    };
    let name = match stage {
        ConvertStage::Reading => "Read and check the source",
        ConvertStage::Inodes => "Copy inodes",
        ConvertStage::Checksums => "Compute checksums of data",
        ConvertStage::Image => "Create the image of the source",
        ConvertStage::Checking => "Check the result",
        _ => "Write the superblocks",
    };
    bar.set_message(format!("{name} {counts}"));
}
