//! Directory entries in the public API.
//!
//! Owns [`DirEntry`], and [`Entries`], which reads a directory in batches.

use crate::inode::Inode;
use papilio_engine::btree::{Cursor, Tree};
use papilio_engine::errors::{PathError, Result};
use papilio_engine::items::compared_entries::ComparedEntries;
use papilio_engine::items::dir::{EntryTarget, index_first_key, index_last_key};
use papilio_engine::items::item_error;
use papilio_format::Key;
use papilio_format::items::dir_item::{DirEntries, FileType};
use papilio_format::items::inode::{FileKind, InodeItem, inode_key};
use std::collections::VecDeque;
use std::sync::Arc;

/// Limits of entries to decode ahead: at first, and of a caller that reads on. Many callers read as
/// many as fit a small buffer, and then start again where they stopped.
const FIRST_BATCH: usize = 16;
const MAX_BATCH: usize = 256;

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    directory: Arc<Inode>,
    name: Vec<u8>,
    index: u64,
    file_type: FileType,
    target: EntryTarget,
    /// The inode item and the version of the tree, if they were read with the entry.
    item: Option<(u64, InodeItem)>,
}

impl DirEntry {
    /// Returns the name: 1 to 255 bytes, without a slash.
    pub fn file_name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the entry's index in its directory. Later entries have larger ones;
    /// [`Entries::starting_at`] resumes at one.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Returns the kind of file that the entry records for its inode.
    pub fn file_type(&self) -> FileKind {
        // The tree checker refuses the attribute type here; a subvolume is a directory.
        self.file_type.kind().unwrap_or(FileKind::Directory)
    }

    /// Returns the target: an inode of the same subvolume, or a subvolume.
    pub fn target(&self) -> EntryTarget {
        self.target
    }

    /// Returns the inode of the entry as it is now.
    ///
    /// # Errors
    /// An entry without an inode, or a tree block that cannot be read.
    pub fn inode(&self) -> Result<Inode> {
        self.directory.entry_inode(self)
    }

    /// Returns the directory that contains the entry.
    pub fn directory(&self) -> &Inode {
        &self.directory
    }
}

/// An iterator over the entries of a directory, by index. It ends after its first error. Where the
/// sound items of bad leaves are read, it goes on, and adds the entries that have no index.
#[derive(Debug)]
pub struct Entries {
    directory: Arc<Inode>,
    batch: VecDeque<DirEntry>,
    /// Where the next batch starts; `None` at the end.
    next: Option<u64>,
    /// The first index to return.
    from: u64,
    /// The last index to return.
    last: u64,
    /// The number of entries of the next batch.
    size: usize,
    with_inodes: bool,
    /// The key behind the block that could not be read.
    behind_fault: Option<Key>,
    /// The differences to the entries by name, if the sound items of bad leaves are read.
    compared: Option<ComparedEntries>,
    has_further: bool,
}

impl Entries {
    pub(super) fn new(directory: Inode) -> Self {
        let next = (!directory.is_subvolume_stub()).then_some(0);
        let directory = Arc::new(directory);
        Self {
            directory,
            batch: VecDeque::new(),
            next,
            from: 0,
            last: u64::MAX,
            size: FIRST_BATCH,
            with_inodes: false,
            behind_fault: None,
            compared: None,
            has_further: next.is_some(),
        }
    }

    /// Goes on behind the tree block that could not be read, after the iterator has returned that
    /// error. Returns whether entries may follow there. Those in the block are left out.
    pub fn skip_unreadable(&mut self) -> bool {
        if self.compared.is_some() && self.behind_fault.is_none() {
            // It went on by itself.
            return self.next.is_some() || self.has_further;
        }
        let number = self.directory.number();
        let (first, last) = (index_first_key(number, 0), index_last_key(number));
        let behind = self.behind_fault.take().filter(|key| *key <= last);
        self.next = behind.map(|key| if key < first { 0 } else { key.offset });
        self.next.is_some()
    }

    /// Skips the entries whose index is below `index`.
    pub fn starting_at(mut self, index: u64) -> Self {
        self.batch.clear();
        (self.next, self.from) = (self.next.map(|_| index), index);
        self
    }

    /// Leaves out the entries whose index is above `index`, such as those created after
    /// [`Inode::last_entry_index`] returned it.
    pub fn up_to(mut self, index: u64) -> Self {
        self.last = index;
        self
    }

    /// Reads the inodes of a batch of entries together with it, for a caller that calls
    /// [`DirEntry::inode`] for each. Cheaper, because inodes of one directory usually lie side by
    /// side. An inode is read once more if its subvolume changed meanwhile.
    pub fn with_inodes(mut self) -> Self {
        self.with_inodes = true;
        self
    }

