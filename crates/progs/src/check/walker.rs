//! The walker: visits every block of every tree once, and continues past damaged blocks.
//!
//! Owns [`Walker`], which reads all copies of each block, compares the block with the pointer in
//! its parent, and remembers the blocks it has seen. A cursor would end at the first bad block.
//!
//! **Invariants**
//! - A block is verified once, by address.
//! - A block that cannot be used is a finding, and the walk continues with its sibling.
//! - The level falls by one with each step from the root, so that every walk ends.
//!
//! Kernel counterpart: none; `check_block` and `run_next_block` of `btrfs check`.

use super::copies::ReadAhead;
use super::damage::Damage;
use super::one_byte;
use super::remedy::Remedy;
use super::report::{FindingKind, Findings, Place};
use crate::descent::{self, NextBlock};
use papilio_engine::btree::{Forest, RootPointer, TreeBlock};
use papilio_engine::errors::{BlockFault, Error};
use papilio_format::{Corrupt, Key, LogicalAddress, NodeExpectation, TreeId, objectid};
use std::collections::HashMap;
use std::sync::Arc;

/// The most damaged parts that a walker remembers; a repair checks again, and finds the rest.
const MOST_DAMAGES: usize = 100_000;

/// The walker's record of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) owner: TreeId,
    pub(crate) generation: u64,
    pub(crate) level: u8,
    /// No copy could be used; the other fields come from the pointer to the block.
    pub(crate) broken: bool,
    /// Whether the tree that owns the block reaches it.
    pub(crate) owned: bool,
}

/// Progress of the deletion of a subvolume: at `level`, everything before `key` is freed.
#[derive(Clone, Copy, Debug)]
pub(super) struct DropProgress {
    pub(super) level: u8,
    pub(super) key: Key,
}

/// A tree to walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    pub(super) tree: TreeId,
    pub(super) root: RootPointer,
    /// The key of its root item; `Key::MIN` for a tree that the superblock points to.
    pub(super) item: Key,
    pub(super) drop: Option<DropProgress>,
    /// Whether to visit blocks that the walk of another tree has verified already.
    pub(super) shared: bool,
}

impl Walk {
    /// Walks all of a tree that shares no blocks.
    pub(super) fn of(tree: TreeId, root: RootPointer) -> Self {
        Self { tree, root, item: Key::MIN, drop: None, shared: false }
    }
}

/// One block, as passed to a visitor.
pub(super) struct Visit<'a> {
    pub(super) tree: TreeId,
    pub(super) block: &'a TreeBlock,
    /// Whether no walk visited the block before.
    pub(super) first: bool,
    /// The slots that still belong to the tree: all, unless the tree is being deleted.
    pub(super) live: std::ops::Range<usize>,
    /// The block with the pointer to it; `None` for a root.
    pub(super) parent: Option<LogicalAddress>,
}

struct Frame {
    block: Arc<TreeBlock>,
    first: bool,
    slot: usize,
    end: usize,
    bound: Option<Key>,
}

impl Frame {
    /// Returns the children that are still to be visited, with the bounds of their keys.
    fn children(&self, tree: TreeId) -> impl Iterator<Item = (NodeExpectation, Option<Key>)> {
        let found = descent::children(self.block.view(), self.slot..self.end, self.bound, tree);
        found.map(|NextBlock { expected, bound }| (expected, bound))
    }
}

/// Walks trees and remembers their blocks.
pub(super) struct Walker<'a> {
    forest: &'a Forest,
    pub(super) seen: HashMap<LogicalAddress, Seen>,
    /// The parts of trees that could not be visited, each once.
    pub(super) damages: Vec<Damage>,
    /// Copies on missing devices, which could not be read.
    pub(super) missing_copies: u64,
    ahead: ReadAhead,
}

impl<'a> Walker<'a> {
    pub(super) fn new(forest: &'a Forest) -> Self {
        Self {
            forest,
            seen: HashMap::new(),
            damages: Vec::new(),
            missing_copies: 0,
            ahead: ReadAhead::default(),
        }
    }

