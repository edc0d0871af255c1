//! Tree blocks without the content of files.
//!
//! Owns [`clean`].
//!
//! **Invariant**: no item changes its size or key, and the checksum fits.

use super::names::NameReplacements;
use papilio_format::checksum::CHECKSUM_SIZE;
use papilio_format::items::dir_item::DirItemHeader;
use papilio_format::items::file_extent::FileExtentItem;
use papilio_format::items::inode_ref::{InodeExtrefHeader, InodeRefHeader};
use papilio_format::items::root_ref::RootRefHeader;
use papilio_format::node::{ItemHeader, KeyPointer, NodeHeader};
use papilio_format::{ChecksumType, ItemType, Node, TreeId, objectid};
use std::ops::Range;

/// The byte of a file extent that tells its type; 0 is inline.
const EXTENT_TYPE: usize = 20;

/// Removes from a block that was checked all bytes that belong to no item; without `keeps_data`
/// also inline data and checksums of data; and the names and values that `names` replaces.
pub(super) fn clean(bytes: &mut [u8], keeps_data: bool, names: &NameReplacements, checksum: ChecksumType) {
    let node = Node::of_checked(bytes);
    let (leaf, owner, count) = (node.is_leaf(), node.header().owner, node.len());
    let entry = if leaf { ItemHeader::SIZE } else { KeyPointer::SIZE };
    let unused = NodeHeader::SIZE + count * entry;
    let unused = unused..unused + node.free_space();
    let items: Vec<_> = if leaf {
        let item = |slot| {
            let header = node.item_header(slot);
            let start = NodeHeader::SIZE + header.offset as usize;
            (header.key.item_type, start..start + header.size as usize)
        };
        (0..count).map(item).collect()
    } else {
        Vec::new()
    };
    bytes[unused].fill(0);
    for (item_type, range) in items {
        let item = &mut bytes[range];
        if !keeps_data {
            remove_data(item_type, item);
        }
        if names.replaces() {
            replace_names(owner, item_type, item, names);
        }
    }
    let sum = checksum.compute(&bytes[CHECKSUM_SIZE..]);
    bytes[..CHECKSUM_SIZE].copy_from_slice(sum.padded());
}

fn remove_data(item_type: ItemType, item: &mut [u8]) {
    match item_type {
        ItemType::EXTENT_CSUM => item.fill(0),
        ItemType::EXTENT_DATA if item.get(EXTENT_TYPE) == Some(&0) => {
            item[FileExtentItem::INLINE_DATA_START..].fill(0);
        }
        _ => {}
    }
}

fn replace_names(owner: TreeId, item_type: ItemType, item: &mut [u8], names: &NameReplacements) {
    match item_type {
        // The root tree has the name of the default subvolume's entry alone.
        ItemType::DIR_ITEM | ItemType::DIR_INDEX if owner == objectid::ROOT_TREE => {}
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
            let values = item_type == ItemType::XATTR_ITEM;
            for_each_entry(
                item,
                |bytes| {
                    let header = DirItemHeader::parse_prefix(bytes).ok()?.0;
                    Some((DirItemHeader::SIZE, header.name_length.into(), header.data_length.into()))
                },
                |name, value| match values {
                    true => value.fill(0),
                    false => names.replace(name),
                },
            );
        }
        ItemType::INODE_REF => for_each_entry(
            item,
            |bytes| {
                let header = InodeRefHeader::parse_prefix(bytes).ok()?.0;
                Some((InodeRefHeader::SIZE, header.name_length.into(), 0))
            },
            |name, _| names.replace(name),
        ),
        ItemType::INODE_EXTREF => for_each_entry(
            item,
            |bytes| {
                let header = InodeExtrefHeader::parse_prefix(bytes).ok()?.0;
                Some((InodeExtrefHeader::SIZE, header.name_length.into(), 0))
            },
            |name, _| names.replace(name),
        ),
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => for_each_entry(
            item,
            |bytes| {
                let header = RootRefHeader::parse_prefix(bytes).ok()?.0;
                Some((RootRefHeader::SIZE, header.name_length.into(), 0))
            },
            |name, _| names.replace(name),
        ),
        _ => {}
    }
}

/// Sizes of an entry's header, name and value in bytes.
type Sizes = (usize, usize, usize);

/// Calls `each` with the name and the value of each entry of an item.
fn for_each_entry(
    item: &mut [u8],
    sizes: impl Fn(&[u8]) -> Option<Sizes>,
    mut each: impl FnMut(&mut [u8], &mut [u8]),
) {
    let mut rest = item;
    while let Some((header, name, value)) = sizes(rest) {
        let Some((entry, after)) = std::mem::take(&mut rest).split_at_mut_checked(header + name + value)
        else {
            return;
        };
        let name: Range<usize> = header..header + name;
        let (before, value) = entry.split_at_mut(name.end);
        each(&mut before[name], value);
        rest = after;
    }
}
