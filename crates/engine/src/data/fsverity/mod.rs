//! fs-verity: files whose data is verified by a Merkle tree.
//!
//! Owns [`FileVerity`], which verifies data that was read, and [`MerkleTreeBuilder`]. Such a file
//! never changes: its data is verified first by its checksums, then by the hashes of its blocks up
//! to the root hash in the file's descriptor.
//!
//! Locks: `FileVerity::verified` and that of `OpenVerity`, alone, for moments. Kernel counterparts:
//! `fs/verity/verify.c`, `fs/verity/open.c`, `fs/btrfs/verity.c`.

mod file_verity;
mod hash;
mod merkle_tree;
mod open_verity;

pub(crate) use file_verity::FileVerity;
pub(crate) use hash::{HashBytes, SaltedHash};
pub use merkle_tree::MerkleLevels;
pub(crate) use merkle_tree::MerkleTreeBuilder;
pub(crate) use open_verity::OpenVerity;
