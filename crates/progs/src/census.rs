//! The files that can be read, counted before and after a repair.
//!
//! Owns [`Census`] and [`Kept`]. A file counts if a path leads to it from the root of its subvolume
//! and it has an inode item. Its bytes are those of its extents; data is not read. Its further
//! names count if its own references confirm them.
//!
//! **Invariant**: the walk goes on around everything that cannot be read.
//!
//! Locks: none. Kernel counterpart: none.

use super::rescue_clone::roots::{ItemWalk, SubvolumeRoots};
use papilio_engine::items::trees::Trees;
use papilio_format::items::dir_item::DirEntries;
use papilio_format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio_format::items::inode::{FileKind, InodeItem};
use papilio_format::items::inode_ref::{InodeExtrefs, InodeRefs};
use papilio_format::{ItemType, Key, TreeId, objectid};
use std::collections::{BTreeMap, BTreeSet};

/// Most names in a path. A longer path means a loop.
const DEPTH_LIMIT: usize = 4096;

/// A file that can be read.
#[derive(Debug)]
struct ReadableFile {
    bytes: u64,
    path: Vec<u8>,
    /// The names that its references confirm, if there are several: directory and name.
    names: BTreeSet<(u64, Vec<u8>)>,
}

/// The files of all subvolumes, by subvolume and inode.
#[derive(Debug, Default)]
pub struct Census {
    files: BTreeMap<(TreeId, u64), ReadableFile>,
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
    /// By inode: the directories and names of its references, if there are several.
    names: BTreeMap<u64, BTreeSet<(u64, Vec<u8>)>>,
}

impl Census {
    /// Counts the files of all subvolumes that can be read.
    pub fn take(trees: &Trees) -> Self {
        let mut census = Self::default();
        for (id, root) in SubvolumeRoots::read(trees).subvolumes {
            let mut subvolume = Subvolume::default();
            let mut walk = ItemWalk::new(&root.tree);
            loop {
                match walk.next() {
                    Ok(Some((key, data))) => subvolume.take(key, data),
                    Ok(None) => break,
                    // The items behind the gap follow.
                    Err(_) => {}
                }
            }
            let top = match root.item.root_dirid.0 {
                0 => objectid::FIRST_FREE,
                number => number,
            };
            subvolume.forget_single_name();
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
                // A single name is not kept.
                Some(kept) if kept.names.len().max(1) < file.names.len() => {
                    let (left, names) = (kept.names.len().max(1), file.names.len());
                    lost.push(format!("{path}: {} of {names} names", names - left));
                }
                Some(_) => {}
            }
        }
        Kept { before: self.totals(), after: after.totals(), lost }
    }
}

impl Subvolume {
    fn take(&mut self, key: Key, data: &[u8]) {
        let Key { objectid: number, item_type, offset } = key;
        if item_type == ItemType::INODE_ITEM {
            self.forget_single_name();
        }
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
            ItemType::INODE_REF => {
                let names = self.names.entry(number).or_default();
                let refs = InodeRefs::parse(data).into_iter().flatten();
                names.extend(refs.map(|found| (offset, found.name.to_vec())));
            }
            ItemType::INODE_EXTREF => {
                let names = self.names.entry(number).or_default();
                let refs = InodeExtrefs::parse(data).into_iter().flatten();
                names.extend(refs.map(|found| (found.parent.0, found.name.to_vec())));
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

    /// Forgets the name of the last inode, if it has one only: most files have.
    fn forget_single_name(&mut self) {
        if let Some(last) = self.names.last_entry()
            && last.get().len() < 2
        {
            last.remove();
        }
    }

    /// Returns the names of an inode that both its references and the entries have.
    fn confirmed_names(&self, number: u64) -> BTreeSet<(u64, Vec<u8>)> {
        let listed = |(directory, name): &&(u64, Vec<u8>)| {
            let entries = self.entries.get(directory);
            entries.is_some_and(|entries| entries.contains(&(name.clone(), number)))
        };
        self.names.get(&number).into_iter().flatten().filter(listed).cloned().collect()
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
                let names = self.confirmed_names(*number);
                census.files.insert((id, *number), ReadableFile { bytes, path, names });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::items::dir_item::{DirEntry, FileType};
    use papilio_format::items::inode_ref::InodeRef;
    use papilio_format::{Generation, InodeNumber};

    /// A top level with one file of these names, of which the file's references have the first few.
    fn census(names: &[&[u8]], confirmed: usize) -> Census {
        let mut subvolume = Subvolume::default();
        let mut inode = InodeItem::parse(&[0; InodeItem::SIZE]).unwrap();
        inode.mode = FileKind::Directory.mode_bits();
        subvolume.take(Key::new(256, ItemType::INODE_ITEM, 0), &inode.to_bytes());
        for (index, name) in names.iter().enumerate() {
            let entry = DirEntry {
                location: Key::new(257, ItemType::INODE_ITEM, 0),
                transid: Generation(1),
                file_type: FileType::Regular,
                encrypted: false,
                name,
                data: &[],
            };
            subvolume.take(Key::new(256, ItemType::DIR_INDEX, index as u64), &entry.to_bytes());
        }
        inode.mode = FileKind::Regular.mode_bits();
        subvolume.take(Key::new(257, ItemType::INODE_ITEM, 0), &inode.to_bytes());
        let refs = names.iter().take(confirmed).enumerate();
        let refs: Vec<u8> =
            refs.flat_map(|(at, name)| InodeRef { index: at as u64, name }.to_bytes()).collect();
        subvolume.take(Key::new(257, ItemType::INODE_REF, InodeNumber(256).0), &refs);
        subvolume.forget_single_name();
        let mut census = Census::default();
        subvolume.count(objectid::FS_TREE, 256, &mut census);
        census
    }

    #[test]
    fn a_name_that_is_gone_is_lost() {
        let names: [&[u8]; 3] = [b"a", b"b", b"c"];
        let before = census(&names, 3);
        assert!(before.compare(&census(&names, 3)).lost.is_empty());
        assert_eq!(before.compare(&census(&names[..1], 1)).lost, ["/a: 2 of 3 names"]);
        // A name that nothing confirms is a fault that a repair may remove.
        assert!(census(&names, 2).compare(&census(&names[..2], 2)).lost.is_empty());
        assert!(census(&names, 1).compare(&census(&names[..1], 1)).lost.is_empty());
    }
}
