//! The log of fsyncs that a loss of power leaves, replayed by Papilio and by the kernel: both see the same.
//!
//! The kernel makes and changes the file systems. A copy of the image that is taken while it is mounted, right
//! after an fsync, is what the disk holds if the power goes at that moment.

#[path = "../kernel/bridge.rs"]
mod bridge;
mod by_hand;
mod carried;
mod cut_short;
mod damaged;
mod judge;
mod power_cut;
mod random;
mod scenarios;
mod steps;
