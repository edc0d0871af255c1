//! `papilio usage --tree`: the share of the used space that each directory has.
//!
//! Owns the options and the printed tree. A sample is a random byte of the data chunks. Back
//! references lead from it to the files that contain it, so that space counts once, however many
//! snapshots and reflinks share it. With `--exact` every extent is looked up instead.
//!
//! - [`tally`]: the weights of paths; [`resolver`]: from addresses to paths; [`sampler`]: random
//!   addresses, and all extents.
//! - [`run`]: a run as a file; [`growth`]: two runs side by side.
//! - [`browser`], [`screen`], [`interactive`]: the tree on a terminal; [`deletion`]: deletions in
//!   it.

mod browser;
mod deletion;
mod growth;
mod interactive;
mod resolver;
mod run;
mod sampler;
mod screen;
pub mod tally;

pub use sampler::{Sampler, empty_tally, look_up_all};

use crate::context::Context;
use crate::holder;
use crate::mounted::Target;
use crate::output::{Output, escaped, json_bytes};
use crate::tree_source::TreeSource;
use crate::units::Units;
use crate::usage_error::UsageError;
use anyhow::Context as _;
use growth::{Row, View};
use indicatif::ProgressBar;
use interactive::Interactive;
use run::{Origin, Run, time_of_now, write_run};
use screen::change_text;
use serde_json::{Map, Value, json};
use std::cmp::Ordering;
use std::fs::{self, File};
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use tally::Tally;

/// Samples to take if there is no other end.
const SAMPLES: u64 = 2000;

/// The options of the tree of directories.
#[derive(Debug, clap::Args)]
pub struct TreeArgs {
    /// Show how much of the data each directory has, estimated from random samples
    ///
    /// A byte counts once, however many snapshots share it: for the shortest of its paths. In a
    /// terminal the tree is interactive and samples are taken until q is pressed, unless one of the
    /// options below says otherwise.
    #[arg(long, conflicts_with = "table")]
    pub tree: bool,
    /// Print the tree, also in a terminal
    #[arg(long, requires = "tree")]
    batch: bool,
    /// Take N samples (2000) and print the tree
    #[arg(long, value_name = "N", requires = "tree")]
    samples: Option<u64>,
    /// Seed the random numbers with N
    #[arg(long, value_name = "N", default_value_t = 0, requires = "tree")]
    seed: u64,
    /// Look up every extent instead of samples, and print the tree
    #[arg(long, requires = "tree", conflicts_with_all = ["samples", "seed"])]
    exact: bool,
    /// Print N levels of directories (3)
    #[arg(long, value_name = "N", requires = "tree")]
    depth: Option<usize>,
    /// Print only directories with at least P percent of the data (1)
    #[arg(long = "min", value_name = "P", requires = "tree")]
    least: Option<f64>,
    /// Write the run to FILE, for --compare, and print the tree
    #[arg(long, value_name = "FILE", requires = "tree", value_hint = clap::ValueHint::FilePath)]
    export: Option<PathBuf>,
    /// Show how much each directory grew since the run in FILE, which --export wrote
    #[arg(long, value_name = "FILE", requires = "tree", value_hint = clap::ValueHint::FilePath)]
    compare: Option<PathBuf>,
    /// Let the key d delete in the interactive tree: an image is opened for writing
    #[arg(long, requires = "tree")]
    #[arg(conflicts_with_all = ["batch", "samples", "exact", "depth", "least", "export", "json"])]
    delete: bool,
}

