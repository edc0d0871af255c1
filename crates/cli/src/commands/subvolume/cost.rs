//! `papilio subvolume cost`: which subvolumes and snapshots hold which space.

use super::format::to_json;
use crate::context::Context;
use crate::mounted::{Target, device_paths};
use crate::output::{Output, escaped};
use crate::time;
use crate::units::{Units, parse_size};
use crate::usage_error::UsageError;
use anyhow::Context as _;
use globset::{Glob, GlobSet, GlobSetBuilder};
use papilio::format::{TreeId, objectid};
use papilio::{Estimate, SharingOptions, SpaceSharing, Subvolume, SubvolumeSpace};
use papilio_ioctl::client::MountedPath;
use papilio_sandbox::{Job, Sandbox};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Leaves that --sample reads without a number.
const SAMPLED_LEAVES: &str = "8000";
/// Reads of a mount that changes meanwhile.
const ATTEMPTS: u32 = 4;

/// Show what each subvolume and snapshot costs, and what deleting some of them frees
///
/// Exclusive bytes are held by one subvolume alone: deleting it frees them. Referenced bytes are
/// shared or not. Extents count as they lie on disk, compressed, without copies. The command needs
/// no quotas; it reads each tree block of the subvolumes once.
///
/// With subvolumes as arguments, the last line tells what deleting all of them together frees. That
/// is more than the sum of their exclusive bytes if they share something with one another only.
///
/// In a mount, the command needs to read the devices, and shows the state of the last commit.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::AnyPath)]
    place: OsString,
    /// Subvolumes: ids, or paths from the top level; in a mount also directories
    #[arg(value_name = "SUBVOLUME", value_hint = clap::ValueHint::AnyPath)]
    subvolumes: Vec<OsString>,
    /// Name snapshots to delete, the oldest first, so that at least SIZE bytes become free
    ///
    /// With subvolumes as arguments, the command chooses among these, the first one first. None of
    /// the subvolumes that it names could be spared.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    free: Option<u64>,
    /// With --free: spare subvolumes whose path from the top level matches; may be given more than
    /// once
    #[arg(long, value_name = "PATTERN", requires = "free")]
    keep: Vec<String>,
    /// Read about LEAVES leaves only, and estimate the bytes of data
    ///
    /// Errors are those of 95 in 100 samples. References between files are mostly missed.
    #[arg(long, value_name = "LEAVES", num_args = 0..=1, default_missing_value = SAMPLED_LEAVES)]
    #[arg(require_equals = true, value_parser = clap::value_parser!(u64).range(1..))]
    sample: Option<u64>,
    /// Count bytes of devices, with all copies and parity
    #[arg(long)]
    raw: bool,
    /// Print sizes in bytes
    #[arg(short, long)]
    bytes: bool,
    /// The memory for references; more go to a temporary file
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    memory: u64,
    /// Print one JSON object, with sizes in bytes
    #[arg(long)]
    json: bool,
}

/// The answers to one run.
struct Answers {
    rows: Vec<SubvolumeSpace>,
    /// The bytes that deleting the named subvolumes together frees.
    together: Option<Estimate>,
    /// The choice of --free, and the bytes that it frees.
    chosen: Option<(Vec<TreeId>, Estimate)>,
}

impl Args {
    /// Shows the costs.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let keep = patterns(&self.keep)?;
        let target = Target::parse(&self.place)?;
        // References that take much memory go to a temporary file.
        if let Target::Image(path) = &target {
            let sandbox = Sandbox::for_job(Job::Extract, context.sandbox_mode());
            context.confine(sandbox.writes_below(&std::env::temp_dir()), [path.image.clone()]);
        }

