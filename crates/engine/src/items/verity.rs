//! The items that hold a file's fs-verity descriptor and its Merkle tree.
//!
//! Owns [`read_bytes`], [`descriptor`], and the changes that write and remove such items. A stream
//! of bytes lies in items of up to [`PIECE`] bytes each, whose keys have the offsets.
//!
//! Locks: none. Kernel counterparts: `read_key_bytes`, `write_key_bytes`, `drop_verity_items`
//! (`fs/btrfs/verity.c`).

use crate::btree::{Change, Cursor, Tree, TreeEditor};
use crate::errors::{Error, Result};
use crate::items::item_error;
use papilio_format::items::fsverity_descriptor::{FsverityDescriptor, MAX_DESCRIPTOR};
use papilio_format::items::verity::VerityDescriptorItem;
use papilio_format::{Corrupt, InodeNumber, ItemType, Key};

/// Most bytes of one item, as the kernel cuts them.
pub(crate) const PIECE: usize = 2048;

/// The offset in keys at which the descriptor's bytes begin.
const DESCRIPTOR_START: u64 = 1;

/// Reads the bytes of a stream from `offset` on, and returns their number: fewer than fit only
/// where an item is missing or the stream ends.
///
/// # Errors
/// A tree block that cannot be read.
pub(crate) fn read_bytes(
    tree: &Tree,
    inode: InodeNumber,
    item_type: ItemType,
    offset: u64,
    buffer: &mut [u8],
) -> Result<usize> {
    let mut cursor = Cursor::new(tree);
    let is_part = |key: Key| (key.objectid, key.item_type) == (inode.0, item_type);
    let first = Key::new(inode.0, item_type, offset);
    cursor.seek(&first)?;
    if cursor.key() != Some(first) {
        cursor.step_back()?;
    }
    let mut done = 0;
    while done < buffer.len() {
        let at = offset + done as u64;
        let (Some(key), Some(data)) = (cursor.key().filter(|key| is_part(*key)), cursor.data()) else {
            break;
        };
        // An item that begins later leaves a gap.
        let Some(skip) = at.checked_sub(key.offset) else { break };
        let Some(bytes) = usize::try_from(skip).ok().and_then(|skip| data.get(skip..)) else { break };
        let length = bytes.len().min(buffer.len() - done);
        if length == 0 {
            break;
        }
        buffer[done..][..length].copy_from_slice(&bytes[..length]);
        done += length;
        cursor.step()?;
    }
    Ok(done)
}

/// Returns the descriptor of a file of `file_size` bytes, and the signature behind it.
///
/// # Errors
/// [`Error::MissingItem`], [`Error::Item`], a tree block that cannot be read.
pub(crate) fn descriptor(
    tree: &Tree,
    inode: InodeNumber,
    file_size: u64,
) -> Result<(FsverityDescriptor, Vec<u8>)> {
    let key = Key::new(inode.0, ItemType::VERITY_DESC_ITEM, 0);
    let item = tree.get(&key)?.ok_or_else(|| Error::MissingItem {
        tree: tree.id(),
        key,
        what: "the file has the flag of fs-verity, but no descriptor",
    })?;
    let fault = |reason| item_error(tree, &item, reason);
    let size = VerityDescriptorItem::parse(item.data()).map_err(fault)?.size;
    let wrong = |why| fault(Corrupt::field("verity descriptor", "size", size, why));
    if !(FsverityDescriptor::SIZE as u64..=MAX_DESCRIPTOR).contains(&size) {
        return Err(wrong("not that of a descriptor"));
    }
    let mut bytes = vec![0; size as usize];
    if read_bytes(tree, inode, ItemType::VERITY_DESC_ITEM, DESCRIPTOR_START, &mut bytes)? < bytes.len() {
        return Err(wrong("larger than the stored descriptor"));
    }
    let (descriptor, behind) = FsverityDescriptor::parse_prefix(&bytes).map_err(fault)?;
    descriptor.validate(file_size, size).map_err(fault)?;
    Ok((descriptor, behind[..descriptor.sig_size as usize].to_vec()))
}

/// Returns the changes that write the descriptor and `signature`.
pub(crate) fn put_descriptor(
    inode: InodeNumber,
    descriptor: &FsverityDescriptor,
    signature: &[u8],
) -> Vec<(Key, Vec<u8>)> {
    let bytes = [&descriptor.to_bytes()[..], signature].concat();
    let item = VerityDescriptorItem { size: bytes.len() as u64, reserved: [0; 2], encryption: 0 };
    let mut items = vec![(Key::new(inode.0, ItemType::VERITY_DESC_ITEM, 0), item.to_bytes().to_vec())];
    items.extend(pieces(inode, ItemType::VERITY_DESC_ITEM, DESCRIPTOR_START, &bytes));
    items
}

/// Returns the items of `bytes`, which begin at `offset` of their stream.
pub(crate) fn pieces(
    inode: InodeNumber,
    item_type: ItemType,
    offset: u64,
    bytes: &[u8],
) -> impl Iterator<Item = (Key, Vec<u8>)> {
    bytes.chunks(PIECE).enumerate().map(move |(number, piece)| {
        (Key::new(inode.0, item_type, offset + (number * PIECE) as u64), piece.to_vec())
    })
}

/// Removes up to `most` items of the descriptor and the Merkle tree of a file. Returns whether some
/// are left.
///
/// # Errors
/// Errors of reading and changing the tree.
pub(crate) fn remove(editor: &mut TreeEditor<'_>, inode: InodeNumber, most: usize) -> Result<bool> {
    let first = Key::new(inode.0, ItemType::VERITY_DESC_ITEM, 0);
    let last = Key::new(inode.0, ItemType::VERITY_MERKLE_ITEM, u64::MAX);
    let tree = editor.tree();
    let keys: Vec<Key> =
        tree.range(first..=last).take(most + 1).map(|item| Ok(item?.key)).collect::<Result<_>>()?;
    drop(tree);
    let changes: Vec<Change> = keys.iter().take(most).map(|&key| Change::Remove { key }).collect();
    if !changes.is_empty() {
        editor.apply(&changes)?;
    }
    Ok(keys.len() > most)
}
