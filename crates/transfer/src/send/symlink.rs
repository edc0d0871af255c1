//! Targets of symbolic links.
//!
//! Owns [`symlink_target`].

use papilio_engine::btree::Tree;
use papilio_engine::errors::{Error, Result};
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem, file_extent_key};
use papilio_format::{Corrupt, FileOffset, InodeNumber};

/// Returns the target of a symbolic link.
pub(super) fn symlink_target(tree: &Tree, number: u64) -> Result<Vec<u8>> {
    let key = file_extent_key(InodeNumber(number), FileOffset(0));
    let what = "the target of a symbolic link";
    let item = tree.get(&key)?.ok_or(Error::MissingItem { tree: tree.id(), key, what })?;
    let fault = |reason| Error::Item { tree: tree.id(), key, reason };
    let extent = FileExtentItem::parse(item.data()).map_err(fault)?;
    match extent.content {
        FileExtentContent::Inline(target) if extent.compression == Compression::None => Ok(target.to_vec()),
        _ => Err(fault(Corrupt::field("symbolic link", "extent", 0, "not an uncompressed inline extent"))),
    }
}