        let (sharing, default) = self.measure(context, &target)?;
        for error in sharing.errors() {
            context.error(error);
        }
        if sharing.bad_blocks() > 0 {
            context.error(format_args!(
                "{} tree blocks cannot be read; nothing below them is counted",
                sharing.bad_blocks()
            ));
        }
        let named = self
            .subvolumes
            .iter()
            .map(|name| find_subvolume(&target, &sharing, name))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let answers = self.answer(&sharing, &named, &|id| id == default || is_kept(&sharing, id, &keep))?;
        let mut output = Output::new()?;
        match self.json {
            true => output.text(format_args!("{:#}\n", self.json_of(&sharing, &answers)))?,
            false => self.print(&mut output, &sharing, &answers)?,
        }
        Ok(output.finish()?)
    }

    /// Reads the trees, and returns the id of the default subvolume, too. A mount may change
    /// meanwhile: then the command begins again.
    fn measure(&self, context: &Context, target: &Target) -> anyhow::Result<(SpaceSharing, TreeId)> {
        let options = SharingOptions {
            memory_bytes: usize::try_from(self.memory).unwrap_or(usize::MAX),
            sampled_leaves: self.sample,
        };
        let mut attempts_left = ATTEMPTS;
        loop {
            attempts_left -= 1;
            let (image, further) = match target {
                Target::Image(path) => (path.image.clone(), Vec::new()),
                Target::Mounted(mounted) => device_paths(mounted)?,
            };
            let system = context.open_last_commit(&image, &further, true)?;
            let bar = context.show_bar("reading trees, {msg} {bar:30} {pos}/{len} blocks {eta} left");
            let sharing = system.space_sharing(&options, |progress| {
                if let Some(bar) = &bar {
                    bar.set_length(progress.known_blocks);
                    bar.set_position(progress.blocks);
                    bar.set_message(format!("level {}", progress.level));
                }
                true
            });
            context.set_progress(None);
            let sharing = sharing.with_context(|| image.display().to_string())?;
            let sharing = sharing.context("ended")?;
            let is_moving = matches!(target, Target::Mounted(_)) && sharing.bad_blocks() > 0;
            if !is_moving || attempts_left == 0 {
                return Ok((sharing, system.default_subvolume()?));
            }
        }
    }

    fn answer(
        &self,
        sharing: &SpaceSharing,
        named: &[TreeId],
        is_kept: &dyn Fn(TreeId) -> bool,
    ) -> anyhow::Result<Answers> {
        let mut rows = sharing.by_subvolume();
        if !named.is_empty() {
            rows.retain(|row| named.contains(&row.subvolume.id));
        }
        let together = (named.len() > 1).then(|| sharing.freed_by(named));
        let Some(wanted) = self.free else { return Ok(Answers { rows, together, chosen: None }) };
        let candidates: Vec<TreeId> = match named {
            [] => snapshots(sharing).filter(|id| !is_kept(*id)).collect(),
            _ => named.iter().copied().filter(|id| !is_kept(*id)).collect(),
        };
        let Some(chosen) = sharing.choose(wanted, &candidates) else {
            let units = self.units();
            let most = sharing.freed_by(&candidates).bytes.total();
            anyhow::bail!(
                "deleting all {} subvolumes that may go frees {} of {} bytes",
                candidates.len(),
                units.text(most),
                units.text(wanted)
            );
        };
        let freed = sharing.freed_by(&chosen);
        Ok(Answers { rows, together, chosen: Some((chosen, freed)) })
    }

    fn units(&self) -> Units {
        if self.bytes { Units::BYTES } else { Units::HUMAN }
    }

    /// Returns the bytes that the options ask for: of data, of tree blocks.
    fn wanted(&self, estimate: &Estimate) -> (u64, u64) {
        let bytes = &estimate.bytes;
        if self.raw { (bytes.raw_data, bytes.raw_metadata) } else { (bytes.data, bytes.metadata) }
    }

    /// Returns the error of an estimate in the bytes that the options ask for.
    fn error_of(&self, estimate: &Estimate) -> u64 {
        let bytes = &estimate.bytes;
        match self.raw && bytes.data > 0 {
            true => (estimate.data_error as f64 * bytes.raw_data as f64 / bytes.data as f64) as u64,
            false => estimate.data_error,
        }
    }

    fn text_of(&self, estimate: &Estimate) -> String {
        let (data, metadata) = self.wanted(estimate);
        let units = self.units();
        let sum = units.text(data.saturating_add(metadata));
        match self.error_of(estimate) {
            0 => sum,
            error => format!("{sum} ±{}", units.text(error)),
        }
    }

    fn print(&self, output: &mut Output, sharing: &SpaceSharing, answers: &Answers) -> anyhow::Result<()> {
        let heads = ["ID", "Exclusive", "of it data", "Referenced"];
        let width = if sharing.is_sampled() { 24 } else { 12 };
        let line = |output: &mut Output, cells: [String; 4], created: &str| {
            let [id, exclusive, data, referenced] = cells;
            output.text(format_args!(
                "{id:>8} {exclusive:>width$} {data:>12} {referenced:>width$}  {created:<19}  "
            ))
        };
        line(output, heads.map(str::to_owned), "Created")?;
        output.bytes(b"Path\n")?;
        for row in &answers.rows {
            let cells = [
                row.subvolume.id.to_string(),
                self.text_of(&row.exclusive),
                self.units().text(self.wanted(&row.exclusive).0),
                self.text_of(&row.referenced),
            ];
            line(output, cells, &created(&row.subvolume))?;
            output.bytes(&path_of(&row.subvolume))?;
            output.bytes(b"\n")?;
        }
        if self.subvolumes.is_empty() {
            output.text(format_args!("All together: {}\n", self.text_of(&sharing.total())))?;
        }
        if let Some(together) = &answers.together {
            output.text(format_args!("Deleting these together frees {}\n", self.text_of(together)))?;
        }
        if let Some((chosen, freed)) = &answers.chosen {
            output.text(format_args!("Deleting these frees {}:\n", self.text_of(freed)))?;
            for id in chosen {
                if let Some(subvolume) = sharing.subvolumes().iter().find(|found| found.id == *id) {
                    output.text(format_args!("{id:>8}  "))?;
                    output.bytes(&path_of(subvolume))?;
                    output.bytes(b"\n")?;
                }
            }
        }
        if sharing.in_deletion() > 0 {
            output.text(format_args!(
                "{} deleted subvolumes are not cleaned yet; their own bytes are not counted\n",
                sharing.in_deletion()
            ))?;
        }
        Ok(())
    }

    fn json_of(&self, sharing: &SpaceSharing, answers: &Answers) -> Value {
        let row = |row: &SubvolumeSpace| {
            json!({
                "subvolume": to_json(&row.subvolume),
                "exclusive": estimate_json(&row.exclusive),
                "referenced": estimate_json(&row.referenced),
            })
        };
        let mut object = json!({
            "subvolumes": answers.rows.iter().map(row).collect::<Vec<_>>(),
            "total": estimate_json(&sharing.total()),
            "sampled": sharing.is_sampled(),
            "in_deletion": sharing.in_deletion(),
            "blocks": sharing.blocks(),
            "leaves_read": sharing.leaves_read(),
            "bad_blocks": sharing.bad_blocks(),
        });
        if let Some(together) = &answers.together {
            object["together"] = estimate_json(together);
        }
        if let Some((chosen, freed)) = &answers.chosen {
            object["delete"] = chosen.iter().map(|id| id.0).collect();
            object["freed"] = estimate_json(freed);
        }
        object
    }
}

