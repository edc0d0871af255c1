//! The log of fsyncs that a loss of power leaves, replayed by Papilio and by the kernel: both see the same.
//!
//! The kernel makes and changes the file systems. A copy of the image that is taken while it is mounted, right
//! after an fsync, is what the disk holds if the power goes at that moment.

mod judge;
mod power_cut;
mod scenarios;
mod steps;
