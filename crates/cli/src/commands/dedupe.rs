//! `papilio dedupe`: shares the data of equal blocks. [`papilio::Dedupe`] does the work.

use crate::context::{Context, of_image};
use crate::mounted::{Target, explain_walk};
use crate::output::{Output, escaped};
use crate::units::{Units, parse_size};
use crate::usage_error::UsageError;
use indicatif::{ProgressBar, ProgressStyle};
use papilio::{Dedupe, DedupeError, DedupeObserver, DedupeReport, WalkError, WalkRoot};
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::time::Duration;

/// Share the data of blocks that are equal
///
/// All files below the arguments are read in blocks. Blocks with equal hashes are compared by the
/// file system, and share their data from then on if they are equal. Content and times stay. The
/// arguments must be in one file system: in an image, or in a mount of the kernel's Btrfs. Space is
/// free once no file uses any part of an extent.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files and directories, in an image or in a mount
    #[arg(value_name = "IMAGE:/PATH|PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// The size of a block: a power of two from 4K to 16M
    #[arg(short, long, value_name = "SIZE", default_value = "128K", value_parser = parse_block)]
    block_size: u64,
    /// Only count equal blocks, by their hashes
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_block(text: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    let fits = size.is_power_of_two() && Dedupe::BLOCK_SIZES.contains(&size);
    if fits { Ok(size) } else { Err("not a power of two from 4K to 16M".to_owned()) }
}

impl Args {
    /// Reads the files, and shares what is equal.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let targets: Vec<Target> =
            self.paths.iter().map(|path| Target::parse(path)).collect::<Result<_, _>>()?;
        if let (Some(Target::Image(path)), false) = (targets.first(), self.dry_run) {
            context.change(&path.image)?;
        }
        let roots = targets.into_iter().map(|target| target.walk_root(context));
        let roots: Vec<WalkRoot> = roots.collect::<anyhow::Result<_>>()?;
        let mut watch = Watch { context, bar: context.is_interactive().then(new_bar) };
        context.set_progress(watch.bar.clone());
        let mut report = DedupeReport::default();
        let dedupe = Dedupe::new().block_size(self.block_size).dry_run(self.dry_run);
        let result = dedupe.run(roots, &mut report, &mut watch);
        if let Some(bar) = &watch.bar {
            bar.finish_and_clear();
        }
        context.set_progress(None);
        if let Err(DedupeError::SeveralFileSystems) = result {
            return Err(UsageError::new("dedupe: the arguments are in several file systems").into());
        }
        self.report(report)?;
        result.map_err(explain)
    }

    fn report(&self, counts: DedupeReport) -> anyhow::Result<()> {
        let mut output = Output::new()?;
        if self.json {
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
            output.text(format_args!("{:#}\n", Value::Object(object)))?;
        } else {
            let text = |bytes| Units::HUMAN.text(bytes);
            let done = if self.dry_run { "could be shared" } else { "shared" };
            output.text(format_args!(
                "{} files, {} read: {} ({} bytes) {done}\n",
                counts.files,
                text(counts.read_bytes),
                text(counts.shared_bytes),
                counts.shared_bytes
            ))?;
        }
        Ok(output.finish()?)
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

    fn failed(&mut self, error: DedupeError) {
        self.context.failure(&explain(error));
    }
}
