//! `papilio scrub status`, and printing the state of a scrub.

use super::image::image_of;
use super::state::{FIELDS, Folder, State};
use crate::context::Context;
use crate::mounted::{Mounted, Target};
use crate::output::{Output, escaped};
use crate::time;
use crate::units::Units;
use papilio::format::Uuid;
use papilio::{ScrubCounts, ScrubReport, Timespec};
use serde_json::json;
use std::path::PathBuf;

/// Show how far a scrub is, or what the last one found
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device, or a directory in a mount
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Print the statistics of each device
    #[arg(short = 'd')]
    per_device: bool,
    /// Print all counters instead of a summary
    #[arg(short = 'R')]
    raw_counters: bool,
    #[command(flatten)]
    units: ScrubUnits,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The options that choose a unit, which have no letters here.
#[derive(Clone, Copy, Debug, clap::Args)]
struct ScrubUnits {
    /// Print sizes in bytes
    #[arg(long, overrides_with = "human_readable")]
    raw: bool,
    /// Print sizes in a fitting unit, powers of 1024 (default)
    #[arg(long)]
    human_readable: bool,
    /// Use powers of 1024
    #[arg(long, conflicts_with = "si")]
    iec: bool,
    /// Use powers of 1000
    #[arg(long)]
    si: bool,
    /// Print sizes in KiB, or in kB with --si
    #[arg(long, group = "unit")]
    kbytes: bool,
    /// Print sizes in MiB, or in MB with --si
    #[arg(long, group = "unit")]
    mbytes: bool,
    /// Print sizes in GiB, or in GB with --si
    #[arg(long, group = "unit")]
    gbytes: bool,
    /// Print sizes in TiB, or in TB with --si
    #[arg(long, group = "unit")]
    tbytes: bool,
}

impl ScrubUnits {
    fn resolve(self) -> Units {
        let Self { raw, si, kbytes, mbytes, gbytes, tbytes, .. } = self;
        Units::chosen(si, [raw, kbytes, mbytes, gbytes, tbytes])
    }
}

impl Args {
    /// Prints the state.
    pub fn run(self, _context: &Context) -> anyhow::Result<()> {
        if let Target::Mounted(mounted) = Target::parse(self.image.as_os_str())? {
            return self.run_mounted(&mounted);
        }
        let image = image_of(&self.image)?;
        let Some(found) = papilio::FoundDevice::read(&image)? else {
            anyhow::bail!("{}: no Btrfs file system", image.display());
        };
        let folder = Folder::of(found.fsid)?;
        let running = folder.lock()?.is_none();
        let mut output = Output::new()?;
        match folder.read()? {
            Some(state) => print(
                &state,
                found.fsid,
                running,
                self.per_device,
                self.raw_counters,
                self.units.resolve(),
                self.json,
                &mut output,
            )?,
            None => self.print_none(found.fsid, &mut output)?,
        }
        Ok(output.finish()?)
    }

    fn print_none(&self, fsid: Uuid, output: &mut Output) -> anyhow::Result<()> {
        match self.json {
            true => output.text(format_args!("{:#}\n", json!({ "fsid": fsid.to_string() })))?,
            false => output.text(format_args!("UUID:             {fsid}\n\tno stats available\n"))?,
        }
        Ok(())
    }

    fn run_mounted(&self, mounted: &Mounted) -> anyhow::Result<()> {
        let mut output = Output::new()?;
        match super::mounted::last(mounted)? {
            (_, Some(last)) => print(
                &last.state,
                last.fsid,
                last.running,
                self.per_device,
                self.raw_counters,
                self.units.resolve(),
                self.json,
                &mut output,
            )?,
            (fsid, None) => self.print_none(fsid, &mut output)?,
        }
        Ok(output.finish()?)
    }
}

