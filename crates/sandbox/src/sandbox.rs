//! [`Sandbox`]: a job and its places, and the two steps.

use crate::host;
use crate::places::Places;
use crate::{Job, Mode, Part, Report};
use std::path::Path;

/// The rights that a process keeps for its job, and gives up.
#[derive(Debug)]
pub struct Sandbox {
    job: Job,
    mode: Mode,
    places: Places,
}

impl Sandbox {
    /// Creates the sandbox of a job. It does nothing yet.
    pub fn for_job(job: Job, mode: Mode) -> Self {
        Self { job, mode, places: Places::default() }
    }

    /// Lets the job change everything below `directory`, which must exist when the first step is
    /// taken.
    pub fn writes_below(mut self, directory: &Path) -> Self {
        self.places.write.push(directory.to_owned());
        self
    }

    /// Lets the job remove files in `directory`, such as its own socket.
    pub fn removes_in(mut self, directory: &Path) -> Self {
        self.places.remove.push(directory.to_owned());
        self
    }

    /// Lets the job read the file or the directory at `path`, with everything below.
    pub fn reads(mut self, path: &Path) -> Self {
        self.places.read.push(path.to_owned());
        self
    }

    /// Takes the first step, before the process reads an image and before it starts threads. The
    /// report says which parts hold.
    pub fn enter(&self) -> Report {
        host::enter(self.job, self.mode, &self.places)
    }

    /// Takes the second step, once all devices are open. `keeps_secrets` says that the process has
    /// keys in its memory. The report says which parts hold.
    pub fn seal(&self, keeps_secrets: bool) -> Report {
        host::seal(self.job, self.mode, &self.places, keeps_secrets)
    }
}

/// Returns the parts of the sandbox that this host has.
pub fn kernel_parts() -> Vec<Part> {
    host::parts()
}
