//! Streams of `btrfs send` as archives: they are listed, read, checked, joined and rewritten
//! without a file system that receives them.
//!
//! [`chain`] loads streams and builds a tree for each subvolume: [`tree`] applies the commands,
//! [`node`] has the inodes, [`table`] shares them between a snapshot and its parent, and [`budget`]
//! bounds their memory. Data stays in the streams, which [`input`] reads at any place and [`data`]
//! decodes. [`walk`] and [`archive`] list and read, [`extract`] copies to the host or into a tar
//! archive, and [`difference`] compares. [`emit`] turns a tree into commands, [`join`] a chain into
//! one stream, [`split`] a stream into its parts, and [`recompress`] rewrites one in passing.
//! [`index`] finds one file in a large stream.
//!
//! **Invariants**
//! - Every command that is used was verified by its checksum, also when its data is read later.
//! - Memory is bounded by [`LoadOptions::memory`](chain::LoadOptions::memory) and one command.
//!
//! **Locks:** none.

mod archive;
mod budget;
mod bytes;
mod chain;
mod data;
mod difference;
mod emit;
mod extract;
mod fault;
mod index;
mod input;
mod join;
mod node;
mod recompress;
mod split;
mod table;
mod tree;
mod walk;

pub use archive::plain_path;
pub use chain::{ChainDoubt, LoadOptions, SentPart, StreamChain};
pub use difference::{StreamDifference, compare};
pub use extract::Extract;
pub use fault::{StreamError, StreamFault};
pub use index::StreamIndex;
pub use input::{StreamInput, StreamSource};
pub use join::{JoinOptions, WrittenStream};
pub use recompress::{Recompress, Recompression};
pub use split::split;
pub use walk::SentEntry;
