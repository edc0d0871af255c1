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
mod image;
mod interrupt;
pub mod job;
pub mod job_file;
pub mod machine;
mod measure;
pub mod memory;
pub mod model;
mod names;
pub mod profile;
mod progress;
mod read;
pub mod report;
pub mod runner;
pub mod side;
pub mod sides;
mod sums;
pub mod sweep;

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
        Some(args::Comparison::NocowCheck(arguments)) => sums::run(arguments),
        Some(args::Comparison::Image(arguments)) => {
            let papilio = environment::papilio_command().context("the papilio command is not there")?;
            image::run(arguments, &papilio, quiet)
        }
        Some(args::Comparison::Sweep(arguments)) => {
            let plan = arguments.plan(quiet)?;
            let report = in_folder(&arguments.jobs, |folder| plan.run(folder))?;
            show(&arguments.jobs, &report)
        }
        None => show(&args.jobs, &report(&args.jobs, quiet)?),
    }
}

/// A report that is there already, or a new one.
fn report(args: &args::JobArgs, quiet: bool) -> anyhow::Result<Report> {
    let Some((first, more)) = args.report.split_first() else {
        let plan = args.plan(quiet)?;
        return in_folder(args, |folder| plan.run(folder));
    };
    let mut report = Report::read(first)?;
    for path in more {
        report.add(Report::read(path)?);
    }
    Ok(report)
}

/// Writes and prints what was wished for.
fn show(args: &args::JobArgs, report: &Report) -> anyhow::Result<()> {
    if let Some(folder) = &args.output {
        prepare_folder(folder)?;
        write(&folder.join("report.json"), &report.to_json()?)?;
        write(&folder.join("report.html"), &html::page(report)?)?;
    }
    if let Some(path) = &args.markdown {
        markdown::write(report, path)?;
    }
    let text = if args.json { report.to_json()? } else { table::text(report) };
    std::io::stdout().write_all(text.as_bytes())?;
    if report.interrupted && args.report.is_empty() {
        bail!("interrupted");
    }
    if report.is_empty() {
        bail!("nothing was measured");
    }
    Ok(())
}

/// Runs something with a folder for fio's own files, which goes away again where none is wished for.
fn in_folder(
    args: &args::JobArgs,
    run: impl FnOnce(&Path) -> anyhow::Result<Report>,
) -> anyhow::Result<Report> {
    match &args.output {
        Some(folder) => {
            let folder = folder.join("fio");
            prepare_folder(&folder)?;
            // fio runs in another folder than we do.
            run(&folder.canonicalize()?)
        }
        None => {
            let folder = tempfile::tempdir().context("a folder for fio's output")?;
            run(folder.path())
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
