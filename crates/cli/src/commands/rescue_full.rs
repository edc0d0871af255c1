//! `papilio rescue full`: a full file system that the kernel makes read-only becomes writable.
//!
//! Owns the report of the plan and of its steps; [`papilio::Relief`] has the rules.

use crate::commands::rescue_change::confirmed;
use crate::context::{Context, of_image};
use crate::output::{Output, escaped};
use crate::units::Units;
use crate::usage_error::UsageError;
use papilio::{FileSystem, Relief, ReliefGroup, ReliefStep, SharingOptions, Subvolume, SubvolumeSpace};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Snapshots that the plan names.
const MOST_SNAPSHOTS: usize = 10;

/// Make room for metadata in a full file system, so that the kernel can write and delete again
///
/// A file system whose metadata is full cannot even delete, and the kernel makes it read-only. The
/// command says what would help: subvolumes that were deleted and not cleaned, empty block groups,
/// devices that are larger than the file system, data that can move together, and snapshots with
/// their costs. It takes all measures but the last, until metadata has enough room, and deletes the
/// snapshots that --delete names.
///
/// Nothing is lost, and there is no undo file: each step is a complete commit.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device; it must not be mounted
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Delete this subvolume first: an id, or a path from the top level; may be given more than
    /// once
    #[arg(long, value_name = "SUBVOLUME")]
    delete: Vec<OsString>,
    /// Only print the plan
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Write without asking
    #[arg(short, long, conflicts_with = "dry_run")]
    yes: bool,
    /// Print one JSON object, with sizes in bytes
    #[arg(long)]
    json: bool,
}

/// The facts that the command reads before it writes.
struct Plan {
    relief: Relief,
    /// Snapshots that can be deleted, the oldest first.
    snapshots: Vec<SubvolumeSpace>,
    /// The subvolumes to delete.
    doomed: Vec<Subvolume>,
}

impl Args {
    /// Prints the plan, and carries it out.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let explain = |error| of_image(&self.image, error);
        let plan = self.plan(context)?;
        let mut output = Output::new()?;
        if !self.json {
            print(&plan, &mut output)?;
        }
        let goes = !plan.doomed.is_empty() || (plan.relief.is_short() && plan.relief.has_measures());
        if !goes || self.dry_run {
            if self.json {
                output.text(format_args!("{:#}\n", to_json(&plan, &[], None)))?;
            }
            output.finish()?;
            return match plan.relief.is_short() && !self.dry_run {
                true => Err(anyhow::anyhow!(
                    "{}: only deleting (--delete), or another device (papilio device add), helps",
                    self.image.display()
                )),
                false => Ok(()),
            };
        }
        output.finish()?;
        if !self.yes && !confirmed("Write?", false)? {
            anyhow::bail!("{}: nothing was written", self.image.display());
        }
        let fs = context.change(&self.image)?;
        for subvolume in &plan.doomed {
            fs.delete_subvolume_by_id(subvolume.id).map_err(explain)?;
        }
        let mut steps = Vec::new();
        let mut output = Output::new()?;
        let after = fs.relieve(|step| steps.push(step.clone())).map_err(explain)?;
        let after = self.settled(&fs, after).map_err(explain)?;
        match self.json {
            true => output.text(format_args!("{:#}\n", to_json(&plan, &steps, Some(&after))))?,
            false => {
                for subvolume in &plan.doomed {
                    output.text(format_args!("deleted "))?;
                    output.name(&path_of(subvolume))?;
                    output.bytes(b"\n")?;
                }
                steps.iter().try_for_each(|step| output.text(format_args!("{}\n", text_of(step))))?;
                output.text(format_args!("{}\n", room(&after)))?;
            }
        }
        output.finish()?;
        if after.is_short() {
            anyhow::bail!(
                "{}: metadata still has too little room: delete (--delete), or add a device (papilio device add)",
                self.image.display()
            );
        }
        Ok(())
    }

    /// Commits once more, so that the numbers are those of the next mount.
    fn settled(&self, fs: &FileSystem, after: Relief) -> papilio::Result<Relief> {
        fs.sync()?;
        let settled = fs.plan_relief()?;
        Ok(if settled.metadata_room() < after.metadata_room() { settled } else { after })
    }

    fn plan(&self, context: &Context) -> anyhow::Result<Plan> {
        let explain = |error| of_image(&self.image, error);
        // The handle must be gone before the file system is opened for writing.
        let fs = context.open_with(&self.image, &context.options_for(&self.image))?;
        let relief = fs.plan_relief().map_err(explain)?;
        let sharing = fs.space_sharing(&SharingOptions::default(), |_| true).map_err(explain)?;
        let sharing = sharing.expect("nothing ended the measurement");
        let (all, default) = (sharing.subvolumes(), fs.default_subvolume().map_err(explain)?);
        let doomed =
            self.delete.iter().map(|name| find(all, name).cloned()).collect::<Result<Vec<_>, _>>()?;
        let can_go = |space: &SubvolumeSpace| {
            let id = space.subvolume.id;
            space.subvolume.is_snapshot() && id != default && all.iter().all(|other| other.parent != Some(id))
        };
        let snapshots = sharing.by_subvolume().into_iter().filter(can_go).take(MOST_SNAPSHOTS).collect();
        Ok(Plan { relief, snapshots, doomed })
    }
}

