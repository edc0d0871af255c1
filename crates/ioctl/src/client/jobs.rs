//! The client's side of the ioctls on work that takes long, which are our own, and on devices.

use super::{MountedPath, garbled};
use crate::io_priority::IoPriority;
use crate::job::{JobKind, JobStatus};
use crate::layout::{
    BALANCE_CANCEL, BALANCE_PAUSE, BalanceIoctl, DEFRAGMENT_COMPRESS, DEFRAGMENT_FLUSH, DEFRAGMENT_LEVEL,
    DEFRAGMENT_PLAIN, DEFRAGMENT_UNSHARE, DEV_STATS_RESET, DEVICE_BY_ID, DefragmentRange, DevStats,
    JOB_DECODE, JOB_READ_ONLY, JobStart, OwnDefragment, Page, REPLACE_STATUS, ReplaceStart, ReplaceStatus,
    VolArgs, VolArgsV2, put_name,
};
use crate::number::Command;
use crate::record::Reader;
use papilio_engine::file::defragment::DefragmentOptions;
use papilio_engine::file::exclusive::BalanceControl;
use papilio_engine::jobs::balance::BalanceOptions;
use papilio_engine::jobs::replace::{ReplaceOptions, ReplaceReport};
use papilio_engine::jobs::shared_defragment::{SharedDefragmentOptions, SharedDefragmentReport};
use papilio_engine::options::CompressionChoice;
use papilio_engine::transaction::StayReason;
use papilio_format::items::balance::{BalanceFlags, BalanceItem};
use papilio_format::items::dev_replace::DevReplaceState;
use papilio_format::{DeviceId, LogicalAddress};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Counters of [`MountedPath::device_stats`].
const COUNTERS: usize = 5;

/// How a scrub of a mount begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScrubStart {
    /// The device to verify; all of them if `None`.
    pub device: Option<DeviceId>,
    /// Errors are only counted.
    pub read_only: bool,
    /// Compressed extents are decoded.
    pub decode: bool,
    /// The logical address of the start.
    pub from: LogicalAddress,
    /// The bytes that may be read in a second; 0 for no limit.
    pub limit: u64,
    /// The priority of its reads; that of the server if `None`.
    pub io_priority: Option<IoPriority>,
}

/// Returns the flags and the number that name a compression.
fn encoded_compression(choice: Option<CompressionChoice>) -> (u64, u32) {
    let Some(choice) = choice else { return (0, 0) };
    let algorithm = choice.algorithm() as u8;
    let mut flags = if algorithm == 0 { DEFRAGMENT_PLAIN } else { DEFRAGMENT_COMPRESS };
    let mut number = u32::from(algorithm);
    if choice != CompressionChoice::new(choice.algorithm()) {
        flags |= DEFRAGMENT_LEVEL;
        number |= u32::from(choice.level() as i8 as u8) << 8;
    }
    (flags, number)
}

impl OwnDefragment {
    /// Sets the output.
    pub fn set_report(&mut self, report: &SharedDefragmentReport) {
        (self.replaced, self.made, self.bytes) = (report.replaced, report.made, report.bytes);
        (self.freed, self.saved, self.grown) = (report.freed, report.saved, report.grown);
        (self.apart, self.stopped) = (report.apart, report.stopped.into());
        for (reason, count) in &report.stay {
            match StayReason::PLAIN.iter().position(|one| one == reason) {
                Some(index) => self.stay[index] += count,
                None => self.damaged += count,
            }
        }
    }

    /// Returns the output, without the extents that stay.
    pub fn report(&self) -> SharedDefragmentReport {
        let plain = StayReason::PLAIN.into_iter().zip(self.stay);
        let mut stay: BTreeMap<_, _> = plain.filter(|(_, count)| *count > 0).collect();
        if self.damaged > 0 {
            stay.insert(StayReason::Damaged("it is damaged".to_owned()), self.damaged);
        }
        SharedDefragmentReport {
            replaced: self.replaced,
            made: self.made,
            bytes: self.bytes,
            freed: self.freed,
            saved: self.saved,
            grown: self.grown,
            apart: self.apart,
            stay,
            staying: Vec::new(),
            stopped: self.stopped != 0,
        }
    }
}

impl MountedPath {
    fn start(&self, mut start: JobStart, kind: JobKind) -> io::Result<()> {
        start.kind = kind as u32;
        self.call(Command::START_JOB, &mut start)
    }

    /// Starts a balance in the server; `None` resumes the stored one.
    ///
    /// # Errors
    /// EINPROGRESS while work runs or a balance is paused; ENOTCONN if there is none to resume;
    /// EPERM without permission; ENOTTY if Papilio does not serve the mount.
    pub fn start_balance(&self, options: Option<&BalanceOptions>) -> io::Result<()> {
        let mut item = BalanceItem::from(&options.cloned().unwrap_or_default());
        item.flags.set(BalanceFlags::RESUME, options.is_none());
        let mut start = JobStart::default();
        start.balance.copy_from_slice(&item.to_bytes());
        self.start(start, JobKind::Balance)
    }

