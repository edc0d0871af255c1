//! Extents that a change writes in place, although it is published at once.
//!
//! Owns [`own_extents`]. A preallocated extent that only this file refers to is a promise: every
//! later write there finds its space, also past the end of the file and of parts of sectors. In a
//! `NODATACOW` file the same holds for every such extent.
//!
//! Invariant: an extent that is found stays so until the change is published. The caller holds the
//! lock on `sharing` and the file's data lock, or has locked the range.
//!
//! Locks: the transaction's gate (shared), for each extent. Kernel counterpart:
//! `can_nocow_file_extent`, `run_delalloc_nocow` (`fs/btrfs/inode.c`).

use crate::data::data_context::DataContext;
use crate::data::file_edit::FileEdit;
use crate::data::file_extents_edit::{is_plain, on_disk};
use crate::data::nocow::{InPlacePart, has_checksums};
use crate::data::space::DataReference;
use crate::data::stored_extents::StoredExtents;
use crate::errors::Result;
use crate::tuning::NocowCheck;
use papilio_format::items::file_extent::FileExtentContent;
use papilio_format::items::inode::InodeFlags;
use papilio_format::{FileOffset, LogicalAddress};
use std::ops::Range;

/// Returns the parts of `range`, sector boundaries, that may be written in place, ascending.
///
/// # Errors
/// A tree block or an item that cannot be read.
pub(crate) fn own_extents(
    context: &DataContext<'_>,
    file: &FileEdit<'_>,
    range: &Range<u64>,
) -> Result<Vec<InPlacePart>> {
    let flags = file.item.flags;
    let any = flags.contains(InodeFlags::NODATACOW | InodeFlags::NODATASUM);
    let mut own = Vec::new();
    let Some(record) = file.tree.record().filter(|_| any || flags.contains(InodeFlags::PREALLOC)) else {
        return Ok(own);
    };
    let tree = file.tree.tree();
    let checksums = context.checksum_tree.tree();
    let sector_size = context.geometry.sector_size;
    for extent in StoredExtents::new(&tree, file.inode, sector_size, range.start, range.end) {
        let extent = extent?;
        let item = extent.extent();
        let Some(part) = on_disk(&item).filter(|_| is_plain(&item)) else { continue };
        let preallocated = matches!(item.content, FileExtentContent::Prealloc(_));
        if !any && !preallocated {
            continue;
        }
        let reference = DataReference {
            address: part.disk_address,
            length: part.disk_length,
            tree: file.tree.id(),
            inode: file.inode,
            offset: FileOffset(extent.start.wrapping_sub(part.offset)),
        };
        if !context.allocator.may_overwrite(&reference, record.item.last_snapshot)? {
            continue;
        }
        let (start, end) = (extent.start.max(range.start), extent.end.min(range.end));
        // Inside 64 bits, as the parser proved of the whole part.
        let disk = LogicalAddress(part.disk_address.0 + part.offset + (start - extent.start));
        if has_checksums(&checksums, context.geometry, NocowCheck::FirstMatch, disk, end - start)? {
            continue;
        }
        own.push(InPlacePart { range: start..end, disk, preallocated });
    }
    Ok(own)
}
