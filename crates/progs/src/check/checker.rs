//! The order of a check: reads the trees one after the other, then compares them.
//!
//! Owns [`Checker`].
//!
//! **Invariants**
//! - An item counts as missing only if its tree was read completely.
//! - Each comparison skipped for that reason is a finding ([`FindingKind::NotChecked`]).

use super::block_groups::BlockGroups;
use super::compressed::{self, Compressed};
use super::csums::Csums;
use super::damage::Damage;
use super::data::{self, DataTask};
use super::devices::Devices;
use super::free_space::FreeSpace;
use super::inodes::{Context, Inodes};
use super::inventory::Inventory;
use super::log_csums::LogCsums;
use super::options::{CheckOptions, CheckStage};
use super::quotas;
use super::references::{Complete, References};
use super::remedy::{Remedy, SuperblockField};
use super::report::{CheckReport, CheckStatistics, FindingKind, Findings, Place, SUBVOLUME_BEING_DELETED};
use super::roots::{Root, Roots};
use super::space_cache::SpaceCaches;
use super::superblocks;
use super::walker::{Visit, Walk, Walker};
use papilio_engine::btree::{Forest, RootPointer};
use papilio_engine::errors::{Error, Result};
use papilio_engine::items::trees::{Trees, root_pointer};
use papilio_engine::volume::Volume;
use papilio_format::features::{CompatRoFeatures, IncompatFeatures};
use papilio_format::items::inode::FileKind;
use papilio_format::items::root::RootItem;
use papilio_format::superblock::RawSuperblock;
use papilio_format::{Geometry, ItemType, LogicalAddress, TreeId, objectid};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of a stripe in all profiles that have stripes.
const STRIPE_LENGTH: u64 = 64 << 10;
/// Blocks between two reports of progress.
const PROGRESS_BLOCKS: u64 = 256;

/// Checks the file system on a volume whose system chunks are known.
///
/// # Errors
/// Missing or truncated devices, as for opening the file system. Everything else is a finding.
pub fn check(volume: &Arc<Volume>, cache_bytes: usize, options: &CheckOptions) -> Result<CheckReport> {
    Ok(take_inventory(volume, cache_bytes, options)?.0)
}

/// Checks as [`check`] does; also returns what a repair needs.
///
/// # Errors
/// As [`check`].
pub fn take_inventory(
    volume: &Arc<Volume>,
    cache_bytes: usize,
    options: &CheckOptions,
) -> Result<(CheckReport, Inventory)> {
    let forest = Forest::new(Arc::clone(volume), cache_bytes);
    let mut checker = Checker::new(&forest, options);
    checker.read_chunk_tree()?;
    superblocks::check_copies(volume, &mut checker.findings);
    superblocks::check_conversions(volume.superblock(), &mut checker.findings);
    checker.read_root_tree();
    checker.read_space_trees();
    checker.read_other_trees();
    checker.read_subvolumes();
    checker.read_log();
    checker.compare();
    checker.report_unreadable_chunks();
    if checker.whole.all && checker.roots.find(objectid::QUOTA_TREE).is_some() {
        quotas::compare(&forest, &checker.superblock, &mut checker.findings);
    }
    if options.data_csum && checker.superblock.flags.is_metadata_dump() {
        checker.findings.note("data-not-dumped", "a restored dump of metadata: it has no data to verify");
    } else if options.data_csum {
        checker.verify_data();
    }
    Ok(checker.finish())
}

/// The trees that were read completely.
#[derive(Debug, Default)]
struct Whole {
    trees: BTreeSet<TreeId>,
    /// Whether all trees walked so far were read completely.
    all: bool,
}

impl Whole {
    fn has(&self, tree: TreeId) -> bool {
        self.trees.contains(&tree)
    }
}

struct Checker<'a> {
    forest: &'a Arc<Forest>,
    options: &'a CheckOptions,
    geometry: Geometry,
    superblock: RawSuperblock,
    walker: Walker<'a>,
    findings: Findings,
    statistics: CheckStatistics,
    whole: Whole,
    references: References,
    block_groups: BlockGroups,
    devices: Devices,
    free_space: FreeSpace,
    csums: Csums,
    roots: Roots,
    caches: SpaceCaches,
    log_blocks: Vec<LogicalAddress>,
    compressed: Compressed,
}