    /// Starts the removal of a device in the server.
    ///
    /// # Errors
    /// As [`MountedPath::start_balance`].
    pub fn start_remove_device(&self, devid: DeviceId) -> io::Result<()> {
        self.start(JobStart { devid: devid.0, ..JobStart::default() }, JobKind::RemoveDevice)
    }

    /// Starts to shrink a device in the server.
    ///
    /// # Errors
    /// As [`MountedPath::start_balance`].
    pub fn start_shrink(&self, devid: DeviceId, size: u64) -> io::Result<()> {
        self.start(JobStart { devid: devid.0, size, ..JobStart::default() }, JobKind::Resize)
    }

    /// Starts a scrub in the server.
    ///
    /// # Errors
    /// As [`MountedPath::start_balance`].
    pub fn start_scrub(&self, scrub: &ScrubStart) -> io::Result<()> {
        let flag = |wanted, flag| if wanted { flag } else { 0 };
        let start = JobStart {
            devid: scrub.device.map_or(0, |devid| devid.0),
            flags: flag(scrub.read_only, JOB_READ_ONLY) | flag(scrub.decode, JOB_DECODE),
            size: scrub.from.0,
            limit: scrub.limit,
            io_priority: scrub.io_priority.map_or(0, IoPriority::bits),
            ..JobStart::default()
        };
        self.start(start, JobKind::Scrub)
    }

    /// Bounds the bytes that the running scrub and later ones read in a second; 0 for no limit.
    ///
    /// # Errors
    /// EPERM without permission.
    pub fn limit_scrub(&self, mut bytes: u64) -> io::Result<()> {
        self.call(Command::LIMIT_SCRUB, &mut bytes)
    }

    /// Defragments a file, in a mount of Papilio or of the kernel. With `unshare` a mount of
    /// Papilio copies extents that are shared, as the kernel always does; the kernel does not know
    /// the flag.
    ///
    /// # Errors
    /// EACCES or EPERM without permission; EINVAL if it is no file; the errors of a write.
    pub fn defragment(
        &self,
        range: std::ops::Range<u64>,
        options: &DefragmentOptions,
        flush: bool,
        unshare: bool,
    ) -> io::Result<()> {
        let (mut flags, compression) = encoded_compression(options.compression);
        flags |= if flush { DEFRAGMENT_FLUSH } else { 0 };
        flags |= if unshare { DEFRAGMENT_UNSHARE } else { 0 };
        let threshold = u32::try_from(options.threshold).unwrap_or(u32::MAX);
        let (start, length) = (range.start, range.end - range.start);
        let mut arguments =
            DefragmentRange { start, length, flags, threshold, compression, ..DefragmentRange::default() };
        self.call(Command::DEFRAG_RANGE, &mut arguments)
    }

    /// Defragments a file in a mount of Papilio, and keeps shared data shared. A signal stops it
    /// after a batch. The report names no extents that stay.
    ///
    /// # Errors
    /// ENOTTY if Papilio does not serve the mount; EAGAIN after a signal; as
    /// [`MountedPath::defragment`].
    pub fn defragment_shared(
        &self,
        range: std::ops::Range<u64>,
        options: &SharedDefragmentOptions,
    ) -> io::Result<SharedDefragmentReport> {
        let (flags, compression) = encoded_compression(options.compression);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut arguments = OwnDefragment {
            start: range.start,
            length: range.end - range.start,
            flags,
            threshold: options.threshold,
            compression: compression.into(),
            max_bytes: options.max_bytes.unwrap_or(u64::MAX),
            max_extents: options.max_extents.unwrap_or(u64::MAX),
            max_time: options.max_time.map_or(u64::MAX, millis),
            ..OwnDefragment::default()
        };
        self.call(Command::OWN_DEFRAGMENT, &mut arguments)?;
        Ok(arguments.report())
    }

