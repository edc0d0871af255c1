//! Extended attributes of an inode. ACLs are attributes too, in the format of the kernel's
//! attributes `system.posix_acl_access` and `system.posix_acl_default`.
//!
//! Kernel counterpart: `fs/btrfs/xattr.c`.

use crate::btree::Tree;
use crate::errors::Result;
use crate::items::dir::entries_of;
use papilio_format::checksum::name_hash;
use papilio_format::{InodeNumber, ItemType, Key};

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Xattr {
    /// Its name with the namespace, such as `user.comment`.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

/// Returns the value of attribute `name`.
///
/// # Errors
/// A tree block that cannot be read.
pub fn get(tree: &Tree, inode: InodeNumber, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let key = Key::new(inode.0, ItemType::XATTR_ITEM, name_hash(name));
    let Some(item) = tree.get(&key)? else { return Ok(None) };
    let mut entries = entries_of(tree, &item)?;
    Ok(entries.find(|entry| entry.name == name).map(|entry| entry.data.to_vec()))
}

/// Returns all attributes, ordered by the hashes of their names.
///
/// # Errors
/// A tree block that cannot be read.
pub fn list(tree: &Tree, inode: InodeNumber) -> Result<Vec<Xattr>> {
    let first = Key::new(inode.0, ItemType::XATTR_ITEM, 0);
    let last = Key::new(inode.0, ItemType::XATTR_ITEM, u64::MAX);
    let mut attributes = Vec::new();
    for item in tree.range(first..=last) {
        let item = item?;
        for entry in entries_of(tree, &item)? {
            attributes.push(Xattr { name: entry.name.to_vec(), value: entry.data.to_vec() });
        }
    }
    Ok(attributes)
}