impl<'a> Checker<'a> {
    fn new(forest: &'a Arc<Forest>, options: &'a CheckOptions) -> Self {
        let geometry = forest.volume().geometry();
        Self {
            forest,
            options,
            geometry,
            superblock: forest.volume().superblock().raw,
            walker: Walker::new(forest),
            findings: Findings::new(options.max_findings),
            statistics: CheckStatistics::default(),
            whole: Whole { trees: BTreeSet::new(), all: true },
            references: References::new(geometry),
            block_groups: BlockGroups::default(),
            devices: Devices::default(),
            free_space: FreeSpace::default(),
            csums: Csums::default(),
            roots: Roots::default(),
            caches: SpaceCaches::default(),
            log_blocks: Vec::new(),
            compressed: Compressed::default(),
        }
    }

    /// Walks a tree, counts its blocks and their references, and calls `leaf` with the collectors
    /// for each leaf. Returns whether the tree was read completely.
    fn walk(&mut self, walk: &Walk, mut leaf: impl FnMut(&mut Collected<'_>, &Visit<'_>)) -> bool {
        self.references.count_root(walk.tree, walk.root.address);
        self.statistics.trees += 1;
        let mut collected = Collected {
            references: &mut self.references,
            block_groups: &mut self.block_groups,
            devices: &mut self.devices,
            free_space: &mut self.free_space,
            csums: &mut self.csums,
            roots: &mut self.roots,
            caches: &mut self.caches,
        };
        let (statistics, options) = (&mut self.statistics, self.options);
        let (geometry, compressed) = (&self.geometry, &mut self.compressed);
        let node_size = u64::from(geometry.node_size);
        let whole = self.walker.walk(walk, &mut self.findings, |visit, findings| {
            if visit.first {
                statistics.blocks += 1;
                statistics.metadata_bytes += node_size;
                if statistics.blocks.is_multiple_of(PROGRESS_BLOCKS) {
                    options.report(CheckStage::Trees, statistics.blocks, None);
                }
                collected.references.count_block(visit, findings);
                check_stripes(visit, node_size, findings);
                if options.data_csum && options.decode && visit.block.level() == 0 {
                    compressed.read_leaf(visit, geometry, findings);
                }
            }
            if visit.block.level() == 0 {
                leaf(&mut collected, visit);
            }
        });
        self.whole.all &= whole;
        if whole {
            self.whole.trees.insert(walk.tree);
        }
        whole
    }

    /// Reads chunks and devices, which all other reads need.
    fn read_chunk_tree(&mut self) -> Result<()> {
        let root = RootPointer {
            address: self.superblock.chunk_root,
            level: self.superblock.chunk_root_level,
            generation: Some(self.superblock.chunk_root_generation),
        };
        let walk = Walk::of(objectid::CHUNK_TREE, root);
        self.walk(&walk, |collected, visit| collected.devices.read_chunk_leaf(visit));
        self.devices.sort();
        let volume = self.forest.volume();
        if volume.install_chunks(self.devices.chunks.iter().cloned()).is_err() {
            // One by one, so that a bad chunk does not hide the others.
            for chunk in &self.devices.chunks {
                if let Err(error) = volume.install_chunks([chunk.clone()]) {
                    fail_without_devices(&error)?;
                    let place = Place { address: Some(chunk.0), ..Place::tree(objectid::CHUNK_TREE) };
                    self.findings.add(FindingKind::ChunkInvalid, place, format_args!("{error}"));
                }
            }
        }
        volume.install_devices(self.devices.items.iter().copied())?;
        if self.whole.has(objectid::CHUNK_TREE) {
            superblocks::compare_chunk_tree(volume.superblock(), &self.devices, &mut self.findings);
            superblocks::check_cut_devices(volume, &self.devices, &mut self.findings);
        }
        Ok(())
    }

    fn read_root_tree(&mut self) {
        let root = RootPointer {
            address: self.superblock.root,
            level: self.superblock.root_level,
            generation: Some(self.superblock.generation),
        };
        let walk = Walk::of(objectid::ROOT_TREE, root);
        self.walk(&walk, |collected, visit| {
            collected.roots.read_leaf(visit);
            collected.caches.read_leaf(visit);
        });
        self.roots.adopt_mistyped(&mut self.findings);
        if self.whole.has(objectid::ROOT_TREE) {
            self.roots.check_required(&self.geometry, &mut self.findings);
        }
    }