fn estimate_json(estimate: &Estimate) -> Value {
    let bytes = &estimate.bytes;
    json!({
        "bytes": bytes.total(),
        "data": bytes.data,
        "metadata": bytes.metadata,
        "raw_data": bytes.raw_data,
        "raw_metadata": bytes.raw_metadata,
        "data_error": estimate.data_error,
    })
}

/// Returns the subvolume that an argument names.
fn find_subvolume(target: &Target, sharing: &SpaceSharing, name: &OsStr) -> anyhow::Result<TreeId> {
    let known = |id: TreeId| sharing.subvolumes().iter().any(|subvolume| subvolume.id == id);
    if let Some(id) = name.to_str().and_then(|name| name.parse().ok()).map(TreeId)
        && known(id)
    {
        return Ok(id);
    }
    if let Target::Mounted(_) = target
        && let Ok(directory) = MountedPath::open(name.as_ref())
        && let Ok(id) = directory.subvolume_id()
        && known(id)
    {
        if directory.is_subvolume_root().is_ok_and(|is_root| is_root) {
            return Ok(id);
        }
        anyhow::bail!("{}: not a subvolume", name.display());
    }
    let wanted = name.as_bytes();
    let wanted = wanted.strip_prefix(b"/").unwrap_or(wanted);
    let wanted = wanted.strip_suffix(b"/").unwrap_or(wanted);
    let found = sharing.subvolumes().iter().find(|subvolume| subvolume.path.as_deref() == Some(wanted));
    match found {
        Some(subvolume) => Ok(subvolume.id),
        None => Err(UsageError::new(format!(
            "{}: no subvolume has this id, or this path from the top level",
            name.display()
        ))
        .into()),
    }
}

/// Returns the snapshots that can be deleted, the oldest first: none that contains another
/// subvolume.
fn snapshots(sharing: &SpaceSharing) -> impl Iterator<Item = TreeId> {
    let all = sharing.subvolumes();
    let can_go = |subvolume: &&Subvolume| {
        subvolume.is_snapshot()
            && subvolume.id != objectid::FS_TREE
            && !all.iter().any(|other| other.parent == Some(subvolume.id))
    };
    all.iter().filter(can_go).map(|subvolume| subvolume.id)
}

fn patterns(patterns: &[String]) -> anyhow::Result<GlobSet> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(Glob::new(pattern).map_err(|error| UsageError::new(format!("--keep: {error}")))?);
    }
    Ok(set.build()?)
}

fn is_kept(sharing: &SpaceSharing, id: TreeId, keep: &GlobSet) -> bool {
    let subvolume = sharing.subvolumes().iter().find(|subvolume| subvolume.id == id);
    subvolume.is_some_and(|subvolume| {
        let path = subvolume.path.as_deref().unwrap_or_default();
        keep.is_match(OsStr::from_bytes(path)) || keep.is_match(OsStr::from_bytes(&[b"/", path].concat()))
    })
}

fn created(subvolume: &Subvolume) -> String {
    match subvolume.creation_time.seconds {
        0 => "-".to_owned(),
        _ => time::to_second(subvolume.creation_time),
    }
}

fn path_of(subvolume: &Subvolume) -> Vec<u8> {
    match &subvolume.path {
        Some(path) if path.is_empty() => b"/".to_vec(),
        Some(path) => escaped(path).into_owned(),
        None => b"<unreachable>".to_vec(),
    }
}
