//! The items of the files of a source, as Btrfs has them.
//!
//! Owns [`Converter`], which walks the source in the order of inode numbers and passes items on in
//! the order of their keys, and [`ItemSink`], which takes them. The same walk makes the plan, with
//! a sink that only counts, and the conversion: so the plan finds every fault of the source, and
//! its sizes are exact.
//!
//! **Invariants**
//! - Each inode keeps its number plus that distance which makes the root directory 256.
//! - Keys ascend strictly, over the whole walk.
//! - An inode's link count is the number of its names, and a directory has one.

use crate::error::Result;
use crate::losses::Losses;
use crate::names::{FIRST_INDEX, InodeName, Names};
use crate::source::{Extent, InodeFacts, Source, Xattr};
use papilio_format::checksum::{extref_hash, name_hash};
use papilio_format::items::dir_item::{DirEntry, FileType};
use papilio_format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem, inode_key};
use papilio_format::items::inode_ref::{InodeExtref, InodeRef};
use papilio_format::{Generation, InodeNumber, ItemType, Key};
use std::ops::Range;

/// Bytes of names that one INODE_REF holds, if blocks are large enough.
const REFS_MAX: usize = 3000;
/// The unit of file extents, the sector size.
pub(crate) const SECTOR: u64 = 4096;

/// A part of a file on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DataRun {
    pub(crate) inode: InodeNumber,
    /// Bytes from the start of the file.
    pub(crate) offset: u64,
    /// Bytes from the start of the device, and how many.
    pub(crate) place: u64,
    pub(crate) length: u64,
    /// The bytes on the device that are to be one extent, if other files refer to parts of it.
    pub(crate) shared: Option<Range<u64>>,
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
    /// Takes blocks of an inode's map and attributes, for a check of their places.
    fn metadata(&mut self, inode: u64, blocks: Range<u64>, shared: bool) -> Result<()>;
    /// Takes a directory and the one that holds it, for a check that the root leads to it.
    fn directory(&mut self, directory: u64, parent: u64) -> Result<()>;
    /// Takes blocks of an inode's content, which others may share, for a check of their places.
    fn blocks(&mut self, inode: u64, blocks: Range<u64>, may_share: bool) -> Result<()>;
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
pub(crate) struct Converter<'a, S> {
    pub(crate) fs: &'a S,
    pub(crate) rules: ItemRules,
    pub(crate) losses: &'a mut Losses,
}

/// An entry of a directory, with its place in the bytes of all names.
struct Entry {
    hash: u32,
    index: u64,
    inode: u64,
    kind: FileType,
    name: Range<u32>,
}

