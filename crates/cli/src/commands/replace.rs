//! `papilio replace`: puts another device in the place of one.
//!
//! Owns its subcommands. The devices of the file system are the image, those that are found beside
//! it, and those that `--device` names; the target of a replacement is not among them.

use crate::commands::filesystem::{OpenedAs, RedundancyArgs};
use crate::context::{Context, of_image};
use crate::devices::{self, absolute, is_same_file, open_for_writing};
use crate::errno_text;
use crate::jobs;
use crate::kernel_jobs;
use crate::mounted::{Mounted, Target};
use crate::output::Output;
use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use papilio::device::Device;
use papilio::{
    BalanceControl, DevReplaceState, DeviceId, DeviceUsage, FileSystem, FoundDevice, OpenOptions,
    ReplaceOptions, ReplaceReport,
};
use papilio_ioctl::job::JobKind;
use serde_json::json;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Replace a device of a file system
///
/// The server of a mount goes on if the command is interrupted, and the file system is in use
/// meanwhile. The replacement of a device of an image that was cut short is resumed by the same
/// command, or by a mount of the kernel; it can be cancelled.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// Copy a device to another one, which then takes its place
    Start(Start),
    /// Show the last replacement
    Status(Status),
    /// End a replacement that is not complete: the old device stays
    Cancel(Cancel),
}

#[derive(Debug, clap::Args)]
struct Start {
    /// The device to replace, or its devid; a missing device has only a devid
    #[arg(value_hint = clap::ValueHint::FilePath)]
    source: String,
    /// The new device or image, at least as large as the file system's part of the old one
    #[arg(value_hint = clap::ValueHint::FilePath)]
    target: PathBuf,
    /// An image or device of the file system, or a directory in its mount
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Read the old device only where no other copy is good
    #[arg(short = 'r')]
    avoid_source: bool,
    /// Overwrite a target that has a file system
    #[arg(short, long)]
    force: bool,
    /// Accepted for compatibility with btrfs-replace(8); the command always waits for the end
    #[arg(short = 'B')]
    foreground: bool,
    /// Accepted for compatibility with btrfs-replace(8); the new device is never discarded
    #[arg(short = 'K', long)]
    nodiscard: bool,
    /// Wait while the server of a mount does other work
    #[arg(long)]
    enqueue: bool,
    #[command(flatten)]
    redundancy: RedundancyArgs,
}

#[derive(Debug, clap::Args)]
struct Status {
    /// An image or device of the file system, or a directory in its mount
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Accepted for compatibility with btrfs-replace(8); the state is printed once
    #[arg(short = '1')]
    once: bool,
}

#[derive(Debug, clap::Args)]
struct Cancel {
    /// An image or device of the file system, or a directory in its mount
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// The target of an image's replacement, whose superblocks are erased
    #[arg(long, value_name = "DEVICE", value_hint = clap::ValueHint::FilePath)]
    target: Option<PathBuf>,
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Start(command) => command.run(context),
            Subcommand::Status(command) => command.run(context),
            Subcommand::Cancel(command) => command.run(context),
        }
    }
}

/// Opens all devices of the file system on `image` for writing, without the target.
fn open(context: &Context, image: &Path, target: Option<&Path>) -> anyhow::Result<Vec<Arc<dyn Device>>> {
    let ignores_signatures = context.arguments().ignores_signatures();
    let is_target = |path: &Path| target.is_some_and(|target| is_same_file(target, path));
    let others = context.arguments().device.iter().map(PathBuf::as_path).filter(|path| !is_target(path));
    let mut members = devices::members(std::iter::once(image).chain(others))?;
    members.retain(|path| !is_target(path));
    members.iter().map(|path| devices::open_member(path, ignores_signatures)).collect()
}

/// Returns the path of a device of the file system on `image`; `None` if it is missing.
fn path_of(context: &Context, image: &Path, devid: DeviceId) -> anyhow::Result<Option<PathBuf>> {
    let first = FoundDevice::read(image)?;
    let others = first.iter().flat_map(|first| devices::siblings(first, &context.arguments().device));
    Ok(first.iter().cloned().chain(others).find(|device| device.devid == devid).map(|device| device.path))
}

fn options(context: &Context) -> OpenOptions {
    OpenOptions::new().degraded(context.arguments().degraded)
}

