//! The report of a check: findings, each with a kind and a place, and statistics.
//!
//! Owns [`Finding`], [`FindingKind`], [`Severity`], [`Place`], [`CheckReport`] and the collector
//! [`Findings`].
//!
//! **Invariant:** the collector keeps only as many findings as the options allow, and the first of
//! each kind. It counts the rest, so that memory does not grow with the faults of a hostile image.

use super::remedy::Remedy;
use papilio_format::objectid::Objectid;
use papilio_format::{InodeNumber, Key, LogicalAddress, PhysicalAddress, TreeId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// A remark: something unusual, or a part that was not checked by design.
    Note,
    /// Out of date or wasteful, but no data is at risk. The next writer mends most of these.
    Warning,
    /// Data is at risk, or the kernel refuses the file system.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

macro_rules! finding_kinds {
    ($($(#[doc = $doc:literal])+ $name:ident $text:literal $severity:ident;)*) => {
        /// Kinds of faults, one for each rule that a check tests.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum FindingKind {
            $($(#[doc = $doc])+ $name,)*
        }

        impl FindingKind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// A short name that stays the same between versions.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// How bad a finding of this kind is.
            pub const fn severity(self) -> Severity {
                match self {
                    $(Self::$name => Severity::$severity,)*
                }
            }
        }
    };
}

finding_kinds! {
    /// No copy of a tree block can be read.
    BlockRead "block-read" Error;
    /// No copy of a tree block has the right checksum.
    BlockChecksum "block-checksum" Error;
    /// A tree block of another address or file system.
    BlockIdentity "block-identity" Error;
    /// A tree block of another generation than its parent says.
    BlockGeneration "block-generation" Error;
    /// A tree block of another level than its parent says.
    BlockLevel "block-level" Error;
    /// A tree block that belongs to another tree.
    BlockOwner "block-owner" Error;
    /// A tree block whose header or item table is wrong.
    BlockStructure "block-structure" Error;
    /// Keys of a tree block that do not ascend.
    KeyOrder "key-order" Error;
    /// Keys of a tree block at or past its parent's next key.
    KeyBounds "key-bounds" Error;
    /// A tree block whose first key is not the one that its parent names.
    FirstKey "first-key" Error;
    /// An item whose own fields break the format.
    ItemInvalid "item-invalid" Error;
    /// One copy of a tree block is bad, another is good.
    BlockCopy "block-copy" Error;
    /// A tree block that lies in two stripes of 64 KiB.
    BlockCrossesStripes "block-crosses-stripes" Error;
    /// A tree block that is its own ancestor.
    TreeLoop "tree-loop" Error;
    /// A tree block that is in one tree twice, or in two trees that share no blocks.
    BlockShared "block-shared" Error;
    /// An address in no chunk.
    Unmapped "unmapped" Error;

    /// A reference to an extent that has no extent item.
    ExtentMissing "extent-missing" Error;
    /// An extent without any reference to it.
    ExtentUnreferenced "extent-unreferenced" Error;
    /// A reference without its back reference.
    BackRefMissing "back-ref-missing" Error;
    /// A back reference whose holder does not refer to the extent.
    BackRefExtra "back-ref-extra" Error;
    /// A back reference with a wrong count.
    BackRefCount "back-ref-count" Error;
    /// A back reference of an extent that has no item.
    BackRefOrphan "back-ref-orphan" Error;
    /// An extent whose count is not the sum of its back references.
    ExtentRefCount "extent-ref-count" Error;
    /// An extent item that gives its tree block another level.
    ExtentLevel "extent-level" Error;
    /// An extent item that gives its tree block another generation.
    ExtentGeneration "extent-generation" Error;
    /// A file extent that gives its extent another length.
    ExtentLength "extent-length" Error;
    /// An extent that overlaps another.
    ExtentOverlap "extent-overlap" Error;
    /// A tree block in an extent that its extent item calls data.
    ExtentContent "extent-content" Error;
    /// An extent outside all block groups.
    ExtentOutside "extent-outside" Error;
    /// An extent in a block group of another type.
    ExtentGroup "extent-group" Error;

    /// A chunk without a block group.
    BlockGroupMissing "block-group-missing" Error;
    /// A block group without a chunk.
    ChunkMissing "chunk-missing" Error;
    /// A block group of another length or other flags than its chunk.
    BlockGroupDiffers "block-group-differs" Error;
    /// A block group whose used bytes are not the sum of its extents.
    BlockGroupUsed "block-group-used" Error;
    /// The superblock's used bytes are not the sum of the block groups'.
    SuperblockBytesUsed "superblock-bytes-used" Error;
    /// Chunks that overlap or cannot be mapped.
    ChunkInvalid "chunk-invalid" Error;

    /// A chunk's stripe without a device extent.
    DeviceExtentMissing "device-extent-missing" Error;
    /// A device extent without a chunk's stripe.
    DeviceExtentExtra "device-extent-extra" Error;
    /// Device extents that overlap.
    DeviceExtentOverlap "device-extent-overlap" Error;
    /// A device extent past the device's end.
    DeviceExtentBounds "device-extent-bounds" Error;
    /// A device whose used bytes are not the sum of its device extents.
    DeviceBytesUsed "device-bytes-used" Error;
    /// A device without an item, named by a chunk or a device extent.
    DeviceItemMissing "device-item-missing" Error;
    /// A device whose superblock contradicts its item.
    DeviceItemDiffers "device-item-differs" Error;

    /// A block group without its free-space item.
    FreeSpaceInfoMissing "free-space-info-missing" Error;
    /// Free space that is missing from the free-space tree.
    FreeSpaceLost "free-space-lost" Error;
    /// Used space that is free in the free-space tree.
    FreeSpaceUsed "free-space-used" Error;
    /// A wrong number of free extents.
    FreeSpaceCount "free-space-count" Error;
    /// A free-space item outside every block group, or of the wrong form.
    FreeSpaceItem "free-space-item" Error;
    /// Free-space items of a block group that does not exist.
    FreeSpaceStale "free-space-stale" Error;
    /// A v1 free-space cache whose content is bad; readers ignore it.
    FreeSpaceCache "free-space-cache" Warning;

    /// Items of an inode that has no inode item.
    InodeMissing "inode-missing" Error;
    /// A link count that is not the number of names.
    LinkCount "link-count" Error;
    /// A name without the inode's reference to it.
    InodeRefMissing "inode-ref-missing" Error;
    /// An inode's reference to a name that does not exist.
    DirEntryMissing "dir-entry-missing" Error;
    /// An index entry without the entry by name.
    DirItemMissing "dir-item-missing" Error;
    /// An entry by name without the index entry.
    DirIndexMissing "dir-index-missing" Error;
    /// A directory entry of an inode that does not exist.
    DirEntryDangling "dir-entry-dangling" Error;
    /// An entry whose file type is not that of the inode.
    DirEntryType "dir-entry-type" Error;
    /// Two entries of one name in one directory.
    DirEntryDuplicate "dir-entry-duplicate" Error;
    /// Directory entries of an inode that is not a directory.
    NotADirectory "not-a-directory" Error;
    /// A directory's size that is not twice the bytes of its names.
    DirectorySize "directory-size" Error;
    /// A directory that no path leads to.
    DirectoryUnreachable "directory-unreachable" Error;
    /// A subvolume without its root directory.
    RootDirectoryMissing "root-directory-missing" Error;
    /// Bytes of an inode that are not the sum of its extents.
    FileBytes "file-bytes" Error;
    /// File extents that overlap.
    FileExtentOverlap "file-extent-overlap" Error;
    /// A hole without a file extent item, where the file system needs one.
    FileExtentHole "file-extent-hole" Error;
    /// A file extent that reaches past the extent it is a part of.
    FileExtentBounds "file-extent-bounds" Error;
    /// Written data past the file's end.
    FileExtentBeyondEnd "file-extent-beyond-end" Warning;
    /// File extents of an inode that is neither a file nor a symbolic link.
    FileExtentUnexpected "file-extent-unexpected" Error;
    /// A symbolic link whose target is not one inline extent of its size.
    SymlinkTarget "symlink-target" Error;
    /// A symbolic link that is immutable or append-only: nothing can remove it, nor its flags.
    SymlinkFlags "symlink-flags" Error;
    /// A file with fs-verity whose descriptor or Merkle tree is not complete: it cannot be read.
    VerityInvalid "verity-invalid" Error;
    /// A cache of free inode numbers, which kernels since 5.11 refuse.
    InodeCache "inode-cache" Error;
    /// An item whose type no item of a subvolume has.
    ItemUnknown "item-unknown" Error;
    /// An inode without a name that is not listed as an orphan.
    OrphanMissing "orphan-missing" Error;
    /// An orphan item without an inode or subvolume.
    OrphanStale "orphan-stale" Warning;

    /// Data without checksums that should have them.
    CsumMissing "csum-missing" Error;
    /// Compressed data without checksums, in a file whose flags say that it has none.
    CsumMissingCompressed "csum-missing-compressed" Error;
    /// Checksums of data that should have none.
    CsumUnexpected "csum-unexpected" Error;
    /// Data that only the log of fsyncs refers to, without the checksums that it should have.
    LogCsumMissing "log-csum-missing" Error;
    /// Checksum items that overlap.
    CsumOverlap "csum-overlap" Error;
    /// Checksums outside all data extents.
    CsumWithoutExtent "csum-without-extent" Error;
    /// Data of which no copy matches its checksum.
    DataChecksum "data-checksum" Error;
    /// One copy of data is bad, another is good.
    DataCopy "data-copy" Error;
    /// Data that cannot be read.
    DataRead "data-read" Error;
    /// Compressed data that matches its checksums and does not decode, or not to its own checksum.
    DataUndecodable "data-undecodable" Error;

    /// A required tree or a subvolume that does not exist.
    RootMissing "root-missing" Error;
    /// A subvolume's reference to its parent without the parent's to it.
    RootRefMissing "root-ref-missing" Error;
    /// A parent's reference to a subvolume without the subvolume's to it.
    RootBackrefMissing "root-backref-missing" Error;
    /// References of parent and subvolume that differ.
    RootRefDiffers "root-ref-differs" Error;
    /// A parent's reference to a subvolume without the directory entry.
    RootRefEntry "root-ref-entry" Error;
    /// A subvolume whose count is not the number of references to it.
    RootRefCount "root-ref-count" Error;
    /// A deleted subvolume that is not listed as an orphan.
    RootOrphanMissing "root-orphan-missing" Error;
    /// The default subvolume does not exist.
    DefaultSubvolume "default-subvolume" Error;
    /// The numbers of a qgroup are not those of its extents; a rescan mends them.
    QgroupNumbers "qgroup-numbers" Error;
    /// The UUID tree and the subvolumes disagree; the kernel rebuilds it.
    UuidTree "uuid-tree" Warning;

    /// A further copy of a superblock that is absent, bad or out of date; commits write it anew.
    SuperblockCopy "superblock-copy" Warning;
    /// The first copy of a superblock is bad or out of date: the kernel reads no other.
    SuperblockFirst "superblock-first" Error;
    /// Copies of a superblock of one generation differ.
    SuperblockCopyDiffers "superblock-copy-differs" Error;
    /// A conversion of the whole file system was interrupted, or ended halfway.
    ConversionUnfinished "conversion-unfinished" Error;
    /// The superblock's system chunks are not those of the chunk tree.
    SuperblockChunks "superblock-chunks" Error;
    /// The superblock's size is not that of the devices.
    SuperblockDevices "superblock-devices" Error;
    /// The superblock's number of devices is not that of the device items.
    SuperblockDeviceCount "superblock-device-count" Error;
    /// A size of a device or of the file system that is not a multiple of the sector size.
    DeviceSizeUnaligned "device-size-unaligned" Error;

    /// A device that is smaller than its item says: it was cut.
    DeviceCut "device-cut" Error;
    /// A chunk with data that cannot be read, as too many of its devices are missing.
    ChunkUnreadable "chunk-unreadable" Error;
    /// As `ChunkUnreadable`, of a chunk without data: the kernel mounts it for reading only.
    ChunkUnreadableEmpty "chunk-unreadable-empty" Warning;

    /// Something could not be checked because of another finding.
    NotChecked "not-checked" Warning;
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The place of a finding; fields that do not apply are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The tree.
    pub tree: Option<TreeId>,
    /// The tree block, or the extent.
    pub address: Option<LogicalAddress>,
    /// The item's key.
    pub key: Option<Key>,
    /// The inode.
    pub inode: Option<InodeNumber>,
    /// The device or image.
    pub device: Option<String>,
    /// The offset on the device, in bytes.
    pub offset: Option<PhysicalAddress>,
}

impl Place {
    /// A tree.
    pub(super) fn tree(tree: TreeId) -> Self {
        Self { tree: Some(tree), ..Self::default() }
    }

    /// A block of a tree.
    pub(super) fn block(tree: TreeId, address: LogicalAddress) -> Self {
        Self { address: Some(address), ..Self::tree(tree) }
    }

    /// An item of a tree.
    pub(super) fn item(tree: TreeId, key: Key) -> Self {
        Self { key: Some(key), ..Self::tree(tree) }
    }

    /// An inode of a subvolume.
    pub(super) fn inode(tree: TreeId, inode: u64) -> Self {
        Self { inode: Some(InodeNumber(inode)), ..Self::tree(tree) }
    }

    /// An extent.
    pub(super) fn extent(address: u64) -> Self {
        Self { address: Some(LogicalAddress(address)), ..Self::default() }
    }

    /// A device.
    pub(super) fn device(name: &str, offset: Option<PhysicalAddress>) -> Self {
        Self { device: Some(name.to_owned()), offset, ..Self::default() }
    }

    /// Adds the device and offset of one copy.
    pub(super) fn on(mut self, place: Option<(String, PhysicalAddress)>) -> Self {
        (self.device, self.offset) = place.unzip();
        self
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut part = |text: fmt::Arguments<'_>| {
            write!(f, "{separator}{text}")?;
            separator = ", ";
            Ok(())
        };
        if let Some(tree) = self.tree {
            part(format_args!("tree {}", Objectid(tree.0)))?;
        }
        if let Some(inode) = self.inode {
            part(format_args!("inode {inode}"))?;
        }
        if let Some(address) = self.address {
            part(format_args!("logical address {address}"))?;
        }
        if let Some(key) = self.key {
            part(format_args!("item {key}"))?;
        }
        if let Some(device) = &self.device {
            part(format_args!("{device}"))?;
        }
        if let Some(offset) = self.offset {
            part(format_args!("offset {offset}"))?;
        }
        Ok(())
    }
}

/// A fault that a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Which rule is broken.
    pub kind: FindingKind,
    /// How bad it is.
    pub severity: Severity,
    /// Where it is.
    pub place: Place,
    /// A description of the fault, in one line.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: ", self.severity, self.kind)?;
        match self.place.to_string() {
            place if place.is_empty() => f.write_str(&self.message),
            place => write!(f, "{place}: {}", self.message),
        }
    }
}