/// Prints the state of a scrub.
#[allow(clippy::too_many_arguments, reason = "each is an option of the command line")]
pub fn print(
    state: &State,
    fsid: Uuid,
    running: bool,
    per_device: bool,
    raw_counters: bool,
    units: Units,
    as_json: bool,
    output: &mut Output,
) -> anyhow::Result<()> {
    let status = match () {
        () if running => "running",
        () if state.report.finished => "finished",
        () if state.cancelled => "aborted",
        () => "interrupted",
    };
    if as_json {
        let mut value = state.to_json();
        value["fsid"] = json!(fsid.to_string());
        value["status"] = json!(status);
        output.text(format_args!("{value:#}\n"))?;
        return Ok(());
    }
    output.text(format_args!("UUID:             {fsid}\n"))?;
    if !per_device {
        print_part(state, status, &state.report.total(), raw_counters, units, output)?;
        return print_undecodable(&state.report, output);
    }
    for device in &state.report.devices {
        let path = device.path.as_deref().unwrap_or("missing");
        output.text(format_args!("\nScrub device {path} (id {}) {status}\n", device.devid.0))?;
        print_part(state, status, &device.counts, raw_counters, units, output)?;
    }
    print_undecodable(&state.report, output)
}

/// Lists the compressed extents that do not decode.
fn print_undecodable(report: &ScrubReport, output: &mut Output) -> anyhow::Result<()> {
    if report.skipped > 0 {
        output.text(format_args!("Not scrubbed:     {} ranges\n", report.skipped))?;
    }
    if !report.lost_data.is_empty() {
        output.text(format_args!("Lost data:\n"))?;
    }
    for line in &report.lost_data {
        output.bytes(&escaped(format!("  {line}").as_bytes()))?;
        output.text(format_args!("\n"))?;
    }
    if report.undecodable == 0 {
        return Ok(());
    }
    output.text(format_args!("Undecodable:      {} compressed extents\n", report.undecodable))?;
    for line in &report.undecodable_extents {
        output.bytes(&escaped(format!("  {line}").as_bytes()))?;
        output.text(format_args!("\n"))?;
    }
    let more = report.undecodable.saturating_sub(report.undecodable_extents.len() as u64);
    if more > 0 {
        output.text(format_args!("  and {more} more\n"))?;
    }
    Ok(())
}

fn print_part(
    state: &State,
    status: &str,
    counts: &ScrubCounts,
    raw_counters: bool,
    units: Units,
    output: &mut Output,
) -> anyhow::Result<()> {
    let when = |seconds| time::to_second(Timespec { seconds, nanoseconds: 0 });
    output.text(format_args!("Scrub started:    {}\n", when(state.started)))?;
    if let Some(resumed) = state.resumed {
        output.text(format_args!("Scrub resumed:    {}\n", when(resumed)))?;
    }
    output.text(format_args!("Status:           {status}\n"))?;
    let seconds = state.duration as u64;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    output.text(format_args!("Duration:         {hours}:{minutes:02}:{:02}\n", seconds % 60))?;
    if raw_counters {
        let mut counts = *counts;
        for (name, field) in FIELDS {
            output.text(format_args!("\t{name}: {}\n", *field(&mut counts)))?;
        }
        return Ok(());
    }
    let bytes = counts.data_bytes_scrubbed + counts.tree_bytes_scrubbed;
    let rate = (bytes as f64 / state.duration.max(0.001)) as u64;
    output.text(format_args!("Bytes scrubbed:   {}\n", units.text(bytes)))?;
    output.text(format_args!("Rate:             {}/s\n", units.text(rate)))?;
    let (done, total) = (state.report.bytes_done, state.report.bytes_total);
    if !state.report.finished && total > 0 {
        let percent = done as f64 * 100.0 / total as f64;
        output.text(format_args!("Chunks done:      {percent:.1}% of {}\n", units.text(total)))?;
    }
    if !counts.has_errors() && state.report.undecodable == 0 {
        output.text(format_args!("Error summary:    no errors found\n"))?;
        return Ok(());
    }
    if !counts.has_errors() {
        return Ok(());
    }
    let mut summary = String::new();
    for (name, count) in [
        ("read", counts.read_errors),
        ("super", counts.super_errors),
        ("verify", counts.verify_errors),
        ("csum", counts.csum_errors),
        ("parity", counts.parity_errors),
        ("write", counts.write_errors),
    ] {
        if count > 0 {
            summary.push_str(&format!(" {name}={count}"));
        }
    }
    output.text(format_args!("Error summary:   {summary}\n"))?;
    let corrected = if state.read_only { 0 } else { counts.corrected_errors };
    output.text(format_args!("  Corrected:      {corrected}\n"))?;
    if state.read_only {
        // The counter has them, as the kernel's.
        output.text(format_args!("  Correctable:    {}\n", counts.corrected_errors))?;
    }
    output.text(format_args!("  Uncorrectable:  {}\n", counts.uncorrectable_errors))?;
    Ok(())
}
