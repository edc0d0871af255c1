//! Which processors there may be, and on which a thread runs.
//!
//! The kernel has one queue for each processor that could ever come (`num_possible_cpus`), and puts a request into
//! the one of the processor that its caller runs on.

use std::io;

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The processors that the kernel has queues for: those that are there, and those that may come.
///
/// # Errors
/// The system does not say.
pub(super) fn queues() -> io::Result<(Vec<u16>, Vec<u16>)> {
    let possible = parse(&std::fs::read_to_string(POSSIBLE)?)?;
    let online = parse(&std::fs::read_to_string(ONLINE)?)?;
    // Queues are numbered without gaps.
    let all = 0..possible.len() as u16;
    Ok(all.partition(|queue| online.contains(queue)))
}

/// A list of numbers, such as `0-3,8`.
fn parse(list: &str) -> io::Result<Vec<u16>> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("not a list of processors: {list:?}"));
    let number = |text: &str| text.parse::<u16>().map_err(|_| bad());
    let mut found = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        found.extend(number(first)?..=number(last)?);
    }
    Ok(found)
}

/// Has this thread run on one processor only, where that is allowed.
pub(super) fn stay_on(processor: u16) {
    let processor = usize::from(processor);
    // SAFETY: a set of bits, which may all be zero; the macros write to it and stay within it, as the processor is
    // below its size.
    let failed = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if processor >= libc::CPU_SETSIZE as usize {
            return;
        }
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) != 0
    };
    if failed {
        tracing::debug!("processor {processor}: {}", io::Error::last_os_error());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_taken_apart() {
        assert_eq!(parse("0-3,8\n").unwrap(), [0, 1, 2, 3, 8]);
        assert_eq!(parse("0").unwrap(), [0]);
        assert!(parse("").is_err() && parse("0-").is_err() && parse("a").is_err());
    }

    #[test]
    fn there_is_a_queue_for_who_asks() {
        let (online, _) = queues().unwrap();
        assert!(!online.is_empty());
    }
}
