//! ext2, ext3 and ext4, for reading.
//!
//! - `superblock`: the superblock and its features
//! - `reader`: the open file system, its group descriptors and bitmaps
//! - `used`: the blocks in use
//! - `inode`, `mapping`, `directory`, `xattr`: files
//! - `checksum`, `fields`: parts of all
//!
//! **Invariants**
//! - Nothing that is read is trusted. Checksums are verified where the source has them.
//! - Memory does not grow with the number of inodes, nor with the size of a file.

mod checksum;
pub(crate) mod directory;
mod fields;
pub(crate) mod inode;
pub(crate) mod mapping;
pub(crate) mod reader;
pub(crate) mod superblock;
pub(crate) mod used;
pub(crate) mod xattr;
