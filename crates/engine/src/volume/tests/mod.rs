//! Tests of whole volumes: [`reading`] and [`writing`] with all devices, with missing and with
//! failing ones; [`opening`] good and bad ones; [`pieces`] of requests in flight; single devices
//! ([`slots`]); [`kernel`] on volumes written by mkfs and the kernel.

mod kernel;
mod log_superblocks;
mod opening;
mod pieces;
mod reading;
mod slots;
#[path = "../../../../papilio/tests/support/watched_reads.rs"]
mod watched_reads;
mod writing;
