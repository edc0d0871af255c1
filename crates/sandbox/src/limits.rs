//! Limits of the process that hold for its whole life.
//!
//! Owns [`bound`] and [`hide_memory`].

use rustix::io::Result;
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

/// The most descriptors of a process that reads images. It has one for each device and stream.
const DESCRIPTORS: u64 = 4096;

/// A limit of core dumps below the size of any. 0 would not keep the kernel from passing one to a
/// program (core(5), `do_coredump`); 1 does.
const NO_CORE: u64 = 1;

/// Bounds core dumps to none. A job with few descriptors cannot raise their number.
pub(crate) fn bound(few_descriptors: bool) -> Result<String> {
    let core = getrlimit(Resource::Core).maximum.unwrap_or(NO_CORE).min(NO_CORE);
    setrlimit(Resource::Core, Rlimit { current: Some(core), maximum: Some(core) })?;
    if few_descriptors {
        let now = getrlimit(Resource::Nofile);
        let lower = |limit: Option<u64>| Some(limit.map_or(DESCRIPTORS, |limit| limit.min(DESCRIPTORS)));
        setrlimit(Resource::Nofile, Rlimit { current: lower(now.current), maximum: lower(now.maximum) })?;
    }
    Ok("bounded".to_owned())
}

/// Keeps the memory of a process that has keys from core dumps, debuggers and other processes of
/// its user.
pub(crate) fn hide_memory() -> Result<String> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok("hidden".to_owned())
}
