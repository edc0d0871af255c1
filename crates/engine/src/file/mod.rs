//! The open file: its locks, its data in memory, and the ways of reading, writing and flushing it.
//!
//! | file | owns |
//! |---|---|
//! | `fs_info` | the state that an open file system shares |
//! | `open_inode`, `data_lock`, `cached_inode_item` | an open inode, its lock and its inode item |
//! | `open_inodes`, `dirty_inodes`, `kept_inodes` | the tables of open, dirty and kept inodes |
//! | `memory_budgets` | the memory that open inodes share |
//! | `open_file` | a handle on an open file |
//! | `read`, `buffered`, `fill` | reading from the device and through the page cache |
//! | `in_flight_io`, `committed_read` | requests in flight without a thread |
//! | `read_ahead` | the thread that reads ahead |
//! | `write_promise` | the space of a write, before it comes |
//! | `write`, `in_place`, `ordered_write`, `allocate`, `reflink` | changes of data |
//! | `flush`, `ordered_flush` | publishing changes in the trees |
//! | `fsync`, `changed_files` | making one file durable |
//! | `change`, `data_trees` | joining a transaction |
//! | `evict`, `deletions` | deleting unlinked inodes, waiting for the space that this frees |
//! | `verity`, `building_tree` | turning on fs-verity |
//! | `background` | requests to the background threads |

mod allocate;
pub(crate) mod background;
mod buffered;
mod building_tree;
mod cached_inode_item;
pub mod change;
pub(crate) mod changed_files;
pub mod committed_read;
mod data_lock;
mod data_trees;
pub mod defragment;
pub(crate) mod deletions;
pub(crate) mod dirty_inodes;
mod encoded_read;
mod encoded_write;
mod evict;
pub mod exclusive;
mod fill;
mod flush;
pub mod fs_info;
pub mod fsync;
pub mod in_flight_io;
mod in_place;
pub(crate) mod kept_inodes;
mod memory_budgets;
pub(crate) mod moved_extents;
pub(crate) mod moving;
pub mod open_file;
pub(crate) mod open_inode;
pub(crate) mod open_inodes;
mod ordered_flush;
mod ordered_write;
mod read;
pub(crate) mod read_ahead;
mod reflink;
pub(crate) mod sharing;
pub mod verity;
mod write;
mod write_back;
mod write_back_ordered;
pub(crate) mod write_prefix;
pub mod write_promise;
