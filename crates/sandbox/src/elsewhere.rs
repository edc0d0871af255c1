//! Hosts other than Linux, on which a process keeps its rights.

use crate::{Job, Mode, Part, Report};
use std::path::Path;

/// What a process gives up: nothing, on this host.
#[derive(Debug)]
pub struct Sandbox;

impl Sandbox {
    /// Creates the sandbox of a job.
    pub fn for_job(_job: Job, _mode: Mode) -> Self {
        Self
    }

    /// Lets the job change what is below `directory`.
    pub fn writes_below(self, _directory: &Path) -> Self {
        self
    }

    /// Lets the job remove files in `directory`.
    pub fn removes_in(self, _directory: &Path) -> Self {
        self
    }

    /// Lets the job read the file or what is below the directory at `path`.
    pub fn reads(self, _path: &Path) -> Self {
        self
    }

    /// Does nothing.
    pub fn enter(&self) -> Report {
        Report { parts: kernel_parts() }
    }

    /// Does nothing.
    pub fn seal(&self, _keeps_secrets: bool) -> Report {
        Report { parts: kernel_parts() }
    }
}

/// Returns the parts of the sandbox that this host has: none.
pub fn kernel_parts() -> Vec<Part> {
    vec![Part { name: "sandbox", state: Err("only Linux has one".to_owned()) }]
}
