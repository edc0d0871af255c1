//! Changes of an existing file system on memory devices, and power cuts during them: after each
//! cut the file system opens or the change can be finished, and all blocks and files are sound.
//!
//! `PAPILIO_TUNE_STATES` sets the number of states of each kind.

mod checksum;
mod simple_quotas;
mod space_trees;
mod uuid;
mod world;
