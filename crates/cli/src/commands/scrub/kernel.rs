//! Scrubbing a mount of the kernel's Btrfs by its ioctls, one thread for each device.
//!
//! The kernel keeps no result, so this command keeps it, in the file where that of an image is.

use super::code::UNCORRECTABLE;
use super::state::{Folder, State};
use crate::context::Context;
use crate::mounted::Mounted;
use anyhow::bail;
use papilio::format::{DeviceId, LogicalAddress, Uuid};
use papilio::{ScrubCounts, ScrubDevice, ScrubReport};
use papilio_fuse::ioctl::client::MountedPath;
use rustix::io::Errno;
use std::io;
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

/// Scrubs a device or all, and waits for the end.
pub fn scrub(
    context: &Context,
    mounted: &Mounted,
    device: Option<DeviceId>,
    read_only: bool,
) -> anyhow::Result<(Uuid, State)> {
    check_idle(mounted)?;
    let mount = mounted.open()?;
    let fsid = fsid_of(mounted, &mount)?;
    let folder = Folder::of(fsid)?;
    let devices = devices(mounted, &mount, device)?;
    if devices.is_empty() {
        bail!("{mounted}: it has no such device");
    }
    let (begun, started) = (Instant::now(), now());
    folder.write(&state_of(started, read_only, ScrubReport::default()))?;
    let results: Vec<(ScrubCounts, io::Result<()>)> = std::thread::scope(|scope| {
        let run = |devid: DeviceId| {
            let mount = &mount;
            scope.spawn(move || mount.scrub_by_kernel(devid, read_only))
        };
        let threads: Vec<_> = devices.iter().map(|&(devid, _)| run(devid)).collect();
        threads.into_iter().map(|thread| thread.join().expect("an ioctl does not panic")).collect()
    });
    let mut scrubbed = Vec::new();
    let (mut cancelled, mut failure) = (false, None);
    for ((devid, path), (counts, result)) in devices.into_iter().zip(results) {
        if let Err(error) = result {
            match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::CANCELED) => cancelled = true,
                _ => failure = Some(mounted.at(&error).context(format!("device {devid}"))),
            }
        }
        scrubbed.push(scrub_device(devid, path, counts));
    }
    let mut state = state_of(started, read_only, report_of(scrubbed));
    state.cancelled = cancelled;
    state.report.finished = !cancelled && failure.is_none();
    state.duration = begun.elapsed().as_secs_f64();
    folder.write(&state)?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    if state.is_uncorrectable() {
        let errors = state.report.total().uncorrectable_errors;
        context.fail_with(UNCORRECTABLE, format_args!("{mounted}: {errors} errors cannot be corrected"));
    } else if cancelled {
        context.error(format_args!("{mounted}: the scrub was cancelled"));
    }
    Ok((fsid, state))
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
    State { report, started, resumed: None, duration: 0.0, cancelled: false, read_only }
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}
