//! Relief for a full file system: the public methods of [`papilio_engine::jobs::relief`].
//!
//! Owns [`FileSystem::plan_relief`] and [`FileSystem::relieve`].

use crate::file_system::FileSystem;
use papilio_engine::errors::Result;
pub use papilio_engine::jobs::relief::{Relief, ReliefGroup, ReliefStep};

impl FileSystem {
    /// Finds out whether metadata has too little room, and what would help. Changes nothing.
    ///
    /// # Errors
    /// A tree block or item that cannot be read.
    pub fn plan_relief(&self) -> Result<Relief> {
        Relief::plan(&self.info.trees)
    }

    /// Gives metadata room again, until it has enough: cleans deleted subvolumes, removes empty
    /// block groups, grows to the end of the devices, and empties block groups of data. Tells
    /// `note` of each step. Returns the state afterwards, which may still be short: then only
    /// deleting, or another device, helps.
    ///
    /// # Errors
    /// As [`FileSystem::sync`] and [`FileSystem::balance`]. A full file system may refuse even this
    /// with [`Error::NoSpace`](papilio_engine::Error::NoSpace).
    pub fn relieve(&self, mut note: impl FnMut(&ReliefStep)) -> Result<Relief> {
        self.info.relieve(&mut note)
    }
}
