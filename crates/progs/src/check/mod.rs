//! The read-only check of a whole file system: every tree, and the trees against each other.
//!
//! [`walker`] visits every tree block once, which [`copies`] reads ahead of it, and passes the
//! leaves to the collectors, which compare them: [`references`] (extents and back references),
//! [`block_groups`], [`devices`], [`free_space`], [`csums`], [`data`], [`compressed`], [`roots`],
//! and for each subvolume [`inodes`] and [`names`]. [`superblocks`] and [`space_cache`] check
//! structures outside the trees. [`checker`] runs them in order.
//!
//! Every fault is a [`report::Finding`]; no content of a file system aborts the check.
//!
//! Userspace counterpart: `btrfs check`.

pub(crate) mod block_groups;
mod checker;
mod compressed;
mod copies;
mod csums;
pub(crate) mod damage;
mod data;
mod devices;
pub(crate) mod free_space;
mod inodes;
pub(crate) mod inventory;
mod log_csums;
mod names;
pub(crate) mod one_byte;
mod options;
mod quotas;
pub(crate) mod recount;
pub(crate) mod references;
pub(crate) mod remedy;
mod report;
pub(crate) mod roots;
mod space_cache;
mod superblocks;
mod verity;
pub(crate) mod walker;

pub use checker::{check, take_inventory};
pub use options::{CheckOptions, CheckProgress, CheckStage};
pub use report::{CheckReport, CheckStatistics, Finding, FindingKind, Note, Place, Severity};