    /// Returns the tree that has the block group items.
    fn block_group_tree(&self) -> TreeId {
        if self.geometry.compat_ro.contains(CompatRoFeatures::BLOCK_GROUP_TREE) {
            objectid::BLOCK_GROUP_TREE
        } else {
            objectid::EXTENT_TREE
        }
    }

    /// Reads the extent tree before the trees of files: the extent item of a block determines the
    /// kind of its references (see [`References`]).
    fn read_space_trees(&mut self) {
        if let Some(walk) = self.roots.find(objectid::EXTENT_TREE).map(Root::walk) {
            self.walk(&walk, |collected, visit| {
                collected.references.read_extent_leaf(visit);
                collected.block_groups.read_leaf(visit);
            });
        }
        self.references.extents_known();
        let in_extent_tree = self.block_groups.groups.len();
        if let Some(walk) = self.roots.find(objectid::BLOCK_GROUP_TREE).map(Root::walk) {
            self.walk(&walk, |collected, visit| collected.block_groups.read_leaf(visit));
        }
        self.check_block_group_tree(in_extent_tree);
        self.block_groups.sort();
        if let Some(walk) = self.roots.find(objectid::DEV_TREE).map(Root::walk) {
            self.walk(&walk, |collected, visit| collected.devices.read_device_leaf(visit));
        }
    }

    /// Proposes to end a conversion to a block-group tree that has not moved a block group yet.
    fn mend_conversion(&mut self) {
        let flag = papilio_format::features::SuperblockFlags::CHANGING_BG_TREE;
        if self.superblock.flags.contains(flag)
            && self.block_group_tree() == objectid::EXTENT_TREE
            && self.whole.has(objectid::EXTENT_TREE)
            && self.roots.find(objectid::BLOCK_GROUP_TREE).is_none()
        {
            self.findings.mend(Remedy::Superblock(SuperblockField::ConversionNotBegun));
        }
    }

    /// Finds a half-converted block-group tree: block groups belong into one tree only, which the
    /// features of the file system name. `in_extent_tree` is the number of those in the extent
    /// tree.
    fn check_block_group_tree(&mut self, in_extent_tree: usize) {
        let tree = objectid::BLOCK_GROUP_TREE;
        self.mend_conversion();
        let converted = self.block_group_tree() == tree;
        if converted && in_extent_tree > 0 {
            let message = format_args!("{in_extent_tree} block groups are in the extent tree still");
            self.findings.add(FindingKind::ConversionUnfinished, Place::tree(objectid::EXTENT_TREE), message);
        } else if !converted && self.roots.find(tree).is_some() {
            let message = format_args!("the tree exists, and no feature of the file system names it");
            self.findings.add(FindingKind::ConversionUnfinished, Place::tree(tree), message);
            let flag = papilio_format::features::SuperblockFlags::CHANGING_BG_TREE;
            let in_own_tree = self.block_groups.groups.len() - in_extent_tree;
            // Without all block groups in the extent tree, findings about those remain.
            if in_extent_tree > 0 {
                self.findings.mend(Remedy::DropTree(tree));
            } else if in_own_tree > 0 && self.superblock.flags.contains(flag) && self.whole.has(tree) {
                self.findings.mend(Remedy::Superblock(SuperblockField::ConversionDone));
            }
        }
    }

    fn read_other_trees(&mut self) {
        let done = [objectid::EXTENT_TREE, objectid::BLOCK_GROUP_TREE, objectid::DEV_TREE];
        let others = self.roots.roots.iter();
        let others = others.filter(|root| !done.contains(&root.id) && !objectid::is_fs_tree(root.id));
        let others: Vec<(TreeId, Walk)> = others.map(|root| (root.id, root.walk())).collect();
        let geometry = self.geometry;
        for (id, walk) in others {
            // `self.findings` is borrowed by the walk.
            let mut found = Findings::new(self.options.max_findings);
            self.walk(&walk, |collected, visit| match id {
                objectid::CSUM_TREE => collected.csums.read_leaf(visit, &geometry, &mut found),
                objectid::FREE_SPACE_TREE => collected.free_space.read_leaf(visit, &geometry, &mut found),
                objectid::UUID_TREE => collected.roots.read_uuid_leaf(visit),
                _ => {}
            });
            self.findings.absorb(found);
            if id == objectid::RAID_STRIPE_TREE {
                self.findings.note(
                    "stripe-tree-not-checked",
                    "RAID stripe tree: only the structure was checked, not the stripes",
                );
            }
        }
        self.statistics.csum_bytes = self.csums.bytes();
    }

