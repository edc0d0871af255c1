//! The files that can be read, counted before and after a repair.
//!
//! Owns [`Census`] and [`Kept`]. A file counts if a path leads to it from the root of its subvolume
//! and it has an inode item. Its bytes are those of its extents; data is not read.
//!
//! **Invariant**: the walk goes on around everything that cannot be read.
//!
//! Locks: none. Kernel counterpart: none.

use super::rescue_clone::roots::{Roots, Walk};
use papilio_engine::items::trees::Trees;
use papilio_format::items::dir_item::DirEntries;
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::items::inode::{FileKind, InodeItem};
use papilio_format::{ItemType, TreeId, objectid};
use std::collections::{BTreeMap, BTreeSet};

/// Most names in a path. A longer path means a loop.
const DEPTH_LIMIT: usize = 4096;

/// A file that can be read.
#[derive(Debug)]
struct File {
    bytes: u64,
    path: Vec<u8>,
}

/// The files of all subvolumes, by subvolume and inode.
#[derive(Debug, Default)]
pub struct Census {
    files: BTreeMap<(TreeId, u64), File>,
}

/// The files before and after a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kept {
    /// The files that could be read before, and their bytes of data.
    pub before: (u64, u64),
    /// The files that can be read afterwards, and their bytes of data.
    pub after: (u64, u64),
    /// The files that are lost, or have fewer bytes: one line each.
    pub lost: Vec<String>,
}

/// The items of one subvolume.
#[derive(Default)]
struct Subvolume {
    kinds: BTreeMap<u64, Option<FileKind>>,
    bytes: BTreeMap<u64, u64>,
    /// By directory: the names, and the inodes.
    entries: BTreeMap<u64, BTreeSet<(Vec<u8>, u64)>>,
}

impl Census {
    /// Counts the files of all subvolumes that can be read.
    pub fn take(trees: &Trees) -> Self {
        let mut census = Self::default();
        for (id, root) in Roots::read(trees).subvolumes {
            let mut subvolume = Subvolume::default();
            let mut walk = Walk::new(&root.tree);
            loop {
                match walk.next() {
                    Ok(Some((key, data))) => subvolume.take(key.objectid, key.item_type, data),
                    Ok(None) => break,
                    // The items behind the gap follow.
                    Err(_) => {}
                }
            }
            let top = match root.item.root_dirid.0 {
                0 => objectid::FIRST_FREE,
                number => number,
            };
            subvolume.count(id, top, &mut census);
        }
        census
    }

    fn totals(&self) -> (u64, u64) {
        let bytes = self.files.values().fold(0u64, |sum, file| sum.saturating_add(file.bytes));
        (self.files.len() as u64, bytes)
    }

    /// Compares the files with those after a repair.
    pub fn compare(&self, after: &Self) -> Kept {
        let mut lost = Vec::new();
        for ((tree, inode), file) in &self.files {
            let path = match *tree {
                objectid::FS_TREE => String::from_utf8_lossy(&file.path).into_owned(),
                _ => format!("subvolume {tree}: {}", String::from_utf8_lossy(&file.path)),
            };
            match after.files.get(&(*tree, *inode)) {
                None => lost.push(format!("{path}: the file, {} bytes", file.bytes)),
                Some(kept) if kept.bytes < file.bytes => {
                    lost.push(format!("{path}: {} of {} bytes", file.bytes - kept.bytes, file.bytes));
                }
                Some(_) => {}
            }
        }
        Kept { before: self.totals(), after: after.totals(), lost }
    }
}

impl Subvolume {
    fn take(&mut self, number: u64, item_type: ItemType, data: &[u8]) {
        match item_type {
            ItemType::INODE_ITEM => {
                let kind = InodeItem::parse(data).ok().and_then(|inode| inode.kind());
                self.kinds.insert(number, kind);
            }
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => {
                for entry in DirEntries::parse(data).into_iter().flatten() {
                    if entry.location.item_type == ItemType::INODE_ITEM {
                        let named = self.entries.entry(number).or_default();
                        named.insert((entry.name.to_vec(), entry.location.objectid));
                    }
                }
            }
            ItemType::EXTENT_DATA => {
                let Ok(extent) = FileExtentItem::parse(data) else { return };
                let length = match extent.content {
                    FileExtentContent::Inline(_) => extent.ram_bytes,
                    FileExtentContent::Regular(part) if !part.is_hole() => part.length,
                    _ => 0,
                };
                let bytes = self.bytes.entry(number).or_default();
                *bytes = bytes.saturating_add(length);
            }
            _ => {}
        }
    }

    /// Adds the files that paths from `top` lead to.
    fn count(&self, id: TreeId, top: u64, census: &mut Census) {
        let mut seen = BTreeSet::from([top]);
        let mut folders: Vec<(u64, Vec<u8>, usize)> = vec![(top, Vec::new(), 0)];
        while let Some((folder, path, depth)) = folders.pop() {
            for (name, number) in self.entries.get(&folder).into_iter().flatten() {
                let Some(kind) = self.kinds.get(number) else { continue };
                if !seen.insert(*number) {
                    continue;
                }
                let path = [&path[..], b"/", name].concat();
                if *kind == Some(FileKind::Directory) {
                    if depth < DEPTH_LIMIT {
                        folders.push((*number, path, depth + 1));
                    }
                    continue;
                }
                let bytes = self.bytes.get(number).copied().unwrap_or(0);
                census.files.insert((id, *number), File { bytes, path });
            }
        }
    }
}
