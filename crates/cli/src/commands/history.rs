//! `papilio history`: the changes of a directory from snapshot to snapshot.

use crate::commands::diff;
use crate::context::Context;
use crate::mounted::Target;
use crate::output::{JsonArray, Output, json_bytes};
use crate::sought::{LeftOut, SoughtPath, read_past, shown_gap, shown_subvolume};
use crate::time;
use papilio::format::TreeId;
use papilio::{HistoryGap, HistoryStep, Subvolume, directory_history_leaving_out};
use serde_json::{Map, Value, json};
use std::ffi::OsString;

/// Show what changed in a directory from snapshot to snapshot
///
/// The history of a subvolume is the list of its snapshots, oldest first. If the subvolume was
/// itself made from a snapshot, as after a rollback, the history of that snapshot comes before. The
/// last step leads from the newest snapshot to the subvolume as it is now.
///
/// A line has a letter and a path from the root of the subvolume, as for papilio diff: A for added,
/// D for deleted, R for renamed, M for changed. The directory is followed where it had another
/// name. It may be gone.
///
/// Only what differs is read. In a mount, the command needs to read the devices, and shows the
/// state of the last commit.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory
    #[arg(value_name = "IMAGE:/DIR|DIR", value_hint = clap::ValueHint::AnyPath)]
    directory: OsString,
    /// Begin with this snapshot: an id, or a path from the top level
    #[arg(long, value_name = "SNAPSHOT")]
    since: Option<OsString>,
    /// Print only the number of changes of each kind
    #[arg(short, long)]
    summarize: bool,
    /// Print steps without changes, too
    #[arg(short, long)]
    all: bool,
    /// Print one JSON array, with an element for each step
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Shows the steps.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let target = Target::parse_with_parents(&self.directory)?;
        context.confine_to_target(&target);
        let mut left_out = LeftOut::default();
        let found = read_past(context, &target, false, |place| {
            let mut steps = Vec::new();
            left_out = LeftOut::default();
            let since = self.since(place)?;
            let mut take = |step| {
                steps.push(step);
                true
            };
            let mut failed = |gap: HistoryGap<'_>| {
                let what = shown_gap(&gap);
                left_out.add(place, &what, gap.error)
            };
            let (system, path) = (&place.system, &place.path);
            directory_history_leaving_out(system, place.subvolume, path, since, &mut take, &mut failed)?;
            Ok(steps)
        });
        left_out.tell(context);
        let (_, steps) = found?;
        let shown = steps.iter().filter(|step| self.all || !step.changes.is_empty());
        let mut output = Output::new()?;
        if self.json {
            let mut array = JsonArray::begin(&mut output)?;
            for step in shown {
                array.push(&mut output, &self.to_json(step))?;
            }
            array.end(&mut output)?;
        } else {
            for step in shown {
                self.print(step, &mut output)?;
            }
        }
        Ok(output.finish()?)
    }

    /// Finds the snapshot of `--since`.
    fn since(&self, place: &SoughtPath) -> papilio::Result<Option<TreeId>> {
        use std::os::unix::ffi::OsStrExt;
        let Some(name) = &self.since else { return Ok(None) };
        let all = place.system.subvolumes()?;
        let id = name.to_str().and_then(|name| name.parse().ok()).map(TreeId);
        let wanted = name.as_bytes();
        let wanted = wanted.strip_prefix(b"/").unwrap_or(wanted);
        let wanted = wanted.strip_suffix(b"/").unwrap_or(wanted);
        let by_id = all.iter().find(|found| Some(found.id) == id);
        let found = by_id.or_else(|| all.iter().find(|found| found.path.as_deref() == Some(wanted)));
        match found {
            Some(found) => Ok(Some(found.id)),
            None => Err(papilio::Error::Invalid(format!(
                "--since {}: no subvolume has this id, or this path from the top level",
                name.display()
            ))),
        }
    }

    fn print(&self, step: &HistoryStep, output: &mut Output) -> anyhow::Result<()> {
        output.name(&shown_subvolume(&step.old))?;
        output.text(format_args!(" -> "))?;
        output.name(&shown_subvolume(&step.new))?;
        // A subvolume that is no snapshot shows its present state.
        if step.new.is_snapshot() && step.new.creation_time.seconds != 0 {
            output.text(format_args!(", {}", time::to_second(step.new.creation_time)))?;
        }
        output.bytes(b":\n")?;
        if self.summarize {
            output.text(format_args!("  "))?;
            return diff::summarize(&step.changes, false, output);
        }
        for change in &step.changes {
            output.text(format_args!("  "))?;
            diff::print(change, output)?;
        }
        Ok(())
    }

    fn to_json(&self, step: &HistoryStep) -> Value {
        let mut object = json!({ "old": subvolume_json(&step.old), "new": subvolume_json(&step.new) });
        object["changes"] = match self.summarize {
            true => Value::Object(diff::counts(&step.changes)),
            false => step.changes.iter().map(diff::to_json).collect::<Vec<_>>().into(),
        };
        object
    }
}

fn subvolume_json(subvolume: &Subvolume) -> Value {
    let mut object = Map::new();
    object.insert("subvolume".into(), subvolume.id.0.into());
    json_bytes(&mut object, "path", &shown_subvolume(subvolume));
    object.insert("created".into(), time::rfc3339(subvolume.creation_time).into());
    object.insert("generation".into(), subvolume.generation.0.into());
    object.into()
}