    /// Reads the subvolumes, and the relocation trees that share blocks with them.
    fn read_subvolumes(&mut self) {
        let trees: Vec<Root> =
            self.roots.roots.iter().filter(|root| objectid::is_fs_tree(root.id)).cloned().collect();
        for root in trees {
            if !objectid::is_subvolume(root.id) || root.item.refs == 0 {
                self.walk(&root.walk(), |_, _| {});
                if root.item.refs == 0 {
                    let id = root.id;
                    self.findings.note(
                        SUBVOLUME_BEING_DELETED,
                        format!("subvolume {id} is being deleted: its files were not checked"),
                    );
                }
                continue;
            }
            self.statistics.subvolumes += 1;
            self.read_subvolume(&root);
        }
    }

    fn read_subvolume(&mut self, root: &Root) {
        let csums = self.whole.has(objectid::CSUM_TREE).then(|| std::mem::take(&mut self.csums));
        let geometry = self.geometry;
        let context = Context {
            geometry: &geometry,
            no_holes: geometry.incompat.contains(IncompatFeatures::NO_HOLES),
            csums: csums.as_ref(),
        };
        let directory = match root.item.root_dirid.0 {
            // Root items written before 2010 have 0.
            0 => objectid::FIRST_INODE.0,
            number => number,
        };
        let mut inodes = Inodes::new(context, root.id, directory, self.options.max_findings);
        let whole = self.walk(&root.walk(), |_, visit| inodes.read_leaf(visit));
        let (names, mut entries, found) = inodes.finish();
        self.csums = csums.unwrap_or_else(|| std::mem::take(&mut self.csums));
        self.statistics.inodes += names.inodes.len() as u64;
        let files = names.inodes.iter().filter(|inode| inode.kind == Some(FileKind::Regular));
        self.statistics.files += files.count() as u64;
        if whole {
            self.findings.absorb(found);
            self.roots.check_entries(root.id, &mut entries, &mut self.findings);
        } else {
            self.not_checked(root.id, "files and directories");
        }
    }

    /// Adds a finding that `what` was not checked because `tree` is damaged.
    fn not_checked(&mut self, tree: TreeId, what: &str) {
        let message = format_args!("{what}: not checked, because the tree could not be read completely");
        self.findings.add(FindingKind::NotChecked, Place::tree(tree), message);
    }

    /// Checks the structure of the log of fsyncs. Its blocks have no extent items: the next
    /// writable mount replays the log and frees them.
    fn read_log(&mut self) {
        if self.superblock.log_root.0 == 0 {
            return;
        }
        self.findings
            .note("fsync-log", "the file system has a log of fsyncs: only its structure was checked");
        // A walker of its own, to keep blocks of the log apart from those of the file system.
        let mut walker = Walker::new(self.forest);
        let root = RootPointer {
            address: self.superblock.log_root,
            level: self.superblock.log_root_level,
            generation: None,
        };
        let mut logs = Vec::new();
        let mut logged = LogCsums::default();
        let csums = &mut self.csums;
        walker.walk(&Walk::of(objectid::TREE_LOG, root), &mut self.findings, |visit, _| {
            let view = visit.block.view();
            for slot in (0..view.len()).filter(|_| visit.block.level() == 0) {
                if view.key(slot).item_type == ItemType::ROOT_ITEM {
                    let id = TreeId(view.key(slot).offset);
                    logs.extend(RootItem::parse(view.item(slot)).ok().map(|root| (id, root)));
                }
            }
        });
        self.statistics.trees += 1 + logs.len() as u64;
        let geometry = self.geometry;
        for (id, log) in logs {
            let root =
                RootPointer { address: log.address, level: log.level, generation: Some(log.generation) };
            walker.walk(&Walk::of(objectid::TREE_LOG, root), &mut self.findings, |visit, _| {
                csums.read_log_leaf(visit);
                logged.read_leaf(id, visit, &geometry);
            });
        }
        if self.whole.has(objectid::CSUM_TREE) {
            logged.compare(csums, &mut self.findings);
        }
        self.log_blocks = walker.seen.keys().copied().collect();
    }

