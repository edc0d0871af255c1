//! Ioctls on work that takes long: balance, the removal of a device, shrinking, scrub.
//!
//! The kernel's ioctls wait for the end of the work. Our own start it and return, so that a command
//! can show progress and be interrupted. A caller that was killed while it waited cancels the work.
//!
//! Kernel counterparts: `btrfs_ioctl_balance`, `btrfs_ioctl_balance_ctl`,
//! `btrfs_ioctl_balance_progress`, `btrfs_ioctl_scrub`, `btrfs_ioctl_rm_dev`,
//! `btrfs_ioctl_add_dev` (`fs/btrfs/ioctl.c`).

use super::call::{IoctlCall, IoctlReply, Result, done};
use super::caller;
use papilio::device::{Access, Device, DeviceOptions, ImageOptions};
use papilio::format::items::balance::{BalanceFlags, BalanceItem};
use papilio::format::{DeviceId, LogicalAddress};
use papilio::{BalanceControl, BalanceOptions, FileSystem, ScrubOptions};
use papilio_ioctl::Errno;
use papilio_ioctl::io_priority::IoPriority;
use papilio_ioctl::job::{JobKind, JobState, JobStatus};
use papilio_ioctl::layout::{
    BALANCE_CANCEL, BALANCE_PAUSE, BALANCE_RUNNING, BalanceIoctl, DEVICE_BY_ID, JOB_DECODE, JOB_READ_ONLY,
    JobStart, PAGE_BYTES, Page, SCRUB_READ_ONLY, ScrubIoctl, VolArgs, VolArgsV2, until_nul,
};
use papilio_ioctl::record::Writer;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks at a caller that waits.
const LOOK: Duration = Duration::from_millis(200);

/// Starts a balance, or resumes the stored one without `options`.
pub(crate) fn start_balance(call: &IoctlCall<'_>, options: Option<BalanceOptions>) -> Result<u64> {
    match (call.fs.stored_balance()?, &options) {
        (Some(_), Some(_)) => return Err(Errno(libc::EINPROGRESS)),
        (None, None) => return Err(Errno(libc::ENOTCONN)),
        _ => {}
    }
    start(call, JobKind::Balance, move |fs, report| {
        match options {
            Some(options) => fs.balance(&options, |moved| report.moved(moved)),
            None => fs.resume_balance(|moved| report.moved(moved)),
        }
        .map(drop)
    })
}

pub(super) fn start(
    call: &IoctlCall<'_>,
    kind: JobKind,
    work: impl FnOnce(&FileSystem, &crate::jobs::Report<'_>) -> papilio::Result<()> + Send + 'static,
) -> Result<u64> {
    let started = call.mount.jobs.start(kind, call.fs.clone(), work);
    started.map_err(|error| match error.kind() {
        std::io::ErrorKind::ResourceBusy => Errno(libc::EINPROGRESS),
        _ => Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)),
    })
}

fn start_remove(call: &IoctlCall<'_>, devid: DeviceId) -> Result<u64> {
    start(call, JobKind::RemoveDevice, move |fs, report| {
        fs.remove_device(devid, |moved| report.moved(moved) == BalanceControl::Continue).map(drop)
    })
}

fn start_resize(call: &IoctlCall<'_>, devid: DeviceId, size: u64) -> Result<u64> {
    start(call, JobKind::Resize, move |fs, report| {
        fs.shrink(devid, size, |moved| report.moved(moved) == BalanceControl::Continue).map(drop)
    })
}

fn start_scrub(call: &IoctlCall<'_>, devid: Option<DeviceId>, wanted: &JobStart) -> Result<u64> {
    if call.mount.needs_read_only.is_some() {
        // As in the kernel: a scrub finds the faults that the mount ignores.
        return Err(Errno(libc::EROFS));
    }
    let read_only = wanted.flags & JOB_READ_ONLY != 0 || call.mount.is_read_only();
    let decode = wanted.flags & JOB_DECODE != 0;
    let (limit, from) = (call.mount.jobs.scrub_limit().clone(), LogicalAddress(wanted.size));
    let priority = IoPriority::from_bits(wanted.io_priority);
    start(call, JobKind::Scrub, move |fs, report| {
        if let Some(Err(error)) = priority.map(IoPriority::apply) {
            tracing::warn!("the scrub runs without the priority that was asked for: {error}");
        }
        let mut options =
            ScrubOptions::new().read_only(read_only).limit(&limit).start_at(from).decode(decode);
        if let Some(devid) = devid {
            options = options.device(devid);
        }
        let last = fs.scrub(&options, |scrubbed| report.scrubbed(scrubbed) == BalanceControl::Continue)?;
        report.scrubbed(&last);
        Ok(())
    })
}

