//! The kernel's Btrfs as the oracle: file systems made by `mkfs.btrfs`, written through a kernel
//! mount, and read back for comparison.
//!
//! Nothing here depends on the library under test: an error in shared code would go unnoticed.
//!
//! - [`requirement`]: a test's requirements on the machine, and loud skipping.
//! - [`scratch`], [`loop_device`], [`mount`], [`fuse_ring`]: resources that are released even after
//!   a panic or a kill.
//! - [`mkfs`], [`preset`]: file systems of every shape.
//! - [`populate`]: a seeded tree with everything that a Btrfs can hold.
//! - [`source`], [`host`]: a common view of a tree, and the kernel's implementation of it.
//! - [`object_server`]: an S3 server, with delays and faults.
//! - [`manifest`], [`compare`]: a recorded tree, and the comparison of two trees.

mod cleaner;
pub mod compare;
pub mod fuse_ring;
pub mod host;
pub mod loop_device;
pub mod manifest;
pub mod mkfs;
pub mod mount;
pub mod object_server;
pub mod populate;
pub mod preset;
pub mod program;
mod release;
pub mod requirement;
pub mod scratch;
pub mod source;
mod switch_record;
pub mod sys;

pub use cleaner::clean_subvolumes;
pub use compare::{CompareOptions, Difference, Report, compare};
pub use fuse_ring::RingSwitch;
pub use host::HostTree;
pub use loop_device::LoopDevice;
pub use manifest::{Manifest, ManifestOptions};
pub use mkfs::{FileSystemSpec, ImageSet, Mounted, Quota};
pub use populate::{Populated, TreeSpec};
pub use preset::{Preset, matrix, preset};
pub use release::{kernel_has, kernel_release};
pub use requirement::{Need, require};
pub use scratch::Scratch;
pub use source::{Kind, Metadata, Segment, Source, Time};
