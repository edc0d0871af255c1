//! Scrubbing a file system: the public function of [`papilio_engine::jobs::scrub`].
//!
//! Owns [`FileSystem::scrub`].

use crate::file_system::FileSystem;
use papilio_engine::errors::{Error, Result};
use papilio_engine::file::exclusive::Operation;
use papilio_engine::jobs::scrub::{ScrubOptions, ScrubReport};

impl FileSystem {
    /// Reads every copy of all tree blocks and all data, the parity of RAID5 and RAID6 and the
    /// superblock copies, and verifies them. Wrong copies are rewritten from good ones where the
    /// file system is open for writing and the options allow it; that is durable on return.
    ///
    /// Other threads may read and write meanwhile. Calls `progress` a few times in a second; where
    /// it returns false, the scrub ends early, and [`ScrubOptions::start_at`] can continue it.
    ///
    /// # Errors
    /// - [`Error::ReadOnlyFileSystem`] for one whose data is read without verification.
    /// - [`Error::Busy`] while another operation runs.
    /// - A device that is not part of the file system; a commit or a flush fails. Faults of copies
    ///   are in the report.
    pub fn scrub(
        &self,
        options: &ScrubOptions,
        mut progress: impl FnMut(&ScrubReport) -> bool,
    ) -> Result<ScrubReport> {
        if !self.verifies_data() {
            let cause = "it was opened to read data without verification".to_owned();
            return Err(Error::ReadOnlyFileSystem { cause });
        }
        let _running = self.info.exclusive.begin(Operation::Scrub)?;
        self.info.scrub(options, &mut progress)
    }
}