/// The code of the note about a subvolume that is being deleted.
pub(super) const SUBVOLUME_BEING_DELETED: &str = "subvolume-being-deleted";

/// A remark of a check: not a fault, and no reason for a bad verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Note {
    /// A short name that stays the same between versions.
    pub code: &'static str,
    /// The remark, in one line.
    pub message: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Numbers of objects that a check read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckStatistics {
    /// Trees walked, log trees among them.
    pub trees: u64,
    /// Distinct tree blocks, without those of log trees.
    pub blocks: u64,
    /// Bytes of those blocks, one copy of each.
    pub metadata_bytes: u64,
    /// Data extents in the extent tree.
    pub data_extents: u64,
    /// Bytes of those extents, one copy of each.
    pub data_bytes: u64,
    /// Subvolumes and snapshots that are not being deleted.
    pub subvolumes: u64,
    /// Inodes in them, each counted in every snapshot that has it.
    pub inodes: u64,
    /// Regular files among them.
    pub files: u64,
    /// Bytes of data that have checksums.
    pub csum_bytes: u64,
    /// Bytes of data read and compared with their checksums, each copy counted.
    pub data_bytes_read: u64,
    /// Compressed extents, inline ones apart, that were decoded after their checksums matched.
    pub extents_decoded: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// The faults, up to the limit of
    /// [`CheckOptions::max_findings`](super::CheckOptions::max_findings).
    pub findings: Vec<Finding>,
    /// The number of faults of each kind, including those not kept.
    pub counts: BTreeMap<FindingKind, u64>,
    /// Remarks that are not faults, and parts that were not checked.
    pub notes: Vec<Note>,
    /// Numbers of objects that the check read.
    pub statistics: CheckStatistics,
    /// Changes that mend findings, for a repair.
    pub(crate) remedies: Vec<Remedy>,
}

