//! The check of a whole file system, read-only: every tree, and what the trees say of each other.
//!
//! [`walker`] visits every tree block once and hands the leaves to what collects and compares:
//! [`references`] (extents and back references), [`block_groups`], [`devices`], [`free_space`],
//! [`csums`], [`roots`], and for each subvolume [`inodes`] and [`names`]. [`superblocks`] and
//! [`space_cache`] look at what lies outside the trees. [`checker`] says in which order.
//! Everything found is a [`report::Finding`]; nothing that a file system holds ends the check.
//!
//! Userspace counterpart: `btrfs check`.

mod block_groups;
mod checker;
mod csums;
mod devices;
mod free_space;
mod inodes;
mod names;
mod options;
mod references;
mod report;
mod roots;
mod space_cache;
mod superblocks;
mod walker;

pub(crate) use checker::check;
pub use options::{CheckOptions, CheckProgress, CheckStage};
pub use report::{CheckReport, CheckStatistics, Finding, FindingKind, Place, Severity};
