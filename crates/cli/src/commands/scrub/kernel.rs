//! Scrubbing a mount of the kernel's Btrfs by its ioctls, one thread for each device.
//!
//! The kernel keeps no result, so this command keeps it, in the file where that of an image is.

use super::code::UNCORRECTABLE;
use super::speed::{self, OwnSpeed};
use super::state::{Folder, State};
use crate::context::Context;
use crate::mounted::Mounted;
use anyhow::bail;
use papilio::format::{DeviceId, LogicalAddress, PhysicalAddress, Uuid};
use papilio::{ScrubCounts, ScrubDevice, ScrubReport};
use papilio_ioctl::client::MountedPath;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The last scrub of a mount, or the one that runs.
pub struct MountScrub {
    pub fsid: Uuid,
    pub state: State,
    pub running: bool,
}

pub fn fsid_of(mounted: &Mounted, mount: &MountedPath) -> anyhow::Result<Uuid> {
    Ok(Uuid::from_bytes(mount.fs_info().map_err(|error| mounted.at(&error))?.fsid))
}

type Named = (DeviceId, Option<Vec<u8>>);

/// Refuses while a scrub runs.
pub fn check_idle(mounted: &Mounted) -> anyhow::Result<()> {
    if last(mounted)?.1.is_some_and(|last| last.running) {
        bail!("{mounted}: a scrub is running already; `papilio scrub cancel` ends it");
    }
    Ok(())
}

/// Returns the scrub that runs, or the last one that this command started.
pub fn last(mounted: &Mounted) -> anyhow::Result<(Uuid, Option<MountScrub>)> {
    let mount = mounted.open()?;
    let fsid = fsid_of(mounted, &mount)?;
    let kept = Folder::of(fsid)?.read()?;
    let mut running = Vec::new();
    for (devid, path) in devices(mounted, &mount, None)? {
        let counts = mount.kernel_scrub_progress(devid).map_err(|error| mounted.at(&error))?;
        running.extend(counts.map(|counts| scrub_device(devid, path, counts)));
    }
    if running.is_empty() {
        return Ok((fsid, kept.map(|state| MountScrub { fsid, state, running: false })));
    }
    let started = kept.as_ref().filter(|kept| !kept.report.finished).map_or_else(now, |kept| kept.started);
    let mut state = state_of(started, false, report_of(running));
    state.duration = (now() - started) as f64;
    Ok((fsid, Some(MountScrub { fsid, state, running: true })))
}

/// Where a scrub begins.
pub enum KernelBegin {
    /// At the start of a device, or of all, with a limit of its own.
    Anew { device: Option<DeviceId>, limit: Option<u64> },
    /// Where the last one was cancelled.
    Resumed,
}

/// Returns the last scrub, if it was cancelled.
pub fn resumable(mounted: &Mounted) -> anyhow::Result<Option<State>> {
    let fsid = fsid_of(mounted, &mounted.open()?)?;
    Ok(Folder::of(fsid)?.read()?.filter(|last| !last.report.finished && !last.stopped.is_empty()))
}