impl CheckReport {
    /// Returns the number of errors, including those not kept.
    pub fn errors(&self) -> u64 {
        self.count(Severity::Error)
    }

    /// Returns the number of warnings, including those not kept.
    pub fn warnings(&self) -> u64 {
        self.count(Severity::Warning)
    }

    fn count(&self, severity: Severity) -> u64 {
        let of_severity = self.counts.iter().filter(|(kind, _)| kind.severity() == severity);
        of_severity.map(|(_, count)| count).sum()
    }

    /// Returns the worst severity: of a finding, else of a note; `None` without either.
    pub fn verdict(&self) -> Option<Severity> {
        let worst = self.counts.keys().map(|kind| kind.severity()).max();
        worst.or_else(|| (!self.notes.is_empty()).then_some(Severity::Note))
    }

    /// Whether there is no error.
    pub fn is_clean(&self) -> bool {
        self.errors() == 0
    }

    /// Returns the number of findings that were counted but not kept.
    pub fn dropped(&self) -> u64 {
        self.counts.values().sum::<u64>() - self.findings.len() as u64
    }
}

/// Collects findings up to a limit.
#[derive(Debug)]
pub(super) struct Findings {
    kept: Vec<Finding>,
    limit: usize,
    counts: BTreeMap<FindingKind, u64>,
    pub(super) notes: Vec<Note>,
    remedies: Vec<Remedy>,
}

