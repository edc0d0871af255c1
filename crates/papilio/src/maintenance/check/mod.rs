//! The read-only check of a whole file system: every tree, and the trees against each other.
//!
//! [`walker`] visits every tree block once and passes the leaves to the collectors, which compare
//! them: [`references`] (extents and back references), [`block_groups`], [`devices`],
//! [`free_space`], [`csums`], [`roots`], and for each subvolume [`inodes`] and [`names`].
//! [`superblocks`] and [`space_cache`] check structures outside the trees. [`checker`] runs them in
//! order.
//!
//! Every fault is a [`report::Finding`]; no content of a file system aborts the check.
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
mod quotas;
mod references;
pub(crate) mod remedy;
mod report;
mod roots;
mod space_cache;
mod superblocks;
mod walker;

pub(crate) use checker::check;
pub use options::{CheckOptions, CheckProgress, CheckStage};
pub use report::{CheckReport, CheckStatistics, Finding, FindingKind, Note, Place, Severity};
