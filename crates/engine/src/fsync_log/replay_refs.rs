//! The references of logged inodes to their names.
//!
//! Part of [`Replay`]. A logged item of references replaces the subvolume's. New names in it are
//! linked, after anything else with the same name or index in the directory is unlinked. Names that
//! it no longer has are unlinked. References to missing directories are skipped; the recount of
//! links handles the rest.
//!
//! Locks: none of its own.
//!
//! Kernel counterparts: `add_inode_ref`, `__add_inode_ref`, `unlink_old_inode_refs`
//! (`fs/btrfs/tree-log.c`).

use super::replay::Replay;
use super::replay_entries::{file_type, has_extref};
use crate::btree::{Item, Tree};
use crate::errors::Result;
use crate::items::inode_ref_edit::inode_ref_key;
use crate::items::item_error;
use papilio_format::items::dir_item::is_file_name;
use papilio_format::items::inode::inode_key;
use papilio_format::items::inode_ref::{InodeExtref, InodeExtrefs, InodeRef, InodeRefs};
use papilio_format::{Corrupt, InodeNumber, ItemType, Key};

/// One name in an item of references.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NameReference {
    parent: InodeNumber,
    index: u64,
    name: Vec<u8>,
}

impl NameReference {
    fn is_of(&self, parent: InodeNumber, name: &[u8]) -> bool {
        self.parent == parent && self.name == name
    }
}

/// Parses an item of references, plain or extended.
fn references(tree: &Tree, item: &Item) -> Result<Vec<NameReference>> {
    let fault = |reason| item_error(tree, item, reason);
    if item.key.item_type == ItemType::INODE_REF {
        let parent = InodeNumber(item.key.offset);
        let refs = InodeRefs::parse(item.data()).map_err(fault)?;
        return Ok(refs
            .map(|entry| NameReference { parent, index: entry.index, name: entry.name.to_vec() })
            .collect());
    }
    let refs = InodeExtrefs::parse(item.data()).map_err(fault)?;
    let whole = |entry: InodeExtref<'_>| NameReference {
        parent: entry.parent,
        index: entry.index,
        name: entry.name.to_vec(),
    };
    Ok(refs.map(whole).collect())
}

/// Encodes names as an item of references.
fn encode(item_type: ItemType, references: &[NameReference]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for NameReference { parent, index, name } in references {
        if item_type == ItemType::INODE_REF {
            InodeRef { index: *index, name }.append_to(&mut bytes);
        } else {
            InodeExtref { parent: *parent, index: *index, name }.append_to(&mut bytes);
        }
    }
    bytes
}

impl Replay<'_> {
    /// Replays a logged item of references into the subvolume.
    pub(super) fn replay_refs(&mut self, item: &Item) -> Result<()> {
        let number = InodeNumber(item.key.objectid);
        let mut logged = references(&self.log, item)?;
        let inode = self.inode_of(&item.key)?;
        // A subvolume's root directory has a reference to itself, which is in no directory.
        if item.key == inode_ref_key(number, number) {
            return Ok(());
        }
        if let Some(bad) = logged.iter().find(|reference| !is_file_name(&reference.name)) {
            let value = bad.name.len() as u64;
            let reason = Corrupt::field("inode reference", "name_length", value, "not a valid file name");
            return Err(item_error(&self.log, item, reason));
        }
        let mut present = Vec::with_capacity(logged.len());
        for reference in logged.drain(..) {
            if self.inode(reference.parent)?.is_some() {
                present.push(reference);
            }
        }
        if present.is_empty() {
            return Ok(());
        }
        let file_type = file_type(&inode, &item.key)?;
        for reference in &present {
            if self.is_linked(number, reference)? {
                continue;
            }
            self.unlink_conflicts(number, reference)?;
            let NameReference { parent, index, name } = reference;
            self.link(*parent, number, *index, name, file_type, false)?;
        }
        self.unlink_others(number, &item.key, &present)?;
        self.put(item.key, &encode(item.key.item_type, &present))
    }

    /// Whether the directory has the name, under that index, for this inode.
    fn is_linked(&self, inode: InodeNumber, reference: &NameReference) -> Result<bool> {
        let by_index = self.entry_by_index(reference.parent, reference.index)?;
        if by_index.is_none_or(|found| found.name != reference.name || found.location != inode_key(inode)) {
            return Ok(false);
        }
        let by_name = self.entry_by_name(reference.parent, &reference.name)?;
        Ok(by_name.is_some_and(|found| found.location == inode_key(inode)))
    }

    /// Unlinks everything that conflicts with a name: other names that the inode had in the
    /// directory, and the present owners of its index and its name.
    fn unlink_conflicts(&mut self, inode: InodeNumber, reference: &NameReference) -> Result<()> {
        let directory = reference.parent;
        let key = inode_ref_key(inode, directory);
        let logged = match self.log.get(&key)? {
            Some(item) => references(&self.log, &item)?,
            None => Vec::new(),
        };
        for old in self.references_at(&key)? {
            if !logged.iter().any(|kept| kept.name == old.name) {
                self.unlink(directory, inode, &old.name)?;
            }
        }
        let key = InodeExtref { parent: directory, index: 0, name: &reference.name }.key(inode);
        for old in self.references_at(&key)? {
            if old.parent == directory && !has_extref(&self.log, inode, directory, &old.name)? {
                self.unlink(directory, inode, &old.name)?;
            }
        }
        if let Some(other) = self.entry_by_index(directory, reference.index)? {
            self.drop_entry(directory, &other)?;
        }
        if let Some(other) = self.entry_by_name(directory, &reference.name)? {
            self.drop_entry(directory, &other)?;
        }
        Ok(())
    }

    /// Unlinks the names in one of the subvolume's items that are not among `kept`, which replaces
    /// it.
    fn unlink_others(&mut self, inode: InodeNumber, key: &Key, kept: &[NameReference]) -> Result<()> {
        for old in self.references_at(key)? {
            if !kept.iter().any(|kept| kept.is_of(old.parent, &old.name)) {
                self.unlink(old.parent, inode, &old.name)?;
            }
        }
        Ok(())
    }

    fn references_at(&self, key: &Key) -> Result<Vec<NameReference>> {
        let tree = self.live.tree();
        match tree.get(key)? {
            Some(item) => references(&tree, &item),
            None => Ok(Vec::new()),
        }
    }
}
