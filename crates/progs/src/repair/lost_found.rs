//! The directory `lost+found` of a subvolume, for inodes that no path leads to.
//!
//! Owns [`put`], [`drop_ref`] and [`hang_subvolume`]. The directory is created at the subvolume's
//! root when it is first needed. The name in it of an inode or of a subvolume is its number.

use super::editor::{Editor, Items, inode_item, refuse};
use papilio_engine::errors::Result;
use papilio_format::items::dir_item::{DirEntries, DirEntry, FileType, dir_item_key};
use papilio_format::items::inode::{FileKind, InodeItem};
use papilio_format::items::inode_ref::{InodeRef, InodeRefs};
use papilio_format::items::root_ref::{RootRef, root_backref_key, root_ref_key};
use papilio_format::{Generation, InodeNumber, ItemType, Key, TreeId, objectid};

const NAME: &[u8] = b"lost+found";
/// The first index of a directory entry; those before are `.` and `..`.
const FIRST_INDEX: u64 = 2;

/// Gives an inode a name in `lost+found`, and takes its references to other directories away. The
/// root directory gets the reference to itself instead.
pub(super) fn put(editor: &Editor<'_>, tree: TreeId, inode: u64) -> Result<bool> {
    let (key, mut item) = inode_item(editor, tree, inode)?;
    let Some(kind) = item.kind() else { return refuse("the inode has no kind") };
    if inode == objectid::FIRST_FREE {
        // The root directory is its own parent.
        let bytes = InodeRef { index: 0, name: b".." }.to_bytes();
        return editor.put(tree, Key::new(inode, ItemType::INODE_REF, inode), bytes);
    }
    let directory = find_or_create(editor, tree)?;
    let name = inode.to_string();
    let first = Key::new(inode, ItemType::INODE_REF, 0);
    let last = Key::new(inode, ItemType::INODE_EXTREF, u64::MAX);
    editor.replace(tree, &first, &last, Items::new())?;
    let index = add_entry(editor, tree, directory, inode, name.as_bytes(), kind.file_type(), &item)?;
    let bytes = InodeRef { index, name: name.as_bytes() }.to_bytes();
    editor.put(tree, Key::new(inode, ItemType::INODE_REF, directory), bytes)?;
    let orphan = papilio_format::items::orphan::orphan_key(inode);
    editor.replace(tree, &orphan, &orphan, Items::new())?;
    item.nlink = 1;
    editor.put(tree, key, item.to_bytes().to_vec())?;
    Ok(true)
}

/// Removes an inode's reference to a directory.
pub(super) fn drop_ref(
    editor: &Editor<'_>,
    tree: TreeId,
    inode: u64,
    directory: u64,
    index: u64,
) -> Result<bool> {
    let key = Key::new(inode, ItemType::INODE_REF, directory);
    let Some(data) = editor.item(tree, &key)? else { return refuse("the reference is an extended one") };
    let Ok(refs) = InodeRefs::parse(&data) else { return refuse("the references cannot be read") };
    let kept: Vec<u8> =
        refs.filter(|found| found.index != index).flat_map(|found| found.to_bytes()).collect();
    let items = if kept.is_empty() { Items::new() } else { vec![(key, kept)] };
    editor.replace(tree, &key, &key, items)
}

/// Adds the directory entries of a subvolume where its parent's reference says. If that directory
/// is lost, or has another entry of that name or index, the subvolume gets a name in `lost+found`.
pub(super) fn hang_subvolume(editor: &Editor<'_>, parent: TreeId, child: TreeId) -> Result<bool> {
    let roots = objectid::ROOT_TREE;
    let key = root_ref_key(parent, child);
    let data = editor.need(roots, &key)?;
    let Ok(reference) = RootRef::parse(&data) else { return refuse("the reference cannot be read") };
    let directory = reference.directory.0;
    let (name, index) = (reference.name.to_vec(), reference.sequence);
    let location = Key::new(child.0, ItemType::ROOT_ITEM, u64::MAX);
    let own = |entry: &DirEntry<'_>| entry.name == name && entry.location.objectid == child.0;
    let is_directory =
        inode_item(editor, parent, directory).is_ok_and(|(_, item)| item.kind() == Some(FileKind::Directory));
    let named_key = dir_item_key(InodeNumber(directory), &name);
    let index_key = Key::new(directory, ItemType::DIR_INDEX, index);
    let named = editor.item(parent, &named_key)?.unwrap_or_default();
    let indexed = editor.item(parent, &index_key)?;
    let entries = |data: &[u8]| -> Vec<bool> {
        let same = |entry: DirEntry<'_>| (entry.name == name).then(|| own(&entry));
        DirEntries::parse(data).into_iter().flatten().filter_map(same).collect()
    };
    let name_is_ours = entries(&named).iter().all(|own| *own);
    let index_is_ours = indexed.as_ref().is_none_or(|data| entries(data) == [true]);
    if !is_directory || !name_is_ours || !index_is_ours {
        let directory = find_or_create(editor, parent)?;
        let name = child.to_string().into_bytes();
        let (_, item) = inode_item(editor, parent, directory)?;
        let index =
            add_entry_of(editor, parent, directory, location, &name, FileType::Directory, item.transid)?;
        let moved = RootRef { directory: InodeNumber(directory), sequence: index, name: &name }.to_bytes();
        editor.put(roots, key, moved.clone())?;
        return editor.put(roots, root_backref_key(child, parent), moved);
    }
    let (inode_key, mut item) = inode_item(editor, parent, directory)?;
    let (transid, file_type) = (item.transid, FileType::Directory);
    let entry = DirEntry { location, transid, file_type, encrypted: false, name: &name, data: &[] };
    let (by_name, by_index) = (entries(&named).is_empty(), indexed.is_none());
    if by_name {
        let mut data = named;
        entry.append_to(&mut data);
        editor.put(parent, named_key, data)?;
    }
    if by_index {
        editor.put(parent, index_key, entry.to_bytes())?;
    }
    let added = name.len() as u64 * (u64::from(by_name) + u64::from(by_index));
    item.size = item.size.saturating_add(added);
    editor.put(parent, inode_key, item.to_bytes().to_vec())?;
    Ok(by_name || by_index)
}

