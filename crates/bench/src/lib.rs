//! Papilio beside the kernel's Btrfs at the same work, as ratios: `papilio bench`.
//!
//! The jobs are fio's, run by the real fio, each by several sides in turn on the same backing ([`job`],
//! [`side`], [`runner`]); what comes of it is a [`report`]. Absolute figures drift with the machine; the
//! ratio of two medians of one run is what counts.
//!
//! Everything that is made for a run (files, mounts, loop devices, cgroups, processes) belongs to a value
//! that takes it away when dropped, also after a failure or Ctrl-C.

pub mod args;
pub mod backing;
pub mod cgroup;
mod cpu;
pub mod environment;
pub mod fio;
mod interrupt;
pub mod job;
pub mod job_file;
pub mod machine;
mod measure;
pub mod model;
mod names;
mod progress;
mod read;
pub mod report;
pub mod runner;
pub mod side;
pub mod sides;

pub use args::{BenchArgs, UsageError};

use crate::report::{Report, html, markdown, table};
use anyhow::{Context, bail};
use std::io::Write;
use std::path::Path;

/// Does what the arguments say; `quiet` says nothing while it runs.
///
/// # Errors
/// [`UsageError`] for arguments that make no sense, else what failed, as a line.
pub fn run(args: &BenchArgs, quiet: bool) -> anyhow::Result<()> {
    match &args.comparison {
        Some(args::Comparison::Read(arguments)) => read::run(arguments),
        Some(args::Comparison::Names(arguments)) => names::run(arguments),
        None => run_jobs(&args.jobs, quiet),
    }
}

fn run_jobs(args: &args::JobArgs, quiet: bool) -> anyhow::Result<()> {
    let report = match &args.report {
        Some(path) => Report::read(path)?,
        None => measure(args, quiet)?,
    };
    if let Some(folder) = &args.output {
        prepare_folder(folder)?;
        write(&folder.join("report.json"), &report.to_json()?)?;
        write(&folder.join("report.html"), &html::page(&report)?)?;
    }
    if let Some(path) = &args.markdown {
        markdown::write(&report, path)?;
    }
    let text = if args.json { report.to_json()? } else { table::text(&report) };
    std::io::stdout().write_all(text.as_bytes())?;
    if report.interrupted && args.report.is_none() {
        bail!("interrupted");
    }
    if report.jobs.iter().all(|job| job.sides.is_empty()) {
        bail!("nothing was measured");
    }
    Ok(())
}

fn measure(args: &args::JobArgs, quiet: bool) -> anyhow::Result<Report> {
    let plan = args.plan(quiet)?;
    match &args.output {
        Some(folder) => {
            let folder = folder.join("fio");
            prepare_folder(&folder)?;
            // fio runs in another folder than we do.
            plan.run(&folder.canonicalize()?)
        }
        None => {
            let folder = tempfile::tempdir().context("a folder for fio's output")?;
            plan.run(folder.path())
        }
    }
}

/// Makes a folder and sees that it can be written: better now than after an hour.
fn prepare_folder(folder: &Path) -> anyhow::Result<()> {
    let named = || folder.display().to_string();
    std::fs::create_dir_all(folder).with_context(named)?;
    tempfile::tempfile_in(folder).map(drop).with_context(named)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| path.display().to_string())
}
