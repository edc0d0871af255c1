//! Devices that live in an object store, for reading and writing.
//!
//! Owns [`StoreUrl`] and the openers of such devices. The parts:
//! - `url`: which store and which prefix a URL names; `probe`: whether a database is there.
//! - `device`: [`StoreDevice`], its opening and closing; `core`: its reads and writes.
//! - `groups`, `extents`: writes that are in memory only; `commit` brings them to the store.
//! - `map`, `window`: where each block is: in a segment, or in the database.
//! - `segment`, `units`: objects that hold runs of blocks, and the requests that read them.
//! - `accounts`, `clean`: which segments are in use, and the removal of the others.
//! - `lineage`: which devices share segments; `admin`: checkpoints and clones.
//! - `source`, `layout`: the database, and its keys; `counted`, `info`: requests and space.
//! - `still`: the clock by which a reader never follows a writer.
//! - `activity`: the clock by which an idle writer sends no requests.
//! - `watch`: whether a writer has flushed.
//! - `holder`: the names of writers, for the message of one that was fenced.
//!
//! SlateDB (<https://slatedb.io>) is a log-structured merge tree on object storage. Its write-ahead
//! log, manifests, compaction, garbage collection and fencing are its own. It holds the map, small
//! runs of blocks and metadata. Large runs go to segments, which are written once.
//!
//! **Invariants**
//! - One program writes a device. A second one that opens it for writing fences the first, whose
//!   writes are errors from then on.
//! - A device opened for reading has one state: that of its checkpoint, or of the moment it was
//!   opened.

mod accounts;
mod activity;
mod admin;
mod clean;
mod commit;
mod core;
mod counted;
mod device;
mod errors;
mod extents;
mod groups;
mod holder;
mod info;
mod layout;
mod lineage;
mod map;
mod probe;
mod segment;
mod source;
mod still;
#[cfg(test)]
mod tests;
mod units;
mod url;
mod watch;
mod window;

pub use admin::{clone_store, create_checkpoint, delete_checkpoint, list_checkpoints};
pub use device::StoreDevice;
pub use info::store_info;
pub use url::StoreUrl;
pub use watch::LogWatch;
