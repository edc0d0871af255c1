//! Clocks of the host, read by the C library.
//!
//! Owns [`coarse_time`] and [`thread_cpu_time`]. rustix reads these clocks by functions of the
//! kernel's vDSO, and panics where the vDSO lacks any function that it looks for: that of User Mode
//! Linux has no `getcpu` since Linux 7.x. The C library falls back to system calls.
//!
//! Locks: none.
//!
//! Kernel counterparts: `ktime_get_coarse_real_ts64` (`kernel/time/timekeeping.c`),
//! `thread_cpu_clock_get` (`kernel/time/posix-cpu-timers.c`).

use std::time::Duration;

/// The clock that the kernel stamps inodes with.
#[cfg(target_os = "linux")]
const COARSE: libc::clockid_t = libc::CLOCK_REALTIME_COARSE;
#[cfg(not(target_os = "linux"))]
const COARSE: libc::clockid_t = libc::CLOCK_REALTIME;

/// Returns the time as of the host's last timer tick: seconds since 1970, and nanoseconds below
/// 1,000,000,000. Hosts other than Linux return the time now.
#[allow(clippy::unnecessary_cast, reason = "time_t has 32 bits on some hosts")]
pub fn coarse_time() -> (i64, u32) {
    let time = read(COARSE);
    // The kernel returns less than a second of nanoseconds.
    (time.tv_sec as i64, time.tv_nsec as u32)
}

/// Returns the processor time that the calling thread has used.
pub fn thread_cpu_time() -> Duration {
    let time = read(libc::CLOCK_THREAD_CPUTIME_ID);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that the call may write.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    // It fails only for a clock that the host does not have, or a bad address.
    assert_eq!(result, 0, "the host has no clock {clock}");
    time
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    /// A finer clock would be ahead of the next stamp of the kernel.
    #[test]
    #[cfg(target_os = "linux")]
    fn the_coarse_time_is_that_of_the_last_tick() {
        let fine = || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
            (now.as_secs() as i64, now.subsec_nanos())
        };
        let mut times = std::collections::BTreeSet::new();
        let mut behind = 0;
        for _ in 0..2_000 {
            let (ours, after) = (coarse_time(), fine());
            assert!(ours <= after, "{ours:?} {after:?}");
            behind += usize::from(ours < after);
            times.insert(ours);
        }
        assert!(behind > 1_900, "it does not move with each call: {behind}");
        assert!(times.len() < 1_000, "it moves with ticks: {} times", times.len());
    }

    #[test]
    fn a_thread_that_works_uses_processor_time() {
        let begun = thread_cpu_time();
        let mut sum = 0u64;
        while thread_cpu_time() == begun {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(thread_cpu_time() > begun);
    }
}
