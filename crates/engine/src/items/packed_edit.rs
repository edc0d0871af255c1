//! Adding and removing single entries of items that pack entries with colliding keys.
//!
//! Kernel counterpart: `btrfs_delete_one_dir_name` (`fs/btrfs/dir-item.c`), `btrfs_del_inode_ref`
//! (`fs/btrfs/inode-item.c`), which move the bytes behind the entry down.

use std::ops::Range;

/// Finds the first entry that satisfies `wanted`, and its range of bytes in the item. `size` tells
/// the bytes of each entry.
pub(super) fn place_of<E>(
    entries: impl Iterator<Item = E>,
    size: impl Fn(&E) -> usize,
    wanted: impl Fn(&E) -> bool,
) -> Option<(Range<usize>, E)> {
    let mut start = 0;
    for entry in entries {
        let end = start + size(&entry);
        if wanted(&entry) {
            return Some((start..end, entry));
        }
        start = end;
    }
    None
}

/// Returns the item without one entry; `None` if it has no other.
pub(super) fn without(item: &[u8], entry: &Range<usize>) -> Option<Vec<u8>> {
    let rest = item.len() - entry.len();
    if rest == 0 {
        return None;
    }
    let mut bytes = Vec::with_capacity(rest);
    bytes.extend_from_slice(&item[..entry.start]);
    bytes.extend_from_slice(&item[entry.end..]);
    Some(bytes)
}

/// Returns the item with one more entry of `size` bytes at its end, encoded by `append`.
pub(super) fn with(item: &[u8], size: usize, append: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(item.len() + size);
    bytes.extend_from_slice(item);
    append(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_removed_and_appended() {
        let entries = || b"aabbbc".chunk_by(|a, b| a == b);
        let place = |wanted: u8| place_of(entries(), |e| e.len(), |e| e[0] == wanted).map(|(range, _)| range);
        assert_eq!(place(b'a'), Some(0..2));
        assert_eq!(place(b'b'), Some(2..5));
        assert_eq!(place(b'c'), Some(5..6));
        assert_eq!(place(b'd'), None);
        assert_eq!(without(b"aabbbc", &(2..5)), Some(b"aac".to_vec()));
        assert_eq!(without(b"aa", &(0..2)), None);
        assert_eq!(with(b"aa", 1, |bytes| bytes.push(b'z')), b"aaz");
    }
}
