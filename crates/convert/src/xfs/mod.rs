//! XFS, versions 4 and 5, for reading.
//!
//! - `superblock`, `group`, `groups`: the superblock and the headers of allocation groups
//! - `log`: whether the log is clean
//! - `btree`, `used`: the trees of groups: free space, inodes, reference counts
//! - `reader`: the open file system
//! - `inode`, `mapping`, `directory`, `xattr`: files
//! - `source`: the face that a conversion sees
//! - `fields`: a part of all
//!
//! **Invariants**
//! - Nothing that is read is trusted. Checksums, places and owners are verified in version 5.
//! - Memory does not grow with the number of inodes, nor with the size of a file.

mod btree;
mod directory;
pub(crate) mod fields;
mod group;
mod groups;
mod inode;
mod log;
mod mapping;
pub(crate) mod reader;
mod source;
pub(crate) mod superblock;
mod used;
mod xattr;
