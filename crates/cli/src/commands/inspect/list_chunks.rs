//! `papilio inspect list-chunks`, with the columns of `btrfs inspect-internal list-chunks`.

use crate::context::Context;
use crate::output::{JsonArray, Output};
use crate::tree_source::{TreeSource, UsedChunk};
use crate::units::UnitArgs;
use papilio::format::items::block_group::BlockGroupFlags;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::ffi::OsString;

/// List the chunks by device, with the part of each that is used
///
/// A chunk has a line for each stripe. PNumber counts the stripes on a device, LNumber the chunks.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// Sort by these columns, the first one first; a leading - reverses
    #[arg(long, value_name = "KEYS", value_delimiter = ',', allow_hyphen_values = true)]
    #[arg(default_value = "devid,pstart")]
    sort: Vec<ChunkSortKey>,
    #[command(flatten)]
    units: UnitArgs,
    /// Print one JSON array, with sizes in bytes
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// A column to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChunkSortKey {
    column: ChunkColumn,
    descending: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkColumn {
    Devid,
    PhysicalStart,
    LogicalStart,
    Usage,
    Length,
    Type,
    Profile,
}

impl std::str::FromStr for ChunkSortKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, descending) = match text.strip_prefix('-') {
            Some(name) => (name, true),
            None => (text.strip_prefix('+').unwrap_or(text), false),
        };
        let column = match name {
            "devid" => ChunkColumn::Devid,
            "pstart" => ChunkColumn::PhysicalStart,
            "lstart" => ChunkColumn::LogicalStart,
            "usage" => ChunkColumn::Usage,
            "length" => ChunkColumn::Length,
            "type" => ChunkColumn::Type,
            "profile" => ChunkColumn::Profile,
            _ => return Err("not one of devid, pstart, lstart, usage, length, type and profile".to_owned()),
        };
        Ok(Self { column, descending })
    }
}

/// A stripe.
#[derive(Clone, Debug)]
struct StripeLine {
    devid: u64,
    number_on_device: usize,
    number: usize,
    kind: u64,
    profile: &'static str,
    physical: u64,
    /// Bytes on the device.
    length: u64,
    logical: u64,
    /// Bytes of the chunk.
    chunk_length: u64,
    used: u64,
}

impl Args {
    /// Lists the chunks.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        context.confine_to_place(std::path::Path::new(&self.path));
        let chunks = TreeSource::open(context, &self.path)?.chunks()?;
        let mut lines = lines_of(&chunks)?;
        for key in self.sort.iter().rev() {
            lines.sort_by(|a, b| {
                let order = key.value(a).cmp(&key.value(b));
                if key.descending { order.reverse() } else { order }
            });
        }
        let mut output = Output::new()?;
        if self.json {
            let mut array = JsonArray::begin(&mut output)?;
            for line in &lines {
                array.push(&mut output, &line.to_json())?;
            }
            array.end(&mut output)?;
        } else {
            self.print(&lines, &mut output)?;
        }
        Ok(output.finish()?)
    }

    fn print(&self, lines: &[StripeLine], output: &mut Output) -> anyhow::Result<()> {
        let units = self.units.resolve();
        let head =
            ["Devid", "PNumber", "Type/profile", "PStart", "Length", "PEnd", "LNumber", "LStart", "Usage%"];
        let mut rows = vec![head.map(str::to_owned)];
        for line in lines {
            rows.push([
                line.devid.to_string(),
                line.number_on_device.to_string(),
                format!("{}/{}", line.kind_name(), line.profile),
                units.text(line.physical),
                units.text(line.length),
                units.text(line.physical.saturating_add(line.length)),
                line.number.to_string(),
                units.text(line.logical),
                format!("{:.2}", 100.0 * line.used as f64 / line.chunk_length.max(1) as f64),
            ]);
        }
        let widths: Vec<usize> =
            (0..head.len()).map(|at| rows.iter().map(|row| row[at].len()).max().unwrap_or(0)).collect();
        rows.insert(1, std::array::from_fn(|at| "-".repeat(widths[at])));
        for row in rows {
            let cells: Vec<_> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
            output.text(format_args!("{}\n", cells.join(" ")))?;
        }
        Ok(())
    }
}

fn lines_of(chunks: &[UsedChunk]) -> anyhow::Result<Vec<StripeLine>> {
    let mut lines = Vec::new();
    for (at, chunk) in chunks.iter().enumerate() {
        let fault = |reason| anyhow::anyhow!("chunk {}: {reason}", chunk.start);
        let profile = chunk.item.profile().map_err(fault)?;
        let length = chunk.item.stripe_bytes().map_err(fault)?;
        lines.extend(chunk.item.stripes.iter().map(|stripe| StripeLine {
            devid: stripe.devid.0,
            number_on_device: 0,
            number: at + 1,
            kind: (chunk.item.flags & BlockGroupFlags::TYPE_MASK).bits(),
            profile: profile.name(),
            physical: stripe.offset.0,
            length,
            logical: chunk.start.0,
            chunk_length: chunk.item.length,
            used: chunk.used,
        }));
    }
    lines.sort_by_key(|line| (line.devid, line.physical));
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for line in &mut lines {
        let count = counts.entry(line.devid).or_default();
        *count += 1;
        line.number_on_device = *count;
    }
    Ok(lines)
}

impl StripeLine {
    fn kind_name(&self) -> &'static str {
        const MIXED: u64 = BlockGroupFlags::DATA.bits() | BlockGroupFlags::METADATA.bits();
        match BlockGroupFlags::from_bits_retain(self.kind) {
            BlockGroupFlags::DATA => "Data",
            BlockGroupFlags::METADATA => "Metadata",
            BlockGroupFlags::SYSTEM => "System",
            kind if kind.bits() == MIXED => "Data+Metadata",
            _ => "unknown",
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "devid": self.devid,
            "physical_number": self.number_on_device,
            "type": self.kind_name(),
            "profile": self.profile,
            "physical_start": self.physical,
            "length": self.length,
            "logical_number": self.number,
            "logical_start": self.logical,
            "chunk_length": self.chunk_length,
            "used": self.used,
        })
    }
}

impl ChunkSortKey {
    fn value<'a>(&self, line: &'a StripeLine) -> (u64, &'a str) {
        match self.column {
            ChunkColumn::Devid => (line.devid, ""),
            ChunkColumn::PhysicalStart => (line.physical, ""),
            ChunkColumn::LogicalStart => (line.logical, ""),
            // In parts of 2^32, so that chunks of all lengths compare.
            ChunkColumn::Usage => {
                let part = (u128::from(line.used) << 32) / u128::from(line.chunk_length.max(1));
                (part as u64, "")
            }
            ChunkColumn::Length => (line.length, ""),
            ChunkColumn::Type => (line.kind, ""),
            ChunkColumn::Profile => (0, line.profile),
        }
    }
}
