//! The state that one commit hands on to the next.
//!
//! Owns [`CommitState`], which the `commit` lock guards.

use crate::btree::ReadPin;
use crate::space::Pinned;
use crate::volume::{DevReplace, LogSuperblocks};
use papilio_device::AlignedBuffer;
use papilio_format::superblock::RawSuperblock;
use papilio_format::{DeviceId, Generation};
use std::collections::VecDeque;
use std::sync::Arc;

/// State that one commit hands on to the next.
#[derive(Debug)]
pub(crate) struct CommitState {
    /// The superblock as last written, with the changes that are to be written next.
    pub(super) superblock: RawSuperblock,
    /// The superblock as it is on disk, apart from its log fields.
    pub(super) written: RawSuperblock,
    /// The cached superblock copies that log syncs write.
    pub(super) log_superblocks: Option<LogSuperblocks>,
    /// Whether the superblock must be written even if no tree changed.
    pub(super) superblock_changed: bool,
    /// Space that becomes free once all readers of an earlier state are gone.
    pub(super) waiting: VecDeque<FreedSpace>,
    /// Whether the UUID tree is up to date, which the superblock has to say.
    pub(super) uuid_tree_current: bool,
    /// Whether the running transaction only moves extents, whose owners stay.
    pub(super) only_moves: bool,
    /// The device that the next commit replaces by its copy, between the tree blocks and the
    /// superblocks.
    pub(super) replaced: Option<(DeviceId, Arc<DevReplace>)>,
    /// The buffer for writing tree blocks.
    pub(super) buffer: AlignedBuffer,
}

/// Space that a commit freed and readers of earlier states may still use.
#[derive(Debug)]
pub(super) struct FreedSpace {
    /// Held by those readers.
    pub(super) pin: ReadPin,
    pub(super) pinned: Pinned,
    /// The transaction that freed it.
    pub(super) generation: Generation,
    /// Whether that transaction had changes.
    pub(super) has_changes: bool,
}

impl CommitState {
    /// The state after a commit that wrote `superblock`.
    pub(super) fn new(superblock: RawSuperblock) -> Self {
        let uuid_tree_current = superblock.uuid_tree_generation == superblock.generation.0;
        Self {
            superblock,
            written: superblock,
            log_superblocks: None,
            superblock_changed: false,
            waiting: VecDeque::new(),
            uuid_tree_current,
            only_moves: false,
            replaced: None,
            buffer: AlignedBuffer::new(0, 1),
        }
    }

    /// The superblock of the last commit.
    pub(super) fn last(&self) -> &RawSuperblock {
        &self.written
    }

    /// Makes the next commit write, even if no tree changed.
    pub(super) fn must_write(&mut self) {
        self.superblock_changed = true;
    }
}
