//! Quotas through the public API, with the kernel as the judge: the numbers of qgroups equal those
//! of the kernel's rescan, and of `btrfs check -Q`, after random operations.

mod cost;
mod crashes;
mod groups;
#[path = "../support/images.rs"]
mod images;
mod judge;
mod limits;
mod random;
mod simple;
mod threads;
mod warnings;
mod world;
