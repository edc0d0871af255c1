//! The two steps on Linux.
//!
//! Owns the order of the parts: the filter of system calls comes last in each step, because it
//! refuses the calls of the others.

use crate::places::Places;
use crate::{Job, Mode, Part, Report, capabilities, filter, limits, mounts, paths};

/// Whether the process keeps its rights. An ordinary user's server of a mount does, because it
/// starts fusermount3, which takes privileges, to unmount.
fn is_off(job: Job, mode: Mode) -> bool {
    mode == Mode::Off || job == Job::Mount && !capabilities::can_mount()
}

pub(crate) fn enter(job: Job, mode: Mode, places: &Places) -> Report {
    let mut report = Report::default();
    if is_off(job, mode) {
        return report;
    }
    report.add("limits", limits::bound(job == Job::Read));
    if job == Job::Mount {
        // Mounting needs the calls that the second step takes away.
        report.add("capabilities", capabilities::keep(capabilities::of_opening(job)));
        return report;
    }
    let rights = rustix::thread::set_no_new_privs(true).map(|()| "forbidden".to_owned());
    report.add("new privileges", rights);
    if job == Job::Extract {
        report.add("mounts", mounts::read_only_but(&places.write));
    }
    report.add("capabilities", capabilities::keep(capabilities::of_opening(job)));
    report.add("system calls", filter::allow_only(job, mode));
    report
}

pub(crate) fn seal(job: Job, mode: Mode, places: &Places, keeps_secrets: bool) -> Report {
    let mut report = Report::default();
    if is_off(job, mode) {
        return report;
    }
    if keeps_secrets {
        report.add("memory", limits::hide_memory());
    }
    // A domain may not look into other processes, which the server of a mount does for ioctls.
    if job != Job::Mount {
        report.add("paths", paths::confine(places));
        report.add("capabilities", capabilities::keep(capabilities::of_sealed(job)));
    }
    report.add("system calls", filter::refuse(job, !places.read.is_empty()));
    report
}

pub(crate) fn parts() -> Vec<Part> {
    let actions = std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail");
    let filter = match actions {
        Ok(actions) if actions.split_ascii_whitespace().any(|action| action == "errno") => {
            Ok("yes".to_owned())
        }
        _ => Err("the kernel has no seccomp filters".to_owned()),
    };
    vec![Part { name: "seccomp", state: filter }, Part { name: "Landlock", state: paths::version() }]
}
