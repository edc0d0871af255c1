//! Checks the inodes of one subvolume, each by itself.
//!
//! Owns [`Inodes`], which reads the leaves of a subvolume in order and checks an inode after its
//! last item: missing inode items, file extents and their checksums, directory sizes, entries by
//! name against entries by index. It keeps small records for the checks across inodes in
//! [`super::names`].
//!
//! Kernel counterparts: `fs/btrfs/inode.c`, `fs/btrfs/dir-item.c`.

use super::csums::Csums;
use super::names::{ANY_INDEX, Entry, InodeRecord, NameRef, Names, hash_name};
use super::remedy::{InodeField, Remedy};
use super::report::{FindingKind, Findings, Place};
use super::roots::SubvolumeEntry;
use super::verity::VerityItems;
use super::walker::Visit;
use papilio_format::items::dir_item::{DirEntries, FileType};
use papilio_format::items::file_extent::{Compression, ExtentPart, FileExtentContent, FileExtentItem};
use papilio_format::items::inode::{FileKind, InodeFlags, InodeItem};
use papilio_format::items::inode_ref::{InodeExtrefs, InodeRefs};
use papilio_format::{Geometry, ItemType, Key, TreeId, objectid};

/// Properties of the file system that the checks of all subvolumes need.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) geometry: &'a Geometry,
    /// Whether holes need no file extent (`NO_HOLES`).
    pub(super) no_holes: bool,
    /// `None` if the checksum tree could not be read completely.
    pub(super) csums: Option<&'a Csums>,
}

/// The types of items that a subvolume can have.
const ITEM_TYPES: [ItemType; 10] = [
    ItemType::INODE_ITEM,
    ItemType::INODE_REF,
    ItemType::INODE_EXTREF,
    ItemType::XATTR_ITEM,
    ItemType::VERITY_DESC_ITEM,
    ItemType::VERITY_MERKLE_ITEM,
    ItemType::ORPHAN_ITEM,
    ItemType::DIR_ITEM,
    ItemType::DIR_INDEX,
    ItemType::EXTENT_DATA,
];

/// The check of one subvolume.
pub(super) struct Inodes<'a> {
    context: Context<'a>,
    tree: TreeId,
    current: Option<CheckedInode>,
    names: Names,
    subvolumes: Vec<SubvolumeEntry>,
    has_inode_cache: bool,
    /// Kept apart: the caller drops them if the tree could not be read completely.
    findings: Findings,
}

/// A directory entry, by name or by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Listed {
    /// See [`hash_name`].
    name: u64,
    target: u64,
    is_subvolume: bool,
    file_type: FileType,
    key_offset: u64,
}

impl Listed {
    fn same(&self, other: &Self) -> bool {
        (self.name, self.target, self.is_subvolume, self.file_type)
            == (other.name, other.target, other.is_subvolume, other.file_type)
    }
}

/// The inode whose items are being read.
struct CheckedInode {
    number: u64,
    item: Option<InodeItem>,
    first_key: Key,
    items: Vec<Listed>,
    indexes: Vec<Listed>,
    name_bytes: u64,
    extents: ExtentTotals,
    verity: VerityItems,
}

/// Totals of the file extents of an inode.
#[derive(Default)]
struct ExtentTotals {
    count: u64,
    /// File offset of the end of the last one, rounded up to sectors.
    end: u64,
    /// File offset of the first hole without an item.
    gap: Option<u64>,
    bytes: u64,
    /// Length and compression of the inline extent.
    inline: Option<(u64, Compression)>,
    /// Bytes that should have checksums and have none.
    without_csum: u64,
    /// Bytes of a NODATASUM file that have checksums.
    unexpected_csum: u64,
    /// Compressed bytes without checksums in a file with NODATASUM.
    compressed_without: u64,
    /// Whether all data of a file with NODATASUM has checksums.
    whole_csums: bool,
    /// Ranges on disk whose checksums are missing.
    gaps: Vec<(u64, u64)>,
    /// File offset of the first data past the end.
    beyond_end: Option<u64>,
}

impl<'a> Inodes<'a> {
    pub(super) fn new(context: Context<'a>, tree: TreeId, root_directory: u64, limit: usize) -> Self {
        Self {
            context,
            tree,
            current: None,
            names: Names::new(tree, root_directory),
            subvolumes: Vec::new(),
            has_inode_cache: false,
            findings: Findings::new(limit),
        }
    }