    /// Returns the work that runs, or the last one; `None` if there was none.
    ///
    /// # Errors
    /// ENOTTY if Papilio does not serve the mount.
    pub fn job(&self) -> io::Result<Option<JobStatus>> {
        let mut page = Page::default();
        match self.call(Command::JOB_STATUS, &mut page) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(None),
            Err(error) => Err(error),
            Ok(()) => {
                let bytes = page.bytes.get(..page.used as usize).ok_or_else(garbled)?;
                Reader(bytes).job().map(Some).ok_or_else(garbled)
            }
        }
    }

    /// Pauses or cancels the work of a kind, and waits until it has stopped.
    ///
    /// # Errors
    /// ENOTCONN if none runs; EPERM without permission.
    pub fn stop_job(&self, kind: JobKind, control: BalanceControl) -> io::Result<()> {
        let wanted = if control == BalanceControl::Pause { BALANCE_PAUSE } else { BALANCE_CANCEL };
        self.call(Command::CONTROL_JOB, &mut [kind as u32, wanted])
    }

    /// Returns the balance that runs or is paused.
    ///
    /// # Errors
    /// EPERM without permission.
    pub fn stored_balance(&self) -> io::Result<Option<BalanceOptions>> {
        let mut arguments = BalanceIoctl::default();
        match self.call(Command::BALANCE_PROGRESS, &mut arguments) {
            Ok(()) => Ok(Some(BalanceOptions::from(&arguments.item()))),
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Balances with the kernel's ioctl, which returns at the end.
    ///
    /// # Errors
    /// As [`MountedPath::start_balance`]; ECANCELED if it was paused or cancelled; the error of the
    /// balance.
    pub fn balance_and_wait(&self, options: &BalanceOptions) -> io::Result<()> {
        self.call(Command::BALANCE_V2, &mut BalanceIoctl::of(&BalanceItem::from(options)))
    }

    /// Adds a device, whose path is absolute.
    ///
    /// # Errors
    /// EEXIST if it is not empty, unless `force`; EINVAL if it is too small or in use here; EPERM
    /// without permission.
    pub fn add_device(&self, path: &Path, force: bool) -> io::Result<()> {
        let mut arguments = VolArgs { fd: force.into(), ..VolArgs::default() };
        if !put_name(&mut arguments.name, path.as_os_str().as_bytes()) {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        self.call(Command::ADD_DEVICE, &mut arguments)
    }

    /// Removes a device with the kernel's ioctl, which returns at the end.
    ///
    /// # Errors
    /// As [`MountedPath::start_remove_device`]; the error of the removal.
    pub fn remove_device_and_wait(&self, devid: DeviceId) -> io::Result<()> {
        let mut arguments = VolArgsV2 { flags: DEVICE_BY_ID, ..VolArgsV2::default() };
        arguments.name[..8].copy_from_slice(&devid.0.to_ne_bytes());
        self.call(Command::RM_DEV_V2, &mut arguments)
    }

    /// Starts the replacement of a device in the server. The path of the new one is absolute.
    ///
    /// # Errors
    /// As [`MountedPath::start_balance`]; EINVAL if the new device is too small; EEXIST if it is a
    /// device of the file system.
    pub fn start_replace(&self, source: DeviceId, target: &Path, how: ReplaceOptions) -> io::Result<()> {
        let mut start = ReplaceStart {
            devid: source.0,
            avoids_source: how.avoid_source.into(),
            force: how.force.into(),
            ..ReplaceStart::default()
        };
        if !put_name(&mut start.target, target.as_os_str().as_bytes()) {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        self.call(Command::START_REPLACE, &mut start)
    }

    /// Replaces a device with the kernel's ioctl, which returns at the end. Nothing is asked about
    /// the content of the new device.
    ///
    /// # Errors
    /// As [`MountedPath::start_replace`]; the error of the replacement.
    pub fn replace_and_wait(&self, source: DeviceId, target: &Path) -> io::Result<()> {
        let mut start = ReplaceStart { devid: source.0, ..ReplaceStart::default() };
        if !put_name(&mut start.target, target.as_os_str().as_bytes()) {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        self.call(Command::DEV_REPLACE, &mut start)?;
        match start.result {
            0 => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::EINPROGRESS)),
        }
    }

    /// Returns the state of the last replacement with the kernel's ioctl, and how much of it is
    /// done, in thousandths.
    ///
    /// # Errors
    /// EPERM without permission.
    pub fn replace_status(&self) -> io::Result<(ReplaceReport, u64)> {
        let mut status = ReplaceStatus { command: REPLACE_STATUS, ..ReplaceStatus::default() };
        self.call(Command::DEV_REPLACE, &mut status)?;
        let state = DevReplaceState::try_from(status.state).map_err(|_| garbled())?;
        let report = ReplaceReport {
            source: DeviceId(status.devid),
            state,
            bytes_done: 0,
            bytes_total: 0,
            write_errors: status.write_errors,
            uncorrectable_read_errors: status.uncorrectable_read_errors,
            started: status.started,
            stopped: status.stopped,
        };
        Ok((report, status.progress))
    }

    /// Returns the error counters of a device: write, read, flush, corruption and generation.
    ///
    /// # Errors
    /// ENODEV for an unknown device; EPERM without permission to `reset` them.
    pub fn device_stats(&self, devid: DeviceId, reset: bool) -> io::Result<[u64; COUNTERS]> {
        let mut stats = DevStats {
            devid: devid.0,
            items: COUNTERS as u64,
            flags: if reset { DEV_STATS_RESET } else { 0 },
            ..DevStats::default()
        };
        self.call(Command::GET_DEV_STATS, &mut stats)?;
        Ok(std::array::from_fn(|index| stats.values[index]))
    }
}
