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

use papilio_device::coarse_time;
use papilio_format::items::inode::Timespec;

/// Returns the time now.
pub fn now() -> Timespec {
    let (seconds, nanoseconds) = coarse_time();
    Timespec { seconds, nanoseconds }
}
