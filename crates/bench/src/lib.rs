//! `papilio bench`: runs the same workloads on the kernel's Btrfs and on Papilio, and compares
//! them.
//!
//! Each [`job`] is a run of the real fio. Several [sides](side) run it in turn on the same backing
//! ([`runner`]), and a [`report`] shows the results. Absolute results drift with the machine; the
//! result is the ratio of two medians from the same run.
//!
//! **Invariants**
//!
//! - Every file, mount, loop device, cgroup and process of a run belongs to a value that removes it
//!   when dropped, also after a failure or Ctrl-C.

pub mod against;
mod age;
mod args;
pub mod backing;
pub mod cgroup;
mod cpu;
mod devices;
pub mod disk_jobs;
pub mod environment;
pub mod fio;
mod image;
mod interrupt;
pub mod job;
pub mod job_file;
mod job_names;
mod latency;
pub mod machine;
mod measure;
pub mod memory;
pub mod model;
mod names;
mod nocow_check;
mod output;
pub mod over;
pub mod profile;
mod progress;
mod read;
pub mod report;
pub mod runner;
mod send;
pub mod side;
pub mod sides;
pub mod sweep;

pub use args::{BenchArgs, UsageError};

use crate::output::{prepare_folder, write};
use crate::report::{Report, html, markdown, table};
use anyhow::{Context, bail};
use std::io::Write;
use std::path::Path;

/// Runs the command. `quiet` suppresses progress messages.
///
/// # Errors
/// [`UsageError`] for invalid arguments; otherwise the failure, as one line.
pub fn run(args: &BenchArgs, quiet: bool) -> anyhow::Result<()> {
    match &args.comparison {
        Some(args::Comparison::Read(arguments)) => read::run(arguments),
        Some(args::Comparison::Names(arguments)) => names::run(arguments),
        Some(args::Comparison::Send(arguments)) => send::run(arguments),
        Some(args::Comparison::Devices(arguments)) => devices::run(arguments),
        Some(args::Comparison::Age(arguments)) => age::run(arguments),
        Some(args::Comparison::Latency(arguments)) => latency::run(arguments),
        Some(args::Comparison::NocowCheck(arguments)) => nocow_check::run(arguments),
        Some(args::Comparison::Image(arguments)) => {
            let papilio = environment::papilio_command().context("cannot find the papilio command")?;
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

/// Reads the reports given with `--report`, or runs the jobs.
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

/// Writes the requested files and prints the report.
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
        bail!("no job gave a result");
    }
    Ok(())
}

/// Calls `run` with a directory for fio's own files; without `--output` it is a temporary one.
fn in_folder(
    args: &args::JobArgs,
    run: impl FnOnce(&Path) -> anyhow::Result<Report>,
) -> anyhow::Result<Report> {
    match &args.output {
        Some(folder) => {
            let folder = folder.join("fio");
            prepare_folder(&folder)?;
            // fio runs in another working directory.
            run(&folder.canonicalize()?)
        }
        None => {
            let folder =
                tempfile::tempdir().context("cannot create a temporary directory for fio's output")?;
            run(folder.path())
        }
    }
}
