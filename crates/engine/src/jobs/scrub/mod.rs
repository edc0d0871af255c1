//! Scrub: every copy of all extents is read, verified, and mended from a good one.
//!
//! - [`report`]: options, counters, progress; [`run`]: workers and the end;
//! - [`units`]: the units of work; [`extents`]: the extents and checksums of a unit;
//! - [`verify`]: comparing and mending the copies and the parity of a unit;
//! - [`encoding`]: decoding compressed extents, if that is asked for;
//! - [`superblocks`]: the superblock copies;
//! - [`copy`]: copying a device, verified and mended on the way.
//!
//! The bytes of all copies of a unit are in memory together. They are read once, where the kernel
//! reads a row with parity once for each device.

pub(in crate::jobs) mod copy;
mod encoding;
mod extents;
mod report;
mod run;
mod superblocks;
mod units;
mod verify;

pub use report::{ScrubCounts, ScrubDevice, ScrubLimit, ScrubOptions, ScrubReport};
