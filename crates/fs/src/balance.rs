//! Balance: the public methods of [`papilio_engine::jobs::balance`].
//!
//! Owns [`FileSystem::balance`], its pausing, resuming and cancelling.

use crate::file_system::FileSystem;
use papilio_engine::errors::Result;
pub use papilio_engine::file::exclusive::BalanceControl;
pub use papilio_engine::jobs::balance::{BalanceFilter, BalanceOptions, BalanceReport};

impl FileSystem {
    /// Relocates the block groups that `options` selects. Files may be open, and change. Calls
    /// `progress` after each batch; it says how to go on.
    ///
    /// # Errors
    /// [`Error::Busy`](papilio_engine::Error::Busy) while another operation or a send runs;
    /// [`Error::Invalid`](papilio_engine::Error::Invalid) while a balance is paused, for a profile
    /// that needs more devices, or for one that tolerates fewer lost devices without `force`;
    /// [`Error::NoSpace`](papilio_engine::Error::NoSpace); data without a good copy; as
    /// [`FileSystem::sync`]. Extents that were moved until then stay moved, and nothing is lost.
    pub fn balance<C: Into<BalanceControl>>(
        &self,
        options: &BalanceOptions,
        mut progress: impl FnMut(&BalanceReport) -> C,
    ) -> Result<BalanceReport> {
        self.info.balance(options, &mut |report| progress(report).into())
    }

    /// Resumes the balance that is paused, or that a crash has cut short.
    ///
    /// # Errors
    /// [`Error::Invalid`](papilio_engine::Error::Invalid) if there is none; as
    /// [`FileSystem::balance`].
    pub fn resume_balance<C: Into<BalanceControl>>(
        &self,
        mut progress: impl FnMut(&BalanceReport) -> C,
    ) -> Result<BalanceReport> {
        self.info.resume_balance(&mut |report| progress(report).into())
    }

    /// Cancels the balance that is paused. Extents that were moved stay moved.
    ///
    /// # Errors
    /// [`Error::Busy`](papilio_engine::Error::Busy) while it runs;
    /// [`Error::Invalid`](papilio_engine::Error::Invalid) if there is none; as
    /// [`FileSystem::sync`].
    pub fn cancel_balance(&self) -> Result<()> {
        self.info.cancel_balance()
    }

    /// Returns the balance that runs or is paused.
    ///
    /// # Errors
    /// An item of the root tree that cannot be read.
    pub fn stored_balance(&self) -> Result<Option<BalanceOptions>> {
        self.info.stored_balance()
    }
}
