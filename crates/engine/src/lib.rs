//! The engine of Papilio: a Btrfs file system that is open.
//!
//! This crate promises nothing to the outside. Programs use the crate `papilio`, which exports the
//! public types that are defined here.
//!
//! | module | owns |
//! |---|---|
//! | `volume` | the chunk map, stripes, mirrors and parity |
//! | `btree` | the node cache, searches, cursors, changes of trees in memory |
//! | `space` | block groups, free space, reservations, pinned extents |
//! | `transaction` | handles, commits, delayed refs, the extent tree, quotas |
//! | `items` | the trees of a file system and their typed items |
//! | `data` | extents, compression, checksums and reflinks of file data |
//! | `fsync_log` | the log tree and its replay |
//! | `namespace` | lookup, directories, xattrs, links |
//! | `subvolume` | list, create, snapshot, rename, delete, clean, default, received |
//! | `file` | the open file: locks, reading, writing, writeback, fsync |
//! | `mount` | opening and closing a file system; the committer thread |
//! | `jobs` | jobs on an open file system: scrub, replace, relocation, use of space |
//! | `options`, `tuning`, `errors`, `errno` | for all of them |

#![forbid(unsafe_code)]
// Engineers of this project build the documentation with private items.
#![allow(rustdoc::private_intra_doc_links)]

pub mod btree;
pub mod data;
pub mod errno;
pub mod errors;
pub mod file;
pub mod fsync_log;
pub mod items;
pub mod jobs;
pub mod mount;
pub mod namespace;
pub mod options;
pub mod space;
pub mod subvolume;
pub mod transaction;
pub mod tuning;
pub mod volume;
pub mod workers;

pub use errors::{Error, ErrorKind, PathError, QuotaError, Result};
pub use options::OpenOptions;