/// Shows the tree.
pub fn show(
    context: &Context,
    image: &Path,
    arguments: &TreeArgs,
    units: Units,
    json: bool,
) -> anyhow::Result<()> {
    let then = arguments.compare.as_deref().map(read_run).transpose()?;
    let is_interactive = !json && arguments.is_interactive();
    if arguments.delete && !is_interactive {
        return Err(UsageError::new("--delete is for the interactive tree, which needs a terminal").into());
    }
    if !is_interactive {
        confine(context, image, arguments.export.as_deref());
    }
    let source = match arguments.delete {
        true => TreeSource::open_to_change(context, image.as_os_str())?,
        false => TreeSource::open(context, image.as_os_str())?,
    };
    let origin = Origin {
        seed: (!arguments.exact).then_some(arguments.seed),
        source: image.as_os_str().as_encoded_bytes().to_vec(),
        fsid: source.fsid()?,
        time: time_of_now(),
    };
    if let Some(then) = &then
        && then.origin.fsid != origin.fsid
    {
        context.warning(format_args!(
            "the run to compare with is of the file system {}, not of {}",
            then.origin.fsid, origin.fsid
        ));
    }
    let chunks = source.chunks()?;
    if is_interactive {
        let name = String::from_utf8_lossy(&escaped(image.as_os_str().as_encoded_bytes())).into_owned();
        let second = origin.time.get(..19).unwrap_or_default().replace(':', "");
        let export = format!("usage-tree-{second}.json");
        let can_delete = arguments.delete;
        let source = &source;
        let browsed = Interactive { source, chunks, origin, then, name, units, can_delete, export }.browse();
        browsed?.iter().for_each(|message| context.error(message));
        return Ok(());
    }
    let mut found = empty_tally(&chunks, arguments.exact);
    let samples = arguments.samples.unwrap_or(SAMPLES);
    let sampler = (!arguments.exact).then(|| Sampler::new(&source, &chunks, arguments.seed));
    measure(context, &source, sampler, samples, &mut found)?;
    if let Some(file) = &arguments.export {
        let written = File::create(file).and_then(|file| {
            let mut out = BufWriter::new(file);
            write_run(&mut out, &origin, &found)?;
            out.flush()
        });
        written.with_context(|| file.display().to_string())?;
    }
    let view = View { now: &found, then: then.as_ref().map(|run| &run.tally) };
    let mut output = Output::new()?;
    match json {
        true => output.text(format_args!("{:#}\n", to_json(view, &origin, then.as_ref())))?,
        false => print(&mut output, view, arguments, units)?,
    }
    Ok(output.finish()?)
}

/// Leaves the run with the right to read the image, and to write the file if there is one.
fn confine(context: &Context, image: &Path, export: Option<&Path>) {
    match export {
        None => context.confine_to_place(image),
        Some(file) => {
            if let Ok(Target::Image(path)) = Target::parse(holder::place_of(image).as_os_str()) {
                context.confine_to_output(file, [path.image]);
            }
        }
    }
}

fn read_run(file: &Path) -> anyhow::Result<Run> {
    let text = fs::read(file).with_context(|| file.display().to_string())?;
    Run::parse(&text).map_err(|reason| anyhow::anyhow!("{}: {reason}", file.display()))
}

/// Takes samples until there are enough, or next to no data is found. Without a sampler every
/// extent is looked up.
///
/// Subvolumes that cannot be read are left out, and named as errors of the command.
///
/// # Errors
/// A sample that cannot be looked up.
pub fn measure(
    context: &Context,
    source: &TreeSource,
    sampler: Option<Sampler<'_>>,
    samples: u64,
    found: &mut Tally,
) -> anyhow::Result<()> {
    let bar = context.is_interactive().then(|| ProgressBar::new(samples));
    context.set_progress(bar.clone());
    let step = || {
        if let Some(bar) = &bar {
            bar.inc(1);
        }
    };
    let ran = match sampler {
        None => look_up_all(source, found, step),
        Some(sampler) => sample(sampler, samples, found, step),
    };
    context.set_progress(None);
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    ran?.iter().for_each(|message| context.error(message));
    Ok(())
}

impl TreeArgs {
    /// Whether the tree is shown on a terminal.
    fn is_interactive(&self) -> bool {
        let prints = self.batch || self.exact || self.samples.is_some() || self.export.is_some();
        let shapes = self.depth.is_some() || self.least.is_some();
        !prints && !shapes && std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
    }
}

fn sample(
    mut sampler: Sampler<'_>,
    samples: u64,
    found: &mut Tally,
    mut progress: impl FnMut(),
) -> anyhow::Result<Vec<String>> {
    for _ in 0..samples {
        let Some(next) = sampler.next()? else { break };
        found.count(&next, 1);
        progress();
    }
    Ok(sampler.left_out())
}

/// A weight of a tally that is not in its tree.
type WeightOf = fn(&Tally) -> u64;

