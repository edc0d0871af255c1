//! `papilio scrub start` and `papilio scrub resume`.

use super::bar::new_bar;
use super::code::{NOTHING, UNCORRECTABLE};
use super::image::image_of;
use super::kernel::KernelBegin;
use super::state::{Folder, State};
use super::status::print;
use crate::context::{Context, of_image};
use crate::mounted::{Mounted, Target};
use crate::output::Output;
use crate::units::{self, Units};
use anyhow::bail;
use papilio::{DeviceId, FileSystem, FoundDevice, ScrubOptions, ScrubReport};
use papilio_ioctl::ScrubStart;
use papilio_ioctl::io_priority::IoPriority;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Start a scrub of a file system
///
/// Runs in the background unless -B is given; `papilio scrub status` shows how far it is. Bad
/// copies are rewritten from good ones.
#[derive(Debug, clap::Args)]
pub struct Start {
    #[command(flatten)]
    common: Common,
    /// Start anew even if the last scrub was cancelled and could be resumed
    #[arg(short, long)]
    force: bool,
    /// Verify only what is on this device
    #[arg(long, value_name = "ID")]
    devid: Option<u64>,
    /// Read at most this many bytes per second, in this scrub only; `scrub limit` sets the usual
    /// limit
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    limit: Option<u64>,
}

/// Continue a scrub that was cancelled
#[derive(Debug, clap::Args)]
pub struct Resume {
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct Common {
    /// The image or device, or a directory in a mount
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Do not run in the background, and print the statistics at the end
    #[arg(short = 'B')]
    foreground: bool,
    /// Print the statistics of each device, with -B
    #[arg(short = 'd')]
    per_device: bool,
    /// Do not write: only count errors
    #[arg(short = 'r', visible_alias = "readonly")]
    read_only: bool,
    /// Decode compressed extents, too: the checksums of one that its writer damaged are right
    ///
    /// Takes the processor several times as long as the rest. The kernel's scrub cannot.
    #[arg(long)]
    decode: bool,
    /// The class of I/O priority, as for ionice: 1 realtime, 2 best effort, 3 idle
    #[arg(short = 'c', value_name = "CLASS", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=3))]
    io_class: u8,
    /// The level in the class, from 0 (the highest) to 7
    #[arg(short = 'n', value_name = "LEVEL", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=7))]
    io_level: u8,
    /// Print all counters instead of a summary
    #[arg(short = 'R')]
    raw_counters: bool,
    /// Print sizes in bytes
    #[arg(long)]
    raw: bool,
    /// Print one JSON object, with -B
    #[arg(long)]
    json: bool,
}

impl Common {
    fn io_priority(&self) -> Option<IoPriority> {
        IoPriority::new(self.io_class, self.io_level)
    }

    fn units(&self) -> Units {
        if self.raw { Units::BYTES } else { Units::HUMAN }
    }
}

/// Where a scrub begins.
enum Begin {
    Anew { force: bool, devid: Option<DeviceId>, limit: Option<u64> },
    Resumed,
}

impl Start {
    /// Starts the scrub.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let devid = self.devid.map(DeviceId);
        let begin = Begin::Anew { force: self.force, devid, limit: self.limit };
        run(&self.common, &begin, context)
    }
}

impl Resume {
    /// Continues the scrub.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        run(&self.common, &Begin::Resumed, context)
    }
}

fn run(common: &Common, begin: &Begin, context: &Context) -> anyhow::Result<()> {
    if let Target::Mounted(mounted) = Target::parse(common.image.as_os_str())? {
        return run_mounted(common, begin, context, &mounted);
    }
    let image = image_of(&common.image)?;
    if !context.arguments().rescue.is_empty() {
        bail!("{}: a scrub ignores no faults: leave out --rescue", image.display());
    }
    // Not opened here: a scrub that runs has it locked.
    let Some(found) = FoundDevice::read(&image)? else {
        bail!("{}: no Btrfs file system", image.display());
    };
    let fsid = found.fsid;
    let folder = match (common.foreground, begin) {
        (true, Begin::Anew { .. }) => Folder::if_writable(context, fsid),
        _ => Folder::of(fsid)?,
    };
    let Some(running) = folder.lock()? else {
        bail!("{}: a scrub is running already; `papilio scrub cancel` ends it", image.display());
    };
    let last = folder.read()?;
    let resumable = last.filter(|state| !state.report.finished);
    match begin {
        Begin::Resumed if resumable.is_none() => {
            context.fail_with(NOTHING, format_args!("{}: there is no scrub to resume", image.display()));
            return Ok(());
        }
        Begin::Anew { force: false, .. } if resumable.as_ref().is_some_and(|state| state.cancelled) => {
            bail!("{}: the last scrub was cancelled: resume it, or start anew with -f", image.display());
        }
        _ => {}
    }
    if !common.foreground {
        drop(open(common, context, &image)?);
        drop(running);
        let pid = spawn()?;
        let mut output = Output::new()?;
        output.text(format_args!("scrub started on {}, fsid {fsid} (pid={pid})\n", image.display()))?;
        return Ok(output.finish()?);
    }
    folder.clear_stop();
    let earlier = if matches!(begin, Begin::Resumed) { resumable } else { None };
    let state = scrub(common, begin, context, &image, &folder, earlier)?;
    drop(running);
    let mut output = Output::new()?;
    print(
        &state,
        fsid,
        false,
        common.per_device,
        common.raw_counters,
        common.units(),
        common.json,
        &mut output,
    )?;
    output.finish()?;
    if state.is_uncorrectable() {
        let text = state.uncorrectable_text();
        context.fail_with(UNCORRECTABLE, format_args!("{}: {text}", image.display()));
    } else if state.cancelled {
        context.error(format_args!("{}: the scrub was cancelled", image.display()));
    }
    Ok(())
}

