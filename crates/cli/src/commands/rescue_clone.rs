//! `papilio rescue clone`: a new, clean file system with all that can be read of a damaged one.

use crate::context::{ALL_OLDER, Context, of_image};
use crate::output::{Output, escaped, json_bytes};
use crate::units;
use indicatif::{ProgressBar, ProgressStyle};
use papilio::format::Uuid;
use papilio::{CloneLoss, CloneProgress, Cloned, RescueCloneOptions};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// Make a new file system with all that can be read of a damaged one
///
/// OUT is a new image, or a block device. It gets all subvolumes and snapshots with their ids,
/// UUIDs and flags, and all inodes with their numbers, times and attributes. Files, subvolumes and
/// snapshots that shared data share it again. Compressed data is copied as it lies.
///
/// Each range that is missing is listed with path, offset and reason, and OUT has zeros or a hole
/// there. Afterwards OUT is checked, and names and counts that do not fit together any more are
/// mended. IMAGE is only read. The options that choose roots, such as --tree-root and --scan, work
/// as in all commands that read.
///
/// The exit status is 0 if OUT has all that IMAGE has, 1 if anything is missing or not verified,
/// and 2 for wrong usage.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device, and all others of its file system
    #[arg(value_name = "IMAGE", required = true, value_hint = clap::ValueHint::FilePath)]
    images: Vec<PathBuf>,
    /// The new image, or the device to use
    #[arg(value_hint = clap::ValueHint::FilePath)]
    out: PathBuf,
    /// The size of the new file system; by default that of OUT if it is a device, else an eighth
    /// and 256 MiB more than that of IMAGE
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = units::parse_size)]
    size: Option<u64>,
    /// Overwrite OUT if it exists
    #[arg(short, long)]
    force: bool,
    /// The UUID of the new file system [default: a random one]
    #[arg(short = 'U', long)]
    uuid: Option<Uuid>,
    /// List what is missing on standard output, one JSON object per line, and the totals at the end
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Makes the clone.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let (images, out) = (&self.images, &self.out);
        let image = &images[0];
        let mut options = context.options_for(image).ignore_bad_roots(true);
        for device in &images[1..] {
            options = options.device(device);
        }
        let others = [&images[1..], &context.arguments().device].concat();
        let source = context.open_any_state(image, &others, &options)?;
        // The states that the user did not ask for are losses of the clone.
        for state in source.older_states().iter().filter(|state| state.is_asked()) {
            context.report_older_state(image, &source, state, ALL_OLDER);
        }
        let bar = context.is_interactive().then(new_bar);
        context.set_progress(bar.clone());
        let mut output = Output::new()?;
        let mut failed = None;
        let wanted = RescueCloneOptions::new().size(self.size).force(self.force).uuid(self.uuid);
        let made = papilio::rescue_clone(&source, out, &wanted, &mut |event| match event {
            CloneProgress::Lost(loss) => {
                context.error(words(&loss));
                if self.json && failed.is_none() {
                    failed = output.text(format_args!("{}\n", Value::Object(json_of(&loss)))).err();
                }
            }
            CloneProgress::Copied(bytes) => {
                if let Some(bar) = &bar {
                    bar.set_position(bytes);
                }
            }
            _ => {}
        });
        context.set_progress(None);
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        // They are losses of the clone.
        context.forget_item_faults();
        let (cloned, report) = made.map_err(|error| of_image(out, error))?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        for line in &cloned.mended {
            context.error(format_args!("{}: mended: {line}", out.display()));
        }
        if !report.is_clean() {
            context.error(format_args!("{}: {} errors are left", out.display(), report.errors()));
        }
        let files = report.statistics.inodes;
        let Cloned { subvolumes, bytes, losses, .. } = cloned;
        if self.json {
            let totals = json!({
                "subvolumes": subvolumes,
                "inodes": files,
                "bytes": bytes,
                "losses": losses,
                "mended": cloned.mended,
                "errors": report.errors(),
            });
            output.text(format_args!("{totals}\n"))?;
        } else {
            output.text(format_args!(
                "{subvolumes} subvolumes, {files} inodes, {bytes} bytes of data; {losses} losses\n"
            ))?;
        }
        Ok(output.finish()?)
    }
}

fn new_bar() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} {bytes} {bytes_per_sec}") {
        bar.set_style(style);
    }
    bar
}

fn words(loss: &CloneLoss) -> String {
    let path = String::from_utf8_lossy(&escaped(&loss.path)).into_owned();
    let reason = &loss.reason;
    match &loss.range {
        None => format!("/{path}: {reason}"),
        Some(range) => {
            let what = if loss.is_unverified { "copied without verification" } else { "missing" };
            format!("/{path}: bytes {} to {} are {what}: {reason}", range.start, range.end)
        }
    }
}

fn json_of(loss: &CloneLoss) -> Map<String, Value> {
    let mut object = Map::new();
    json_bytes(&mut object, "path", &[b"/", &loss.path[..]].concat());
    if let Some(range) = &loss.range {
        object.insert("offset".into(), range.start.into());
        object.insert("length".into(), (range.end - range.start).into());
    }
    object.insert("reason".into(), loss.reason.clone().into());
    if loss.is_unverified {
        object.insert("unverified".into(), true.into());
    }
    object
}
