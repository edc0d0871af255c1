//! Compares the directory entries of a subvolume with the references of its inodes.
//!
//! Owns [`Names`]: flat vectors of small records, sorted and merged after the subvolume was read.
//!
//! **Rules**
//! - Each entry has a reference in its inode, and each reference an entry.
//! - An inode's link count is the number of its references.
//! - An inode without references has an orphan item.
//!
//! Kernel counterpart: `btrfs_add_link` (`fs/btrfs/inode.c`).

use super::remedy::{InodeField, Remedy};
use super::report::{FindingKind, Findings, Place};
use papilio_format::items::dir_item::FileType;
use papilio_format::items::inode::FileKind;
use papilio_format::items::orphan::orphan_key;
use papilio_format::{ItemType, Key, TreeId, objectid};
use std::hash::{DefaultHasher, Hasher};

/// The index in records of entries by name that have no entry by index.
pub(super) const ANY_INDEX: u64 = u64::MAX;

/// Returns a 64-bit hash that stands for a name. Two names of one directory with the same hash
/// would count as one, which is too unlikely to matter.
pub(super) fn hash_name(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name);
    hasher.finish()
}

/// One inode.
#[derive(Clone, Copy, Debug)]
pub(super) struct InodeRecord {
    pub(super) number: u64,
    pub(super) nlink: u32,
    pub(super) kind: Option<FileKind>,
}

/// One directory entry of an inode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) target: u64,
    pub directory: u64,
    /// See [`hash_name`].
    pub name: u64,
    pub(super) index: u64,
    pub(super) file_type: FileType,
}

impl Entry {
    fn order(&self) -> (u64, u64, u64) {
        (self.target, self.directory, self.name)
    }
}

/// One reference of an inode to a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct NameRef {
    pub(super) inode: u64,
    pub(super) directory: u64,
    /// See [`hash_name`].
    pub(super) name: u64,
    pub(super) index: u64,
}

impl NameRef {
    fn order(&self) -> (u64, u64, u64) {
        (self.inode, self.directory, self.name)
    }
}

/// Returns the key of an entry by index, if there is one.
fn entry_key(entry: &Entry) -> Option<Key> {
    let key = Key::new(entry.directory, ItemType::DIR_INDEX, entry.index);
    (entry.index != ANY_INDEX).then_some(key)
}

/// All names of a subvolume.
#[derive(Debug)]
pub(super) struct Names {
    tree: TreeId,
    root_directory: u64,
    /// Sorted by number.
    pub(super) inodes: Vec<InodeRecord>,
    pub(super) entries: Vec<Entry>,
    pub(super) refs: Vec<NameRef>,
    pub(super) orphans: Vec<u64>,
    /// Inodes with items but without an inode item.
    pub(super) unnumbered: Vec<u64>,
}

impl Names {
    pub(super) fn new(tree: TreeId, root_directory: u64) -> Self {
        let (inodes, entries, refs, orphans, unnumbered) = Default::default();
        Self { tree, root_directory, inodes, entries, refs, orphans, unnumbered }
    }

    fn inode(&self, number: u64) -> Option<&InodeRecord> {
        let index = self.inodes.binary_search_by_key(&number, |inode| inode.number).ok()?;
        Some(&self.inodes[index])
    }

    /// Compares everything.
    pub(super) fn check(&mut self, findings: &mut Findings) {
        self.inodes.sort_by_key(|inode| inode.number);
        self.entries.sort_unstable_by_key(Entry::order);
        self.refs.sort_unstable_by_key(NameRef::order);
        self.orphans.sort_unstable();
        let is_directory = |inode: &InodeRecord| inode.kind == Some(FileKind::Directory);
        if !self.inode(self.root_directory).is_some_and(is_directory) {
            let place = Place::inode(self.tree, self.root_directory);
            findings.add(FindingKind::RootDirectoryMissing, place, format_args!("no root directory"));
            if self.root_directory == objectid::FIRST_FREE && self.inode(self.root_directory).is_none() {
                findings.mend(Remedy::RebuildInode { tree: self.tree, inode: self.root_directory });
            }
        }
        self.compare_entries(findings);
        self.check_link_counts(findings);
        for number in &self.orphans {
            if self.inode(*number).is_none() {
                let place = Place::item(self.tree, orphan_key(*number));
                findings.add(FindingKind::OrphanStale, place, format_args!("the inode does not exist"));
                findings.mend(Remedy::remove(self.tree, orphan_key(*number)));
            }
        }
        self.find_cycles(findings);
    }

