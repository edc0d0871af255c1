//! The roots that a mount starts from.
//!
//! Owns [`Roots`]: the root tree and the chunk tree as the superblock names them, or as one of its
//! backup roots does. Kernel counterparts: `init_tree_roots`, `read_backup_root`
//! (`fs/btrfs/disk-io.c`).

use crate::btree::RootPointer;
use papilio_format::Superblock;
use papilio_format::superblock::RootBackup;

/// Pointers to the first two trees.
#[derive(Clone, Copy)]
pub(super) struct Roots {
    pub(super) root: RootPointer,
    pub(super) chunk_root: RootPointer,
}

impl Roots {
    /// Returns the roots of the last commit.
    pub(super) fn current(superblock: &Superblock) -> Self {
        let raw = &superblock.raw;
        Self {
            root: RootPointer { address: raw.root, level: raw.root_level, generation: Some(raw.generation) },
            chunk_root: RootPointer {
                address: raw.chunk_root,
                level: raw.chunk_root_level,
                generation: Some(raw.chunk_root_generation),
            },
        }
    }

    /// Returns the roots of an earlier commit.
    pub(super) fn backup(backup: &RootBackup) -> Self {
        Self {
            root: RootPointer {
                address: backup.tree_root,
                level: backup.tree_root_level,
                generation: Some(backup.tree_root_generation),
            },
            chunk_root: RootPointer {
                address: backup.chunk_root,
                level: backup.chunk_root_level,
                generation: Some(backup.chunk_root_generation),
            },
        }
    }
}
