//! `papilio inspect partitions`: the partitions of a disk image.

use crate::context::Context;
use crate::output::{JsonArray, Output, escaped};
use crate::units::UnitArgs;
use papilio::device::{Access, DeviceOptions, OpenedImage, Partition};
use serde_json::{Value, json};
use std::path::PathBuf;

/// List the partitions of a disk image or a disk
///
/// The first column is the N of IMAGE@N. The image may have any format that other commands open. A
/// disk without a partition table has no lines.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The image or device
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    #[command(flatten)]
    units: UnitArgs,
    /// Print one JSON array, with sizes in bytes
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Args {
    /// Lists the partitions.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let options = context.arguments().image_options();
        context.confine_to_images([self.image.clone()]);
        let disk = DeviceOptions::new(Access::ReadOnly).open_disk(&self.image, &options)?;
        context.seal();
        let partitions = disk.table.as_ref().map_or(&[][..], |table| &table.partitions);
        for fault in disk.table.iter().flat_map(|table| &table.faults) {
            context.warning(format_args!("{}: {fault}", self.image.display()));
        }
        let mut output = Output::new()?;
        if self.json {
            let mut array = JsonArray::begin(&mut output)?;
            for partition in partitions {
                array.push(&mut output, &to_json(&disk, partition))?;
            }
            array.end(&mut output)?;
        } else if !partitions.is_empty() {
            self.print(&disk, partitions, &mut output)?;
        }
        Ok(output.finish()?)
    }

    fn print(&self, disk: &OpenedImage, partitions: &[Partition], output: &mut Output) -> anyhow::Result<()> {
        let units = self.units.resolve();
        let mut rows = vec![["N", "Start", "Size", "Content", "UUID", "Type", "Label"].map(str::to_owned)];
        for partition in partitions {
            rows.push([
                partition.number.to_string(),
                units.text(partition.start.0),
                units.text(partition.length),
                disk.content(partition).unwrap_or("-").to_owned(),
                partition.uuid.clone(),
                partition.kind.to_string(),
                String::from_utf8_lossy(&escaped(partition.label.as_bytes())).into_owned(),
            ]);
        }
        let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
        let widths: [usize; 7] = std::array::from_fn(width);
        for row in &rows {
            let cells = row.iter().zip(widths).enumerate();
            let cells: Vec<_> = cells
                .map(|(at, (cell, width))| match at {
                    1 | 2 => format!("{cell:>width$}"),
                    _ => format!("{cell:<width$}"),
                })
                .collect();
            output.text(format_args!("{}\n", cells.join("  ").trim_end()))?;
        }
        Ok(())
    }
}

fn to_json(disk: &OpenedImage, partition: &Partition) -> Value {
    json!({
        "number": partition.number,
        "start": partition.start.0,
        "length": partition.length,
        "content": disk.content(partition),
        "uuid": partition.uuid,
        "type": partition.kind.to_string(),
        "label": partition.label,
        "table": disk.table.as_ref().map(|table| table.kind.to_string()),
        "sector_size": disk.table.as_ref().map(|table| table.sector_size),
        "format": disk.format.name(),
    })
}
