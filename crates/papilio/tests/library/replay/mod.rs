//! Replay of the log that a power loss leaves: Papilio's replay and the kernel's have the same
//! result.
//!
//! The kernel makes and changes the file systems. A copy of the mounted image, taken right after an
//! fsync, is the state of the disk if the power fails at that moment.

mod by_hand;
mod carried;
mod cut_short;
mod damaged;
mod in_memory_only;
mod judge;
mod power_cut;
mod random;
mod scenarios;
mod steps;