fn run_mounted(common: &Common, begin: &Begin, context: &Context, mounted: &Mounted) -> anyhow::Result<()> {
    let (device, resumes) = match begin {
        Begin::Anew { devid, .. } => (*devid, false),
        Begin::Resumed => (None, true),
    };
    if !mounted.mount.is_papilio() {
        if !common.foreground {
            super::kernel::check_idle(mounted)?;
            if resumes && super::kernel::resumable(mounted)?.is_none() {
                context.fail_with(NOTHING, format_args!("{mounted}: there is no scrub to resume"));
                return Ok(());
            }
            let pid = spawn()?;
            let mut output = Output::new()?;
            output.text(format_args!("scrub started on {mounted} (pid={pid})\n"))?;
            return Ok(output.finish()?);
        }
        if let Some(Err(error)) = common.io_priority().map(IoPriority::apply) {
            context.warning(format_args!("the I/O priority cannot be set, and is left as it is: {error}"));
        }
        let begin = match begin {
            Begin::Anew { limit, .. } => KernelBegin::Anew { device, limit: *limit },
            Begin::Resumed => KernelBegin::Resumed,
        };
        let Some((fsid, state)) = super::kernel::scrub(context, mounted, &begin, common.read_only)? else {
            context.fail_with(NOTHING, format_args!("{mounted}: there is no scrub to resume"));
            return Ok(());
        };
        let mut output = Output::new()?;
        let (per_device, raw, json) = (common.per_device, common.raw_counters, common.json);
        print(&state, fsid, false, per_device, raw, common.units(), json, &mut output)?;
        return Ok(output.finish()?);
    }
    let own_limit = if let Begin::Anew { limit, .. } = begin { *limit } else { None };
    let io_priority = common.io_priority();
    let (read_only, decode) = (common.read_only, common.decode);
    let wanted = ScrubStart { device, read_only, decode, io_priority, ..ScrubStart::default() };
    let ended = super::mounted::start(context, mounted, wanted, own_limit, resumes, common.foreground)?;
    let mut output = Output::new()?;
    match ended {
        Some(ended) => print(
            &ended.state,
            ended.fsid,
            false,
            common.per_device,
            common.raw_counters,
            common.units(),
            common.json,
            &mut output,
        )?,
        None if !context.has_failed() => output.text(format_args!("scrub started on {mounted}\n"))?,
        None => {}
    }
    Ok(output.finish()?)
}

/// Runs this command once more, in the background.
fn spawn() -> anyhow::Result<u32> {
    use std::os::unix::process::CommandExt;
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .arg("-B")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    Ok(child.id())
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

fn open(common: &Common, context: &Context, image: &Path) -> anyhow::Result<FileSystem> {
    // Reads do not heal what the scrub is to count.
    let mut options = context.options_for(image).heal_reads(false);
    if !common.read_only {
        options = options.write(true).commit_interval(None);
    }
    FileSystem::open_with(image, &options).map_err(|error| of_image(image, error))
}

fn scrub(
    common: &Common,
    begin: &Begin,
    context: &Context,
    image: &Path,
    folder: &Folder,
    earlier: Option<State>,
) -> anyhow::Result<State> {
    // Before the file system starts threads, which inherit it.
    if let Some(Err(error)) = common.io_priority().map(IoPriority::apply) {
        context.warning(format_args!("the I/O priority cannot be set, and is left as it is: {error}"));
    }
    let fs = open(common, context, image)?;
    // Its own limit holds until another is set.
    let known = folder.limit();
    let own = if let Begin::Anew { limit, .. } = begin { *limit } else { None };
    let current = || match (own, folder.limit()) {
        (Some(own), limit) if limit == known => own,
        (_, limit) => limit,
    };
    let limit = papilio::ScrubLimit::new(current());
    let mut options = ScrubOptions::new().read_only(common.read_only).limit(&limit).decode(common.decode);
    if let Some(earlier) = &earlier {
        options = options.start_at(earlier.report.position);
    }
    if let Begin::Anew { devid: Some(devid), .. } = begin {
        options = options.device(*devid);
    }
    let bar = (std::io::stderr().is_terminal() && context.verbosity >= 0).then(new_bar);
    context.set_progress(bar.clone());
    let begun = Instant::now();
    let started = now();
    let state_of = |report: ScrubReport| {
        let mut state = State {
            started: earlier.as_ref().map_or(started, |earlier| earlier.started),
            resumed: earlier.as_ref().map(|_| started),
            duration: begun.elapsed().as_secs_f64()
                + earlier.as_ref().map_or(0.0, |earlier| earlier.duration),
            cancelled: false,
            read_only: common.read_only,
            report,
            stopped: BTreeMap::new(),
        };
        if let Some(earlier) = &earlier {
            state.add(&earlier.report);
        }
        state
    };
    let mut failure = folder.write(&state_of(ScrubReport::default())).err();
    let result = fs.scrub(&options, |report| {
        if let Some(bar) = &bar {
            bar.set_length(report.bytes_total);
            bar.set_position(report.bytes_done);
        }
        limit.set(current());
        failure = failure.take().or_else(|| folder.write(&state_of(report.clone())).err());
        failure.is_none() && !folder.is_stop_requested()
    });
    context.set_progress(None);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let report = result.map_err(|error| of_image(image, error))?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let mut state = state_of(report);
    state.cancelled = !state.report.finished;
    folder.write(&state)?;
    folder.clear_stop();
    if !common.read_only {
        fs.close().map_err(|error| of_image(image, error))?;
    }
    Ok(state)
}