/// Waits for the end of a job, or until the caller is killed, which cancels it.
pub(super) fn wait(call: &IoctlCall<'_>, kind: JobKind, number: u64) -> Result<JobStatus> {
    let jobs = &call.mount.jobs;
    let mut killed = false;
    loop {
        if let Some(status) = jobs.wait(number, LOOK) {
            return match status.state {
                JobState::Failed => Err(Errno(status.errno)),
                JobState::Cancelled | JobState::Paused if killed => Err(Errno(libc::EINTR)),
                JobState::Cancelled | JobState::Paused => Err(Errno(libc::ECANCELED)),
                _ => Ok(status),
            };
        }
        if !killed && caller::has_signal(&call.caller) {
            killed = jobs.ask(kind, BalanceControl::Cancel);
        }
    }
}

/// Our own: starts a job and returns at once.
pub(super) fn start_own(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let wanted = call.argument::<JobStart>()?;
    let devid = DeviceId(wanted.devid);
    let kind = *JobKind::ALL.get(wanted.kind as usize).ok_or(Errno(libc::EINVAL))?;
    if kind != JobKind::Scrub && call.mount.refuses_changes() {
        return Err(Errno(libc::EROFS));
    }
    match kind {
        JobKind::Balance => {
            let item = BalanceItem::parse(&wanted.balance).map_err(|_| Errno(libc::EINVAL))?;
            let resumes = item.flags.contains(BalanceFlags::RESUME);
            start_balance(call, (!resumes).then(|| BalanceOptions::from(&item)))?;
        }
        JobKind::RemoveDevice => {
            start_remove(call, devid)?;
        }
        JobKind::Resize => {
            start_resize(call, devid, wanted.size)?;
        }
        // Its own ioctl has room for paths.
        JobKind::ReplaceDevice => return Err(Errno(libc::EINVAL)),
        JobKind::Scrub => {
            let device = (wanted.devid != 0).then_some(devid);
            call.mount.jobs.scrub_limit().set(wanted.limit);
            start_scrub(call, device, &wanted)?;
        }
    }
    done(Vec::new())
}

/// Our own: returns the job that runs, or the last one.
pub(super) fn status(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let mut reply = call.argument::<Page>()?;
    let status = call.mount.jobs.status().ok_or(Errno(libc::ENOTCONN))?;
    let mut writer = Writer::default();
    writer.job(&status);
    if writer.0.len() > PAGE_BYTES {
        return Err(Errno(libc::EOVERFLOW));
    }
    (reply.cursor, reply.more, reply.used) = (0, 0, writer.0.len() as u32);
    reply.bytes.fill(0);
    reply.bytes[..writer.0.len()].copy_from_slice(&writer.0);
    call.reply(&reply)
}

/// Our own: asks the running job to pause or to stop; the numbers are those of the kernel's
/// `BTRFS_BALANCE_CTL_*`. A paused balance is cancelled, too.
pub(super) fn control(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let wanted = call.argument::<[u32; 2]>()?;
    let kind = *JobKind::ALL.get(wanted[0] as usize).ok_or(Errno(libc::EINVAL))?;
    stop(call, kind, wanted[1])
}

/// Our own: bounds the speed of scrubs.
pub(super) fn limit_scrub(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    call.mount.jobs.scrub_limit().set(call.argument::<u64>()?);
    done(Vec::new())
}