    /// Compares the trees with each other.
    fn compare(&mut self) {
        self.options.report(CheckStage::Space, 0, None);
        let has = |tree| self.whole.has(tree);
        let holder = self.block_group_tree();
        let (extent_tree, groups) = (has(objectid::EXTENT_TREE), has(holder));
        let (chunk_tree, device_tree) = (has(objectid::CHUNK_TREE), has(objectid::DEV_TREE));
        let (root_tree, csum_tree) = (has(objectid::ROOT_TREE), has(objectid::CSUM_TREE));
        let findings = &mut self.findings;

        let complete = Complete { extent_tree, referrers: self.whole.all };
        self.references.compare(&self.walker.seen, complete, findings);
        self.block_groups.compare_chunks(holder, &self.devices.chunks, groups, findings);
        if chunk_tree {
            self.block_groups.find_chunkless(holder, &self.devices.chunks, findings);
        }
        self.devices.compare(chunk_tree, device_tree, findings);
        self.block_groups.count_extents(&self.references.extents, groups, findings);
        if extent_tree && groups {
            self.block_groups.compare_used(holder, self.superblock.bytes_used, findings);
        }
        if extent_tree && csum_tree {
            self.csums.compare_extents(&self.references, findings);
        }
        if root_tree {
            self.roots.check_references(findings);
        }
        self.caches.check(self.forest.volume(), &self.roots.caches, findings);
        self.compare_free_space();
        self.report_unread();
        if self.whole.has(objectid::UUID_TREE) && root_tree {
            self.roots.check_uuids(self.forest.volume().superblock(), &mut self.findings);
        }
        for extent in self.references.extents.iter().filter(|extent| extent.is_data()) {
            self.statistics.data_extents += 1;
            self.statistics.data_bytes = self.statistics.data_bytes.saturating_add(extent.length);
        }
    }

    fn compare_free_space(&mut self) {
        let valid = CompatRoFeatures::FREE_SPACE_TREE.union(CompatRoFeatures::FREE_SPACE_TREE_VALID);
        if !self.geometry.compat_ro.contains(CompatRoFeatures::FREE_SPACE_TREE) {
            return;
        }
        if !self.geometry.compat_ro.contains(valid) {
            return self.findings.note(
                "free-space-tree-invalid",
                "the free-space tree is not valid and will be rebuilt: not checked",
            );
        }
        let needed = [objectid::FREE_SPACE_TREE, objectid::EXTENT_TREE, self.block_group_tree()];
        if needed.into_iter().all(|tree| self.whole.has(tree)) {
            self.free_space.compare(&self.block_groups, &self.references.extents, &mut self.findings);
        }
    }

    /// Adds findings and notes about the comparisons that were skipped.
    fn report_unread(&mut self) {
        let uses = [
            (objectid::ROOT_TREE, "what refers to extents, references between subvolumes"),
            (objectid::CHUNK_TREE, "block groups and device extents without a chunk"),
            (objectid::EXTENT_TREE, "missing extents and back references, used bytes, free space"),
            (objectid::BLOCK_GROUP_TREE, "block groups, used bytes, free space"),
            (objectid::DEV_TREE, "missing device extents, used bytes of devices"),
            (objectid::CSUM_TREE, "whether data has checksums"),
            (objectid::FREE_SPACE_TREE, "free space"),
            (objectid::UUID_TREE, "UUIDs of subvolumes"),
        ];
        for (tree, what) in uses {
            let own = [objectid::ROOT_TREE, objectid::CHUNK_TREE].contains(&tree);
            if (own || self.roots.find(tree).is_some()) && !self.whole.has(tree) {
                self.not_checked(tree, what);
            }
        }
        let csums = objectid::CSUM_TREE;
        let no_root = |damage: &Damage| damage.tree == csums && damage.parent.is_none();
        if self.roots.find(csums).is_none() || self.walker.damages.iter().any(no_root) {
            self.findings.note(
                "checksums-lost",
                "the checksum tree is lost: nothing verifies data, and what is read may be wrong",
            );
        }
        if self.walker.missing_copies > 0 {
            let count = self.walker.missing_copies;
            self.findings.note(
                "copies-missing",
                format!("{count} copies of tree blocks are on missing devices: not checked"),
            );
        }
    }

