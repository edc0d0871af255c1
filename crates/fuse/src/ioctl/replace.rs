//! Ioctls on the replacement of a device.
//!
//! `BTRFS_IOC_DEV_REPLACE` has three commands in one number. Its start waits for the end, as the
//! kernel's does. Our own starts the replacement and returns.
//!
//! Kernel counterparts: `btrfs_ioctl_dev_replace` (`fs/btrfs/ioctl.c`),
//! `btrfs_dev_replace_by_ioctl`, `btrfs_dev_replace_status` (`fs/btrfs/dev-replace.c`).

use super::call::{IoctlCall, IoctlReply, Result, done};
use super::jobs::{open_new, start, stop, wait};
use papilio::format::DeviceId;
use papilio::{DevReplaceState, ReplaceOptions};
use papilio_ioctl::Errno;
use papilio_ioctl::job::JobKind;
use papilio_ioctl::layout::{
    BALANCE_CANCEL, REPLACE_CANCEL, REPLACE_RESULT_ALREADY_STARTED, REPLACE_RESULT_NOT_STARTED,
    REPLACE_RESULT_SCRUB_RUNS, REPLACE_START, REPLACE_STATUS, ReplaceStart, ReplaceStatus, until_nul,
};
use papilio_ioctl::number::Command;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Starts a replacement, and returns its number. Without `force`, the new device must be empty. The
/// kernel's ioctl leaves that to its caller.
fn start_replace(call: &IoctlCall<'_>, wanted: &ReplaceStart, force: bool) -> Result<u64> {
    let source = match wanted.devid {
        0 => named(call, until_nul(&wanted.source).ok_or(Errno(libc::EINVAL))?)?,
        devid => DeviceId(devid),
    };
    let devices = call.fs.usage()?.devices;
    let device = devices.iter().find(|device| device.devid == source).ok_or(Errno(libc::ENOENT))?;
    let path = Path::new(OsStr::from_bytes(until_nul(&wanted.target).ok_or(Errno(libc::EINVAL))?));
    if !path.is_absolute() {
        return Err(Errno(libc::EINVAL));
    }
    if devices.iter().any(|device| device.path.as_deref().is_some_and(|own| Path::new(own) == path)) {
        return Err(Errno(libc::EEXIST));
    }
    let target = open_new(path)?;
    if target.size() < device.total {
        return Err(Errno(libc::EINVAL));
    }
    let options = ReplaceOptions { avoid_source: wanted.avoids_source == 1, force };
    start(call, JobKind::ReplaceDevice, move |fs, report| {
        fs.replace_device(source, &target, options, |copied| report.copied(copied)).map(drop)
    })
}

fn named(call: &IoctlCall<'_>, name: &[u8]) -> Result<DeviceId> {
    let devices = call.fs.usage()?.devices;
    let is_named = |path: &str| path.as_bytes() == name;
    let found = devices.iter().find(|device| device.path.as_deref().is_some_and(is_named));
    Ok(found.ok_or(Errno(libc::ENOENT))?.devid)
}

/// Answers both ioctls.
pub(super) fn handle(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    if Command(call.command) == Command::START_REPLACE { start_own(call) } else { replace(call) }
}

/// Our own: starts a replacement and returns at once.
fn start_own(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    if call.mount.refuses_changes() {
        return Err(Errno(libc::EROFS));
    }
    let wanted = call.argument::<ReplaceStart>()?;
    start_replace(call, &wanted, wanted.force == 1)?;
    done(Vec::new())
}

/// `BTRFS_IOC_DEV_REPLACE`.
fn replace(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let mut arguments = call.argument::<ReplaceStart>()?;
    match arguments.command {
        REPLACE_START if call.mount.refuses_changes() => Err(Errno(libc::EROFS)),
        REPLACE_START => {
            arguments.result = match start_replace(call, &arguments, true) {
                Ok(number) => {
                    wait(call, JobKind::ReplaceDevice, number)?;
                    0
                }
                Err(Errno(libc::EINPROGRESS)) if call.mount.jobs.running(JobKind::Scrub).is_some() => {
                    REPLACE_RESULT_SCRUB_RUNS
                }
                Err(Errno(libc::EINPROGRESS))
                    if call.mount.jobs.running(JobKind::ReplaceDevice).is_some() =>
                {
                    REPLACE_RESULT_ALREADY_STARTED
                }
                Err(error) => return Err(error),
            };
            call.reply(&arguments)
        }
        REPLACE_STATUS => status(call),
        REPLACE_CANCEL => {
            let running = call.mount.jobs.running(JobKind::ReplaceDevice).is_some();
            arguments.result = if running { 0 } else { REPLACE_RESULT_NOT_STARTED };
            if running {
                stop(call, JobKind::ReplaceDevice, BALANCE_CANCEL)?;
            }
            call.reply(&arguments)
        }
        _ => Err(Errno(libc::EINVAL)),
    }
}

fn status(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let last = call.fs.replace_status()?;
    let mut reply = ReplaceStatus { command: REPLACE_STATUS, ..ReplaceStatus::default() };
    if let Some(last) = last {
        reply.state = last.state as u64;
        reply.devid = last.source.0;
        (reply.started, reply.stopped) = (last.started, last.stopped);
        reply.write_errors = last.write_errors;
        reply.uncorrectable_read_errors = last.uncorrectable_read_errors;
        reply.progress = match call.mount.jobs.running(JobKind::ReplaceDevice) {
            Some(job) => {
                (u128::from(job.moved.bytes) * 1000 / u128::from(job.moved.expected_bytes.max(1))) as u64
            }
            None if last.state == DevReplaceState::Finished => 1000,
            None => 0,
        };
    }
    call.reply(&reply)
}