    /// Reads the next leaf.
    pub(super) fn read_leaf(&mut self, visit: &Visit<'_>) {
        let view = visit.block.view();
        for slot in 0..view.len() {
            let (key, data) = (view.key(slot), view.item(slot));
            if key.item_type == ItemType::ORPHAN_ITEM && key.objectid == objectid::ORPHAN {
                self.names.orphans.push(key.offset);
            }
            if matches!(key.objectid, objectid::FREE_INO | objectid::FREE_SPACE) {
                self.report_inode_cache(&key);
                continue;
            }
            if !ITEM_TYPES.contains(&key.item_type) {
                let message = format_args!("no item of a subvolume has this type");
                self.findings.add(FindingKind::ItemUnknown, Place::item(self.tree, key), message);
                self.findings.mend(Remedy::DropUnknown { tree: self.tree, key });
                continue;
            }
            if !(objectid::FIRST_FREE..=objectid::LAST_FREE).contains(&key.objectid) {
                continue;
            }
            if self.current.as_ref().is_none_or(|current| current.number != key.objectid) {
                self.finish_inode();
                self.current = Some(CheckedInode::new(key));
            }
            self.read_item(&key, data);
        }
    }

    /// Reports the cache of free inode numbers, once.
    fn report_inode_cache(&mut self, key: &Key) {
        if std::mem::replace(&mut self.has_inode_cache, true) {
            return;
        }
        let message = format_args!("a cache of free inode numbers, which the kernel refuses since 5.11");
        self.findings.add(FindingKind::InodeCache, Place::item(self.tree, *key), message);
        for number in [objectid::FREE_INO, objectid::FREE_SPACE] {
            let (first, last) = (Key::first_of(number), Key::last_of(number));
            self.findings.mend(Remedy::Replace { tree: self.tree, first, last, items: Vec::new() });
        }
    }

    fn read_item(&mut self, key: &Key, data: &[u8]) {
        let current = self.current.as_mut().expect("an item's inode is current");
        match key.item_type {
            ItemType::INODE_ITEM => current.item = InodeItem::parse(data).ok(),
            ItemType::INODE_REF => {
                for found in InodeRefs::parse(data).into_iter().flatten() {
                    let name = hash_name(found.name);
                    let (inode, directory, index) = (key.objectid, key.offset, found.index);
                    self.names.refs.push(NameRef { inode, directory, name, index });
                }
            }
            ItemType::INODE_EXTREF => {
                for found in InodeExtrefs::parse(data).into_iter().flatten() {
                    let name = hash_name(found.name);
                    let (inode, directory, index) = (key.objectid, found.parent.0, found.index);
                    self.names.refs.push(NameRef { inode, directory, name, index });
                }
            }
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => self.read_entries(key, data),
            ItemType::VERITY_DESC_ITEM | ItemType::VERITY_MERKLE_ITEM => current.verity.read(key, data),
            ItemType::EXTENT_DATA => {
                if let Ok(extent) = FileExtentItem::parse(data) {
                    let place = Place { key: Some(*key), ..Place::inode(self.tree, key.objectid) };
                    current.read_extent(key, &extent, &self.context, place, &mut self.findings);
                }
            }
            _ => {}
        }
    }

    fn read_entries(&mut self, key: &Key, data: &[u8]) {
        let current = self.current.as_mut().expect("an item's inode is current");
        let by_index = key.item_type == ItemType::DIR_INDEX;
        for entry in DirEntries::parse(data).into_iter().flatten() {
            current.name_bytes = current.name_bytes.saturating_add(entry.name.len() as u64);
            let is_subvolume = entry.location.item_type == ItemType::ROOT_ITEM;
            let listed = Listed {
                name: hash_name(entry.name),
                target: entry.location.objectid,
                is_subvolume,
                file_type: entry.file_type,
                key_offset: key.offset,
            };
            if by_index { &mut current.indexes } else { &mut current.items }.push(listed);
            if is_subvolume {
                self.subvolumes.push(SubvolumeEntry {
                    child: entry.location.objectid,
                    directory: key.objectid,
                    index: if by_index { key.offset } else { 0 },
                    name: entry.name.into(),
                });
            }
        }
    }

