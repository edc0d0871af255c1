//! The log of the running transaction: changes that fsyncs make durable before the next commit.
//!
//! - [`running`]: the log trees in memory, their blocks and the threads that wait;
//! - [`trees`]: entering items into a log tree, and blocks for it;
//! - [`blocks`]: the blocks that a log took, and those that it may reuse;
//! - [`queue`]: the threads that wait for one sync, and their leader;
//! - [`sync`]: writing the log to the devices.
//!
//! [`crate::fsync_log`] decides which items enter the log, and replays a log at the next mount.
//!
//! Kernel counterpart: `fs/btrfs/tree-log.c`.

pub(super) mod blocks;
pub(super) mod queue;
pub(super) mod running;
pub(super) mod sync;
pub(super) mod trees;
