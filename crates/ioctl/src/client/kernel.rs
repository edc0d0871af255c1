//! The kernel's ioctls on work that takes long. They return at its end, and another process looks
//! at its progress, pauses or cancels it. A mount of Papilio answers them, too.

use super::{MountedPath, cancelled, garbled};
use crate::host;
use crate::layout::{
    BALANCE_CANCEL, BALANCE_PAUSE, BALANCE_RUNNING, BalanceIoctl, REPLACE_CANCEL, REPLACE_RESULT_NOT_STARTED,
    REPLACE_RESULT_SCRUB_RUNS, REPLACE_START, ReplaceStart, SCRUB_READ_ONLY, ScrubIoctl, VolArgs, put_name,
};
use crate::number::Command;
use papilio_engine::file::exclusive::BalanceControl;
use papilio_engine::jobs::balance::{BalanceOptions, BalanceReport};
use papilio_engine::jobs::replace::ReplaceOptions;
use papilio_engine::jobs::scrub::ScrubCounts;
use papilio_format::items::balance::{BalanceFlags, BalanceItem};
use papilio_format::{DeviceId, PhysicalAddress};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

impl MountedPath {
    /// Balances; `None` resumes the stored balance.
    ///
    /// # Errors
    /// EINPROGRESS while another operation runs or a balance is paused; ENOTCONN if there is none
    /// to resume; ECANCELED if it was paused or cancelled; the error of the balance.
    pub fn balance_by_kernel(&self, options: Option<&BalanceOptions>) -> io::Result<BalanceReport> {
        let mut item = BalanceItem::from(&options.cloned().unwrap_or_default());
        item.flags.set(BalanceFlags::RESUME, options.is_none());
        let mut arguments = BalanceIoctl::of(&item);
        self.call(Command::BALANCE_V2, &mut arguments)?;
        Ok(report_of(&arguments))
    }

