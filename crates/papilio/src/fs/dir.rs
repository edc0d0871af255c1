//! Directory entries, as callers see them.
//!
//! Owns [`Entries`], which reads a directory in batches of one leaf, and [`DirEntry`].

use crate::btree::{Cursor, Tree};
use crate::errors::{PathError, Result};
use crate::fs::inode::Inode;
use crate::items::dir::{EntryTarget, index_first_key};
use crate::items::item_error;
use papilio_format::items::dir_item::{DirEntries, FileType};
use papilio_format::items::inode::FileKind;
use std::collections::VecDeque;

/// Entries decoded ahead at most.
const BATCH: usize = 256;

/// One entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    directory: Inode,
    name: Vec<u8>,
    index: u64,
    file_type: FileType,
    target: EntryTarget,
}

impl DirEntry {
    /// The name, without a slash, 1 to 255 bytes.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The entry's index in its directory: larger is later, and a place to go on from.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The kind of file that the entry says its inode is.
    pub fn kind(&self) -> FileKind {
        // The tree checker refuses the type of attributes here; a subvolume is a directory.
        self.file_type.kind().unwrap_or(FileKind::Directory)
    }

    /// What it names.
    pub fn target(&self) -> EntryTarget {
        self.target
    }

    /// The inode that it names.
    ///
    /// # Errors
    /// An entry that points nowhere, or a tree block that cannot be read.
    pub fn inode(&self) -> Result<Inode> {
        self.directory.entry_inode(self)
    }

    /// The directory that it is in.
    pub fn directory(&self) -> &Inode {
        &self.directory
    }
}

/// The entries of a directory, by index; the iterator ends after its first error.
#[derive(Debug)]
pub struct Entries {
    directory: Inode,
    batch: VecDeque<DirEntry>,
    /// Where the next batch starts; `None` at the end.
    next: Option<u64>,
    /// The last index of interest.
    last: u64,
}

impl Entries {
    pub(super) fn new(directory: Inode) -> Self {
        let next = (!directory.is_subvolume_stub()).then_some(0);
        Self { directory, batch: VecDeque::new(), next, last: u64::MAX }
    }

    /// Skips the entries whose index is below `index`.
    pub fn starting_at(mut self, index: u64) -> Self {
        self.batch.clear();
        self.next = self.next.map(|_| index);
        self
    }

    /// Leaves out the entries whose index is above `index`: those that came later than a moment before.
    pub fn up_to(mut self, index: u64) -> Self {
        self.last = index;
        self
    }

    fn fill(&mut self, first: u64) -> Result<()> {
        let handle = self.directory.handle()?;
        let tree = handle.tree();
        let last_key = index_first_key(handle.number, self.last);
        let mut cursor = tree.seek(&index_first_key(handle.number, first))?;
        while let Some(key) = cursor.key().filter(|key| *key <= last_key) {
            if self.batch.len() >= BATCH {
                self.next = Some(key.offset);
                return Ok(());
            }
            self.decode(tree, &cursor, key.offset)?;
            cursor.step()?;
        }
        Ok(())
    }

    fn decode(&mut self, tree: &Tree, cursor: &Cursor<'_>, index: u64) -> Result<()> {
        let Some(item) = cursor.item() else { return Ok(()) };
        let entries = DirEntries::parse(item.data()).map_err(|reason| item_error(tree, &item, reason))?;
        self.batch.extend(entries.map(|entry| DirEntry {
            directory: self.directory.clone(),
            name: entry.name.to_vec(),
            index,
            file_type: entry.file_type,
            target: EntryTarget::of(&entry.location),
        }));
        Ok(())
    }
}

impl Iterator for Entries {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        if self.batch.is_empty()
            && let Some(first) = self.next.take()
            && let Err(error) = self.fill(first)
        {
            self.next = None;
            return Some(Err(error));
        }
        self.batch.pop_front().map(Ok)
    }
}

impl Inode {
    /// The entries of this directory, in the order of their creation, without `.` and `..`.
    ///
    /// # Errors
    /// [`PathError::NotADirectory`].
    pub fn entries(&self) -> Result<Entries> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        Ok(Entries::new(self.clone()))
    }

    /// The inode that an entry of this directory names.
    pub(super) fn entry_inode(&self, entry: &DirEntry) -> Result<Inode> {
        let trees = &self.file_system().info.trees;
        let handle = self.handle()?.target(trees, entry.name(), entry.target())?;
        Ok(self.file_system().wrap(handle))
    }
}