impl Start {
    fn run(self, context: &Context) -> anyhow::Result<()> {
        let image = match Target::parse(self.image.as_os_str())? {
            Target::Image(path) => path.image,
            Target::Mounted(mounted) => return self.run_mounted(context, &mounted),
        };
        let source = match self.source.parse() {
            Ok(devid) => DeviceId(devid),
            Err(_) => {
                let found = FoundDevice::read(&self.source)?;
                found.with_context(|| format!("{}: no device of a Btrfs file system", self.source))?.devid
            }
        };
        if is_same_file(&self.target, &image) {
            bail!("{}: is in use by the file system", self.target.display());
        }
        let devices = open(context, &image, Some(&self.target))?;
        let source_path = path_of(context, &image, source)?;
        let target = devices::open_for_writing(&self.target)?;
        let bar = (std::io::stderr().is_terminal() && context.verbosity >= 0).then(new_bar);
        context.set_progress(bar.clone());
        let how = ReplaceOptions { avoid_source: self.avoid_source, force: self.force };
        let replaced = papilio::replace_device(devices, source, &target, &options(context), how, |report| {
            if let Some(bar) = &bar {
                bar.set_length(report.bytes_total);
                bar.set_position(report.bytes_done);
            }
            true
        });
        context.set_progress(None);
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        let report = replaced.map_err(|error| of_image(&image, error))?;
        context.changed_devices.note([&image, &self.target]);
        context.changed_devices.note_removed(source_path);
        print(&report)?;
        if report.uncorrectable_read_errors > 0 {
            let errors = report.uncorrectable_read_errors;
            context.error(format_args!("{}: {errors} sectors have no readable copy", image.display()));
        }
        drop(target);
        self.restore_redundancy(context, &image)
    }

    /// Looks at the copies of an image's chunks, now that the target is a member.
    fn restore_redundancy(&self, context: &Context, image: &Path) -> anyhow::Result<()> {
        // The image may be the source, which is no member any more.
        let named = context.arguments().device.iter().map(PathBuf::as_path);
        let members = devices::members([&*self.target, image].into_iter().chain(named));
        let opened = members.and_then(|members| {
            let options = options(context).write(true).commit_interval(None);
            let others = members.into_iter().filter(|path| *path != self.target);
            let options = others.fold(options, |options, path| options.device(path));
            Ok(FileSystem::open_with(&self.target, &options)?)
        });
        let fs = match opened {
            Ok(fs) => fs,
            Err(error) => {
                context.warning(format_args!("cannot tell whether chunks have fewer copies: {error:#}"));
                return Ok(());
            }
        };
        let restored = self.redundancy.apply(context, &self.target, &OpenedAs::Image(&fs));
        let closed = fs.close().map_err(|error| of_image(&self.target, error));
        restored.and(closed)
    }
}

impl Start {
    /// Lets the server of a mount replace a device.
    fn run_mounted(&self, context: &Context, mounted: &Mounted) -> anyhow::Result<()> {
        if !mounted.mount.is_papilio() {
            let how = ReplaceOptions { avoid_source: self.avoid_source, force: self.force };
            let source = Path::new(&self.source);
            let replaced = kernel_jobs::replace(mounted, source, &self.target, how, self.enqueue);
            print(&replaced.map_err(|error| start_failed(context, mounted, error))?)?;
            return self.redundancy.apply(context, &self.image, &OpenedAs::Mounted(mounted));
        }
        let mount = jobs::open(mounted)?;
        let devices = mount.usage().map_err(|error| mounted.at(&error))?.devices;
        let is_named = |device: &&DeviceUsage| {
            let path = device.path.as_deref().map(Path::new);
            self.source == device.devid.to_string()
                || path.is_some_and(|path| is_same_file(path, Path::new(&self.source)))
        };
        let Some(device) = devices.iter().find(is_named) else {
            bail!("{}: is not a device of the file system", self.source);
        };
        let target = absolute(&self.target).with_context(|| self.target.display().to_string())?;
        if devices
            .iter()
            .any(|own| own.path.as_deref().is_some_and(|own| is_same_file(Path::new(own), &target)))
        {
            bail!("{}: is in use by the file system", target.display());
        }
        let new = open_for_writing(&target)?;
        let (have, need) = (new.size(), device.total);
        if have < need {
            bail!("{}: has {have} bytes, the file system needs {need}", target.display());
        }
        drop(new);
        let source = device.path.clone().map(PathBuf::from);
        let how = ReplaceOptions { avoid_source: self.avoid_source, force: self.force };
        jobs::start(mounted, &mount, JobKind::ReplaceDevice, self.enqueue, || {
            mount.start_replace(device.devid, &target, how)
        })
        .map_err(|error| start_failed(context, mounted, error))?;
        jobs::follow_moves(context, mounted, &mount)?;
        let (report, _) = mount.replace_status().map_err(|error| mounted.at(&error))?;
        context.changed_devices.note([target]);
        context.changed_devices.note_removed(source);
        print(&report)?;
        self.redundancy.apply(context, &self.image, &OpenedAs::Mounted(mounted))
    }
}