/// Scrubs, and waits for the end. Returns nothing if there is no scrub to resume.
pub fn scrub(
    context: &Context,
    mounted: &Mounted,
    begin: &KernelBegin,
    read_only: bool,
) -> anyhow::Result<Option<(Uuid, State)>> {
    check_idle(mounted)?;
    let mount = mounted.open()?;
    let fsid = fsid_of(mounted, &mount)?;
    let folder = Folder::if_writable(context, fsid);
    let (only, limit, earlier) = match begin {
        KernelBegin::Anew { device, limit } => (*device, *limit, None),
        KernelBegin::Resumed => match resumable(mounted)? {
            None => return Ok(None),
            earlier => (None, None, earlier),
        },
    };
    let mut devices = devices(mounted, &mount, only)?;
    if let Some(earlier) = &earlier {
        devices.retain(|(devid, _)| earlier.stopped.contains_key(devid));
    }
    if devices.is_empty() {
        bail!("{mounted}: it has no such device");
    }
    let starts = |devid: &DeviceId| {
        let stopped = earlier.as_ref().and_then(|earlier| earlier.stopped.get(devid));
        stopped.copied().unwrap_or(PhysicalAddress(0))
    };
    let numbers: Vec<_> = devices.iter().map(|(devid, _)| *devid).collect();
    let _limit = limit.map(|limit| OwnSpeed::set(mounted, fsid, &numbers, limit)).transpose()?;
    let (begun, now) = (Instant::now(), now());
    let state_of = |report: ScrubReport| {
        let started = earlier.as_ref().map_or(now, |earlier| earlier.started);
        let mut state = state_of(started, read_only, report);
        if let Some(earlier) = &earlier {
            (state.resumed, state.duration) = (Some(now), earlier.duration);
            state.add(&earlier.report);
        }
        state
    };
    // A command that is killed is resumed from here.
    let mut state = state_of(report_of(
        devices
            .iter()
            .map(|(devid, path)| scrub_device(*devid, path.clone(), ScrubCounts::default()))
            .collect(),
    ));
    state.stopped = devices.iter().map(|(devid, _)| (*devid, starts(devid))).collect();
    folder.write(&state)?;
    let results: Vec<_> = std::thread::scope(|scope| {
        let run = |devid: DeviceId| {
            let (mount, from) = (&mount, starts(&devid));
            scope.spawn(move || mount.scrub_by_kernel(devid, from, read_only))
        };
        let threads: Vec<_> = devices.iter().map(|&(devid, _)| run(devid)).collect();
        threads.into_iter().map(|thread| thread.join().expect("an ioctl does not panic")).collect()
    });
    let (mut scrubbed, mut stopped) = (Vec::new(), BTreeMap::new());
    let mut failure = None;
    for ((devid, path), (counts, last, result)) in devices.into_iter().zip(results) {
        if let Err(error) = result {
            match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::CANCELED) => drop(stopped.insert(devid, last)),
                _ => failure = Some(mounted.at(&error).context(format!("device {devid}"))),
            }
        }
        scrubbed.push(scrub_device(devid, path, counts));
    }
    let mut state = state_of(report_of(scrubbed));
    (state.cancelled, state.stopped) = (!stopped.is_empty(), stopped);
    state.report.finished = !state.cancelled && failure.is_none();
    state.duration += begun.elapsed().as_secs_f64();
    folder.write(&state)?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    report(context, mounted, &state);
    Ok(Some((fsid, state)))
}

/// Tells of errors that are left, and sets the exit code.
fn report(context: &Context, mounted: &Mounted, state: &State) {
    if state.is_uncorrectable() {
        context.fail_with(UNCORRECTABLE, format_args!("{mounted}: {}", state.uncorrectable_text()));
    } else if state.cancelled {
        context.error(format_args!("{mounted}: the scrub was cancelled"));
    }
}

/// Sets the bytes that a scrub reads of each device in a second, or returns those that are set.
/// With `only`, that device alone counts.
pub fn limits(
    mounted: &Mounted,
    only: Option<DeviceId>,
    limit: Option<u64>,
) -> anyhow::Result<Vec<(DeviceId, u64)>> {
    let mount = mounted.open()?;
    let fsid = fsid_of(mounted, &mount)?;
    let devices: Vec<_> = devices(mounted, &mount, only)?.into_iter().map(|(devid, _)| devid).collect();
    if let (Some(devid), []) = (only, &devices[..]) {
        anyhow::bail!("{mounted}: has no device with the id {devid}");
    }
    speed::limits(fsid, &devices, limit)
}

fn devices(mounted: &Mounted, mount: &MountedPath, only: Option<DeviceId>) -> anyhow::Result<Vec<Named>> {
    let devices = mount.device_paths().map_err(|error| mounted.at(&error))?;
    // Nothing of a missing device can be verified.
    let wanted = |(devid, path): &Named| path.is_some() && only.is_none_or(|only| only == *devid);
    Ok(devices.into_iter().filter(wanted).collect())
}

fn scrub_device(devid: DeviceId, path: Option<Vec<u8>>, counts: ScrubCounts) -> ScrubDevice {
    let path = path.map(|path| String::from_utf8_lossy(&path).into_owned());
    ScrubDevice { devid, path, counts }
}

fn report_of(devices: Vec<ScrubDevice>) -> ScrubReport {
    let mut report = ScrubReport { devices, position: LogicalAddress(0), ..ScrubReport::default() };
    let total = report.total();
    report.bytes_done = total.data_bytes_scrubbed + total.tree_bytes_scrubbed;
    report.bytes_total = report.bytes_done;
    report
}

fn state_of(started: i64, read_only: bool, report: ScrubReport) -> State {
    State {
        report,
        started,
        resumed: None,
        duration: 0.0,
        cancelled: false,
        read_only,
        stopped: BTreeMap::new(),
    }
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}
