//! Path resolution: from bytes with slashes to an inode, across subvolumes and symbolic links.
//!
//! Paths start at a root chosen at mount. As after `chroot`, `..` does not leave it, and absolute
//! symbolic links start there.
//!
//! Kernel counterpart: `page_get_link` for the targets of symbolic links.

use crate::errors::{Error, PathError, Result};
use crate::items::item_error;
use crate::items::trees::Trees;
use crate::namespace::handle::InodeHandle;
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::FileKind;
use papilio_format::{Corrupt, ItemType, Key};
use std::collections::VecDeque;

/// Most symbolic links followed in one resolution (`MAXSYMLINKS`).
const SYMLINK_LIMIT: usize = 40;
/// The longest remaining path in bytes while links are expanded.
const PATH_LIMIT: usize = 1 << 20;

/// Resolves `path` below `root`. A symbolic link as the last component is followed if `follow_last`
/// is set, or if the path ends with a slash.
///
/// # Errors
/// The [`PathError`] that POSIX specifies, or errors of reading.
pub fn resolve(trees: &Trees, root: &InodeHandle, path: &[u8], follow_last: bool) -> Result<InodeHandle> {
    let fail = |kind| Error::path(path, kind);
    let mut pending: VecDeque<Vec<u8>> = components(path);
    let mut pending_bytes = path.len();
    let mut stack = vec![root.clone()];
    let mut links = 0;
    let mut must_be_directory = path.ends_with(b"/");

    while let Some(name) = pending.pop_front() {
        pending_bytes -= name.len().min(pending_bytes);
        let current = stack.last().expect("the root is never popped");
        if current.kind() != FileKind::Directory {
            return Err(fail(PathError::NotADirectory));
        }
        if name == b"." {
            continue;
        }
        if name == b".." {
            if stack.len() > 1 {
                stack.pop();
            }
            continue;
        }
        let child = match current.child(trees, &name) {
            Err(Error::Path { kind, .. }) => return Err(fail(kind)),
            other => other?,
        };
        let child = child.ok_or_else(|| fail(PathError::NotFound))?;
        let last = pending.is_empty();
        if child.kind() == FileKind::Symlink && (!last || follow_last || must_be_directory) {
            links += 1;
            let target = symlink_target(&child)?;
            pending_bytes += target.len();
            if links > SYMLINK_LIMIT || pending_bytes > PATH_LIMIT {
                return Err(fail(PathError::SymlinkLoop));
            }
            if target.starts_with(b"/") {
                stack.truncate(1);
            }
            must_be_directory |= last && target.ends_with(b"/");
            for component in components(&target).into_iter().rev() {
                pending.push_front(component);
            }
            continue;
        }
        stack.push(child);
    }
    let found = stack.pop().expect("the root is never popped");
    if must_be_directory && found.kind() != FileKind::Directory {
        return Err(fail(PathError::NotADirectory));
    }
    Ok(found)
}

fn components(path: &[u8]) -> VecDeque<Vec<u8>> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Reads the target of a symbolic link: the content of its one inline extent.
///
/// # Errors
/// [`PathError::NotASymlink`]; a missing extent, or one that is compressed or not inline.
pub fn symlink_target(link: &InodeHandle) -> Result<Vec<u8>> {
    if link.kind() != FileKind::Symlink {
        return Err(Error::path(format!("inode {}", link.number).as_bytes(), PathError::NotASymlink));
    }
    let tree = link.tree();
    let key = Key::new(link.number.0, ItemType::EXTENT_DATA, 0);
    let item = tree.get(&key)?.ok_or(Error::MissingItem {
        tree: tree.id(),
        key,
        what: "the target of a symbolic link",
    })?;
    let fault = |reason| item_error(tree, &item, reason);
    let extent = FileExtentItem::parse(item.data()).map_err(fault)?;
    match extent.content {
        FileExtentContent::Inline(target) if extent.compression == Compression::None => Ok(target.to_vec()),
        _ => Err(fault(Corrupt::field("symbolic link", "extent", 0, "not an uncompressed inline extent"))),
    }
}