fn print(output: &mut Output, view: View<'_>, arguments: &TreeArgs, units: Units) -> anyhow::Result<()> {
    let found = view.now;
    output.text(format_args!("{:>12} {:>12} ", "SIZE", "ERROR"))?;
    if view.then.is_some() {
        output.text(format_args!("{:>24} ", "CHANGE"))?;
    }
    output.text(format_args!("{:>7}  PATH\n", "SHARE"))?;
    let by_change = |row: &Row<'_>| view.change_of(row).map_or(0, |change| change.bytes.unsigned_abs());
    let order = |one: &Row<'_>, other: &Row<'_>| match by_change(other).cmp(&by_change(one)) {
        Ordering::Equal => other.weight.cmp(&one.weight),
        order => order,
    };
    let (deepest, least) = (arguments.depth.unwrap_or(3), arguments.least.unwrap_or(1.0));
    view.walk(order, |depth, row| {
        let before = view.then.map_or(0.0, |then| then.share(row.before));
        let is_large = found.share(row.weight).max(before) * 100.0 >= least;
        let is_shown = depth == 0 || depth <= deepest && is_large;
        if is_shown {
            line(output, view, units, (row.weight, row.before), depth, row.name)?;
        }
        Ok(is_shown && depth < deepest)
    })?;
    let no_path: [(&[u8], WeightOf); 2] = [
        (b"(parts of extents that no file uses)", |tally| tally.unreachable),
        (b"(files that cannot be read)", |tally| tally.unread),
    ];
    for (name, weight) in no_path {
        let (now, before) = (weight(found), view.then.map_or(0, weight));
        if now > 0 || before > 0 {
            line(output, view, units, (now, before), 0, name)?;
        }
    }
    let (data, metadata) = (units.text(found.data), units.text(found.metadata));
    output.text(format_args!("data {data}, metadata {metadata}"))?;
    match found.exact {
        true => output.text(format_args!("\n"))?,
        false => output.text(format_args!(", {} samples\n", found.all))?,
    }
    if let Some(then) = view.then {
        let (data, metadata) = (units.text(then.data), units.text(then.metadata));
        output.text(format_args!("before: data {data}, metadata {metadata}\n"))?;
    }
    Ok(())
}

fn line(
    output: &mut Output,
    view: View<'_>,
    units: Units,
    (weight, before): (u64, u64),
    depth: usize,
    name: &[u8],
) -> anyhow::Result<()> {
    let (bytes, error) = view.now.bytes(weight);
    let error = if view.now.exact { String::new() } else { format!("±{}", units.text(error)) };
    let share = view.now.share(weight) * 100.0;
    output.text(format_args!("{:>12} {error:>12} ", units.text(bytes)))?;
    if let Some(change) = view.change(weight, before) {
        output.text(format_args!("{:>24} ", change_text(change, units)))?;
    }
    output.text(format_args!("{share:>6.1}%  {:width$}", "", width = 2 * depth))?;
    output.name(name)?;
    Ok(output.text(format_args!("\n"))?)
}

fn to_json(view: View<'_>, origin: &Origin, then: Option<&Run>) -> Value {
    let found = view.now;
    let then_of = |weight: WeightOf| view.then.map_or(0, weight);
    let mut all = json!({
        "fsid": origin.fsid,
        "exact": found.exact,
        "samples": if found.exact { Value::Null } else { found.all.into() },
        "seed": origin.seed,
        "data": found.data,
        "metadata": found.metadata,
        "unreachable": sizes(view, found.unreachable, then_of(|then| then.unreachable)),
        "unread": sizes(view, found.unread, then_of(|then| then.unread)),
        "tree": tree_json(view),
    });
    if let Some(then) = then {
        all["compared_with"] = json!({
            "fsid": then.origin.fsid,
            "time": then.origin.time,
            "exact": then.tally.exact,
            "samples": if then.tally.exact { Value::Null } else { then.tally.all.into() },
            "seed": then.origin.seed,
            "data": then.tally.data,
            "metadata": then.tally.metadata,
        });
    }
    all
}

/// Returns the bytes of a weight, and how they changed.
fn sizes(view: View<'_>, weight: u64, before: u64) -> Map<String, Value> {
    let (bytes, error) = view.now.bytes(weight);
    let mut object = Map::new();
    object.insert("bytes".into(), bytes.into());
    object.insert("error".into(), error.into());
    if let Some(change) = view.change(weight, before) {
        object.insert("change".into(), change.bytes.into());
        object.insert("change_error".into(), change.error.into());
    }
    object
}

/// Returns the tree as objects that contain one another. Its depth is bounded, see
/// [`tally::DEEPEST`].
fn tree_json(view: View<'_>) -> Value {
    // The objects from the top down to the last one, to which entries are added.
    let mut open: Vec<(Map<String, Value>, Vec<Value>)> = Vec::new();
    let close = |open: &mut Vec<(Map<String, Value>, Vec<Value>)>| {
        let (mut object, entries) = open.pop()?;
        object.insert("entries".into(), entries.into());
        match open.last_mut() {
            Some((_, above)) => above.push(object.into()),
            None => return Some(Value::Object(object)),
        }
        None
    };
    let walked = view.walk(
        |_, _| Ordering::Equal,
        |depth, row| {
            while open.len() > depth {
                close(&mut open);
            }
            let mut object = sizes(view, row.weight, row.before);
            json_bytes(&mut object, "name", row.name);
            open.push((object, Vec::new()));
            Ok(true)
        },
    );
    debug_assert!(walked.is_ok(), "the closure does not fail");
    while !open.is_empty() {
        if let Some(root) = close(&mut open) {
            return root;
        }
    }
    Value::Null
}
