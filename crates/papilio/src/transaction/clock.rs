//! The clock that all stamps of inodes come from.
//!
//! It is the one that the kernel stamps inodes with: the time as of the last timer tick, a few
//! milliseconds old. A finer clock would be ahead of it. A file that the kernel stamps next would
//! then seem older than one that was written here before.
//!
//! A kernel with multigrain timestamps makes some stamps finer: where a program looked at the one
//! before. These may be ahead of this clock by a tick.
//!
//! Kernel counterpart: `ktime_get_coarse_real_ts64` (`kernel/time/timekeeping.c`).

use papilio_format::items::inode::Timespec;
use rustix::time::{ClockId, clock_gettime};

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::RealtimeCoarse;
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Realtime;

/// Returns the time now.
pub(crate) fn now() -> Timespec {
    let time = clock_gettime(CLOCK);
    // The kernel returns less than a second of nanoseconds.
    Timespec { seconds: time.tv_sec, nanoseconds: time.tv_nsec as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A finer clock would be ahead of the next coarse time.
    #[test]
    #[cfg(target_os = "linux")]
    fn stamps_are_in_order_with_coarse_ones() {
        let coarse = || {
            let time = clock_gettime(ClockId::RealtimeCoarse);
            (time.tv_sec, time.tv_nsec as u32)
        };
        for _ in 0..2_000 {
            let (before, ours, after) = (coarse(), now(), coarse());
            let ours = (ours.seconds, ours.nanoseconds);
            assert!(before <= ours && ours <= after, "{before:?} {ours:?} {after:?}");
        }
    }
}