pub(super) fn stop(call: &IoctlCall<'_>, kind: JobKind, wanted: u32) -> Result<IoctlReply> {
    let control = match wanted {
        BALANCE_PAUSE => BalanceControl::Pause,
        BALANCE_CANCEL => BalanceControl::Cancel,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let jobs = &call.mount.jobs;
    let Some(running) = jobs.running(kind) else {
        let paused = kind == JobKind::Balance && control == BalanceControl::Cancel;
        if paused && call.fs.stored_balance()?.is_some() {
            call.fs.cancel_balance()?;
            return done(Vec::new());
        }
        return Err(Errno(libc::ENOTCONN));
    };
    jobs.ask(kind, control);
    while jobs.wait(running.number, LOOK).is_none() && !caller::has_signal(&call.caller) {}
    done(Vec::new())
}

/// `BTRFS_IOC_BALANCE_V2`.
pub(super) fn balance(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let mut arguments = call.argument::<BalanceIoctl>()?;
    let item = arguments.item();
    let resumes = item.flags.contains(BalanceFlags::RESUME);
    let number = start_balance(call, (!resumes).then(|| BalanceOptions::from(&item)))?;
    let status = wait(call, JobKind::Balance, number)?;
    arguments.state = 0;
    arguments.set_progress(&status.moved);
    call.reply(&arguments)
}

/// `BTRFS_IOC_BALANCE_CTL`.
pub(super) fn balance_control(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    stop(call, JobKind::Balance, call.argument::<u32>()?)
}

/// `BTRFS_IOC_BALANCE_PROGRESS`.
pub(super) fn balance_progress(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let stored = call.fs.stored_balance()?.ok_or(Errno(libc::ENOTCONN))?;
    let mut arguments = BalanceIoctl::of(&BalanceItem::from(&stored));
    if let Some(running) = call.mount.jobs.running(JobKind::Balance) {
        arguments.state = BALANCE_RUNNING;
        arguments.set_progress(&running.moved);
    }
    call.reply(&arguments)
}

/// `BTRFS_IOC_SCRUB`, of one device. Programs call it for all devices at once; they are scrubbed
/// one after another.
pub(super) fn scrub(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let mut arguments = call.argument::<ScrubIoctl>()?;
    let takes_changes = !call.mount.refuses_changes();
    if arguments.flags & SCRUB_READ_ONLY == 0 && !takes_changes {
        return Err(Errno(libc::EROFS));
    }
    let devid = DeviceId(arguments.devid);
    if call.fs.usage()?.devices.iter().all(|device| device.devid != devid) {
        return Err(Errno(libc::ENODEV));
    }
    let turn = call.mount.jobs.queue_scrub(devid).map_err(|_| Errno(libc::EINPROGRESS))?;
    while !turn.wait(LOOK).map_err(|_| Errno(libc::ECANCELED))? {
        if caller::has_signal(&call.caller) {
            return Err(Errno(libc::EINTR));
        }
    }
    let read_only = if arguments.flags & SCRUB_READ_ONLY != 0 { JOB_READ_ONLY } else { 0 };
    let number = start_scrub(call, Some(devid), &JobStart { flags: read_only, ..JobStart::default() })?;
    let status = wait(call, JobKind::Scrub, number)?;
    arguments.set_progress(&status.scrub);
    call.reply(&arguments)
}

/// `BTRFS_IOC_SCRUB_PROGRESS`.
pub(super) fn scrub_progress(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let mut arguments = call.argument::<ScrubIoctl>()?;
    let progress = call.mount.jobs.scrub_of(DeviceId(arguments.devid)).ok_or(Errno(libc::ENOTCONN))?;
    arguments.set_progress(&progress);
    call.reply(&arguments)
}

/// `BTRFS_IOC_SCRUB_CANCEL`: of all devices.
pub(super) fn scrub_cancel(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let queued = call.mount.jobs.cancel_scrubs();
    match stop(call, JobKind::Scrub, BALANCE_CANCEL) {
        // None of them ran yet.
        Err(Errno(libc::ENOTCONN)) if queued => done(Vec::new()),
        stopped => stopped,
    }
}

/// Opens what becomes a device of the file system: a block device, a raw image, the disk in a qcow2
/// image, or the partition of `IMAGE@N`.
pub(super) fn open_new(path: &Path) -> Result<Arc<dyn Device>> {
    let options = DeviceOptions::new(Access::ReadWrite);
    let target = options.open_target(path, &ImageOptions::default()).map_err(papilio::Error::from)?;
    Ok(target.into_device())
}

/// `BTRFS_IOC_ADD_DEV`, and our own. The path is one of the server's namespace. With `force`, as in
/// the kernel, nothing is asked about the content of the device.
pub(super) fn add_device(call: &IoctlCall<'_>, force: bool) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let arguments = call.argument::<VolArgs>()?;
    let name = until_nul(&arguments.name).ok_or(Errno(libc::EINVAL))?;
    let path = Path::new(OsStr::from_bytes(name));
    if !path.is_absolute() {
        return Err(Errno(libc::EINVAL));
    }
    call.fs.add_device(open_new(path)?, force || arguments.fd == 1)?;
    done(Vec::new())
}

/// `BTRFS_IOC_RM_DEV`: the device has a path.
pub(super) fn remove_device(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    remove_named(call, until_nul(&call.argument::<VolArgs>()?.name).ok_or(Errno(libc::EINVAL))?)
}

/// `BTRFS_IOC_RM_DEV_V2`: the device has a path or an id.
pub(super) fn remove_device_v2(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let arguments = call.argument::<VolArgsV2>()?;
    match arguments.flags {
        0 => remove_named(call, until_nul(&arguments.name).ok_or(Errno(libc::EINVAL))?),
        DEVICE_BY_ID => {
            let id = arguments.name.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            match call.fs.usage()?.devices.iter().any(|device| device.devid.0 == id) {
                true => remove(call, DeviceId(id)),
                false => Err(Errno(libc::ENOENT)),
            }
        }
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}

fn remove_named(call: &IoctlCall<'_>, name: &[u8]) -> Result<IoctlReply> {
    let devices = call.fs.usage()?.devices;
    let found = match name {
        b"missing" => devices.iter().find(|device| device.path.is_none()),
        name => {
            devices.iter().find(|device| device.path.as_deref().is_some_and(|path| path.as_bytes() == name))
        }
    };
    remove(call, found.ok_or(Errno(libc::ENODEV))?.devid)
}

fn remove(call: &IoctlCall<'_>, devid: DeviceId) -> Result<IoctlReply> {
    let number = start_remove(call, devid)?;
    wait(call, JobKind::RemoveDevice, number)?;
    done(Vec::new())
}

/// Shrinks a device, and waits.
pub(super) fn shrink(call: &IoctlCall<'_>, devid: DeviceId, size: u64) -> Result<IoctlReply> {
    let number = start_resize(call, devid, size)?;
    wait(call, JobKind::Resize, number)?;
    done(Vec::new())
}
