//! The extents of a file, for programs that show where space goes.
//!
//! FUSE does not pass FIEMAP, so this is an ioctl of our own.

use super::call::{IoctlCall, IoctlReply, Result};
use papilio::FileKind;
use papilio_ioctl::Errno;
use papilio_ioctl::layout::{PAGE_BYTES, Page};
use papilio_ioctl::record::Writer;

/// Most extents of a page; an encoded one has 80 bytes.
const MOST: usize = PAGE_BYTES / 80;

/// Replies with a page of extents. The cursor is the file offset at which the page begins.
pub(super) fn list(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let mut page = call.argument::<Page>()?;
    if call.inode.file_type() != FileKind::Regular {
        return Err(Errno(libc::EINVAL));
    }
    let start = page.cursor;
    let extents = call.inode.open()?.extents(start, MOST)?;
    let mut shared = call.fs.shared_extents_of_last_commit();
    let mut writer = Writer::default();
    page.more = (extents.len() == MOST).into();
    for extent in &extents {
        let is_shared = shared.is_shared(call.inode.tree(), call.inode.number(), extent)?;
        writer.extent(extent, is_shared);
        page.cursor = extent.start.0.saturating_add(extent.length.max(1));
    }
    page.used = writer.0.len() as u32;
    page.bytes.fill(0);
    page.bytes[..writer.0.len()].copy_from_slice(&writer.0);
    call.reply(&page)
}