    fn fill(&mut self, first: u64) -> Result<()> {
        // Before the tree, so that a change since then is noticed.
        let version = self.directory.tree_version()?;
        let handle = self.directory.handle()?;
        let tree = handle.tree();
        let last_key = index_first_key(handle.number, self.last);
        if self.compared.is_none() && tree.forest().has_sound_leaves() {
            self.compared = Some(ComparedEntries::of(tree, handle.number));
        }
        let mut cursor = Cursor::new(tree);
        let walked = self.decode_from(tree, &mut cursor, first, last_key);
        if walked.is_err() {
            self.behind_fault = cursor.behind_fault();
        }
        walked?;
        if self.with_inodes { self.read_inodes(tree, version) } else { Ok(()) }
    }

    fn decode_from(&mut self, tree: &Tree, cursor: &mut Cursor<'_>, first: u64, last: Key) -> Result<()> {
        cursor.seek(&index_first_key(self.directory.number(), first))?;
        while let Some(key) = cursor.key().filter(|key| *key <= last) {
            if self.batch.len() >= self.size {
                self.next = Some(key.offset);
                self.size = (self.size * 2).min(MAX_BATCH);
                break;
            }
            self.decode(tree, cursor, key.offset)?;
            cursor.step()?;
        }
        Ok(())
    }

    /// Reads the inode items of the batch. An entry without one stays so; its caller meets the
    /// error.
    fn read_inodes(&mut self, tree: &Tree, version: u64) -> Result<()> {
        let mut cursor = Cursor::new(tree);
        for entry in &mut self.batch {
            let EntryTarget::Inode(number) = entry.target else { continue };
            let key = inode_key(number);
            cursor.seek(&key)?;
            if cursor.key() == Some(key)
                && let Some(data) = cursor.data()
            {
                entry.item = InodeItem::parse(data).ok().map(|item| (version, item));
            }
        }
        Ok(())
    }

    /// Adds the entries that have no index, with indexes behind the last one.
    fn add_further(&mut self) {
        let Some(compared) = &self.compared else { return };
        let indexes = compared.last_index.saturating_add(1)..=self.last;
        let further = compared.further.iter().zip(indexes).filter(|(_, index)| *index >= self.from);
        self.batch.extend(further.map(|(entry, index)| DirEntry {
            directory: Arc::clone(&self.directory),
            name: entry.name.clone(),
            index,
            file_type: entry.file_type,
            target: entry.target,
            item: None,
        }));
    }

    fn decode(&mut self, tree: &Tree, cursor: &Cursor<'_>, index: u64) -> Result<()> {
        let Some(item) = cursor.item() else { return Ok(()) };
        let entries = DirEntries::parse(item.data()).map_err(|reason| item_error(tree, &item, reason))?;
        if self.compared.as_ref().is_some_and(|compared| compared.hidden.contains(&index)) {
            return Ok(());
        }
        self.batch.extend(entries.map(|entry| DirEntry {
            directory: Arc::clone(&self.directory),
            name: entry.name.to_vec(),
            index,
            file_type: entry.file_type,
            target: EntryTarget::of(&entry.location),
            item: None,
        }));
        Ok(())
    }
}

impl Iterator for Entries {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        // A batch is empty if all its entries are hidden.
        while self.batch.is_empty() {
            let Some(first) = self.next.take() else { break };
            if let Err(error) = self.fill(first) {
                self.next = None;
                if self.compared.is_some() {
                    self.skip_unreadable();
                }
                return Some(Err(error));
            }
        }
        if self.batch.is_empty() && std::mem::take(&mut self.has_further) {
            self.add_further();
        }
        self.batch.pop_front().map(Ok)
    }
}

impl Inode {
    /// Returns the entries of this directory, in the order of their creation, without `.` and `..`.
    ///
    /// # Errors
    /// [`PathError::NotADirectory`].
    pub fn read_dir(&self) -> Result<Entries> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        Ok(Entries::new(self.clone()))
    }

    /// Returns the inode of an entry of this directory.
    pub(super) fn entry_inode(&self, entry: &DirEntry) -> Result<Inode> {
        if let (Some((version, item)), EntryTarget::Inode(number)) = (entry.item, entry.target()) {
            let inode = self.with_item(number, item);
            // Last: a flush changes the tree before memory forgets what it flushed.
            if self.tree_version()? == version {
                return Ok(inode);
            }
        }
        let trees = &self.file_system().info.trees;
        let handle = self.handle()?.target(trees, entry.file_name(), entry.target())?;
        Ok(self.file_system().wrap(handle))
    }
}
