//! Quotas: the bytes that each subvolume, and each group of subvolumes, references, and its limits.
//!
//! A *qgroup* counts the bytes that its subvolumes reference, and those that no other subvolume
//! does. [`groups`] keeps the qgroups in memory. Changes mark the extents whose *root set*, the
//! subvolumes that reach them, may change. A commit finds the root sets of these extents before
//! and after ([`roots`]) and counts the difference ([`account`]). [`manage`] creates and joins
//! qgroups, [`inherit`] follows subvolumes, [`rescan`] counts anew, and [`limits`] refuses writes.
//! [`simple`] has simple quotas, which charge an extent to the subvolume that allocated it, and
//! [`simple_removal`] takes them out of a file system.
//!
//! Kernel counterpart: `fs/btrfs/qgroup.c`.

mod account;
pub mod groups;
mod inherit;
mod limits;
mod manage;
mod rescan;
mod roots;
mod simple;
mod simple_removal;

pub use groups::{Qgroup, Quotas};
pub use inherit::Inherit;
pub use manage::LimitChange;
pub use rescan::{RescanStep, count_all};
pub use simple::count_simple;
