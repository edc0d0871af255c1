//! `papilio usage --tree`: the share of the used space that each directory has.
//!
//! Owns the options and the printed tree. A sample is a random byte of the data chunks. Back
//! references lead from it to the files that contain it, so that space counts once, however many
//! snapshots and reflinks share it. With `--exact` every extent is looked up instead.
//!
//! - [`tally`]: the weights of paths; [`resolver`]: from addresses to paths; [`sampler`]: random
//!   addresses, and all extents.
//! - [`browser`], [`screen`], [`interactive`]: the tree on a terminal.

mod browser;
mod interactive;
mod resolver;
mod sampler;
mod screen;
mod tally;

use crate::context::Context;
use crate::output::{Output, escaped};
use crate::tree_source::TreeSource;
use crate::units::Units;
use indicatif::ProgressBar;
use sampler::{Sampler, empty_tally, look_up_all};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::io::IsTerminal;
use std::path::Path;
use tally::{Entry, Tally};

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
}

/// Shows the tree.
pub fn show(
    context: &Context,
    image: &Path,
    arguments: &TreeArgs,
    units: Units,
    json: bool,
) -> anyhow::Result<()> {
    let source = TreeSource::open(context, image.as_os_str())?;
    let chunks = source.chunks()?;
    let mut found = empty_tally(&chunks, arguments.exact);
    if !json && arguments.is_interactive() {
        let name = String::from_utf8_lossy(&escaped(image.as_os_str().as_encoded_bytes())).into_owned();
        return interactive::browse(&source, &chunks, arguments.seed, found, &name, units);
    }
    let samples = arguments.samples.unwrap_or(SAMPLES);
    let bar = context.is_interactive().then(|| ProgressBar::new(samples));
    context.set_progress(bar.clone());
    let step = || {
        if let Some(bar) = &bar {
            bar.inc(1);
        }
    };
    let ran = match arguments.exact {
        true => look_up_all(&source, &mut found, step),
        false => sample(Sampler::new(&source, &chunks, arguments.seed), samples, &mut found, step),
    };
    context.set_progress(None);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    ran?;
    let mut output = Output::new()?;
    if json {
        output.text(format_args!("{:#}\n", to_json(&found, arguments)))?;
    } else {
        print(&mut output, &found, arguments, units)?;
    }
    Ok(output.finish()?)
}

impl TreeArgs {
    /// Whether the tree is shown on a terminal.
    fn is_interactive(&self) -> bool {
        let prints = self.batch || self.exact || self.samples.is_some();
        let shapes = self.depth.is_some() || self.least.is_some();
        !prints && !shapes && std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
    }
}

/// Takes samples until there are enough, or next to no data is found.
fn sample(
    mut sampler: Sampler<'_>,
    samples: u64,
    found: &mut Tally,
    mut progress: impl FnMut(),
) -> anyhow::Result<()> {
    for _ in 0..samples {
        let Some(path) = sampler.next()? else { break };
        found.add(path.as_deref(), 1);
        progress();
    }
    Ok(())
}

fn print(output: &mut Output, found: &Tally, arguments: &TreeArgs, units: Units) -> anyhow::Result<()> {
    output.text(format_args!("{:>12} {:>12} {:>7}  PATH\n", "SIZE", "ERROR", "SHARE"))?;
    let mut pending = vec![(0, b"/".to_vec(), &found.root)];
    while let Some((depth, name, entry)) = pending.pop() {
        line(output, found, units, entry.weight, depth, &name)?;
        if depth >= arguments.depth.unwrap_or(3) {
            continue;
        }
        let mut below: Vec<_> = entry.below.iter().collect();
        below.sort_by_key(|(name, entry)| (Reverse(entry.weight), *name));
        for (name, entry) in below.into_iter().rev() {
            if found.share(entry.weight) * 100.0 >= arguments.least.unwrap_or(1.0) {
                pending.push((depth + 1, name.clone(), entry));
            }
        }
    }
    if found.unreachable > 0 {
        line(output, found, units, found.unreachable, 0, b"(parts of extents that no file uses)")?;
    }
    let (data, metadata) = (units.text(found.data), units.text(found.metadata));
    output.text(format_args!("data {data}, metadata {metadata}"))?;
    match found.exact {
        true => output.text(format_args!("\n"))?,
        false => output.text(format_args!(", {} samples\n", found.all))?,
    }
    Ok(())
}

fn line(
    output: &mut Output,
    found: &Tally,
    units: Units,
    weight: u64,
    depth: usize,
    name: &[u8],
) -> anyhow::Result<()> {
    let (bytes, error) = found.bytes(weight);
    let error = if found.exact { String::new() } else { format!("±{}", units.text(error)) };
    let share = found.share(weight) * 100.0;
    output.text(format_args!("{:>12} {error:>12} {share:>6.1}%  ", units.text(bytes)))?;
    output.text(format_args!("{:width$}", "", width = 2 * depth))?;
    output.name(name)?;
    Ok(output.text(format_args!("\n"))?)
}

fn to_json(found: &Tally, arguments: &TreeArgs) -> Value {
    let (bytes, error) = found.bytes(found.unreachable);
    json!({
        "exact": found.exact,
        "samples": if found.exact { Value::Null } else { found.all.into() },
        "seed": if found.exact { Value::Null } else { arguments.seed.into() },
        "data": found.data,
        "metadata": found.metadata,
        "unreachable": { "bytes": bytes, "error": error },
        "tree": entry_json(found, b"/", &found.root),
    })
}

fn entry_json(found: &Tally, name: &[u8], entry: &Entry) -> Value {
    let (bytes, error) = found.bytes(entry.weight);
    let below: Vec<_> = entry.below.iter().map(|(name, entry)| entry_json(found, name, entry)).collect();
    let name = String::from_utf8_lossy(&escaped(name)).into_owned();
    json!({ "name": name, "bytes": bytes, "error": error, "entries": below })
}
