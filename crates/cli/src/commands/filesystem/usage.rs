//! `papilio filesystem usage`, in the format of `btrfs filesystem usage`.
//!
//! It omits `Free (statfs, df)`, which only a mount knows.

use super::redundancy::warn_of_lesser_profiles;
use super::source::UsageSource;
use super::usage_tree::{self, TreeArgs};
use crate::context::Context;
use crate::output::Output;
use crate::units::{UnitArgs, Units};
use papilio::format::items::block_group::BlockGroupFlags;
use papilio::{DeviceUsage, Usage};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Show the used and free space in detail
///
/// The global reserve is the one that the kernel would set aside right after mounting, according to
/// the sizes of the trees.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Print a table of devices and profiles
    #[arg(short = 'T', long)]
    table: bool,
    #[command(flatten)]
    tree: TreeArgs,
    #[command(flatten)]
    units: UnitArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Args {
    /// Shows the space.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if self.tree.tree {
            return usage_tree::show(context, &self.image, &self.tree, self.units.resolve(), self.json);
        }
        context.confine_to_place(&self.image);
        let usage = UsageSource::open(context, &self.image)?.usage()?;
        if usage.chunks_without_block_group > 0 {
            context.error(format_args!(
                "{}: {} chunks have no block group; they are shown as unused",
                self.image.display(),
                usage.chunks_without_block_group
            ));
        }
        let mut output = Output::new()?;
        let units = self.units.resolve();
        if self.json {
            output.text(format_args!("{:#}\n", to_json(&usage)))?;
        } else {
            print_overall(&mut output, &usage, units)?;
            match self.table {
                true => print_table(&mut output, &usage, units)?,
                false => print_sections(&mut output, &usage, units)?,
            }
        }
        output.finish()?;
        warn_of_lesser_profiles(context, &self.image, &usage);
        Ok(())
    }
}

fn print_overall(output: &mut Output, usage: &Usage, units: Units) -> anyhow::Result<()> {
    let width = if units.is_human() { 10 } else { 18 };
    let (free, free_min) = usage.free();
    let sizes = [
        ("Device size:\t\t", usage.device_size()),
        ("Device allocated:\t\t", usage.allocated()),
        ("Device unallocated:\t\t", usage.unallocated()),
        ("Device missing:\t\t", usage.missing()),
        ("Device slack:\t\t", usage.slack()),
        ("Used:\t\t\t", usage.used()),
    ];
    output.bytes(b"Overall:\n")?;
    for (name, bytes) in sizes {
        output.text(format_args!("    {name}{:>width$}\n", units.text(bytes)))?;
    }
    output.text(format_args!(
        "    Free (estimated):\t\t{:>width$}\t(min: {})\n",
        units.text(free),
        units.text(free_min)
    ))?;
    output.text(format_args!("    Data ratio:\t\t\t{:>width$.2}\n", usage.data_ratio()))?;
    output.text(format_args!("    Metadata ratio:\t\t{:>width$.2}\n", usage.metadata_ratio()))?;
    output.text(format_args!(
        "    Global reserve:\t\t{:>width$}\t(used: {})\n",
        units.text(usage.global_reserve),
        units.text(0)
    ))?;
    let multiple = if usage.has_multiple_profiles() { "yes" } else { "no" };
    Ok(output.text(format_args!("    Multiple profiles:\t\t{multiple:>width$}\n\n"))?)
}

/// Returns the indexes of the spaces in the order data, metadata, system.
fn display_order(usage: &Usage) -> Vec<usize> {
    let mut order: Vec<usize> = (0..usage.spaces.len()).collect();
    order.sort_by_key(|&index| usage.spaces[index].kind.contains(BlockGroupFlags::SYSTEM));
    order
}

