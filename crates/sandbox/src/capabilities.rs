//! The capabilities of the calling thread.
//!
//! Owns the set that each job keeps in each step. Capabilities that the process does not have stay
//! away: the sets are limits.

use crate::Job;
use rustix::io::Result;
use rustix::thread::{CapabilitySet, capabilities, clear_ambient_capability_set, set_capabilities};

/// The needs of opening devices, and of naming the processes that hold them.
const OPENING: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::SYS_PTRACE);

/// The needs of writing files with all their attributes. `trusted.*` and `security.*`
/// need `CAP_SYS_ADMIN`.
const EXTRACTING: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SYS_ADMIN);

/// The needs of the server of a mount: to mount, to open devices that are added, to read
/// the memory of callers, to enter their namespaces, and to run at a higher priority.
const MOUNTING: CapabilitySet = OPENING
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::SYS_RAWIO);

/// Returns whether this process can mount and unmount by itself, without fusermount3.
pub(crate) fn can_mount() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Returns the most that a job has before its devices are open.
pub(crate) fn of_opening(job: Job) -> CapabilitySet {
    match job {
        Job::Read => OPENING,
        Job::Serve => OPENING.union(CapabilitySet::NET_BIND_SERVICE),
        Job::Extract => OPENING.union(EXTRACTING),
        Job::Mount => MOUNTING,
    }
}

/// Returns the most that a job has once its devices are open.
pub(crate) fn of_sealed(job: Job) -> CapabilitySet {
    match job {
        Job::Read | Job::Serve => CapabilitySet::empty(),
        Job::Extract => EXTRACTING,
        Job::Mount => MOUNTING,
    }
}

/// Gives up all capabilities of the calling thread but those of `most`, and returns how many are
/// left.
pub(crate) fn keep(most: CapabilitySet) -> Result<String> {
    let mut sets = capabilities(None)?;
    sets.effective &= most;
    sets.permitted &= most;
    sets.inheritable = CapabilitySet::empty();
    // Ambient ones are permitted and inheritable, so the kernel clears them by itself, too.
    let _ = clear_ambient_capability_set();
    set_capabilities(None, sets)?;
    Ok(format!("reduced to {}", sets.permitted.bits().count_ones()))
}
