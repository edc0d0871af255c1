//! Linux RAID (md): arrays of members with metadata 0.90, 1.0, 1.1 and 1.2.
//!
//! - `superblock`: the metadata of a member;
//! - `geometry`: where the bytes of an array lie on its members;
//! - `parity`: the arithmetic of RAID 6;
//! - `assemble`: which members are used, and which are left out;
//! - `array`: the open array;
//! - `activity`: the marks that an array is being written.
//!
//! Sources: `include/uapi/linux/raid/md_p.h` and `Documentation/admin-guide/md.rst` of the kernel,
//! and the behaviour of drivers/md (`raid0.c`, `raid5.c`, `raid10.c`), whose placement of data is
//! the format.

mod activity;
mod array;
mod assemble;
mod geometry;
mod parity;
mod superblock;

pub use array::MdDevice;
pub use assemble::{Assembled, LeftOut, assemble};
pub use superblock::{MdSuperblock, Reshape, Role};