fn print_sections(output: &mut Output, usage: &Usage, units: Units) -> anyhow::Result<()> {
    let line = |output: &mut Output, device: &DeviceUsage, bytes| -> anyhow::Result<()> {
        output.bytes(b"   ")?;
        output.name(name(device).as_bytes())?;
        Ok(output.text(format_args!("\t{:>10}\n", units.text(bytes)))?)
    };
    for index in display_order(usage) {
        let space = &usage.spaces[index];
        let percent = 100.0 * space.used as f64 / space.total as f64;
        output.text(format_args!(
            "{},{}: Size:{}, Used:{} ({percent:.2}%)\n",
            space.kind_name(),
            space.profile,
            units.text(space.total),
            units.text(space.used)
        ))?;
        for device in usage.devices.iter().filter(|device| device.by_space[index] > 0) {
            line(output, device, device.by_space[index])?;
        }
        output.bytes(b"\n")?;
    }
    output.bytes(b"Unallocated:\n")?;
    for device in &usage.devices {
        line(output, device, device.unallocated())?;
    }
    Ok(())
}

fn name(device: &DeviceUsage) -> &str {
    device.path.as_deref().unwrap_or("missing")
}

fn print_table(output: &mut Output, usage: &Usage, units: Units) -> anyhow::Result<()> {
    let order = display_order(usage);
    let cell = |bytes| if bytes == 0 { "-".to_owned() } else { units.text(bytes) };
    let mut rows: Vec<Vec<String>> = vec![vec![String::new(); 2], vec!["Id".into(), "Path".into()]];
    for &index in &order {
        rows[0].push(usage.spaces[index].kind_name().to_owned());
        rows[1].push(usage.spaces[index].profile.name().to_owned());
    }
    rows[0].extend([const { String::new() }; 3]);
    rows[1].extend(["Unallocated", "Total", "Slack"].map(str::to_owned));
    for device in &usage.devices {
        let mut row = vec![device.devid.to_string(), name(device).to_owned()];
        row.extend(order.iter().map(|&index| cell(device.by_space[index])));
        row.extend([device.unallocated(), device.total, device.slack()].map(cell));
        rows.push(row);
    }
    let mut total = vec![String::new(), "Total".to_owned()];
    total.extend(order.iter().map(|&index| units.text(usage.spaces[index].total)));
    total.extend([usage.unallocated(), usage.device_size(), usage.slack()].map(|b| units.text(b)));
    let mut used = vec![String::new(), "Used".to_owned()];
    used.extend(order.iter().map(|&index| units.text(usage.spaces[index].used)));
    used.extend([const { String::new() }; 3]);
    rows.extend([total, used]);

    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    rows.insert(rows.len() - 2, rule.clone());
    rows.insert(2, rule);
    for (number, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (text, width))| {
            // Headings and paths are aligned left, numbers right.
            match number < 2 || column == 1 {
                true => format!("{text:<width$}"),
                false => format!("{text:>width$}"),
            }
        });
        let line = cells.collect::<Vec<_>>().join(" ");
        output.name(line.trim_end().as_bytes())?;
        output.bytes(b"\n")?;
    }
    Ok(())
}

fn to_json(usage: &Usage) -> Value {
    let (free, free_min) = usage.free();
    let spaces = usage.spaces.iter().map(|space| {
        json!({
            "type": space.kind_name(),
            "profile": space.profile.name(),
            "total": space.total,
            "used": space.used,
            "raw_total": space.raw_total,
            "raw_used": space.raw_used,
        })
    });
    let devices = usage.devices.iter().map(|device| {
        let allocations = usage.spaces.iter().zip(&device.by_space).map(|(space, bytes)| {
            json!({ "type": space.kind_name(), "profile": space.profile.name(), "bytes": bytes })
        });
        json!({
            "devid": device.devid.0,
            "uuid": device.uuid.to_string(),
            "path": device.path,
            "missing": device.is_missing(),
            "size": device.total,
            "device_size": device.size,
            "unallocated": device.unallocated(),
            "slack": device.slack(),
            "allocations": allocations.collect::<Value>(),
        })
    });
    json!({
        "device_size": usage.device_size(),
        "device_allocated": usage.allocated(),
        "device_unallocated": usage.unallocated(),
        "device_missing": usage.missing(),
        "device_slack": usage.slack(),
        "used": usage.used(),
        "free_estimated": free,
        "free_min": free_min,
        "data_ratio": usage.data_ratio(),
        "metadata_ratio": usage.metadata_ratio(),
        "global_reserve": usage.global_reserve,
        "multiple_profiles": usage.has_multiple_profiles(),
        "spaces": spaces.collect::<Value>(),
        "devices": devices.collect::<Value>(),
    })
}
