//! Transactions: groups of changes that become durable together.
//!
//! A change holds a [`handle`]. [`delayed_refs`] collects what changes do to extents, and
//! [`extent_items`] turns it into items of the extent tree. [`chunks`] makes new chunks when space
//! runs short. [`commit`] writes everything out while the next transaction runs.

mod block_writing;
mod built_tree;
mod change;
mod chunk_items;
mod chunks;
pub mod clock;
mod commit;
mod commit_state;
mod copied_blocks;
pub mod csum_items;
mod data_heads;
mod delayed_refs;
mod device_stats;
pub mod discards;
mod extent_items;
mod extent_refs;
mod extent_sharing;
mod handle;
mod kernel_rules;
mod lazy_tree;
mod live_trees;
mod log;
mod merge;
mod moved_data;
mod no_data_io;
mod only_reference;
mod pending_discards;
pub mod quota;
mod recompress;
mod relocate;
mod relocation_plan;
mod reserve_tickets;
mod reserved_data;
mod root_sets;
mod snapshot;
mod space_trees;
mod start;
#[allow(clippy::module_inception)]
mod transaction;
mod whole_trees;
mod writable;

pub use built_tree::{BuiltBlock, BuiltTree};
pub use device_stats::read_counters;
pub(crate) use extent_refs::ExtentRefs;
pub use extent_sharing::StayReason;
pub(crate) use extent_sharing::{ExtentPiece, PieceSharing};
pub use handle::{DataExtent, DataReference, Handle};
pub(crate) use lazy_tree::LazyTree;
pub(crate) use log::queue::LogTicket;
pub(crate) use log::sync::{Synced, log_root_key};
pub(crate) use merge::MergedExtent;
pub(crate) use moved_data::MovedPiece;
pub(crate) use no_data_io::assert_no_handle;
pub(crate) use recompress::{ExtentUse, ExtentUsed, Recompressed, RecompressedExtent};
pub(crate) use relocate::CopiedExtent;
pub(crate) use reserved_data::ReservedData;
pub use start::Start;
pub use transaction::{PENDING_SHARE, TransactionOptions, Transactions};
