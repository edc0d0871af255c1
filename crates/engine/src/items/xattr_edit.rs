//! Changes of an inode's extended attributes.
//!
//! Attributes whose names have the same hash share an item. A new value replaces the old one within
//! the item.
//!
//! Kernel counterparts: `btrfs_setxattr` (`fs/btrfs/xattr.c`), `btrfs_insert_xattr_item`
//! (`fs/btrfs/dir-item.c`).

use crate::errors::{Error, PathError, Result};
use crate::items::draft::Draft;
use crate::items::packed_edit::{place_of, without};
use papilio_format::items::dir_item::{DirEntries, DirEntry, DirItemHeader, FileType, NAME_MAX, xattr_key};
use papilio_format::{InodeNumber, Key};

/// The longest value that the kernel's system calls take, in bytes (`XATTR_SIZE_MAX`).
pub(crate) const VALUE_MAX: usize = 65536;

/// The condition on an existing attribute under which a new value is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(not(feature = "unstable"), non_exhaustive)]
pub enum XattrSet {
    /// The attribute may or may not exist.
    #[default]
    Any,
    /// The attribute must not exist (`XATTR_CREATE`).
    Create,
    /// The attribute must exist (`XATTR_REPLACE`).
    Replace,
}

/// Returns the value of attribute `name`.
///
/// # Errors
/// A tree block that cannot be read.
pub(crate) fn get(draft: &mut Draft<'_>, inode: InodeNumber, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let key = xattr_key(inode, name);
    let found = match draft.get(&key)? {
        None => Ok(None),
        Some(data) => DirEntries::parse(data)
            .map(|mut entries| entries.find(|entry| entry.name == name).map(|entry| entry.data.to_vec())),
    };
    found.map_err(|reason| draft.fault(key, reason))
}

/// Sets an attribute.
///
/// # Errors
/// - [`PathError::InvalidName`] or [`PathError::AttributeNameTooLong`]: the name is not 1 to 255
///   bytes long, or contains a NUL;
/// - [`PathError::AttributeTooLarge`]: the value has more than 65,536 bytes;
/// - [`Error::NoSpace`]: name and value, with those of the same hash, exceed a leaf;
/// - [`PathError::Exists`] or [`PathError::NoAttribute`]: the attribute is not as `how` requires;
/// - errors of reading.
pub(crate) fn set(
    draft: &mut Draft<'_>,
    inode: InodeNumber,
    name: &[u8],
    value: &[u8],
    how: XattrSet,
) -> Result<()> {
    check_name(name)?;
    if value.len() > VALUE_MAX {
        return Err(Error::path(name, PathError::AttributeTooLarge));
    }
    let limit = draft.max_item_size();
    let need = DirItemHeader::SIZE + name.len() + value.len();
    if need > limit {
        return Err(exceeds_node(name, need, limit));
    }
    let key = xattr_key(inode, name);
    // Values above 65,535 bytes exceed any leaf and were refused, so the length fits its 16 bits.
    let entry = DirEntry {
        location: Key::MIN,
        transid: draft.generation(),
        file_type: FileType::Xattr,
        encrypted: false,
        name,
        data: value,
    };
    let old = match draft.get(&key)? {
        None => Ok(None),
        Some(data) => DirEntries::parse(data).map(|entries| {
            let place = place_of(entries, DirEntry::size_on_disk, |entry| entry.name == name);
            let rest = match &place {
                Some((place, _)) => without(data, place).unwrap_or_default(),
                None => data.to_vec(),
            };
            Some((place.is_some(), rest))
        }),
    };
    let (item_there, name_there, mut data) = match old.map_err(|reason| draft.fault(key, reason))? {
        None => (false, false, Vec::new()),
        Some((name_there, rest)) => (true, name_there, rest),
    };
    match how {
        XattrSet::Create if name_there => return Err(Error::path(name, PathError::Exists)),
        XattrSet::Replace if !name_there => return Err(Error::path(name, PathError::NoAttribute)),
        _ => {}
    }
    let need = data.len() + entry.size_on_disk();
    if need > limit {
        return Err(exceeds_node(name, need, limit));
    }
    entry.append_to(&mut data);
    if item_there {
        draft.replace(key, data)
    } else {
        draft.insert(key, data)
    }
    Ok(())
}

/// Sets an attribute of an inode that is being created and has none of the same hash.
pub(crate) fn insert_first(draft: &mut Draft<'_>, inode: InodeNumber, name: &[u8], value: &[u8]) {
    let entry = DirEntry {
        location: Key::MIN,
        transid: draft.generation(),
        file_type: FileType::Xattr,
        encrypted: false,
        name,
        data: value,
    };
    draft.insert(xattr_key(inode, name), entry.to_bytes());
}

/// Removes an attribute. Returns whether it existed.
///
/// # Errors
/// A tree block that cannot be read.
pub(crate) fn remove(draft: &mut Draft<'_>, inode: InodeNumber, name: &[u8]) -> Result<bool> {
    let key = xattr_key(inode, name);
    let found = match draft.get(&key)? {
        None => Ok(None),
        Some(data) => DirEntries::parse(data).map(|entries| {
            let (place, _) = place_of(entries, DirEntry::size_on_disk, |entry| entry.name == name)?;
            Some(without(data, &place))
        }),
    };
    match found.map_err(|reason| draft.fault(key, reason))? {
        None => return Ok(false),
        Some(None) => draft.remove(key),
        Some(Some(rest)) => draft.replace(key, rest),
    }
    Ok(true)
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::path(name, PathError::AttributeNameTooLong));
    }
    if name.is_empty() || name.contains(&0) {
        return Err(Error::path(name, PathError::InvalidName));
    }
    Ok(())
}

fn exceeds_node(name: &[u8], need: usize, limit: usize) -> Error {
    Error::XattrExceedsNode { path: Vec::new(), name: name.to_vec(), need, limit }
}
