//! Processors and thread affinity.
//!
//! The kernel has a queue for each possible processor (`num_possible_cpus`). It puts a request into
//! the queue of the processor that the caller runs on.

use std::io;

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Returns the queues of the kernel: those of online processors, and the others.
///
/// # Errors
/// The system's lists of processors cannot be read.
pub(super) fn queues() -> io::Result<(Vec<u16>, Vec<u16>)> {
    let possible = parse(&std::fs::read_to_string(POSSIBLE)?)?;
    let online = parse(&std::fs::read_to_string(ONLINE)?)?;
    // Queue numbers have no gaps.
    let all = 0..possible.len() as u16;
    Ok(all.partition(|queue| online.contains(queue)))
}

/// Parses a list of numbers such as `0-3,8`.
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

/// Binds this thread to one processor if the system permits it.
pub(super) fn stay_on(processor: u16) {
    let processor = usize::from(processor);
    // SAFETY: a zeroed set is valid. The macro writes inside it because the processor's number is
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
        tracing::debug!("binding a thread to processor {processor}: {}", io::Error::last_os_error());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_lists_are_parsed() {
        assert_eq!(parse("0-3,8\n").unwrap(), [0, 1, 2, 3, 8]);
        assert_eq!(parse("0").unwrap(), [0]);
        assert!(parse("").is_err() && parse("0-").is_err() && parse("a").is_err());
    }

    #[test]
    fn online_processors_have_queues() {
        let (online, _) = queues().unwrap();
        assert!(!online.is_empty());
    }
}
