//! The kernel's Btrfs as the oracle: file systems made by `mkfs.btrfs`, written through a kernel
//! mount, and read back to compare with.
//!
//! Nothing here depends on the library under test: what both share they would both get wrong.
//!
//! - [`requirement`]: what a test needs of the machine, and skipping it loudly.
//! - [`scratch`], [`loop_device`], [`mount`], [`fuse_ring`]: resources that go away again, also after a panic or a kill.
//! - [`mkfs`], [`preset`]: file systems of every shape.
//! - [`populate`]: a seeded tree with everything in it that a Btrfs can hold.
//! - [`source`], [`host`]: one view of a tree, and the kernel's implementation of it.
//! - [`manifest`], [`compare`]: a tree remembered, and two trees compared.

pub mod compare;
pub mod fuse_ring;
pub mod host;
pub mod loop_device;
pub mod manifest;
pub mod mkfs;
pub mod mount;
pub mod populate;
pub mod preset;
pub mod requirement;
pub mod scratch;
pub mod source;
pub mod sys;

pub use compare::{CompareOptions, Difference, Report, compare};
pub use fuse_ring::RingSwitch;
pub use host::HostTree;
pub use manifest::{Manifest, ManifestOptions};
pub use mkfs::{FileSystemSpec, ImageSet, Mounted};
pub use populate::{Populated, TreeSpec};
pub use preset::{Preset, matrix, preset};
pub use requirement::{Need, require};
pub use scratch::Scratch;
pub use source::{Kind, Metadata, Segment, Source, Time};
