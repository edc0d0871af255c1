//! The items of the files of an ext file system, as Btrfs has them.
//!
//! Owns [`Converter`], which walks the source in the order of inode numbers and passes items on in
//! the order of their keys, and [`ItemSink`], which takes them. The same walk makes the plan, with
//! a sink that only counts, and the conversion: so the plan finds every fault of the source, and
//! its sizes are exact.
//!
//! **Invariants**
//! - Inode `n` of the source is inode `n + 254`, so that the root directory is 256.
//! - Keys ascend strictly, over the whole walk.
//! - An inode's link count is the number of its names, and a directory has one.

use crate::error::Result;
use crate::ext::inode::{ExtInode, ROOT_INODE, flag};
use crate::ext::mapping::ExtExtent;
use crate::ext::reader::ExtFs;
use crate::losses::Losses;
use crate::names::{FIRST_INDEX, InodeName, Names};
use papilio_format::checksum::{extref_hash, name_hash};
use papilio_format::items::dir_item::{DirEntry, FileType};
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem, inode_key};
use papilio_format::items::inode_ref::{InodeExtref, InodeRef};
use papilio_format::{Generation, InodeNumber, ItemType, Key};
use std::ops::Range;

/// The distance from inode numbers of the source to those of Btrfs.
const INODE_OFFSET: u64 = 254;
/// Bytes of names that one INODE_REF holds, if blocks are large enough.
const REFS_MAX: usize = 3000;
/// The unit of file extents, the sector size.
pub(crate) const SECTOR: u64 = 4096;

/// Returns the number of an inode in Btrfs.
pub(crate) fn number_of(inode: u32) -> InodeNumber {
    InodeNumber(u64::from(inode) + INODE_OFFSET)
}

/// A part of a file on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataRun {
    pub(crate) inode: InodeNumber,
    /// Bytes from the start of the file.
    pub(crate) offset: u64,
    /// Bytes from the start of the device, and how many.
    pub(crate) place: u64,
    pub(crate) length: u64,
}

/// Takes the items of files, in the order of their keys.
pub(crate) trait ItemSink {
    /// Takes an item.
    fn item(&mut self, key: Key, data: Vec<u8>) -> Result<()>;
    /// Takes data that stays where it is.
    fn data(&mut self, run: DataRun) -> Result<()>;
    /// Takes data of at most one sector that has no place of its own.
    fn content(&mut self, inode: InodeNumber, data: &[u8]) -> Result<()>;
    /// Takes a hole in a file.
    fn hole(&mut self, inode: InodeNumber, offset: u64, length: u64) -> Result<()>;
    /// Takes the blocks of an inode's map and attributes, for a check of their places.
    fn metadata(&mut self, inode: u32, block: u64, shared: bool) -> Result<()>;
    /// Takes a directory and the one that holds it, for a check that the root leads to it.
    fn directory(&mut self, directory: u32, parent: u32) -> Result<()>;
    /// Takes blocks of an inode's content, for a check of their places.
    fn blocks(&mut self, inode: u32, blocks: Range<u64>) -> Result<()>;
    /// The generation for new items.
    fn generation(&self) -> Generation;
    /// Notes that another inode is done.
    fn inode_done(&mut self) -> Result<()>;
}

/// The choices that the content of items depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemRules {
    pub(crate) node_size: usize,
    pub(crate) checksums: bool,
    pub(crate) xattrs: bool,
    /// Whether small files go into the trees.
    pub(crate) inline: bool,
}

impl ItemRules {
    /// The most bytes of an item's data.
    fn item_max(&self) -> usize {
        const NODE_HEADER: usize = 101;
        const ITEM_HEADER: usize = 25;
        self.node_size - NODE_HEADER - ITEM_HEADER
    }

    /// The most bytes of a file in a tree.
    fn inline_max(&self) -> u64 {
        (self.item_max() as u64 - FileExtentItem::INLINE_DATA_START as u64).min(2048)
    }
}

