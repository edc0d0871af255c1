//! ext2, ext3 and ext4, for reading.
//!
//! - `superblock`: the superblock and its features
//! - `reader`: the open file system, its group descriptors and bitmaps
//! - `used`: the blocks in use
//! - `journal`, `replayed`: the replay of the journal, and a device that shows it
//! - `inode`, `mapping`, `directory`, `xattr`: files
//! - `source`: the face that a conversion sees
//! - `checksum`, `fields`: parts of all
//!
//! **Invariants**
//! - Nothing that is read is trusted. Checksums are verified where the source has them.
//! - Memory does not grow with the number of inodes, nor with the size of a file.

mod checksum;
mod directory;
mod fields;
mod inode;
mod journal;
mod mapping;
pub(crate) mod reader;
mod replayed;
mod source;
pub(crate) mod superblock;
mod used;
mod xattr;