impl<S: Source> Converter<'_, S> {
    /// Passes on the items of the inodes whose names are in `names`.
    ///
    /// # Errors
    /// Damage; files that cannot be kept; errors of the sink; the device's.
    pub(crate) fn run(&mut self, names: &Names, sink: &mut dyn ItemSink) -> Result<()> {
        let fs = self.fs;
        let mut next = names.window.start;
        fs.for_each_inode(names.window.start, &mut |inode| {
            let facts = fs.facts(&inode);
            let number = facts.number;
            if number >= names.window.end {
                return Ok(false);
            }
            self.refuse_missing(names, next..number)?;
            next = number + 1;
            self.inode(&inode, &facts, names, sink)?;
            sink.inode_done()?;
            Ok(true)
        })?;
        self.refuse_missing(names, next..names.window.end)
    }

    /// Refuses names of inodes that are not in use.
    fn refuse_missing(&self, names: &Names, unused: Range<u64>) -> Result<()> {
        match names.first_in(unused) {
            Some(inode) => {
                let directory = names.of(inode).next().map_or(0, |name| name.directory);
                let [inode, directory] = [inode, directory].map(|number| self.fs.shown(number));
                let reason = format!("an entry leads to inode {inode}, which is not in use");
                Err(self.fs.profile().damaged(format!("directory {directory}"), reason))
            }
            None => Ok(()),
        }
    }

    fn inode(
        &mut self,
        inode: &S::Inode,
        facts: &InodeFacts,
        names: &Names,
        sink: &mut dyn ItemSink,
    ) -> Result<()> {
        let fs = self.fs;
        let number = facts.number;
        let bad = |reason: String| Err(fs.profile().damaged(format!("inode {}", fs.shown(number)), reason));
        let kind = facts.kind;
        let own = names.of(number);
        let is_root = number == fs.profile().root;
        if own.len() == 0 && !is_root && (fs.is_nameless(number) || facts.is_internal) {
            if fs.profile().accounts_for_all || facts.is_internal {
                self.claim(inode, facts, sink)?;
            }
            return Ok(());
        }
        fs.check_inode(inode, self.losses)?;
        if own.len() == 0 && !is_root {
            return bad("it is in use, but has no name".to_owned());
        }
        if is_root && kind != FileKind::Directory {
            return bad("the root is no directory".to_owned());
        }
        if names.of(number).any(|name| name.kind.is_some_and(|said| said != kind)) {
            return bad("a directory entry says another kind of file".to_owned());
        }
        let links = own.len().max(1);
        if kind == FileKind::Directory {
            if links > 1 {
                return bad("the directory has more than one name".to_owned());
            }
        } else if facts.links as usize != links {
            return bad(format!("it has {links} names, and {} by its link count", facts.links));
        }
        fs.for_each_xattr_block(inode, &mut |claim| sink.metadata(number, claim.blocks, claim.is_shared))?;
        let attributes = fs.xattrs(inode)?;
        let mut item = self.item_of(facts, links as u32, sink.generation());
        match kind {
            FileKind::Directory => {
                let parent = names.of(number).next().map_or(fs.profile().root, |name| name.directory);
                self.directory(inode, facts, parent, item, names, &attributes, sink)
            }
            FileKind::Symlink => {
                let target = self.target(inode, facts, sink)?;
                item.size = target.len() as u64;
                item.nbytes = item.size;
                self.head(facts, item, names, &attributes, sink)?;
                let data = inline_item(&target, sink.generation());
                sink.item(extent_key(fs.profile().number_of(number), 0), data)
            }
            FileKind::Regular => self.file(inode, facts, item, names, &attributes, sink),
            _ => {
                if matches!(kind, FileKind::BlockDevice | FileKind::CharacterDevice) {
                    item.rdev = InodeItem::pack_device_number(facts.device.0, facts.device.1);
                }
                item.size = 0;
                self.head(facts, item, names, &attributes, sink)
            }
        }
    }

    fn item_of(&self, facts: &InodeFacts, links: u32, generation: Generation) -> InodeItem {
        let mut flags = facts.flags;
        if facts.kind == FileKind::Symlink {
            flags.remove(InodeFlags::OF_NO_SYMLINK);
        }
        if facts.kind == FileKind::Regular && !self.rules.checksums {
            flags.insert(InodeFlags::NODATASUM);
        }
        InodeItem {
            generation,
            transid: generation,
            size: facts.size,
            nbytes: 0,
            block_group: 0,
            nlink: links,
            uid: facts.uid,
            gid: facts.gid,
            mode: facts.mode,
            rdev: 0,
            flags,
            sequence: 0,
            reserved: [0; 4],
            atime: facts.atime,
            ctime: facts.ctime,
            mtime: facts.mtime,
            otime: facts.otime.unwrap_or_default(),
        }
    }

    /// Passes on the items that every inode has: its own, its names, its attributes.
    fn head(
        &mut self,
        facts: &InodeFacts,
        item: InodeItem,
        names: &Names,
        attributes: &[Xattr],
        sink: &mut dyn ItemSink,
    ) -> Result<()> {
        let number = self.fs.profile().number_of(facts.number);
        sink.item(inode_key(number), item.to_bytes().to_vec())?;
        if facts.number == self.fs.profile().root {
            let name = InodeRef { index: 0, name: b".." };
            sink.item(Key::new(number.0, ItemType::INODE_REF, number.0), name.to_bytes())?;
        }
        for (key, data) in self.name_items(number, &names.of(facts.number).collect::<Vec<_>>()) {
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
                    self.fs.shown(facts.number),
                    data.len(),
                    self.rules.node_size
                );
                return Err(self.fs.profile().unsupported(reason));
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
            let parent = self.fs.profile().number_of(name.directory);
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
                let parent = self.fs.profile().number_of(name.directory);
                InodeExtref { parent, index: name.index, name: name.name }.append_to(&mut data);
            }
            items.push((Key::new(number.0, ItemType::INODE_EXTREF, same[0].0), data));
        }
        items
    }

    #[allow(clippy::too_many_arguments)]
    fn directory(
        &mut self,
        inode: &S::Inode,
        facts: &InodeFacts,
        parent: u64,
        mut item: InodeItem,
        names: &Names,
        attributes: &[Xattr],
        sink: &mut dyn ItemSink,
    ) -> Result<()> {
        let fs = self.fs;
        let profile = fs.profile();
        let place = || format!("directory {}", fs.shown(facts.number));
        self.claim(inode, facts, sink)?;
        let (mut entries, mut bytes) = (Vec::new(), Vec::new());
        let found = fs.for_each_entry(inode, &mut |entry| {
            let kind = match entry.kind {
                None => fs.facts(&fs.inode(entry.inode)?).kind,
                Some(kind) => kind,
            };
            let start = bytes.len() as u32;
            bytes.extend_from_slice(entry.name);
            if u32::try_from(bytes.len()).is_err() {
                return Err(profile.unsupported(format!("{} is too large", place())));
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
            let [found, parent] = [found, parent].map(|number| fs.shown(number));
            let reason = format!("its entry .. leads to {found}, and its name is in {parent}");
            return Err(profile.damaged(place(), reason));
        }
        let name = |entry: &Entry| &bytes[entry.name.start as usize..entry.name.end as usize];
        let saved = profile.saved;
        if facts.number == profile.root && entries.iter().any(|entry| name(entry) == saved.as_bytes()) {
            let reason = format!("the root directory has an entry {saved}, which the old file system needs");
            return Err(profile.unsupported(reason));
        }
        sink.directory(facts.number, parent)?;
        item.size = 2 * bytes.len() as u64;
        self.head(facts, item, names, attributes, sink)?;
        let number = profile.number_of(facts.number);
        let transid = sink.generation();
        let encode = |entry: &Entry, data: &mut Vec<u8>| {
            let item = DirEntry {
                location: inode_key(profile.number_of(entry.inode)),
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
                    return Err(profile.damaged(place(), "it has two entries of one name"));
                }
            }
            if data.len() > self.rules.item_max() {
                return Err(profile.unsupported(format!("{}: too many names have one hash", place())));
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

    /// Tells the sink of the blocks of an inode, for a check of their places.
    fn claim(&self, inode: &S::Inode, facts: &InodeFacts, sink: &mut dyn ItemSink) -> Result<()> {
        let number = facts.number;
        let sink = std::cell::RefCell::new(sink);
        self.fs.for_each_extent(
            inode,
            &mut |extent| sink.borrow_mut().blocks(number, extent.blocks(), facts.may_share),
            &mut |block| sink.borrow_mut().metadata(number, block..block.saturating_add(1), false),
        )
    }

    /// Returns the target of a symbolic link.
    fn target(&self, inode: &S::Inode, facts: &InodeFacts, sink: &mut dyn ItemSink) -> Result<Vec<u8>> {
        let profile = self.fs.profile();
        let place = format!("inode {}", self.fs.shown(facts.number));
        self.claim(inode, facts, sink)?;
        let target = self.fs.target(inode)?;
        if target.is_empty() || target.contains(&0) || target.len() >= SECTOR as usize {
            return Err(profile.damaged(place, "its target is empty, too long or has a NUL"));
        }
        if target.len() + FileExtentItem::INLINE_DATA_START > self.rules.item_max() {
            let reason = format!("{place}: its target does not fit into a tree block");
            return Err(profile.unsupported(reason));
        }
        Ok(target)
    }

    fn file(
        &mut self,
        inode: &S::Inode,
        facts: &InodeFacts,
        mut item: InodeItem,
        names: &Names,
        attributes: &[Xattr],
        sink: &mut dyn ItemSink,
    ) -> Result<()> {
        let fs = self.fs;
        let number = fs.profile().number_of(facts.number);
        if facts.is_inline {
            let bytes = fs.inline_content(inode)?;
            let in_tree = self.rules.inline && bytes.len() as u64 <= self.rules.inline_max();
            item.nbytes = match bytes.len() as u64 {
                length if in_tree => length,
                length => length.next_multiple_of(SECTOR),
            };
            self.head(facts, item, names, attributes, sink)?;
            return match bytes.as_slice() {
                [] => Ok(()),
                bytes if in_tree => sink.item(extent_key(number, 0), inline_item(bytes, sink.generation())),
                bytes if bytes.len() as u64 <= SECTOR => sink.content(number, bytes),
                _ => {
                    let place = format!("inode {}", fs.shown(facts.number));
                    Err(fs.profile().damaged(place, "too much inline data"))
                }
            };
        }
        let size = fs.profile().block_size;
        let end = facts.size.next_multiple_of(SECTOR);
        let (mut nbytes, mut has_more, mut is_shared, mut is_replayed) = (0, false, false, false);
        {
            let sink = std::cell::RefCell::new(&mut *sink);
            fs.for_each_extent(
                inode,
                &mut |extent| {
                    nbytes += run_of(&extent, number, size, end).map_or(0, |run| run.length);
                    has_more |= !extent.written || (extent.logical + extent.length - 1) * size >= end;
                    is_shared |= facts.may_share && fs.shared().intersects(&extent.blocks());
                    is_replayed |= extent.written && fs.is_replayed(&extent.blocks());
                    sink.borrow_mut().blocks(facts.number, extent.blocks(), facts.may_share)
                },
                &mut |block| {
                    let blocks = block..block.saturating_add(1);
                    sink.borrow_mut().metadata(facts.number, blocks, false)
                },
            )?;
        }
        if is_replayed {
            let reason = format!(
                "the journal has data of inode {} (data=journal): mount the file system once",
                fs.shown(facts.number)
            );
            return Err(fs.profile().unsupported(reason));
        }
        self.losses.preallocated += u64::from(has_more);
        // Shared content stays shared, however short it is.
        let in_tree = self.rules.inline && nbytes > 0 && facts.size <= self.rules.inline_max() && !is_shared;
        item.nbytes = if in_tree { facts.size } else { nbytes };
        self.head(facts, item, names, attributes, sink)?;
        if in_tree {
            let bytes = fs.read_start(inode, facts.size)?;
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
                match is_shared {
                    true => self.shared_data(&extent, &run, sink),
                    false => sink.data(run),
                }
            },
            &mut |_| Ok(()),
        )?;
        if next < end {
            sink.hole(number, next, end - next)?;
        }
        Ok(())
    }

    /// Passes on a run of which other files share parts.
    fn shared_data(&self, extent: &Extent, run: &DataRun, sink: &mut dyn ItemSink) -> Result<()> {
        let size = self.fs.profile().block_size;
        let end = run.place + run.length;
        for part in self.fs.shared().parts(extent.blocks()) {
            let place = part.blocks.start * size;
            if place >= end {
                break;
            }
            sink.data(DataRun {
                inode: run.inode,
                offset: run.offset + (place - run.place),
                place,
                length: (part.blocks.end * size).min(end) - place,
                shared: part.run.map(|(_, blocks)| blocks.start * size..blocks.end * size),
            })?;
        }
        Ok(())
    }
}

/// Returns the part of an extent that a file shows, in bytes.
fn run_of(extent: &Extent, inode: InodeNumber, block_size: u64, end: u64) -> Option<DataRun> {
    let offset = extent.logical * block_size;
    if !extent.written || offset >= end {
        return None;
    }
    let length = (extent.length * block_size).min(end - offset);
    Some(DataRun { inode, offset, place: extent.physical * block_size, length, shared: None })
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
