//! Logged index ranges of a directory: in such a range the log holds every existing entry.
//!
//! Owns [`DirLogItem`]. Replay deletes the entries of a range that are not in the log. Sources:
//! `struct btrfs_dir_log_item` (`include/uapi/linux/btrfs_tree.h`), `fs/btrfs/tree-log.c`.

use crate::error::Corrupt;
use crate::item_context::ItemContext;
use crate::parse::disk_struct;

disk_struct! {
    /// One range, under key (directory, DIR_LOG_INDEX, first index), in log trees only.
    pub struct DirLogItem as DirLogItemDisk = 8 {
        /// The last index of the range, inclusive.
        pub end: u64,
    }
}

/// Checks size and order; the kernel reads the item without a check.
pub(crate) fn validate(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    let item = DirLogItem::parse(context.data)?;
    if item.end < context.key.offset {
        return Err(Corrupt::field("directory log item", "end", item.end, "before the range's start"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{ItemType, Key};
    use crate::tree_check::test_support::{check, fault};

    #[test]
    fn items_round_trip() {
        crate::parse::assert_round_trip::<DirLogItem>();
    }

    #[test]
    fn each_check_detects_its_fault() {
        let key = Key::new(256, ItemType::DIR_LOG_INDEX, 5);
        assert_eq!(check(key, &DirLogItem { end: 5 }.to_bytes()), Ok(()));
        assert_eq!(fault(check(key, &DirLogItem { end: 4 }.to_bytes())), "end");
        assert_eq!(fault(check(key, &[0xff; 7])), "size");
    }
}