    /// Reports the chunks that cannot be read because too many of their devices are missing.
    fn report_unreadable_chunks(&mut self) {
        for (chunk, error) in self.forest.volume().unreadable_chunks() {
            let start = chunk.start();
            let used = self.block_groups.find(start.0).is_none_or(|group| group.has_extents());
            let kind = match used {
                true => FindingKind::ChunkUnreadable,
                false => FindingKind::ChunkUnreadableEmpty,
            };
            let place = Place { address: Some(start), ..Place::tree(objectid::CHUNK_TREE) };
            let bytes = chunk.length();
            let Error::TooManyMissing { missing, tolerated, .. } = error else { continue };
            let message =
                format_args!("{bytes} bytes: {missing} of its devices are missing, it tolerates {tolerated}");
            self.findings.add(kind, place, message);
        }
    }

    /// Reads and verifies all data that has checksums, and decodes what is compressed.
    fn verify_data(&mut self) {
        let root = self.roots.find(objectid::CSUM_TREE).map(|root| (root.walk(), root.item));
        let (options, total, forest) = (self.options, self.statistics.csum_bytes, self.forest);
        let compressed = std::mem::take(&mut self.compressed).into_sorted();
        let checksums = root.map(|(_, item)| forest.tree(objectid::CSUM_TREE, root_pointer(&item)));
        let task = DataTask { forest, checksums: checksums.as_ref(), compressed: &compressed };
        let verified = data::verify_data(&task, options.max_findings, |data| {
            let Some((walk, _)) = &root else { return };
            let mut silent = Findings::new(0);
            Walker::new(forest).walk(walk, &mut silent, |visit, _| {
                if visit.block.level() == 0 {
                    options.report(CheckStage::Data, data.queue(visit), Some(total));
                }
            });
        });
        options.report(CheckStage::Data, total, Some(total));
        self.statistics.data_bytes_read = verified.read;
        self.statistics.extents_decoded = verified.decoded;
        self.findings.absorb(verified.findings);
        if self.findings.has(FindingKind::DataUndecodable) {
            let root = |address, level, generation| RootPointer { address, level, generation };
            let raw = &self.superblock;
            let trees = Trees::new(
                forest,
                root(raw.root, raw.root_level, Some(raw.generation)),
                root(raw.chunk_root, raw.chunk_root_level, Some(raw.chunk_root_generation)),
            );
            compressed::name_files(&trees, &mut self.findings);
        }
    }

    fn finish(self) -> (CheckReport, Inventory) {
        self.options.report(CheckStage::Trees, self.statistics.blocks, Some(self.statistics.blocks));
        let group_tree = self.block_group_tree();
        let inventory = Inventory {
            damages: self.walker.damages,
            seen: self.walker.seen,
            log_blocks: self.log_blocks,
            references: self.references,
            roots: self.roots.roots,
            chunk_tree_uuid: self.devices.chunk_tree_uuid.unwrap_or_default(),
            chunks: self.devices.chunks,
            whole: self.whole.trees,
            group_tree,
        };
        (self.findings.into_report(self.statistics), inventory)
    }
}

/// The collectors that a walk passes to the visitor of its leaves.
struct Collected<'a> {
    references: &'a mut References,
    block_groups: &'a mut BlockGroups,
    devices: &'a mut Devices,
    free_space: &'a mut FreeSpace,
    csums: &'a mut Csums,
    roots: &'a mut Roots,
    caches: &'a mut SpaceCaches,
}

/// Finds a block that lies in two stripes: readers of striped chunks and scrubs cannot read it
/// whole.
fn check_stripes(visit: &Visit<'_>, node_size: u64, findings: &mut Findings) {
    let address = visit.block.address();
    let last = address.0.saturating_add(node_size - 1);
    if address.0 / STRIPE_LENGTH == last / STRIPE_LENGTH {
        return;
    }
    let message =
        format_args!("the block is crossing stripe boundary {}", last / STRIPE_LENGTH * STRIPE_LENGTH);
    findings.add(FindingKind::BlockCrossesStripes, Place::block(visit.tree, address), message);
    findings.mend(Remedy::MoveBlock { tree: visit.tree, parent: visit.parent, block: address });
}

/// Returns the error if it is about missing devices: a check needs as many devices as a mount.
fn fail_without_devices(error: &Error) -> Result<()> {
    match error {
        Error::DeviceMissing { devid, uuid, .. } => {
            Err(Error::DeviceMissing { devid: *devid, uuid: *uuid, refused: true })
        }
        Error::TooManyMissing { logical, missing, tolerated } => {
            Err(Error::TooManyMissing { logical: *logical, missing: *missing, tolerated: *tolerated })
        }
        _ => Ok(()),
    }
}
