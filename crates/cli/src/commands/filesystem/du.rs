//! `papilio filesystem du`, in the format of `btrfs filesystem du`.
//!
//! Counts the bytes of extents that files refer to, as FIEMAP reports them: before compression, and
//! without inline data. Extents with one reference are exclusive. The shared extents of an operand,
//! each address once, are its shared set.

use crate::context::Context;
use crate::mounted::{Target, explain_visit, explain_walk};
use crate::operands::for_each_target;
use crate::output::{JsonArray, Output, json_bytes};
use crate::units::{UnitArgs, Units};
use papilio::{FileExtentKind, FileVisitor, FileWalk, UsedExtent, WalkError, WalkRoot, WantedExtents};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ffi::OsString;

/// Show how much of files is exclusive and how much is shared
///
/// Sizes are before compression. Exclusive bytes have one reference, and become free when the file
/// is deleted. The shared set counts the bytes below an argument that have several references, each
/// extent once.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The files and directories, in images or in mounts
    #[arg(value_name = "IMAGE:/PATH|PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Show only a line for each argument
    #[arg(short, long)]
    summarize: bool,
    #[command(flatten)]
    units: UnitArgs,
    /// Print one JSON array, with sizes in bytes
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// The sizes of a file, or of all files below a directory.
#[derive(Clone, Copy, Debug, Default)]
struct SharedSizes {
    total: u64,
    shared: u64,
}

impl SharedSizes {
    fn add(&mut self, other: Self) {
        self.total = self.total.saturating_add(other.total);
        self.shared = self.shared.saturating_add(other.shared);
    }
}

/// Ranges of addresses that shared extents cover, by their start; they do not touch one another.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn add(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        while let Some((&before, &stop)) = self.0.range(..=end).next_back()
            && stop >= start
        {
            self.0.remove(&before);
            start = start.min(before);
            end = end.max(stop);
        }
        self.0.insert(start, end);
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }
}

/// Adds up the files of an operand, and prints lines on the way.
struct SharedUsage<'a> {
    context: &'a Context,
    summarize: bool,
    units: Units,
    output: &'a mut Output,
    json: Option<&'a mut JsonArray>,
    /// The open directories, from the operand down.
    open: Vec<SharedSizes>,
    shared: Ranges,
}

impl Args {
    /// Adds up the operands.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        context.confine_to_targets(&self.paths);
        let mut output = Output::new()?;
        let mut json = match self.json {
            true => Some(JsonArray::begin(&mut output)?),
            false => None,
        };
        if json.is_none() {
            output.text(format_args!(
                "{:>10}  {:>10}  {:>10}  Filename\n",
                "Total", "Exclusive", "Set shared"
            ))?;
        }
        let mut walk = FileWalk::new(WantedExtents::Shared);
        let units = self.units.resolve();
        for_each_target(context, &self.paths, Target::parse, |target| {
            let mut sum = SharedUsage {
                context,
                summarize: self.summarize,
                units,
                output: &mut output,
                json: json.as_mut(),
                open: Vec::new(),
                shared: Ranges::default(),
            };
            walk.walk(target.walk_root(context)?, &mut sum).map_err(explain_visit)
        })?;
        if let Some(json) = json {
            json.end(&mut output)?;
        }
        Ok(output.finish()?)
    }
}

impl SharedUsage<'_> {
    fn show(&mut self, path: &[u8], sizes: SharedSizes, set: Option<u64>) -> anyhow::Result<()> {
        let exclusive = sizes.total - sizes.shared;
        if let Some(json) = &mut self.json {
            let mut object = Map::new();
            json_bytes(&mut object, "path", path);
            object.insert("total".into(), sizes.total.into());
            object.insert("exclusive".into(), exclusive.into());
            object.insert("set_shared".into(), set.map_or(Value::Null, Value::from));
            return Ok(json.push(self.output, &object.into())?);
        }
        let set = set.map_or_else(|| "-".to_owned(), |bytes| self.units.text(bytes));
        self.output.text(format_args!(
            "{:>10}  {:>10}  {set:>10}  ",
            self.units.text(sizes.total),
            self.units.text(exclusive)
        ))?;
        self.output.name(path)?;
        Ok(self.output.bytes(b"\n")?)
    }
}

impl FileVisitor for SharedUsage<'_> {
    type Error = anyhow::Error;

    fn failed(&mut self, error: WalkError) -> anyhow::Result<()> {
        self.context.failure(&explain_walk(error));
        Ok(())
    }

    fn enter(&mut self, _path: &[u8], _depth: usize) -> anyhow::Result<()> {
        self.open.push(SharedSizes::default());
        Ok(())
    }

    fn leave(&mut self, path: &[u8], depth: usize) -> anyhow::Result<()> {
        let sizes = self.open.pop().expect("the walk has entered the directory");
        if let Some(parent) = self.open.last_mut() {
            parent.add(sizes);
        }
        match depth {
            0 => self.show(path, sizes, Some(self.shared.bytes())),
            _ if self.summarize => Ok(()),
            _ => self.show(path, sizes, None),
        }
    }

    fn file(&mut self, file: &WalkRoot, depth: usize, extents: &[UsedExtent]) -> anyhow::Result<()> {
        let mut sizes = SharedSizes::default();
        for (extent, shared) in extents.iter().filter(|(extent, _)| extent.kind != FileExtentKind::Inline) {
            sizes.total = sizes.total.saturating_add(extent.length);
            if *shared {
                sizes.shared = sizes.shared.saturating_add(extent.length);
                let start = extent.mapped_address().0;
                self.shared.add(start, start.saturating_add(extent.length));
            }
        }
        if let Some(directory) = self.open.last_mut() {
            directory.add(sizes);
        }
        match depth {
            0 => self.show(&file.path(), sizes, Some(self.shared.bytes())),
            _ if self.summarize => Ok(()),
            _ => self.show(&file.path(), sizes, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn ranges_merge_where_they_touch() {
        let mut ranges = Ranges::default();
        for (start, end) in [(10, 20), (30, 40), (20, 25), (5, 7), (24, 31), (100, 101)] {
            ranges.add(start, end);
        }
        assert_eq!(ranges.0.into_iter().collect::<Vec<_>>(), [(5, 7), (10, 40), (100, 101)]);
    }
}