/// Returns the subvolume that an argument names.
fn find<'s>(all: &'s [Subvolume], name: &OsStr) -> Result<&'s Subvolume, UsageError> {
    let id = name.to_str().and_then(|name| name.parse::<u64>().ok());
    let wanted = name.as_bytes();
    let wanted = wanted.strip_prefix(b"/").unwrap_or(wanted);
    let wanted = wanted.strip_suffix(b"/").unwrap_or(wanted);
    let by_id = all.iter().find(|found| Some(found.id.0) == id);
    let found = by_id.or_else(|| all.iter().find(|found| found.path.as_deref() == Some(wanted)));
    found.filter(|_| !wanted.is_empty()).ok_or_else(|| {
        UsageError::new(format!("--delete {}: no subvolume has this id or path", name.display()))
    })
}

fn path_of(subvolume: &Subvolume) -> Vec<u8> {
    match &subvolume.path {
        Some(path) => [b"/", &escaped(path)[..]].concat(),
        None => format!("<subvolume {}>", subvolume.id).into_bytes(),
    }
}

fn human(bytes: u64) -> String {
    Units::HUMAN.text(bytes)
}

/// Says how much room metadata has.
fn room(relief: &Relief) -> String {
    format!(
        "metadata: {} of {} in use, and {} can be allocated; room {}, needed {}: {}",
        human(relief.metadata_used),
        human(relief.metadata_total),
        human(relief.unallocated_metadata),
        human(relief.metadata_room()),
        human(relief.needed),
        if relief.is_short() { "too little" } else { "enough" }
    )
}

fn print(plan: &Plan, output: &mut Output) -> anyhow::Result<()> {
    let relief = &plan.relief;
    let raw = |groups: &[ReliefGroup]| human(groups.iter().map(|group| group.raw).sum());
    output.text(format_args!("{}\n", room(relief)))?;
    output.text(format_args!("global reserve: about {}\n", human(relief.usage.global_reserve)))?;
    if relief.deleted_subvolumes > 0 {
        let count = relief.deleted_subvolumes;
        output.text(format_args!("can clean {count} subvolumes that were deleted\n"))?;
    }
    if !relief.empty.is_empty() {
        let (count, bytes) = (relief.empty.len(), raw(&relief.empty));
        output.text(format_args!("can remove {count} empty block groups: {bytes}\n"))?;
    }
    for (device, bytes) in &relief.slack {
        output.text(format_args!("can grow on device {device} by {}\n", human(*bytes)))?;
    }
    if !relief.movable.is_empty() {
        let (count, bytes) = (relief.movable.len(), raw(&relief.movable));
        let moved = human(relief.movable.iter().map(|group| group.used).sum());
        output.text(format_args!("can empty {count} block groups of data: {bytes}, by moving {moved}\n"))?;
    }
    for space in &plan.snapshots {
        let bytes = &space.exclusive.bytes;
        let (data, metadata) = (human(bytes.data), human(bytes.metadata));
        output.text(format_args!("deleting frees {data} of data, {metadata} of metadata: "))?;
        output.name(&path_of(&space.subvolume))?;
        output.bytes(b"\n")?;
    }
    for subvolume in &plan.doomed {
        output.text(format_args!("will delete "))?;
        output.name(&path_of(subvolume))?;
        output.bytes(b"\n")?;
    }
    if !relief.is_short() && plan.doomed.is_empty() {
        output.text(format_args!("nothing to do\n"))?;
    }
    Ok(())
}

fn text_of(step: &ReliefStep) -> String {
    match step {
        ReliefStep::Cleaned => "cleaned deleted subvolumes, and removed empty block groups".to_owned(),
        ReliefStep::Grown(device, bytes) => format!("grew on device {device} by {}", human(*bytes)),
        ReliefStep::Moved(group) => {
            format!("emptied the block group at {}: {}", group.start, human(group.raw))
        }
        ReliefStep::NotMoved(group, why) => {
            format!("could not empty the block group at {}: {why}", group.start)
        }
        _ => "another step".to_owned(),
    }
}

fn group_json(group: &ReliefGroup) -> Value {
    json!({ "start": group.start.0, "length": group.length, "used": group.used, "raw": group.raw })
}

fn relief_json(relief: &Relief) -> Value {
    let device = |(devid, bytes): &(papilio::DeviceId, u64)| json!({ "devid": devid.0, "bytes": bytes });
    json!({
        "metadata_total": relief.metadata_total,
        "metadata_used": relief.metadata_used,
        "metadata_unallocated": relief.unallocated_metadata,
        "room": relief.metadata_room(),
        "needed": relief.needed,
        "short": relief.is_short(),
        "global_reserve": relief.usage.global_reserve,
        "deleted_subvolumes": relief.deleted_subvolumes,
        "empty": relief.empty.iter().map(group_json).collect::<Vec<_>>(),
        "slack": relief.slack.iter().map(device).collect::<Vec<_>>(),
        "movable": relief.movable.iter().map(group_json).collect::<Vec<_>>(),
    })
}

fn to_json(plan: &Plan, steps: &[ReliefStep], after: Option<&Relief>) -> Value {
    let snapshot = |space: &SubvolumeSpace| {
        json!({
            "subvolume": space.subvolume.id.0,
            "path": String::from_utf8_lossy(&path_of(&space.subvolume)),
            "data": space.exclusive.bytes.data,
            "metadata": space.exclusive.bytes.metadata,
        })
    };
    json!({
        "before": relief_json(&plan.relief),
        "snapshots": plan.snapshots.iter().map(snapshot).collect::<Vec<_>>(),
        "delete": plan.doomed.iter().map(|one| one.id.0).collect::<Vec<_>>(),
        "steps": steps.iter().map(text_of).collect::<Vec<_>>(),
        "after": after.map(relief_json),
    })
}