/// Returns the number of the directory `lost+found`.
fn find_or_create(editor: &Editor<'_>, tree: TreeId) -> Result<u64> {
    let root = objectid::FIRST_FREE;
    let named = dir_item_key(InodeNumber(root), NAME);
    let data = editor.item(tree, &named)?.unwrap_or_default();
    if let Some(entry) = DirEntries::parse(&data).into_iter().flatten().find(|entry| entry.name == NAME) {
        let number = entry.location.objectid;
        let is_directory = |item: &InodeItem| item.kind() == Some(FileKind::Directory);
        return match entry.location.item_type {
            ItemType::INODE_ITEM if is_directory(&inode_item(editor, tree, number)?.1) => Ok(number),
            _ => refuse("lost+found is not a directory"),
        };
    }
    let (_, parent) = inode_item(editor, tree, root)?;
    let number = last_inode(editor, tree)? + 1;
    if number > objectid::LAST_FREE {
        return refuse("there is no free inode number");
    }
    let item = InodeItem {
        mode: FileKind::Directory.mode_bits() | 0o700,
        nlink: 1,
        size: 0,
        nbytes: 0,
        uid: 0,
        gid: 0,
        ..parent
    };
    editor.put(tree, Key::new(number, ItemType::INODE_ITEM, 0), item.to_bytes().to_vec())?;
    let index = add_entry(editor, tree, root, number, NAME, FileType::Directory, &item)?;
    let bytes = InodeRef { index, name: NAME }.to_bytes();
    editor.put(tree, Key::new(number, ItemType::INODE_REF, root), bytes)?;
    Ok(number)
}

/// Returns the highest inode number in use.
fn last_inode(editor: &Editor<'_>, tree: TreeId) -> Result<u64> {
    let last = Key::new(objectid::LAST_FREE, ItemType(255), u64::MAX);
    match editor.last_before(tree, &last)? {
        Some(key) => Ok(key.objectid.max(objectid::FIRST_FREE)),
        None => refuse("the subvolume has no inodes"),
    }
}

/// Adds both entries for a name of an inode.
fn add_entry(
    editor: &Editor<'_>,
    tree: TreeId,
    directory: u64,
    inode: u64,
    name: &[u8],
    file_type: FileType,
    item: &InodeItem,
) -> Result<u64> {
    let location = Key::new(inode, ItemType::INODE_ITEM, 0);
    add_entry_of(editor, tree, directory, location, name, file_type, item.transid)
}

/// Adds both entries for a name, and counts the name in the directory's size. Returns the index.
fn add_entry_of(
    editor: &Editor<'_>,
    tree: TreeId,
    directory: u64,
    location: Key,
    name: &[u8],
    file_type: FileType,
    transid: Generation,
) -> Result<u64> {
    let entry = DirEntry { location, transid, file_type, encrypted: false, name, data: &[] };
    let named = dir_item_key(InodeNumber(directory), name);
    let mut data = editor.item(tree, &named)?.unwrap_or_default();
    if DirEntries::parse(&data).into_iter().flatten().any(|found| found.name == name) {
        return refuse("the directory has an entry of this name");
    }
    entry.append_to(&mut data);
    let last = last_index(editor, tree, directory)?;
    let index = last.map_or(FIRST_INDEX, |last| last.saturating_add(1).max(FIRST_INDEX));
    editor.put(tree, named, data)?;
    editor.put(tree, Key::new(directory, ItemType::DIR_INDEX, index), entry.to_bytes())?;
    let (key, mut parent) = inode_item(editor, tree, directory)?;
    parent.size = parent.size.saturating_add(2 * name.len() as u64);
    editor.put(tree, key, parent.to_bytes().to_vec())?;
    Ok(index)
}

/// Returns the last index of a directory's entries.
pub(super) fn last_index(editor: &Editor<'_>, tree: TreeId, directory: u64) -> Result<Option<u64>> {
    let last = editor.last_before(tree, &Key::new(directory, ItemType::DIR_INDEX, u64::MAX))?;
    let last = last.filter(|key| (key.objectid, key.item_type) == (directory, ItemType::DIR_INDEX));
    Ok(last.map(|key| key.offset))
}
