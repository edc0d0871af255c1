//! The two steps of the sandbox, on Linux.
//!
//! Owns [`Sandbox`], which knows the job and its places, and the order of the parts: the filter of
//! system calls comes last in each step, because it refuses the calls of the others.

use crate::paths::Places;
use crate::{Job, Mode, Part, Report, capabilities, filter, limits, mounts, paths};
use std::path::Path;

/// What a process gives up for its job.
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

    /// Lets the job change what is below `directory`, which must exist when the first step is taken.
    pub fn writes_below(mut self, directory: &Path) -> Self {
        self.places.write.push(directory.to_owned());
        self
    }

    /// Lets the job remove files in `directory`, such as its own socket.
    pub fn removes_in(mut self, directory: &Path) -> Self {
        self.places.remove.push(directory.to_owned());
        self
    }

    /// Lets the job read the file or what is below the directory at `path`.
    pub fn reads(mut self, path: &Path) -> Self {
        self.places.read.push(path.to_owned());
        self
    }

    /// Whether the process keeps its rights. An ordinary user's server of a mount does, because it
    /// starts fusermount3, which takes privileges, to unmount.
    fn is_off(&self) -> bool {
        self.mode == Mode::Off || self.job == Job::Mount && !capabilities::can_mount()
    }

    /// Takes the first step, before the process reads what others wrote and before it starts
    /// threads. The report says what holds.
    pub fn enter(&self) -> Report {
        let mut report = Report::default();
        if self.is_off() {
            return report;
        }
        report.add("limits", limits::bound(self.job == Job::Read));
        if self.job == Job::Mount {
            // Mounting needs the calls that the second step takes away.
            report.add("capabilities", capabilities::keep(capabilities::of_opening(self.job)));
            return report;
        }
        let rights = rustix::thread::set_no_new_privs(true).map(|()| "forbidden".to_owned());
        report.add("new privileges", rights);
        if self.job == Job::Extract {
            report.add("mounts", mounts::read_only_but(&self.places.write));
        }
        report.add("capabilities", capabilities::keep(capabilities::of_opening(self.job)));
        report.add("system calls", filter::allow_only(self.job, self.mode));
        report
    }

    /// Takes the second step, once all devices are open. `keeps_secrets` says that the process has
    /// keys in its memory. The report says what holds.
    pub fn seal(&self, keeps_secrets: bool) -> Report {
        let mut report = Report::default();
        if self.is_off() {
            return report;
        }
        if keeps_secrets {
            report.add("memory", limits::hide_memory());
        }
        // A domain may not look into other processes, which the server of a mount does for ioctls.
        if self.job != Job::Mount {
            report.add("paths", paths::confine(&self.places));
            report.add("capabilities", capabilities::keep(capabilities::of_sealed(self.job)));
        }
        report.add("system calls", filter::refuse(self.job));
        report
    }
}

/// Returns the parts of the sandbox that this kernel has.
pub fn kernel_parts() -> Vec<Part> {
    let actions = std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail");
    let filter = match actions {
        Ok(actions) if actions.split_ascii_whitespace().any(|action| action == "errno") => {
            Ok("yes".to_owned())
        }
        _ => Err("the kernel has no seccomp filters".to_owned()),
    };
    vec![Part { name: "seccomp", state: filter }, Part { name: "Landlock", state: paths::version() }]
}
