//! The files for which a log of fsyncs that was not replayed has newer content.
//!
//! Owns [`older_files`], which reads a log and the last commit, and compares them.
//!
//! **Invariants**
//! - Nothing is an error: the walk goes on around each block and item that cannot be read, and
//!   lists the gap.
//! - Checksums of the log's blocks are ignored. A name from a damaged block is better than none,
//!   and nothing but names is taken from there.
//!
//! Locks: none.
//!
//! Kernel counterpart: none; the order of the items is that of `btrfs_recover_log_trees`
//! (`fs/btrfs/tree-log.c`).

use crate::btree::{Cursor, Forest, RescueParts, RootPointer, Tree};
use crate::errors::Error;
use crate::items::dir;
use crate::items::inode::{first_name, inode};
use crate::items::trees::Trees;
use crate::options::older::{OlderFile, OlderPart, UnreplayedLog};
use crate::subvolume;
use crate::volume::Volume;
use papilio_format::items::dir_item::DirEntries;
use papilio_format::items::dir_log::DirLogItem;
use papilio_format::items::inode::{FileKind, InodeItem};
use papilio_format::items::inode_ref::{InodeExtrefs, InodeRefs};
use papilio_format::items::root::RootItem;
use papilio_format::{Generation, InodeNumber, ItemType, Key, TreeId, objectid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most names in a path. A longer path means a loop.
const DEPTH_LIMIT: usize = 4096;
/// Bytes of the cache of tree blocks.
const CACHE_BYTES: usize = 16 << 20;

/// Lists what `log` has and `trees`, which show the state before it, do not, by path.
pub fn older_files(trees: &Trees, log: UnreplayedLog) -> Vec<OlderFile> {
    let volume: &Arc<Volume> = trees.forest().volume();
    let forest = Forest::for_rescue(
        Arc::clone(volume),
        CACHE_BYTES,
        RescueParts { ignore_csums: true, ..RescueParts::default() },
    );
    let generation = Some(Generation(log.committed.0.saturating_add(1)));
    let root = RootPointer { address: log.address, level: log.level, generation };
    let root = forest.tree(objectid::TREE_LOG, root);
    let mut files = Vec::new();
    let mut logs = BTreeMap::new();
    let mut lost = Vec::new();
    for_each_item(
        &root,
        |key, data| {
            if (key.objectid, key.item_type) != (objectid::TREE_LOG.0, ItemType::ROOT_ITEM) {
                return Ok(());
            }
            let fault = |reason| Error::Item { tree: objectid::TREE_LOG, key, reason };
            let found = RootItem::parse(data).map_err(fault)?;
            let pointer = RootPointer {
                address: found.address,
                level: found.level,
                generation: Some(found.generation),
            };
            logs.insert(TreeId(key.offset), forest.tree(objectid::TREE_LOG, pointer));
            Ok(())
        },
        &mut lost,
    );
    files.extend(lost.into_iter().map(|error| gap(None, Vec::new(), &error)));
    let paths: BTreeMap<TreeId, Option<Vec<u8>>> = match subvolume::list(trees) {
        Ok(all) => all.into_iter().map(|found| (found.id, found.path)).collect(),
        Err(_) => BTreeMap::from([(objectid::FS_TREE, Some(Vec::new()))]),
    };
    for (id, tree) in &logs {
        let prefix = paths.get(id).cloned().flatten();
        let prefix = prefix.unwrap_or_else(|| format!("subvolume {id}").into_bytes());
        let committed = trees.find(*id).ok().flatten();
        if committed.as_ref().is_some_and(|open| open.item().refs == 0) {
            // It was deleted, so a replay leaves its log out.
            continue;
        }
        let committed = committed.as_ref().map(|open| &open.tree);
        Comparison::read(*id, prefix, tree, committed).list(&mut files);
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn gap(subvolume: Option<TreeId>, path: Vec<u8>, error: &Error) -> OlderFile {
    OlderFile { subvolume, inode: None, path, part: OlderPart::Unknown { reason: error.to_string() } }
}

/// Calls `take` with each item of a tree that can be read. Adds the faults to `lost`: those of
/// blocks, and those that `take` returns.
fn for_each_item(tree: &Tree, mut take: impl FnMut(Key, &[u8]) -> Result<(), Error>, lost: &mut Vec<Error>) {
    let mut cursor = Cursor::new(tree);
    let mut from = Key::MIN;
    let mut moved = cursor.seek(&from);
    loop {
        if let Err(error) = moved {
            lost.push(error);
            match cursor.behind_fault().filter(|key| *key > from) {
                Some(key) => from = key,
                None => return,
            }
            moved = cursor.seek(&from);
            continue;
        }
        let (Some(key), Some(data)) = (cursor.key(), cursor.data()) else { return };
        from = key;
        lost.extend(take(key, data).err());
        moved = cursor.step();
    }
}

/// The logged state of one inode, as far as names and times tell.
#[derive(Default)]
struct LoggedState {
    item: Option<InodeItem>,
    /// Directory and name.
    names: Vec<(InodeNumber, Vec<u8>)>,
    /// The entries of a directory: index and name.
    entries: BTreeSet<(u64, Vec<u8>)>,
    /// The ranges of indexes of which the log has all entries.
    ranges: Vec<(u64, u64)>,
}

/// The log of one subvolume beside its last commit.
struct Comparison<'a> {
    id: TreeId,
    /// The path of the subvolume from the top level.
    prefix: Vec<u8>,
    committed: Option<&'a Tree>,
    inodes: BTreeMap<InodeNumber, LoggedState>,
    lost: Vec<Error>,
}

impl<'a> Comparison<'a> {
    fn read(id: TreeId, prefix: Vec<u8>, log: &Tree, committed: Option<&'a Tree>) -> Self {
        let mut inodes: BTreeMap<InodeNumber, LoggedState> = BTreeMap::new();
        let mut lost = Vec::new();
        let take = |key: Key, data: &[u8]| {
            let fault = |reason| Error::Item { tree: objectid::TREE_LOG, key, reason };
            let logged = inodes.entry(InodeNumber(key.objectid));
            match key.item_type {
                ItemType::INODE_ITEM => {
                    logged.or_default().item = Some(InodeItem::parse(data).map_err(fault)?);
                }
                ItemType::INODE_REF => {
                    let parent = InodeNumber(key.offset);
                    let refs = InodeRefs::parse(data).map_err(fault)?;
                    logged.or_default().names.extend(refs.map(|found| (parent, found.name.to_vec())));
                }
                ItemType::INODE_EXTREF => {
                    let refs = InodeExtrefs::parse(data).map_err(fault)?;
                    logged.or_default().names.extend(refs.map(|found| (found.parent, found.name.to_vec())));
                }
                ItemType::DIR_INDEX => {
                    let entries = DirEntries::parse(data).map_err(fault)?;
                    let entries = entries.map(|entry| (key.offset, entry.name.to_vec()));
                    logged.or_default().entries.extend(entries);
                }
                ItemType::DIR_LOG_INDEX => {
                    let range = DirLogItem::parse(data).map_err(fault)?;
                    logged.or_default().ranges.push((key.offset, range.end));
                }
                _ => {}
            }
            Ok(())
        };
        for_each_item(log, take, &mut lost);
        Self { id, prefix, committed, inodes, lost }
    }

    /// Adds the files that differ.
    fn list(self, files: &mut Vec<OlderFile>) {
        for error in &self.lost {
            files.push(gap(Some(self.id), self.prefix.clone(), error));
        }
        for (&number, logged) in &self.inodes {
            // A replay skips an inode that had no name.
            let Some(item) = logged.item.filter(|item| item.nlink > 0) else { continue };
            if let Some(part) = self.part(number, &item) {
                files.push(self.file(number, self.path(number), part));
            }
            if item.kind() == Some(FileKind::Directory) {
                self.list_removed(number, logged, files);
            }
        }
    }

    fn file(&self, inode: InodeNumber, path: Vec<u8>, part: OlderPart) -> OlderFile {
        OlderFile { subvolume: Some(self.id), inode: Some(inode), path, part }
    }

    /// Returns what the log has of an inode that the last commit lacks.
    fn part(&self, number: InodeNumber, logged: &InodeItem) -> Option<OlderPart> {
        let Some(tree) = self.committed else { return Some(OlderPart::Changed) };
        let old = match inode(tree, number) {
            Ok(Some(old)) => old,
            Ok(None) => return Some(OlderPart::Missing),
            Err(_) => return Some(OlderPart::Changed),
        };
        let is_directory = logged.kind() == Some(FileKind::Directory);
        if logged.generation == Generation(0) {
            // The log only states that the inode exists, and how large a file is.
            let is_other_size = !is_directory && logged.size != 0 && logged.size != old.size;
            return is_other_size.then_some(OlderPart::Changed);
        }
        let compared = |item: &InodeItem| {
            let size = if is_directory { 0 } else { item.size };
            let owner = (item.uid, item.gid, item.mode, item.nlink, item.rdev);
            (size, owner, item.flags, item.mtime, item.ctime)
        };
        (compared(&old) != compared(logged)).then_some(OlderPart::Changed)
    }

    /// Adds the entries of a directory that the log has removed.
    fn list_removed(&self, directory: InodeNumber, logged: &LoggedState, files: &mut Vec<OlderFile>) {
        let Some(tree) = self.committed else { return };
        for &(from, to) in &logged.ranges {
            let keys = dir::index_first_key(directory, from)..=dir::index_first_key(directory, to);
            for item in tree.range(keys) {
                // The subvolume's own reader reports a block that it cannot read.
                let Ok(item) = item else { break };
                let Ok(entries) = dir::entries_of(tree, &item) else { continue };
                for entry in entries {
                    let is_kept = logged.entries.contains(&(item.key.offset, entry.name.to_vec()));
                    if is_kept || entry.location.item_type != ItemType::INODE_ITEM {
                        continue;
                    }
                    let mut path = self.path(directory);
                    append(&mut path, entry.name);
                    files.push(self.file(InodeNumber(entry.location.objectid), path, OlderPart::Removed));
                }
            }
        }
    }

    /// Returns the path of an inode from the top level, or words for it.
    fn path(&self, number: InodeNumber) -> Vec<u8> {
        let mut path = self.prefix.clone();
        match self.names_to(number) {
            Some(names) => names.iter().for_each(|name| append(&mut path, name)),
            None => append(&mut path, format!("inode {number}").as_bytes()),
        }
        path
    }

    /// Returns the names from the subvolume's root directory down to an inode: those of the log
    /// where it has any.
    fn names_to(&self, number: InodeNumber) -> Option<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let mut current = number;
        while current != objectid::FIRST_INODE {
            let logged = self.inodes.get(&current).and_then(|logged| logged.names.first().cloned());
            let (parent, name) = match logged {
                Some(found) => found,
                None => {
                    let found = first_name(self.committed?, current).ok().flatten()?;
                    (found.parent, found.name)
                }
            };
            names.push(name);
            current = parent;
            if names.len() > DEPTH_LIMIT {
                return None;
            }
        }
        names.reverse();
        Some(names)
    }
}

fn append(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend(name);
}
