//! Changes of an inode's references to its names.
//!
//! The INODE_REF for a directory holds all of the inode's names there, until it fills a leaf.
//! Further names go into the INODE_EXTREF of their hash.
//!
//! **Invariant**: each name of an inode is in exactly one of these items.
//!
//! Kernel counterparts: `btrfs_insert_inode_ref`, `btrfs_insert_inode_extref`,
//! `btrfs_del_inode_ref` (`fs/btrfs/inode-item.c`).

use crate::errors::{Error, PathError, Result};
use crate::items::draft::Draft;
use crate::items::packed_edit::{place_of, with, without};
use papilio_format::features::IncompatFeatures;
use papilio_format::items::inode_ref::{InodeExtref, InodeExtrefs, InodeRef, InodeRefs};
use papilio_format::{InodeNumber, ItemType, Key};

/// A name and the directory that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a> {
    /// The directory.
    pub parent: InodeNumber,
    /// The name in it.
    pub name: &'a [u8],
}

impl Name<'_> {
    fn extref_key(&self, inode: InodeNumber) -> Key {
        InodeExtref { parent: self.parent, index: 0, name: self.name }.key(inode)
    }
}

/// The key of the INODE_REF for the names in one directory.
pub(crate) fn inode_ref_key(inode: InodeNumber, parent: InodeNumber) -> Key {
    Key::new(inode.0, ItemType::INODE_REF, parent.0)
}

/// Adds the first name of an inode that is being created.
pub(crate) fn insert_first(draft: &mut Draft<'_>, inode: InodeNumber, name: &Name<'_>, index: u64) {
    let reference = InodeRef { index, name: name.name };
    draft.insert(inode_ref_key(inode, name.parent), reference.to_bytes());
}

/// Adds a name. The caller has checked that the directory does not have it.
///
/// # Errors
/// [`PathError::TooManyLinks`] if the item is full and extended references are off, or if the names
/// of one hash would exceed a leaf; errors of reading.
pub(crate) fn insert(draft: &mut Draft<'_>, inode: InodeNumber, name: &Name<'_>, index: u64) -> Result<()> {
    let key = inode_ref_key(inode, name.parent);
    let reference = InodeRef { index, name: name.name };
    let limit = draft.max_item_size();
    let Some(data) = draft.get(&key)? else {
        draft.insert(key, reference.to_bytes());
        return Ok(());
    };
    if data.len() + reference.size_on_disk() <= limit {
        let data = with(data, reference.size_on_disk(), |bytes| reference.append_to(bytes));
        draft.replace(key, data);
        return Ok(());
    }
    if !draft.has(IncompatFeatures::EXTENDED_IREF) {
        return Err(Error::path(name.name, PathError::TooManyLinks));
    }
    insert_extended(draft, inode, name, index)
}

fn insert_extended(draft: &mut Draft<'_>, inode: InodeNumber, name: &Name<'_>, index: u64) -> Result<()> {
    let reference = InodeExtref { parent: name.parent, index, name: name.name };
    let key = reference.key(inode);
    let limit = draft.max_item_size();
    match draft.get(&key)? {
        None => draft.insert(key, reference.to_bytes()),
        Some(data) if data.len() + reference.size_on_disk() > limit => {
            return Err(Error::path(name.name, PathError::TooManyLinks));
        }
        Some(data) => {
            let data = with(data, reference.size_on_disk(), |bytes| reference.append_to(bytes));
            draft.replace(key, data);
        }
    }
    Ok(())
}

/// Removes a name and returns its index in the directory.
///
/// # Errors
/// [`Error::MissingItem`] if the inode has no reference to the name; errors of reading.
pub(crate) fn remove(draft: &mut Draft<'_>, inode: InodeNumber, name: &Name<'_>) -> Result<u64> {
    let key = inode_ref_key(inode, name.parent);
    let found = match draft.get(&key)? {
        None => Ok(None),
        Some(data) => InodeRefs::parse(data).map(|entries| {
            let (place, entry) = place_of(entries, InodeRef::size_on_disk, |entry| entry.name == name.name)?;
            Some((entry.index, without(data, &place)))
        }),
    };
    if let Some((index, rest)) = found.map_err(|reason| draft.fault(key, reason))? {
        put_rest(draft, key, rest);
        return Ok(index);
    }
    let key = name.extref_key(inode);
    let found = match draft.get(&key)? {
        None => Ok(None),
        Some(data) => InodeExtrefs::parse(data).map(|entries| {
            let wanted = |entry: &InodeExtref<'_>| entry.parent == name.parent && entry.name == name.name;
            let (place, entry) = place_of(entries, InodeExtref::size_on_disk, wanted)?;
            Some((entry.index, without(data, &place)))
        }),
    };
    let Some((index, rest)) = found.map_err(|reason| draft.fault(key, reason))? else {
        return Err(draft.missing(inode_ref_key(inode, name.parent), "the inode's reference to its name"));
    };
    put_rest(draft, key, rest);
    Ok(index)
}

fn put_rest(draft: &mut Draft<'_>, key: Key, rest: Option<Vec<u8>>) {
    match rest {
        Some(rest) => draft.replace(key, rest),
        None => draft.remove(key),
    }
}

/// Returns the parent of a directory, by the directory's one reference; `None` if it has none.
///
/// # Errors
/// A tree block that cannot be read.
pub(crate) fn parent(draft: &mut Draft<'_>, directory: InodeNumber) -> Result<Option<InodeNumber>> {
    let first = inode_ref_key(directory, InodeNumber(0));
    let next = draft.next_key(&first)?;
    let found = next.filter(|key| (key.objectid, key.item_type) == (directory.0, ItemType::INODE_REF));
    Ok(found.map(|key| InodeNumber(key.offset)))
}
