//! `papilio check`: compares the structures of a file system with one another.

use crate::context::Context;
use crate::output::{Output, escaped};
use indicatif::{ProgressBar, ProgressStyle};
use papilio::{CheckOptions, CheckProgress, CheckReport, CheckStage, Finding};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

/// Check a file system without changing it
///
/// Reads every copy of every tree block, and compares extents with their references, free space
/// with extents, and chunks with device extents. Checks inodes, directories, link counts,
/// checksums, subvolumes and superblocks. A file system that is too damaged to be opened is checked
/// as far as possible. The exit status is 1 if there are errors.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Do not write; accepted for btrfs-check(8)'s sake, since the command never writes
    #[arg(long, visible_alias = "readonly")]
    read_only: bool,
    /// Verify the checksums of all copies of all data
    #[arg(long)]
    check_data_csum: bool,
    /// Show the progress
    #[arg(short, long)]
    progress: bool,
    /// Print at most N findings; count the others
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    max_findings: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Checks the file system.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let bar = (self.progress && std::io::stderr().is_terminal()).then(new_bar);
        let mut options = CheckOptions::new().data_csum(self.check_data_csum).max_findings(self.max_findings);
        if let Some(bar) = bar.clone() {
            options = options.progress(move |progress| show(&bar, progress));
        }
        context.set_progress(bar.clone());
        let report = papilio::check(&self.image, &context.options_for(&self.image), &options);
        context.set_progress(None);
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        let report = report?;
        let mut output = Output::new()?;
        if self.json {
            output.text(format_args!("{:#}\n", json_report(&report)))?;
        } else {
            self.print(&report, &mut output)?;
        }
        output.finish()?;
        if !report.is_clean() {
            context.error(format_args!("{}: {} errors found", self.image.display(), report.errors()));
        }
        Ok(())
    }

    fn print(&self, report: &CheckReport, output: &mut Output) -> anyhow::Result<()> {
        for finding in &report.findings {
            let mut line = escaped(finding.to_string().as_bytes()).into_owned();
            line.push(b'\n');
            output.bytes(&line)?;
        }
        if report.dropped() > 0 {
            output.text(format_args!("{} further findings are not shown\n", report.dropped()))?;
        }
        for note in &report.notes {
            output.text(format_args!("note: {note}\n"))?;
        }
        let seen = &report.statistics;
        output.text(format_args!(
            "{} trees, {} blocks ({} bytes), {} data extents ({} bytes), {} subvolumes, {} inodes, {} files\n",
            seen.trees,
            seen.blocks,
            seen.metadata_bytes,
            seen.data_extents,
            seen.data_bytes,
            seen.subvolumes,
            seen.inodes,
            seen.files
        ))?;
        if self.check_data_csum {
            let (sums, read) = (seen.csum_bytes, seen.data_bytes_read);
            output.text(format_args!("{read} bytes of data read, all copies of {sums} with checksums\n"))?;
        }
        let (errors, warnings) = (report.errors(), report.warnings());
        output.text(format_args!("{errors} errors, {warnings} warnings\n"))?;
        Ok(())
    }
}

fn new_bar() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn show(bar: &ProgressBar, progress: CheckProgress) {
    match progress.stage {
        CheckStage::Trees => bar.set_message(format!("{} tree blocks", progress.done)),
        CheckStage::Space => bar.set_message("references, extents, free space"),
        CheckStage::Data => {
            if bar.length() != progress.total {
                let form = "{elapsed_precise} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta}";
                if let Ok(style) = ProgressStyle::with_template(form) {
                    bar.set_style(style.progress_chars("=> "));
                }
                bar.set_length(progress.total.unwrap_or_default());
            }
            bar.set_position(progress.done);
        }
    }
}

fn json_report(report: &CheckReport) -> Value {
    let counts: serde_json::Map<String, Value> =
        report.counts.iter().map(|(kind, count)| (kind.to_string(), json!(count))).collect();
    let seen = &report.statistics;
    json!({
        "errors": report.errors(),
        "warnings": report.warnings(),
        "counts": counts,
        "findings": report.findings.iter().map(json_finding).collect::<Vec<_>>(),
        "findings_not_kept": report.dropped(),
        "notes": report.notes,
        "statistics": {
            "trees": seen.trees,
            "blocks": seen.blocks,
            "metadata_bytes": seen.metadata_bytes,
            "data_extents": seen.data_extents,
            "data_bytes": seen.data_bytes,
            "subvolumes": seen.subvolumes,
            "inodes": seen.inodes,
            "files": seen.files,
            "csum_bytes": seen.csum_bytes,
            "data_bytes_read": seen.data_bytes_read,
        },
    })
}

fn json_finding(finding: &Finding) -> Value {
    let place = &finding.place;
    let key = place.key.map(
        |key| json!({ "objectid": key.objectid, "type": key.item_type.to_string(), "offset": key.offset }),
    );
    let all = json!({
        "kind": finding.kind.name(),
        "severity": finding.severity.to_string(),
        "message": finding.message,
        "tree": place.tree.map(|tree| tree.0),
        "logical": place.address.map(|address| address.0),
        "key": key,
        "inode": place.inode.map(|inode| inode.0),
        "device": place.device,
        "physical": place.offset.map(|offset| offset.0),
    });
    match all {
        Value::Object(fields) => fields.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        other => other,
    }
}