    fn finish_inode(&mut self) {
        let Some(mut current) = self.current.take() else { return };
        let place = Place::inode(self.tree, current.number);
        let Some(item) = current.item else {
            let place = Place { key: Some(current.first_key), ..place };
            let message = format_args!("items of an inode that has no inode item");
            self.names.unnumbered.push(current.number);
            self.findings.mend(Remedy::RebuildInode { tree: self.tree, inode: current.number });
            return self.findings.add(FindingKind::InodeMissing, place, message);
        };
        let kind = item.kind();
        self.names.inodes.push(InodeRecord { number: current.number, nlink: item.nlink, kind });
        // A deletion that was cut short leaves entries by index, whose inodes are deleted as well.
        let is_deleted = item.nlink == 0 && current.items.is_empty();
        if !is_deleted {
            current.compare_entries(self.tree, &mut self.names, &mut self.findings);
        }
        let is_directory = kind == Some(FileKind::Directory);
        if is_directory && !is_deleted && item.size != current.name_bytes {
            let (size, bytes) = (item.size, current.name_bytes);
            let message = format_args!("its size is {size}, the names of its entries have {bytes} bytes");
            self.findings.add(FindingKind::DirectorySize, place.clone(), message);
            // Entries that the repair adds change it again; the next check finds the sum.
            self.findings.mend(Remedy::Inode {
                tree: self.tree,
                inode: current.number,
                field: InodeField::Size(bytes),
            });
        }
        if !is_directory && (!current.items.is_empty() || !current.indexes.is_empty()) {
            let message = format_args!("directory entries of an inode that is not a directory");
            self.findings.add(FindingKind::NotADirectory, place.clone(), message);
        }
        if item.flags.contains(InodeFlags::VERITY)
            && let Some(fault) = current.verity.fault(item.size)
        {
            self.findings.add(FindingKind::VerityInvalid, place.clone(), format_args!("{fault}"));
            let (tree, inode) = (self.tree, current.number);
            self.findings.mend(Remedy::Inode { tree, inode, field: InodeField::NoVerity });
        }
        current.extents.check(&item, &self.context, &place, &mut self.findings);
    }

    /// Ends the subvolume after its last leaf: compares names, and returns all results.
    pub(super) fn finish(mut self) -> (Names, Vec<SubvolumeEntry>, Findings) {
        self.finish_inode();
        self.names.check(&mut self.findings);
        (self.names, self.subvolumes, self.findings)
    }
}

impl CheckedInode {
    fn new(first_key: Key) -> Self {
        Self {
            number: first_key.objectid,
            item: None,
            first_key,
            items: Vec::new(),
            indexes: Vec::new(),
            name_bytes: 0,
            extents: ExtentTotals::default(),
            verity: VerityItems::default(),
        }
    }

    /// Compares entries by name with entries by index, and adds each entry to `names` once.
    fn compare_entries(&mut self, tree: TreeId, names: &mut Names, findings: &mut Findings) {
        let directory = self.number;
        self.items.sort_unstable();
        self.indexes.sort_unstable();
        let place = |item_type, offset| {
            let key = Key::new(directory, item_type, offset);
            Place { key: Some(key), ..Place::inode(tree, directory) }
        };
        for pair in self.items.windows(2).filter(|pair| pair[0].name == pair[1].name) {
            let place = place(ItemType::DIR_ITEM, pair[1].key_offset);
            findings.add(
                FindingKind::DirEntryDuplicate,
                place,
                format_args!("two entries with the same name"),
            );
        }
        let mut add = |listed: &Listed, index: u64| {
            if !listed.is_subvolume {
                let Listed { name, target, file_type, .. } = *listed;
                names.entries.push(Entry { target, directory, name, index, file_type });
            }
        };
        let (mut items, mut indexes) = (self.items.iter().peekable(), self.indexes.iter().peekable());
        loop {
            let order = |listed: &Listed| (listed.name, listed.target, listed.is_subvolume, listed.file_type);
            match (items.peek(), indexes.peek()) {
                (None, None) => return,
                (Some(item), Some(index)) if item.same(index) => {
                    add(index, index.key_offset);
                    items.next();
                    indexes.next();
                }
                (Some(item), index) if index.is_none_or(|index| order(item) < order(index)) => {
                    let place = place(ItemType::DIR_ITEM, item.key_offset);
                    let target = item.target;
                    let message = format_args!("no entry by index for the entry of {target}");
                    let key = Key::new(directory, ItemType::DIR_ITEM, item.key_offset);
                    findings.add(FindingKind::DirIndexMissing, place, message);
                    findings.mend(Remedy::AddEntryByIndex { tree, item: key, target });
                    add(item, ANY_INDEX);
                    items.next();
                }
                (_, Some(index)) => {
                    let place = place(ItemType::DIR_INDEX, index.key_offset);
                    let message = format_args!("no entry by name for the entry of {}", index.target);
                    findings.add(FindingKind::DirItemMissing, place, message);
                    let key = Key::new(directory, ItemType::DIR_INDEX, index.key_offset);
                    findings.mend(Remedy::AddEntryByName { tree, index: key });
                    add(index, index.key_offset);
                    indexes.next();
                }
                (Some(_), None) => unreachable!("taken by the arm for items without an index"),
            }
        }
    }