/// The walk over the files of a source.
pub(crate) struct Converter<'a> {
    pub(crate) fs: &'a ExtFs,
    pub(crate) rules: ItemRules,
    pub(crate) losses: &'a mut Losses,
}

/// An entry of a directory, with its place in the bytes of all names.
struct Entry {
    hash: u32,
    index: u64,
    inode: u32,
    kind: FileType,
    name: Range<u32>,
}

impl Converter<'_> {
    /// Passes on the items of the inodes whose names are in `names`.
    ///
    /// # Errors
    /// Damage; files that cannot be kept; errors of the sink; the device's.
    pub(crate) fn run(&mut self, names: &Names, sink: &mut dyn ItemSink) -> Result<()> {
        let fs = self.fs;
        let mut next = names.window.start;
        fs.for_each_inode(names.window.start, &mut |inode| {
            let number = inode.number;
            if number >= names.window.end {
                return Ok(false);
            }
            self.refuse_missing(names, next..number)?;
            next = number + 1;
            self.inode(&inode, names, sink)?;
            sink.inode_done()?;
            Ok(true)
        })?;
        self.refuse_missing(names, next..names.window.end)
    }

    /// Refuses names of inodes that are not in use.
    fn refuse_missing(&self, names: &Names, unused: Range<u32>) -> Result<()> {
        match names.first_in(unused) {
            Some(inode) => {
                let directory = names.of(inode).next().map_or(0, |name| name.directory);
                let reason = format!("an entry leads to inode {inode}, which is not in use");
                Err(self.fs.damaged(format!("directory {directory}"), reason))
            }
            None => Ok(()),
        }
    }

    fn inode(&mut self, inode: &ExtInode, names: &Names, sink: &mut dyn ItemSink) -> Result<()> {
        let fs = self.fs;
        let number = inode.number;
        let place = || format!("inode {number}");
        if inode.has(flag::EA_INODE) {
            let reason = format!("ea_inode: inode {number} holds the value of an extended attribute");
            return Err(fs.unsupported(reason));
        }
        if inode.has(flag::ENCRYPT) {
            return Err(fs.unsupported(format!("inode {number} is encrypted, and Btrfs cannot keep that")));
        }
        let kind = inode.kind().ok_or_else(|| fs.damaged(place(), "its mode has no kind of file"))?;
        let own = names.of(number);
        let is_root = number == ROOT_INODE;
        if own.len() == 0 && !is_root {
            if fs.superblock.nameless.contains(&number) {
                return Ok(());
            }
            return Err(fs.damaged(place(), "it is in use, but has no name"));
        }
        if is_root && kind != FileKind::Directory {
            return Err(fs.damaged(place(), "the root is no directory"));
        }
        if names.of(number).any(|name| name.kind != 0 && ext_kind(name.kind) != Some(kind)) {
            return Err(fs.damaged(place(), "a directory entry says another kind of file"));
        }
        let links = own.len().max(1);
        if kind == FileKind::Directory {
            if links > 1 {
                return Err(fs.damaged(place(), "the directory has more than one name"));
            }
        } else if usize::from(inode.links) != links {
            let reason = format!("it has {links} names, and {} by its link count", inode.links);
            return Err(fs.damaged(place(), reason));
        }
        self.note_losses(inode);
        if inode.xattr_block != 0 {
            sink.metadata(number, inode.xattr_block, true)?;
        }
        let found = fs.xattrs(inode)?;
        let inline_data = found.inline_data;
        let mut item = self.item_of(inode, kind, links as u32, sink.generation());
        match kind {
            FileKind::Directory => {
                let parent = names.of(number).next().map_or(ROOT_INODE, |name| name.directory);
                self.directory(inode, &inline_data, parent, item, names, &found.attributes, sink)
            }
            FileKind::Symlink => {
                let target = self.target(inode, &inline_data, sink)?;
                item.size = target.len() as u64;
                item.nbytes = item.size;
                self.head(inode, item, names, &found.attributes, sink)?;
                let data = inline_item(&target, sink.generation());
                sink.item(extent_key(number_of(number), 0), data)
            }
            FileKind::Regular => self.file(inode, &inline_data, item, names, &found.attributes, sink),
            _ => {
                let (major, minor) = inode.device_number();
                if matches!(kind, FileKind::BlockDevice | FileKind::CharacterDevice) {
                    item.rdev = InodeItem::pack_device_number(major, minor);
                }
                item.size = 0;
                self.head(inode, item, names, &found.attributes, sink)
            }
        }
    }

    /// Counts the properties of an inode that Btrfs cannot have.
    fn note_losses(&mut self, inode: &ExtInode) {
        let losses = &mut *self.losses;
        losses.projects += u64::from(inode.project != 0 || inode.has(flag::PROJINHERIT));
        losses.verity += u64::from(inode.has(flag::VERITY));
        losses.casefold += u64::from(inode.has(flag::CASEFOLD));
    }

    fn item_of(&self, inode: &ExtInode, kind: FileKind, links: u32, generation: Generation) -> InodeItem {
        let mut flags = InodeFlags::empty();
        for (theirs, ours) in [
            (flag::SYNC, InodeFlags::SYNC),
            (flag::IMMUTABLE, InodeFlags::IMMUTABLE),
            (flag::APPEND, InodeFlags::APPEND),
            (flag::NODUMP, InodeFlags::NODUMP),
            (flag::NOATIME, InodeFlags::NOATIME),
            (flag::DIRSYNC, InodeFlags::DIRSYNC),
        ] {
            flags.set(ours, inode.has(theirs));
        }
        if kind == FileKind::Symlink {
            flags.remove(InodeFlags::OF_NO_SYMLINK);
        }
        if kind == FileKind::Regular && !self.rules.checksums {
            flags.insert(InodeFlags::NODATASUM);
        }
        InodeItem {
            generation,
            transid: generation,
            size: inode.size,
            nbytes: 0,
            block_group: 0,
            nlink: links,
            uid: inode.uid,
            gid: inode.gid,
            mode: inode.mode.into(),
            rdev: 0,
            flags,
            sequence: 0,
            reserved: [0; 4],
            atime: inode.atime,
            ctime: inode.ctime,
            mtime: inode.mtime,
            otime: inode.otime.unwrap_or_default(),
        }
    }

    /// Passes on the items that every inode has: its own, its names, its attributes.
    fn head(
        &mut self,
        inode: &ExtInode,
        item: InodeItem,
        names: &Names,
        attributes: &[crate::ext::xattr::ExtXattr],
        sink: &mut dyn ItemSink,
    ) -> Result<()> {
        let number = number_of(inode.number);
        sink.item(inode_key(number), item.to_bytes().to_vec())?;
        if inode.number == ROOT_INODE {
            let name = InodeRef { index: 0, name: b".." };
            sink.item(Key::new(number.0, ItemType::INODE_REF, number.0), name.to_bytes())?;
        }
        for (key, data) in self.name_items(number, &names.of(inode.number).collect::<Vec<_>>()) {
            sink.item(key, data)?;
        }
        if !self.rules.xattrs {
            self.losses.xattrs += attributes.len() as u64;
            return Ok(());
        }
        let mut entries: Vec<_> = attributes.iter().map(|xattr| (name_hash(&xattr.name), xattr)).collect();
        entries.sort_by_key(|(hash, _)| *hash);
        for same in entries.chunk_by(|a, b| a.0 == b.0) {
            let mut data = Vec::new();
            for (_, xattr) in same {
                let entry = DirEntry {
                    location: Key::MIN,
                    transid: sink.generation(),
                    file_type: FileType::Xattr,
                    encrypted: false,
                    name: &xattr.name,
                    data: &xattr.value,
                };
                entry.append_to(&mut data);
            }
            if data.len() > self.rules.item_max() {
                let reason = format!(
                    "inode {}: an extended attribute of {} bytes does not fit into a tree block of {} bytes",
                    inode.number,
                    data.len(),
                    self.rules.node_size
                );
                return Err(self.fs.unsupported(reason));
            }
            sink.item(Key::new(number.0, ItemType::XATTR_ITEM, same[0].0), data)?;
        }
        Ok(())
    }

    /// Returns the items of an inode's names.
    fn name_items(&self, number: InodeNumber, names: &[InodeName<'_>]) -> Vec<(Key, Vec<u8>)> {
        let most = REFS_MAX.min(self.rules.item_max());
        let mut items: Vec<(Key, Vec<u8>)> = Vec::new();
        let mut further: Vec<(u64, &InodeName<'_>)> = Vec::new();
        for name in names {
            let parent = number_of(name.directory);
            let key = Key::new(number.0, ItemType::INODE_REF, parent.0);
            let entry = InodeRef { index: name.index, name: name.name };
            match items.last_mut() {
                Some((last, data)) if *last == key => {
                    if data.len() + entry.size_on_disk() <= most {
                        entry.append_to(data);
                    } else {
                        further.push((extref_hash(parent.0, name.name), name));
                    }
                }
                _ => items.push((key, entry.to_bytes())),
            }
        }
        further.sort_by_key(|(hash, _)| *hash);
        for same in further.chunk_by(|a, b| a.0 == b.0) {
            let mut data = Vec::new();
            for (_, name) in same {
                let parent = number_of(name.directory);
                InodeExtref { parent, index: name.index, name: name.name }.append_to(&mut data);
            }
            items.push((Key::new(number.0, ItemType::INODE_EXTREF, same[0].0), data));
        }
        items
    }

    #[allow(clippy::too_many_arguments)]
    fn directory(
        &mut self,
        inode: &ExtInode,
        inline_data: &[u8],
        parent: u32,
        mut item: InodeItem,
        names: &Names,
        attributes: &[crate::ext::xattr::ExtXattr],
        sink: &mut dyn ItemSink,
    ) -> Result<()> {
        let fs = self.fs;
        let place = || format!("directory {}", inode.number);
        if !inode.has(flag::INLINE_DATA) {
            self.claim_map(inode, sink)?;
        }
        let (mut entries, mut bytes) = (Vec::new(), Vec::new());
        let found = fs.for_each_entry(inode, inline_data, &mut |entry| {
            let kind = match entry.kind {
                0 => fs.inode(entry.inode)?.kind(),
                kind => ext_kind(kind),
            };
            let kind = kind.ok_or_else(|| fs.damaged(place(), "an entry has an unknown kind"))?;
            let start = bytes.len() as u32;
            bytes.extend_from_slice(entry.name);
            if u32::try_from(bytes.len()).is_err() {
                return Err(fs.unsupported(format!("directory {} is too large", inode.number)));
            }
            entries.push(Entry {
                hash: name_hash(entry.name) as u32,
                index: FIRST_INDEX + entries.len() as u64,
                inode: entry.inode,
                kind: kind.file_type(),
                name: start..bytes.len() as u32,
            });
            Ok(())
        })?;
        if found != parent {
            let reason = format!("its entry .. leads to {found}, and its name is in {parent}");
            return Err(fs.damaged(place(), reason));
        }
        let name = |entry: &Entry| &bytes[entry.name.start as usize..entry.name.end as usize];
        if inode.number == ROOT_INODE && entries.iter().any(|entry| name(entry) == crate::SAVED.as_bytes()) {
            let reason = format!("the root directory has an entry {}, as it is to be named", crate::SAVED);
            return Err(fs.unsupported(reason));
        }
        sink.directory(inode.number, parent)?;
        item.size = 2 * bytes.len() as u64;
        self.head(inode, item, names, attributes, sink)?;
        let number = number_of(inode.number);
        let transid = sink.generation();
        let encode = |entry: &Entry, data: &mut Vec<u8>| {
            let item = DirEntry {
                location: inode_key(number_of(entry.inode)),
                transid,
                file_type: entry.kind,
                encrypted: false,
                name: name(entry),
                data: &[],
            };
            item.append_to(data);
        };
        entries.sort_unstable_by_key(|entry| (entry.hash, entry.index));
        for same in entries.chunk_by(|a, b| a.hash == b.hash) {
            let mut data = Vec::new();
            same.iter().for_each(|entry| encode(entry, &mut data));
            for (at, entry) in same.iter().enumerate() {
                if same[..at].iter().any(|other| name(other) == name(entry)) {
                    return Err(fs.damaged(place(), "it has two entries of one name"));
                }
            }
            if data.len() > self.rules.item_max() {
                return Err(fs.unsupported(format!("{}: too many names have one hash", place())));
            }
            sink.item(Key::new(number.0, ItemType::DIR_ITEM, same[0].hash.into()), data)?;
        }
        entries.sort_unstable_by_key(|entry| entry.index);
        for entry in &entries {
            let mut data = Vec::new();
            encode(entry, &mut data);
            sink.item(Key::new(number.0, ItemType::DIR_INDEX, entry.index), data)?;
        }
        Ok(())
    }

    /// Tells the sink of the blocks of a directory or a long target, which no file of Btrfs needs.
    fn claim_map(&self, inode: &ExtInode, sink: &mut dyn ItemSink) -> Result<()> {
        let fs = self.fs;
        let number = inode.number;
        let (mut content, mut inner) = (Vec::new(), Vec::new());
        fs.for_each_extent(
            inode,
            &mut |extent: ExtExtent| {
                content.push(extent.physical..extent.physical + extent.length);
                Ok(())
            },
            &mut |block| {
                inner.push(block);
                Ok(())
            },
        )?;
        for block in inner {
            sink.metadata(number, block, false)?;
        }
        content.into_iter().try_for_each(|blocks| sink.blocks(number, blocks))
    }

    /// Returns the target of a symbolic link.
    fn target(&self, inode: &ExtInode, inline_data: &[u8], sink: &mut dyn ItemSink) -> Result<Vec<u8>> {
        let fs = self.fs;
        let place = format!("inode {}", inode.number);
        let length = inode.size as usize;
        let target = if inode.has(flag::INLINE_DATA) {
            self.inline_bytes(inode, inline_data)?
        } else if inode.has_short_target() {
            inode.root[..length].to_vec()
        } else {
            if inode.size > SECTOR {
                return Err(fs.damaged(place, format!("a target of {length} bytes")));
            }
            self.claim_map(inode, sink)?;
            fs.read_start(inode, SECTOR)?
        };
        if target.is_empty() || target.contains(&0) || target.len() >= SECTOR as usize {
            return Err(fs.damaged(place, "its target is empty, too long or has a NUL"));
        }
        if target.len() + FileExtentItem::INLINE_DATA_START > self.rules.item_max() {
            let reason = format!("{place}: its target does not fit into a tree block");
            return Err(fs.unsupported(reason));
        }
        Ok(target)
    }

    /// Returns the content of a file whose data is in its inode.
    fn inline_bytes(&self, inode: &ExtInode, inline_data: &[u8]) -> Result<Vec<u8>> {
        let mut bytes = [&inode.root[..], inline_data].concat();
        if inode.size > bytes.len() as u64 {
            let reason = format!("{} bytes of inline data, and a size of {}", bytes.len(), inode.size);
            return Err(self.fs.damaged(format!("inode {}", inode.number), reason));
        }
        bytes.truncate(inode.size as usize);
        Ok(bytes)
    }

    fn file(
        &mut self,
        inode: &ExtInode,
        inline_data: &[u8],
        mut item: InodeItem,
        names: &Names,
        attributes: &[crate::ext::xattr::ExtXattr],
        sink: &mut dyn ItemSink,
    ) -> Result<()> {
        let fs = self.fs;
        let number = number_of(inode.number);
        if inode.has(flag::INLINE_DATA) {
            let bytes = self.inline_bytes(inode, inline_data)?;
            let in_tree = self.rules.inline && bytes.len() as u64 <= self.rules.inline_max();
            item.nbytes = match bytes.len() as u64 {
                length if in_tree => length,
                length => length.next_multiple_of(SECTOR),
            };
            self.head(inode, item, names, attributes, sink)?;
            return match bytes.as_slice() {
                [] => Ok(()),
                bytes if in_tree => sink.item(extent_key(number, 0), inline_item(bytes, sink.generation())),
                bytes if bytes.len() as u64 <= SECTOR => sink.content(number, bytes),
                _ => Err(fs.damaged(format!("inode {}", inode.number), "too much inline data")),
            };
        }
        let size = fs.superblock.block_size;
        let end = inode.size.next_multiple_of(SECTOR);
        let (mut nbytes, mut has_unwritten) = (0, false);
        {
            let sink = std::cell::RefCell::new(&mut *sink);
            fs.for_each_extent(
                inode,
                &mut |extent| {
                    nbytes += run_of(&extent, number, size, end).map_or(0, |run| run.length);
                    has_unwritten |= !extent.written;
                    let blocks = extent.physical..extent.physical + extent.length;
                    sink.borrow_mut().blocks(inode.number, blocks)
                },
                &mut |block| sink.borrow_mut().metadata(inode.number, block, false),
            )?;
        }
        self.losses.preallocated += u64::from(has_unwritten);
        let in_tree = self.rules.inline && nbytes > 0 && inode.size <= self.rules.inline_max();
        item.nbytes = if in_tree { inode.size } else { nbytes };
        self.head(inode, item, names, attributes, sink)?;
        if in_tree {
            let bytes = fs.read_start(inode, inode.size)?;
            return sink.item(extent_key(number, 0), inline_item(&bytes, sink.generation()));
        }
        let mut next = 0;
        fs.for_each_extent(
            inode,
            &mut |extent| {
                let Some(run) = run_of(&extent, number, size, end) else { return Ok(()) };
                if run.offset > next {
                    sink.hole(number, next, run.offset - next)?;
                }
                next = run.offset + run.length;
                sink.data(run)
            },
            &mut |_| Ok(()),
        )?;
        if next < end {
            sink.hole(number, next, end - next)?;
        }
        Ok(())
    }
}

/// Returns the part of an extent that a file shows, in bytes.
fn run_of(extent: &ExtExtent, inode: InodeNumber, block_size: u64, end: u64) -> Option<DataRun> {
    let offset = extent.logical * block_size;
    if !extent.written || offset >= end {
        return None;
    }
    let length = (extent.length * block_size).min(end - offset);
    Some(DataRun { inode, offset, place: extent.physical * block_size, length })
}

/// Returns the key of a file extent.
pub(crate) fn extent_key(inode: InodeNumber, offset: u64) -> Key {
    Key::new(inode.0, ItemType::EXTENT_DATA, offset)
}

fn inline_item(bytes: &[u8], generation: Generation) -> Vec<u8> {
    let item = FileExtentItem {
        generation,
        ram_bytes: bytes.len() as u64,
        compression: Compression::None,
        other_encoding: 0,
        content: FileExtentContent::Inline(bytes),
    };
    item.to_bytes()
}

/// Returns the kind that a directory entry of ext says.
fn ext_kind(kind: u8) -> Option<FileKind> {
    Some(match kind {
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        3 => FileKind::CharacterDevice,
        4 => FileKind::BlockDevice,
        5 => FileKind::Fifo,
        6 => FileKind::Socket,
        7 => FileKind::Symlink,
        _ => return None,
    })
}