    fn compare_entries(&self, findings: &mut Findings) {
        let (mut entries, mut refs) = (self.entries.iter().peekable(), self.refs.iter().peekable());
        loop {
            match (entries.peek(), refs.peek()) {
                (None, None) => return,
                (Some(entry), Some(found)) if entry.order() == found.order() => {
                    self.check_entry(entry, findings);
                    if entry.index != ANY_INDEX && entry.index != found.index {
                        let index = found.index;
                        let message = format_args!("inode {} has index {index} for this name", entry.target);
                        findings.add(FindingKind::InodeRefMissing, self.entry_place(entry), message);
                    }
                    entries.next();
                    refs.next();
                }
                (Some(entry), found) if found.is_none_or(|found| entry.order() < found.order()) => {
                    if self.check_entry(entry, findings) {
                        let message = format_args!("inode {} has no reference to this name", entry.target);
                        findings.add(FindingKind::InodeRefMissing, self.entry_place(entry), message);
                        self.mend_entry(entry, findings);
                    }
                    entries.next();
                }
                _ => {
                    let Some(found) = refs.next() else { return };
                    self.report_ref(found, findings);
                }
            }
        }
    }

    /// Proposes a reference for an entry that has none; or to drop the entry if another inode has a
    /// reference to this name, or the entry's inode is a directory, which has one name only.
    fn mend_entry(&self, entry: &Entry, findings: &mut Findings) {
        let Some(index) = entry_key(entry) else { return };
        if self.has_misspelt_ref(entry) {
            // The entries by name and by index agree on the name.
            return findings.mend(Remedy::AddInodeRef { tree: self.tree, index });
        }
        let same = |found: &NameRef| found.directory == entry.directory && found.name == entry.name;
        let taken = self.refs.iter().any(|found| found.inode != entry.target && same(found));
        let is_directory =
            |number| self.inode(number).is_some_and(|inode| inode.kind == Some(FileKind::Directory));
        // A reference to a directory that does not exist is no name.
        let named =
            self.refs.iter().any(|found| found.inode == entry.target && is_directory(found.directory));
        findings.mend(match taken || (is_directory(entry.target) && named) {
            true => Remedy::DropEntries { tree: self.tree, index, target: entry.target },
            false => Remedy::AddInodeRef { tree: self.tree, index },
        });
    }

    /// Whether the inode of an entry has a reference with the entry's index and another name.
    fn has_misspelt_ref(&self, entry: &Entry) -> bool {
        let first = self.refs.partition_point(|found| found.inode < entry.target);
        let own = self.refs[first..].iter().take_while(|found| found.inode == entry.target);
        own.filter(|found| found.directory == entry.directory)
            .filter(|found| found.index == entry.index && found.name != entry.name)
            // Where an entry by name has that name, the entry by index is wrong.
            .any(|found| self.entries.binary_search_by_key(&found.order(), Entry::order).is_err())
    }

    /// Whether a directory has an entry of the reference's inode and index, with another name.
    fn is_misspelt(&self, found: &NameRef) -> bool {
        let first = self.entries.partition_point(|entry| entry.target < found.inode);
        let own = self.entries[first..].iter().take_while(|entry| entry.target == found.inode);
        own.filter(|entry| entry.directory == found.directory)
            .any(|entry| entry.index == found.index && entry.name != found.name)
    }

    fn report_ref(&self, found: &NameRef, findings: &mut Findings) {
        let NameRef { inode, directory, name, index } = *found;
        // The root directory has a reference to itself, `..`, without an entry.
        let root = self.root_directory;
        if inode == root && directory == root && name == hash_name(b"..") {
            return;
        }
        let place = Place::inode(self.tree, inode);
        let message = format_args!("directory {directory} has no entry for it with index {index}");
        findings.add(FindingKind::DirEntryMissing, place, message);
        let is_directory =
            |number: u64| self.inode(number).is_some_and(|inode| inode.kind == Some(FileKind::Directory));
        if self.inode(inode).is_none() || self.unnumbered.contains(&directory) {
            // The next check decides, when the inode items are there.
            return;
        }
        if self.is_misspelt(found) {
            // The remedy of the entry writes it anew.
            return;
        }
        if is_directory(directory) {
            return findings.mend(Remedy::AddEntries { tree: self.tree, inode, directory, index });
        }
        let first = self.refs.partition_point(|other| other.inode < inode);
        let mut own = self.refs[first..].iter().take_while(|other| other.inode == inode);
        let has_other = own.any(|other| is_directory(other.directory)) || self.has_entry(inode);
        findings.mend(match has_other {
            true => Remedy::DropInodeRef { tree: self.tree, inode, directory, index },
            false => Remedy::LostAndFound { tree: self.tree, inode },
        });
    }