/// Returns the error of a replacement that a read-only mount refuses: under the name `btrfs` in its
/// words.
fn start_failed(context: &Context, mounted: &Mounted, error: anyhow::Error) -> anyhow::Error {
    let words = errno_text::text_of(rustix::io::Errno::ROFS);
    match context.arguments().drop_in && error.to_string() == format!("{mounted}: {words}") {
        true => anyhow::anyhow!("ioctl(DEV_REPLACE_START) failed on \"{mounted}\": {words}"),
        false => error,
    }
}

impl Status {
    fn run(self, context: &Context) -> anyhow::Result<()> {
        let (report, done) = match Target::parse(self.image.as_os_str())? {
            Target::Image(path) => {
                let fs = context.open(&path.image)?;
                (fs.replace_status().map_err(|error| of_image(&path.image, error))?, None)
            }
            Target::Mounted(mounted) => {
                let status = mounted.open()?.replace_status();
                let (report, done) = status.map_err(|error| mounted.at(&error))?;
                (Some(report), (report.state == DevReplaceState::Started).then_some(done))
            }
        };
        let report = report.filter(|report| report.state != DevReplaceState::NeverStarted);
        if !self.json {
            return match report {
                Some(report) => {
                    if let Some(done) = done {
                        line(format_args!("{}.{} % done\n", done / 10, done % 10))?;
                    }
                    print(&report)
                }
                None => line(format_args!("Never started\n")),
            };
        }
        let object = report.map(|report| {
            json!({
                "devid": report.source.0,
                "state": word(report.state),
                "started": report.started,
                "stopped": report.stopped,
                "write_errors": report.write_errors,
                "uncorrectable_read_errors": report.uncorrectable_read_errors,
            })
        });
        line(format_args!("{:#}\n", json!(object)))
    }
}

impl Cancel {
    fn run(self, context: &Context) -> anyhow::Result<()> {
        let image = match Target::parse(self.image.as_os_str())? {
            Target::Image(path) => path.image,
            Target::Mounted(mounted) => {
                return jobs::stop(&mounted, JobKind::ReplaceDevice, BalanceControl::Cancel);
            }
        };
        let devices = open(context, &image, self.target.as_deref())?;
        let target = self.target.as_deref().map(devices::open_for_writing).transpose()?;
        let cancelled = papilio::cancel_replace(devices, target.as_deref(), &options(context));
        print(&cancelled.map_err(|error| of_image(&image, error))?)
    }
}

fn word(state: DevReplaceState) -> &'static str {
    match state {
        DevReplaceState::NeverStarted => "never started",
        DevReplaceState::Started => "not complete",
        DevReplaceState::Finished => "finished",
        DevReplaceState::Canceled => "canceled",
        DevReplaceState::Suspended => "suspended",
    }
}

fn print(report: &ReplaceReport) -> anyhow::Result<()> {
    let ReplaceReport { source, state, write_errors, uncorrectable_read_errors, .. } = report;
    let state = word(*state);
    // The kernel's ioctl does not tell the device.
    let device = if source.0 == 0 { "the device".to_owned() } else { format!("device {source}") };
    line(format_args!(
        "{device}: {state}, {write_errors} write errs, {uncorrectable_read_errors} uncorr. read errs\n"
    ))
}

fn line(text: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    let mut output = Output::new()?;
    output.text(text)?;
    Ok(output.finish()?)
}

fn new_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let form = "{elapsed_precise} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta}";
    if let Ok(style) = ProgressStyle::with_template(form) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}