    /// Returns the progress of the balance that is stored, and whether it runs.
    ///
    /// # Errors
    /// EPERM without permission.
    pub fn balance_progress(&self) -> io::Result<Option<(BalanceReport, bool)>> {
        let mut arguments = BalanceIoctl::default();
        match self.call(Command::BALANCE_PROGRESS, &mut arguments) {
            Ok(()) => Ok(Some((report_of(&arguments), arguments.state & BALANCE_RUNNING != 0))),
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Pauses or cancels the balance of a mount of the kernel, and waits until it has stopped.
    ///
    /// # Errors
    /// ENOTCONN if there is none.
    pub fn stop_kernel_balance(&self, control: BalanceControl) -> io::Result<()> {
        let wanted = if control == BalanceControl::Pause { BALANCE_PAUSE } else { BALANCE_CANCEL };
        let argument = std::ptr::without_provenance_mut::<u8>(wanted as usize);
        // SAFETY: the kernel takes the argument as a number, although the command's says a pointer.
        unsafe { host::ioctl(self.file().as_fd(), Command::BALANCE_CTL, argument) }.map(|_| ())
    }

    /// Scrubs a device from byte `from` on. Returns its counters and the byte where it stopped,
    /// those of a scrub that failed, too.
    ///
    /// # Errors
    /// EINPROGRESS while one runs; ECANCELED if it was cancelled.
    pub fn scrub_by_kernel(
        &self,
        devid: DeviceId,
        from: PhysicalAddress,
        read_only: bool,
    ) -> (ScrubCounts, PhysicalAddress, io::Result<()>) {
        let flags = if read_only { SCRUB_READ_ONLY } else { 0 };
        let mut arguments =
            ScrubIoctl { devid: devid.0, start: from.0, end: u64::MAX, flags, ..ScrubIoctl::default() };
        let result = self.call(Command::SCRUB, &mut arguments);
        // A scrub that did not begin leaves the counters as they were.
        let last = PhysicalAddress(arguments.progress[13].max(from.0));
        (counts_of(&arguments), last, result)
    }

    /// Returns the counters of a device's scrub that runs.
    ///
    /// # Errors
    /// ENODEV for an unknown device.
    pub fn kernel_scrub_progress(&self, devid: DeviceId) -> io::Result<Option<ScrubCounts>> {
        let mut arguments = ScrubIoctl { devid: devid.0, ..ScrubIoctl::default() };
        match self.call(Command::SCRUB_PROGRESS, &mut arguments) {
            Ok(()) => Ok(Some(counts_of(&arguments))),
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Cancels the scrub of all devices, and waits until it has stopped. Returns whether one ran.
    ///
    /// # Errors
    /// EPERM without permission.
    pub fn cancel_kernel_scrub(&self) -> io::Result<bool> {
        match self.call(Command::SCRUB_CANCEL, &mut [0u8; 0]) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Adds a block device to a mount of the kernel. Nothing is asked about its content.
    ///
    /// # Errors
    /// EEXIST if it is in the file system; EBUSY if it is in use; ENOTBLK if it is no block device.
    pub fn add_device_by_kernel(&self, path: &Path) -> io::Result<()> {
        self.call(Command::ADD_DEV, &mut named(path.as_os_str().as_bytes())?)
    }

    /// Cancels the removal of a device from a mount of the kernel.
    ///
    /// # Errors
    /// ENOTCONN if none runs.
    pub fn cancel_kernel_removal(&self) -> io::Result<()> {
        cancelled(self.call(Command::RM_DEV, &mut named(b"cancel")?))
    }

    /// Removes the first missing device from a mount of the kernel.
    ///
    /// # Errors
    /// ENOENT if none is missing; the error of the removal.
    pub fn remove_missing_by_kernel(&self) -> io::Result<()> {
        self.call(Command::RM_DEV, &mut named(b"missing")?)
    }

    /// Replaces a device. Nothing is asked about the content of the new one.
    ///
    /// # Errors
    /// EINPROGRESS while a replacement or a scrub runs; ECANCELED if it was cancelled; EINVAL if
    /// the target is too small.
    pub fn replace_by_kernel(&self, source: DeviceId, target: &Path, how: ReplaceOptions) -> io::Result<()> {
        let mut start = ReplaceStart {
            command: REPLACE_START,
            devid: source.0,
            avoids_source: how.avoid_source.into(),
            ..ReplaceStart::default()
        };
        if !put_name(&mut start.target, target.as_os_str().as_bytes()) {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        self.call(Command::DEV_REPLACE, &mut start)?;
        match start.result {
            0 => Ok(()),
            1..=REPLACE_RESULT_SCRUB_RUNS => Err(io::Error::from_raw_os_error(libc::EINPROGRESS)),
            _ => Err(garbled()),
        }
    }

    /// Cancels the replacement of a device of a mount of the kernel.
    ///
    /// # Errors
    /// ENOTCONN if none runs.
    pub fn cancel_kernel_replace(&self) -> io::Result<()> {
        let mut cancel = ReplaceStart { command: REPLACE_CANCEL, ..ReplaceStart::default() };
        self.call(Command::DEV_REPLACE, &mut cancel)?;
        match cancel.result {
            0 => Ok(()),
            REPLACE_RESULT_NOT_STARTED => Err(io::Error::from_raw_os_error(libc::ENOTCONN)),
            _ => Err(garbled()),
        }
    }
}

fn named(name: &[u8]) -> io::Result<VolArgs> {
    let mut arguments = VolArgs::default();
    if !put_name(&mut arguments.name, name) {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    Ok(arguments)
}

fn report_of(arguments: &BalanceIoctl) -> BalanceReport {
    let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    BalanceReport {
        considered: count(arguments.considered),
        expected: count(arguments.expected),
        completed: count(arguments.completed),
        ..BalanceReport::default()
    }
}

fn counts_of(arguments: &ScrubIoctl) -> ScrubCounts {
    let counted = &arguments.progress;
    ScrubCounts {
        data_extents_scrubbed: counted[0],
        tree_extents_scrubbed: counted[1],
        data_bytes_scrubbed: counted[2],
        tree_bytes_scrubbed: counted[3],
        read_errors: counted[4],
        csum_errors: counted[5],
        verify_errors: counted[6],
        no_csum: counted[7],
        super_errors: counted[9],
        uncorrectable_errors: counted[11],
        corrected_errors: counted[12],
        ..ScrubCounts::default()
    }
}