impl Findings {
    pub(super) fn new(limit: usize) -> Self {
        Self { kept: Vec::new(), limit, counts: BTreeMap::new(), notes: Vec::new(), remedies: Vec::new() }
    }

    /// Adds a finding. Past the limit it is only counted, unless it is the first of its kind.
    pub(super) fn add(&mut self, kind: FindingKind, place: Place, message: fmt::Arguments<'_>) {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        if self.kept.len() < self.limit || *count == 1 {
            let message = message.to_string();
            self.kept.push(Finding { kind, severity: kind.severity(), place, message });
        }
    }

    /// Moves the findings and notes of another collector into this one.
    pub(super) fn absorb(&mut self, other: Self) {
        for (kind, count) in other.counts {
            *self.counts.entry(kind).or_default() += count;
        }
        for finding in other.kept {
            if self.kept.len() < self.limit || self.kept.iter().all(|kept| kept.kind != finding.kind) {
                self.kept.push(finding);
            }
        }
        self.notes.extend(other.notes);
        let room = self.limit.saturating_sub(self.remedies.len());
        self.remedies.extend(other.remedies.into_iter().take(room));
    }

    /// Merges the findings of several threads, each in the order of addresses, into that order.
    pub(super) fn merged_by_address(limit: usize, parts: Vec<Self>) -> Self {
        let mut merged = Self::new(limit);
        for part in parts {
            for (kind, count) in part.counts {
                *merged.counts.entry(kind).or_default() += count;
            }
            merged.kept.extend(part.kept);
            merged.remedies.extend(part.remedies);
        }
        merged.kept.sort_by_key(|finding| finding.place.address);
        // The limit spares the first finding of each kind.
        let mut kinds = BTreeSet::new();
        let mut count = 0;
        merged.kept.retain(|finding| {
            count += 1;
            kinds.insert(finding.kind) || count <= limit
        });
        merged
    }

    /// Calls `change` with each finding of a kind that is kept; where it returns false, there is
    /// none any more.
    pub(super) fn retain(&mut self, kind: FindingKind, mut change: impl FnMut(&mut Finding) -> bool) {
        let before = self.kept.len();
        self.kept.retain_mut(|finding| finding.kind != kind || change(finding));
        let dropped = (before - self.kept.len()) as u64;
        if let Some(count) = self.counts.get_mut(&kind) {
            *count -= dropped;
            if *count == 0 {
                self.counts.remove(&kind);
            }
        }
    }

    /// Whether there is a finding of a kind.
    pub(super) fn has(&self, kind: FindingKind) -> bool {
        self.counts.contains_key(&kind)
    }

    /// Returns the number of findings so far.
    pub(super) fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Proposes a change that mends a finding. Past the limit it is forgotten: a repair checks
    /// again, and finds the rest.
    pub(super) fn mend(&mut self, remedy: Remedy) {
        if self.remedies.len() < self.limit && self.remedies.last() != Some(&remedy) {
            self.remedies.push(remedy);
        }
    }

    /// Adds a remark that is not a fault.
    pub(super) fn note(&mut self, code: &'static str, text: impl Into<String>) {
        self.notes.push(Note { code, message: text.into() });
    }

    pub(super) fn into_report(self, statistics: CheckStatistics) -> CheckReport {
        let (findings, counts, notes, remedies) = (self.kept, self.counts, self.notes, self.remedies);
        CheckReport { findings, counts, notes, statistics, remedies }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_past_the_limit_are_only_counted() {
        let mut findings = Findings::new(2);
        for number in 0..5u64 {
            findings.add(FindingKind::LinkCount, Place::inode(TreeId(5), number), format_args!("wrong"));
        }
        findings.add(FindingKind::UuidTree, Place::default(), format_args!("unusual"));
        let report = findings.into_report(CheckStatistics::default());
        assert_eq!(report.findings.len(), 3, "two, and the first of the second kind");
        assert_eq!((report.errors(), report.warnings(), report.dropped()), (5, 1, 3));
        let text = report.findings[0].to_string();
        assert_eq!(text, "error: link-count: tree FS_TREE, inode 0: wrong");
        assert_eq!(report.findings[2].to_string(), "warning: uuid-tree: unusual");
        assert_eq!(report.verdict(), Some(Severity::Error));
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> = FindingKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), FindingKind::ALL.len());
    }
}