    /// Walks a tree from left to right and calls `visit` with each of its blocks, parents before
    /// children. Returns false if any part of the tree could not be visited.
    pub(super) fn walk(
        &mut self,
        walk: &Walk,
        findings: &mut Findings,
        mut visit: impl FnMut(&Visit<'_>, &mut Findings),
    ) -> bool {
        let expected = NodeExpectation {
            level: Some(walk.root.level),
            generation: walk.root.generation,
            owner: Some(walk.tree),
            ..NodeExpectation::at(walk.root.address)
        };
        let mut complete = true;
        let mut path: Vec<Frame> = Vec::new();
        let mut next = Some((expected, None, true));
        loop {
            if let Some((expected, bound, report)) = next.take() {
                match self.enter(walk, &expected, bound, report, &path, findings) {
                    Some((block, first)) => {
                        let live = live_children(walk.drop, &block);
                        let parent = path.last().map(|frame| frame.block.address());
                        let seen =
                            Visit { tree: walk.tree, block: &block, first, live: live.clone(), parent };
                        visit(&seen, findings);
                        if block.level() > 0 {
                            path.push(Frame { block, first, slot: live.start, end: live.end, bound });
                        }
                    }
                    None => {
                        complete = false;
                        self.note_damage(walk, &expected, bound, path.last());
                    }
                }
            }
            let Some(frame) = path.last_mut() else { return complete };
            if frame.slot == frame.end {
                path.pop();
                continue;
            }
            let (expected, bound) = frame.children(walk.tree).next().expect("seen above");
            frame.slot += 1;
            next = Some((expected, bound, frame.first));
        }
    }

    /// Remembers a part of a tree that could not be visited.
    fn note_damage(
        &mut self,
        walk: &Walk,
        expected: &NodeExpectation,
        bound: Option<Key>,
        parent: Option<&Frame>,
    ) {
        let damage = Damage {
            tree: walk.tree,
            item: walk.item,
            parent: parent.map(|frame| frame.block.address()),
            key: expected.first_key.unwrap_or(Key::MIN),
            bound,
            address: expected.address,
            level: expected.level.unwrap_or_default(),
        };
        // Snapshots share parents.
        let known = parent.is_some_and(|frame| !frame.first)
            && self.damages.iter().any(|other| {
                (other.parent, other.key, other.address) == (damage.parent, damage.key, damage.address)
            });
        if !known && self.damages.len() < MOST_DAMAGES {
            self.damages.push(damage);
        }
    }

    /// Returns the block that `expected` names, if it can be used, and whether this is its first
    /// visit. `report` is whether to report faults of the pointer, true for the first visit of the
    /// parent.
    fn enter(
        &mut self,
        walk: &Walk,
        expected: &NodeExpectation,
        bound: Option<Key>,
        report: bool,
        path: &[Frame],
        findings: &mut Findings,
    ) -> Option<(Arc<TreeBlock>, bool)> {
        let address = expected.address;
        let place = Place::block(walk.tree, address);
        if path.iter().any(|frame| frame.block.address() == address) {
            findings.add(FindingKind::TreeLoop, place, format_args!("the block is its own ancestor"));
            return None;
        }
        let mut silent = Findings::new(0);
        let findings = if report { findings } else { &mut silent };
        let (block, first) = match self.seen.get(&address).copied() {
            None => {
                let block = self.read(walk.tree, expected, path.last(), findings)?;
                mend_pointer(
                    walk,
                    expected,
                    path.last().map(|frame| frame.block.address()),
                    &block,
                    findings,
                );
                (block, true)
            }
            Some(seen) if seen.broken => return None,
            Some(seen) if !walk.shared || !objectid::is_fs_tree(seen.owner) => {
                let owner = objectid::Objectid(seen.owner.0);
                findings.add(
                    FindingKind::BlockShared,
                    place,
                    format_args!("the block is part of tree {owner} already"),
                );
                return None;
            }
            Some(_) => {
                let block = self.forest.block(walk.tree, &NodeExpectation::at(address)).ok()?;
                if let Err(reason) = block.meets(expected) {
                    findings.add(kind_of(&reason), place.clone(), format_args!("{reason}"));
                }
                (block, false)
            }
        };
        if expected.level.is_some_and(|level| level != block.level()) {
            return None;
        }
        if block.view().is_empty() && !path.is_empty() {
            findings.add(
                FindingKind::BlockStructure,
                place,
                format_args!("the block is empty and not a root"),
            );
            return None;
        }
        if let Err(reason) = block.stays_below(bound) {
            findings.add(FindingKind::KeyBounds, place, format_args!("{reason}"));
            return None;
        }
        if block.owner() == walk.tree
            && let Some(seen) = self.seen.get_mut(&address)
        {
            seen.owned = true;
        }
        Some((block, first))
    }

    /// Reads all copies of a block at its first visit.
    fn read(
        &mut self,
        tree: TreeId,
        expected: &NodeExpectation,
        parent: Option<&Frame>,
        findings: &mut Findings,
    ) -> Option<Arc<TreeBlock>> {
        let address = expected.address;
        let record = |block: &TreeBlock| Seen {
            owner: block.owner(),
            generation: block.generation().0,
            level: block.level(),
            broken: false,
            owned: false,
        };
        let place = Place::block(tree, address);
        let seen = &self.seen;
        let next = parent.filter(|frame| frame.block.level() == 1);
        let next = next.into_iter().flat_map(|frame| frame.children(tree));
        let next = next.map(|(expected, _)| expected).filter(|block| !seen.contains_key(&block.address));
        let mut copies = self.ahead.take(self.forest, expected, next);
        self.missing_copies += copies.missing;
        let chosen = match (copies.good.take(), copies.other.take()) {
            (Some(good), _) => Some(good),
            (None, Some((_, block, reason))) => {
                findings.add(kind_of(&reason), place.clone(), format_args!("{reason}"));
                Some(block)
            }
            (None, None) => None,
        };
        let good = copies.other.is_none() && chosen.is_some();
        let Some(block) = chosen else {
            self.report_unusable(&place, &copies.faults, findings);
            self.mend_byte(expected, &copies.faults, findings);
            let level = expected.level.unwrap_or_default();
            let generation = expected.generation.unwrap_or_default().0;
            self.seen.insert(address, Seen { owner: tree, generation, level, broken: true, owned: true });
            return None;
        };
        for (copy, fault) in &copies.faults {
            let place = place.clone().on(self.forest.volume().place_of(address, *copy));
            findings.add(FindingKind::BlockCopy, place, format_args!("copy {copy}: {fault}"));
            if good {
                findings.mend(Remedy::Mirror(address));
            }
        }
        self.seen.insert(address, record(&block));
        Some(Arc::new(block))
    }

    fn report_unusable(&self, place: &Place, faults: &[(usize, BlockFault)], findings: &mut Findings) {
        let Some((copy, fault)) = faults.first() else {
            let reason = "all devices with a copy are missing";
            return findings.add(FindingKind::BlockRead, place.clone(), format_args!("{reason}"));
        };
        let kind = match fault {
            BlockFault::Corrupt(reason) => kind_of(reason),
            BlockFault::Read(error) if matches!(**error, Error::Unmapped { .. }) => FindingKind::Unmapped,
            BlockFault::Loop => FindingKind::TreeLoop,
            _ => FindingKind::BlockRead,
        };
        let address = place.address.expect("the place has an address");
        let place = place.clone().on(self.forest.volume().place_of(address, *copy));
        let count = faults.len();
        findings.add(kind, place, format_args!("{fault} (copies tried: {count})"));
    }

    /// Proposes to change the one byte of a copy that makes its checksum right, if there is one.
    fn mend_byte(&self, expected: &NodeExpectation, faults: &[(usize, BlockFault)], findings: &mut Findings) {
        let geometry = self.forest.volume().geometry();
        for (copy, fault) in faults {
            if !matches!(fault, BlockFault::Corrupt(Corrupt::Checksum { .. } | Corrupt::NodeIdentity { .. }))
            {
                continue;
            }
            let mut bytes = vec![0; geometry.node_size as usize];
            if self.forest.volume().read_copy(expected.address, &mut bytes, *copy).is_ok()
                && let Some(change) = one_byte::find(&bytes, expected, &geometry)
            {
                return findings.mend(Remedy::Byte { block: expected.address, copy: *copy, change });
            }
        }
    }
}

/// Proposes to mend a pointer whose generation or key differ from those of the block, which is of
/// the right level and tree; or the owner of a block in a tree that shares none.
fn mend_pointer(
    walk: &Walk,
    expected: &NodeExpectation,
    parent: Option<LogicalAddress>,
    block: &TreeBlock,
    findings: &mut Findings,
) {
    if expected.level.is_some_and(|level| level != block.level()) || block.view().is_empty() {
        return;
    }
    let (generation, first_key) = (block.generation(), block.view().key(0));
    if !papilio_format::node::owner_allowed(walk.tree, block.owner()) {
        if !walk.shared && walk.tree != objectid::TREE_LOG {
            findings.mend(Remedy::Owner { block: block.address(), owner: walk.tree });
        }
        return;
    }
    let differs = expected.generation.is_some_and(|expected| expected != generation);
    match parent {
        Some(parent) if differs || expected.first_key.is_some_and(|key| key != first_key) => {
            findings.mend(Remedy::Pointer { parent, child: block.address(), generation, first_key });
        }
        None if differs && walk.item != Key::MIN => {
            findings.mend(Remedy::RootGeneration { item: walk.item, generation });
        }
        _ => {}
    }
}

/// Returns the children that a deletion in progress has not dropped yet. `btrfs_drop_snapshot`
/// records a key and a level: at and above that level, everything left of the key is freed.
fn live_children(drop: Option<DropProgress>, block: &TreeBlock) -> std::ops::Range<usize> {
    let view = block.view();
    let Some(drop) = drop.filter(|drop| block.level() >= drop.level && block.level() > 0) else {
        return 0..view.len();
    };
    let after = match view.search(&drop.key) {
        Ok(slot) => slot,
        Err(slot) if block.level() > drop.level => slot.saturating_sub(1),
        Err(slot) => slot,
    };
    after..view.len()
}

/// Returns the kind of finding for a fault of a block.
fn kind_of(reason: &Corrupt) -> FindingKind {
    match reason {
        Corrupt::Checksum { .. } => FindingKind::BlockChecksum,
        Corrupt::NodeIdentity { field: "generation", .. } => FindingKind::BlockGeneration,
        Corrupt::NodeIdentity { field: "level", .. } => FindingKind::BlockLevel,
        Corrupt::NodeIdentity { field: "owner", .. } => FindingKind::BlockOwner,
        Corrupt::NodeIdentity { .. } | Corrupt::NodeFsid { .. } => FindingKind::BlockIdentity,
        Corrupt::FirstKey { .. } => FindingKind::FirstKey,
        Corrupt::KeyOrder { .. } => FindingKind::KeyOrder,
        Corrupt::Item { .. } => FindingKind::ItemInvalid,
        _ => FindingKind::BlockStructure,
    }
}
