//! Logged ranges of a directory: within one, the log holds every entry that exists.
//!
//! Owns [`DirLogItem`]. Replay deletes what lies in such a range but is not in the log. Sources:
//! `struct btrfs_dir_log_item` (`include/uapi/linux/btrfs_tree.h`), `fs/btrfs/tree-log.c`.

use crate::disk::disk_struct;
use crate::error::Corrupt;
use crate::tree_check::ItemContext;

disk_struct! {
    /// One range: key (directory, DIR_LOG_INDEX, first index), in log trees only.
    pub struct DirLogItem as DirLogItemDisk = 8 {
        /// The last index of the range, inclusive.
        pub end: u64,
    }
}

/// Size and order; the kernel reads the item without a check.
pub(crate) fn validate(context: &ItemContext<'_>) -> Result<(), Corrupt> {
    let item = DirLogItem::parse(context.data)?;
    if item.end < context.key.offset {
        return Err(Corrupt::field("directory log item", "end", item.end, "before the range's start"));
    }
    Ok(())
}