    fn entry_place(&self, entry: &Entry) -> Place {
        let key = Key::new(entry.directory, ItemType::DIR_INDEX, entry.index);
        Place { key: (entry.index != ANY_INDEX).then_some(key), ..Place::inode(self.tree, entry.directory) }
    }

    /// Returns whether the inode of an entry exists, and compares its kind with that of the entry.
    fn check_entry(&self, entry: &Entry, findings: &mut Findings) -> bool {
        let Some(inode) = self.inode(entry.target) else {
            let message = format_args!("an entry of inode {}, which does not exist", entry.target);
            findings.add(FindingKind::DirEntryDangling, self.entry_place(entry), message);
            if let Some(index) = entry_key(entry).filter(|_| !self.unnumbered.contains(&entry.target)) {
                findings.mend(Remedy::DropEntries { tree: self.tree, index, target: entry.target });
            }
            return false;
        };
        if entry.file_type.kind() != inode.kind {
            let (listed, actual) = (entry.file_type, inode.kind);
            let message = format_args!("inode {} is {actual:?}, the entry says {listed:?}", entry.target);
            findings.add(FindingKind::DirEntryType, self.entry_place(entry), message);
            if let Some(index) = entry_key(entry) {
                findings.mend(Remedy::EntryType { tree: self.tree, index });
            }
        }
        true
    }

    /// Whether a directory has an entry of an inode.
    fn has_entry(&self, inode: u64) -> bool {
        let first = self.entries.partition_point(|entry| entry.target < inode);
        self.entries.get(first).is_some_and(|entry| entry.target == inode)
    }

    fn check_link_counts(&self, findings: &mut Findings) {
        let mut refs = &self.refs[..];
        for inode in &self.inodes {
            let number = inode.number;
            let skip = refs.partition_point(|found| found.inode < number);
            refs = &refs[skip..];
            let count = refs.partition_point(|found| found.inode == number) as u64;
            let place = || Place::inode(self.tree, number);
            let nlink = inode.nlink;
            if u64::from(nlink) != count {
                let message = format_args!("its link count is {nlink}, it has {count} names");
                findings.add(FindingKind::LinkCount, place(), message);
                if let (Ok(links), true) = (u32::try_from(count), count > 0) {
                    let (tree, field) = (self.tree, InodeField::Links(links));
                    findings.mend(Remedy::Inode { tree, inode: number, field });
                } else if count == 0 && !self.has_entry(number) {
                    findings.mend(Remedy::LostAndFound { tree: self.tree, inode: number });
                }
            } else if nlink == 0 && self.orphans.binary_search(&number).is_err() {
                let message = format_args!("it has no name and is not listed as an orphan");
                findings.add(FindingKind::OrphanMissing, place(), message);
                // Nothing says that it was to be deleted.
                if !self.has_entry(number) {
                    findings.mend(Remedy::LostAndFound { tree: self.tree, inode: number });
                }
            }
        }
    }

    /// Finds directories that contain themselves, and so cannot be reached from the root.
    fn find_cycles(&self, findings: &mut Findings) {
        const UNKNOWN: u32 = 0;
        const DONE: u32 = u32::MAX;
        let mut state = vec![UNKNOWN; self.inodes.len()];
        let mut path = Vec::new();
        for (round, inode) in self.inodes.iter().enumerate() {
            // A number for this climb, to tell its directories from those of earlier climbs.
            let round = (round as u32).wrapping_add(1).clamp(1, DONE - 1);
            let mut number = inode.number;
            if inode.kind != Some(FileKind::Directory) {
                continue;
            }
            path.clear();
            while number != self.root_directory
                && let Ok(index) = self.inodes.binary_search_by_key(&number, |inode| inode.number)
            {
                if state[index] == DONE {
                    break;
                }
                if state[index] == round {
                    let place = Place::inode(self.tree, number);
                    let message = format_args!("the directory is inside itself");
                    findings.add(FindingKind::DirectoryUnreachable, place, message);
                    break;
                }
                state[index] = round;
                path.push(index);
                let first = self.entries.partition_point(|entry| entry.target < number);
                match self.entries.get(first) {
                    Some(entry) if entry.target == number => number = entry.directory,
                    _ => break,
                }
            }
            path.iter().for_each(|index| state[*index] = DONE);
        }
    }
}
