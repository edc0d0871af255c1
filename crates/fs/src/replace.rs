//! Replacing a device: the public functions of [`papilio_engine::jobs::replace`].
//!
//! Owns [`replace_device`], [`cancel_replace`] and [`FileSystem::replace_status`].

use crate::balance::BalanceControl;
use crate::file_system::FileSystem;
use papilio_device::Device;
use papilio_engine::errors::Result;
use papilio_engine::jobs::replace::{self, ReplaceOptions, ReplaceReport};
use papilio_engine::mount;
use papilio_engine::options::OpenOptions;
use papilio_format::DeviceId;
use std::sync::Arc;

/// Replaces `source` of the file system on `devices`, which nothing else uses, by `target`; or
/// resumes that. A source that is missing, or that `options` avoid, is rebuilt from the others.
/// Calls `progress` now and then; where it returns false, the replacement stops, and a later call
/// or a mount by the kernel resumes it. The kernel's are resumed here.
///
/// # Errors
/// As [`FileSystem::from_devices`] for writing; a target that is too small or
/// [`Error::Occupied`](papilio_engine::Error::Occupied); another replacement that is under way; a
/// device that fails.
pub fn replace_device(
    devices: Vec<Arc<dyn Device>>,
    source: DeviceId,
    target: &Arc<dyn Device>,
    open: &OpenOptions,
    options: ReplaceOptions,
    mut progress: impl FnMut(&ReplaceReport) -> bool,
) -> Result<ReplaceReport> {
    let info = mount::from_devices(devices, &exclusive(open))?;
    replace::replace(&info, source, target, options, &mut |report| match progress(report) {
        true => BalanceControl::Continue,
        false => BalanceControl::Pause,
    })
}

/// Cancels the replacement that is under way on `devices`, and erases the superblocks of a target
/// that is passed.
///
/// # Errors
/// As [`FileSystem::from_devices`] for writing; no replacement is under way.
pub fn cancel_replace(
    devices: Vec<Arc<dyn Device>>,
    target: Option<&dyn Device>,
    open: &OpenOptions,
) -> Result<ReplaceReport> {
    let info = mount::from_devices(devices, &exclusive(open))?;
    replace::cancel(&info, target)
}

fn exclusive(open: &OpenOptions) -> OpenOptions {
    let mut open = open.clone().write(true).commit_interval(None).heal_reads(false);
    open.replacing = true;
    open
}

impl FileSystem {
    /// Replaces the device `source` by `target`, while files are open and change. A source that is
    /// missing, or that `options` avoid, is rebuilt from the others. Calls `progress` now and then;
    /// it says how to go on. After [`BalanceControl::Pause`] the file system can only be opened for
    /// writing to resume ([`replace_device`]), to cancel ([`cancel_replace`]), or by the kernel.
    ///
    /// # Errors
    /// As [`replace_device`]; [`Error::Busy`](papilio_engine::Error::Busy) while another operation
    /// runs. After a failure of the target the source stays in its place.
    pub fn replace_device(
        &self,
        source: DeviceId,
        target: &Arc<dyn Device>,
        options: ReplaceOptions,
        mut progress: impl FnMut(&ReplaceReport) -> BalanceControl,
    ) -> Result<ReplaceReport> {
        let transactions = self.info.transactions()?;
        transactions.check_running()?;
        replace::replace(&self.info, source, target, options, &mut progress)
    }

    /// Resumes the replacement that is under way. The new device was among those that the file
    /// system was opened with. Calls `progress` now and then; it says how to go on.
    ///
    /// # Errors
    /// [`Error::Invalid`](papilio_engine::Error::Invalid) if there is none, or no new device; as
    /// [`FileSystem::replace_device`].
    pub fn resume_replace(
        &self,
        mut progress: impl FnMut(&ReplaceReport) -> BalanceControl,
    ) -> Result<ReplaceReport> {
        self.info.transactions()?.check_running()?;
        replace::resume(&self.info, &mut progress)
    }

    /// Returns the state of the last replacement of a device; `None` if there was none.
    ///
    /// # Errors
    /// The device tree cannot be read.
    pub fn replace_status(&self) -> Result<Option<ReplaceReport>> {
        Ok(replace::item(&self.info)?.map(|item| replace::report_of(&item)))
    }
}