    fn read_extent(
        &mut self,
        key: &Key,
        extent: &FileExtentItem<'_>,
        context: &Context<'_>,
        place: Place,
        findings: &mut Findings,
    ) {
        let extents = &mut self.extents;
        extents.count += 1;
        if key.offset < extents.end {
            let message = format_args!("the file extent before it reaches to {}", extents.end);
            findings.add(FindingKind::FileExtentOverlap, place.clone(), message);
        } else if key.offset > extents.end && extents.gap.is_none() {
            extents.gap = Some(extents.end);
        }
        let sector = u64::from(context.geometry.sector_size);
        let end = extent.end(papilio_format::FileOffset(key.offset), context.geometry.sector_size);
        extents.end = extents.end.max(end.map_or(u64::MAX, |end| end.0));
        match extent.content {
            FileExtentContent::Inline(_) => {
                extents.bytes = extents.bytes.saturating_add(extent.ram_bytes);
                extents.inline = Some((extent.ram_bytes, extent.compression));
            }
            FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) if !part.is_hole() => {
                extents.bytes = extents.bytes.saturating_add(part.length);
                let compressed = extent.compression != Compression::None;
                let whole = if compressed { extent.ram_bytes } else { part.disk_length };
                if part.offset.saturating_add(part.length) > whole {
                    let (offset, length) = (part.offset, part.length);
                    let message =
                        format_args!("{length} bytes at offset {offset} of an extent of {whole} bytes");
                    findings.add(FindingKind::FileExtentBounds, place.clone(), message);
                    if let Some(tree) = place.tree {
                        findings.mend(Remedy::FileExtent { tree, key: *key });
                    }
                }
                if let (FileExtentContent::Regular(_), Some(item)) = (extent.content, &self.item) {
                    extents.check_csums(&part, compressed, item, context);
                    let last = item.size.checked_next_multiple_of(sector).unwrap_or(u64::MAX);
                    if key.offset.saturating_add(part.length) > last && extents.beyond_end.is_none() {
                        extents.beyond_end = Some(key.offset.max(last));
                    }
                }
            }
            _ => {}
        }
    }
}

impl ExtentTotals {
    /// Counts the bytes of a file extent whose checksums contradict the inode's flags. Parts of the
    /// extent on disk that the file extent does not use need no checksums.
    fn check_csums(&mut self, part: &ExtentPart, compressed: bool, item: &InodeItem, context: &Context<'_>) {
        let Some(csums) = context.csums else { return };
        let (start, length) = if compressed {
            (part.disk_address.0, part.disk_length)
        } else {
            (part.disk_address.0.saturating_add(part.offset), part.length)
        };
        let covered = csums.covered(start, start.saturating_add(length));
        if item.flags.contains(InodeFlags::NODATASUM) {
            self.whole_csums = covered == length && (self.whole_csums || self.unexpected_csum == 0);
            self.unexpected_csum = self.unexpected_csum.saturating_add(covered);
            if compressed {
                self.compressed_without = self.compressed_without.saturating_add(length - covered);
            }
        } else {
            self.without_csum = self.without_csum.saturating_add(length.saturating_sub(covered));
            if covered < length {
                self.gaps.extend(csums.gaps(start, start.saturating_add(length)));
            }
        }
    }

    /// Checks target and flags of a symbolic link. Returns the fields of its inode that are wrong.
    fn check_symlink(&self, item: &InodeItem, place: &Place, findings: &mut Findings) -> Vec<InodeField> {
        let mut fields = Vec::new();
        let mut add = |kind, message: std::fmt::Arguments<'_>| findings.add(kind, place.clone(), message);
        // A symbolic link without a name is being deleted, which removes its target first.
        let half_deleted = item.nlink == 0 && self.count == 0;
        if !half_deleted && (self.count != 1 || self.inline != Some((item.size, Compression::None))) {
            let size = item.size;
            add(
                FindingKind::SymlinkTarget,
                format_args!("the target is not one inline extent of {size} bytes"),
            );
            if let (1, Some((bytes, Compression::None))) = (self.count, self.inline) {
                fields.push(InodeField::Size(bytes));
            }
        }
        if item.flags.intersects(InodeFlags::OF_NO_SYMLINK) {
            add(FindingKind::SymlinkFlags, format_args!("a symbolic link is immutable or append-only"));
            fields.push(InodeField::NoSymlinkFlags);
        }
        fields
    }

    /// Compares the totals with the inode.
    fn check(&self, item: &InodeItem, context: &Context<'_>, place: &Place, findings: &mut Findings) {
        let kind = item.kind();
        let mut fields = match kind {
            Some(FileKind::Symlink) => self.check_symlink(item, place, findings),
            _ => Vec::new(),
        };
        let mut holes = false;
        let mut add = |kind, message: std::fmt::Arguments<'_>| findings.add(kind, place.clone(), message);
        match kind {
            Some(FileKind::Regular | FileKind::Symlink) => {}
            _ if self.count > 0 => {
                return add(
                    FindingKind::FileExtentUnexpected,
                    format_args!("file extents of an inode that is not a file"),
                );
            }
            _ => return,
        }
        // The numbers of an inode that is being deleted may not match: deletion truncates it in
        // steps.
        if item.nlink > 0 && item.nbytes != self.bytes {
            let (nbytes, bytes) = (item.nbytes, self.bytes);
            add(
                FindingKind::FileBytes,
                format_args!("the inode says {nbytes} bytes, its extents have {bytes}"),
            );
            fields.push(InodeField::Bytes(bytes));
        }
        if !context.no_holes && item.nlink > 0 && kind == Some(FileKind::Regular) {
            let gap = self.gap.unwrap_or(self.end);
            if gap < item.size {
                add(FindingKind::FileExtentHole, format_args!("a hole at {gap} without a file extent"));
                holes = true;
            }
        }
        if let Some(offset) = self.beyond_end {
            let size = item.size;
            add(
                FindingKind::FileExtentBeyondEnd,
                format_args!("data at offset {offset}, past the size of {size}"),
            );
        }
        if self.without_csum > 0 {
            let bytes = self.without_csum;
            add(FindingKind::CsumMissing, format_args!("{bytes} bytes of data have no checksums"));
        }
        if self.compressed_without > 0 {
            let bytes = self.compressed_without;
            add(
                FindingKind::CsumMissingCompressed,
                format_args!("{bytes} compressed bytes have no checksums"),
            );
        }
        if self.unexpected_csum > 0 {
            let bytes = self.unexpected_csum;
            add(FindingKind::CsumUnexpected, format_args!("NODATASUM, but {bytes} bytes have checksums"));
            if self.whole_csums {
                fields.push(InodeField::HasCsums);
            }
        }
        if let (Some(tree), Some(inode)) = (place.tree, place.inode) {
            let inode = inode.0;
            if holes {
                findings.mend(Remedy::FillHoles { tree, inode });
            }
            if self.beyond_end.is_some() {
                findings.mend(Remedy::SizeOfData { tree, inode, end: self.end });
            }
            fields.into_iter().for_each(|field| findings.mend(Remedy::Inode { tree, inode, field }));
            for &(start, end) in &self.gaps {
                findings.mend(Remedy::AddCsums { start, end });
            }
        }
    }
}
