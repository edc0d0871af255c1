//! Repair: mends what a check finds, in rounds, until a check finds no more to mend.
//!
//! Owns [`mend`]. A round first makes trees whole ([`structure`]), then applies the remedies that
//! the check proposed ([`apply`]). [`editor`] changes trees where they are, and takes new blocks
//! from [`free_blocks`]; [`tree_writer`] writes whole trees.
//!
//! Nothing needs the extent tree, and no transaction is made: a file system that is too damaged to
//! be opened can so be mended. A crash in between is undone with the undo file.
//!
//! Userspace counterpart: `btrfs check --repair`.

mod apply;
pub mod change;
mod changed;
pub mod chunk_tree;
mod editor;
mod free_blocks;
pub mod log;
mod lost_found;
mod new_chunk;
mod orphans;
mod peers;
mod rebuilt_inode;
mod space_trees;
mod structure;
mod tree_writer;
mod undelete;
mod undelete_data;

use super::check::damage::Damage;
use super::check::inventory::Inventory;
use super::check::remedy::Remedy;
use super::check::{self, CheckOptions, CheckReport, FindingKind};
use change::RescueChange;
use chunk_tree::NewChunkTree;
use editor::{RoundContext, Scope};
use free_blocks::{FreeBlocks, NO_ROOM};
use orphans::{Candidates, Orphans};
use papilio_device::Device;
use papilio_engine::errors::Result;
use papilio_engine::options::OpenOptions;
use papilio_engine::volume::Volume;
use papilio_format::{ItemType, Key, TreeId, objectid};
use peers::Peers;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The most rounds: a mended fault may reveal another, in a few levels, and a round mends only as
/// many faults as a check keeps.
const MOST_ROUNDS: usize = 64;
/// The most rounds one after the other that find no fewer faults.
const MOST_IDLE_ROUNDS: usize = 6;
/// The most metadata chunks that a repair adds.
const MOST_NEW_CHUNKS: usize = 4;

/// Trees to write anew, beside mending the findings of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairScope {
    /// Writes the extent tree, the block groups and the free-space tree anew.
    pub init_extent_tree: bool,
    /// Writes the checksum tree anew, from the data as it is.
    pub init_csum_tree: bool,
    /// Gives a tree its own copy of a shared block before each change. Without it, a change
    /// concerns all trees of the block that have the fault.
    pub keeps_apart: bool,
    /// Makes this change only, and mends nothing else.
    pub only: Option<RescueChange>,
}

/// The outcome of the rounds.
#[derive(Debug)]
pub struct Mended {
    /// The check before the repair.
    pub before: CheckReport,
    /// The check after it.
    pub after: CheckReport,
    /// Every change that was made, one line each.
    pub changes: Vec<String>,
    /// Every change that could not be made, and why.
    pub refused: Vec<String>,
    /// Everything that is lost, one line each.
    pub losses: Vec<String>,
    /// Whether the chunk tree could be read completely before.
    pub has_chunk_tree: bool,
    /// Parts of trees that could not be visited, before and after.
    parts: (usize, usize),
    /// Whether a tree was written anew because the caller wished it.
    wished: bool,
}

impl Mended {
    /// Returns how bad the result is: parts of trees that cannot be visited, errors, warnings.
    pub fn rank(&self) -> (usize, u64, u64) {
        (self.parts.1, self.after.errors(), self.after.warnings())
    }

    /// Whether more of the trees can be read than before; or as much, with fewer faults and none of
    /// a new kind.
    pub fn is_better(&self) -> bool {
        let (before, after) = (&self.before, &self.after);
        let count = |report: &CheckReport| (report.errors(), report.warnings());
        if self.parts.1 != self.parts.0 || after.counts.is_empty() {
            return self.parts.1 < self.parts.0 || count(after) < count(before) || self.wished;
        }
        let fewer = count(after) < count(before) || (self.wished && count(after) <= count(before));
        fewer && after.counts.keys().all(|kind| before.counts.contains_key(kind))
    }
}

/// One look at the devices.
struct Look {
    volume: Arc<Volume>,
    report: CheckReport,
    inventory: Inventory,
}

impl Look {
    /// Returns how bad it is: parts of trees that cannot be visited, errors, warnings.
    fn rank(&self) -> (usize, u64, u64) {
        (self.inventory.damages.len(), self.report.errors(), self.report.warnings())
    }
}

/// Checks and mends the file system on the devices in turns, and checks at the end.
pub fn mend(
    devices: &[Arc<dyn Device>],
    open: &OpenOptions,
    cache_bytes: usize,
    options: &CheckOptions,
    scope: RepairScope,
    chunk_tree: Option<&NewChunkTree>,
) -> Result<Mended> {
    let look = || -> Result<Look> {
        let volume = Arc::new(Volume::open(devices.to_vec(), open)?);
        let (report, inventory) = check::take_inventory(&volume, cache_bytes, options)?;
        Ok(Look { volume, report, inventory })
    };
    let mut now = look()?;
    let (before, parts) = (now.report.clone(), now.inventory.damages.len());
    let (mut changes, mut refused, mut losses) = (Vec::new(), BTreeSet::new(), Vec::new());
    let has_chunk_tree = now.inventory.whole.contains(&objectid::CHUNK_TREE);
    let log = now.volume.superblock().log_root().is_some();
    if let Some(tree) = chunk_tree {
        changes.append(&mut tree.write(devices)?);
        now = look()?;
    }
    let candidates = Candidates::default();
    let mut scope = Pending {
        scope,
        made: false,
        new_chunks: 0,
        candidates,
        space: SpaceRebuild::NotNeeded,
        lost_parts: Vec::new(),
        revived: None,
    };
    let mut wished = false;
    let (mut best, mut idle) = (now.rank(), 0);
    for _ in 0..MOST_ROUNDS {
        let mut round = mend_once(&now, &mut scope);
        wished |= round.wished;
        refused.extend(round.refused);
        losses.append(&mut round.losses);
        if round.changes.is_empty() {
            let is_left = now.report.findings.iter().any(|finding| is_about_extents(finding.kind));
            if is_left && scope.scope.only.is_none() && scope.space == SpaceRebuild::NotNeeded {
                scope.space = SpaceRebuild::Needed;
                continue;
            }
            break;
        }
        changes.append(&mut round.changes);
        now.volume.flush()?;
        now = look()?;
        idle = if now.rank() < best { 0 } else { idle + 1 };
        best = best.min(now.rank());
        if idle >= MOST_IDLE_ROUNDS {
            break;
        }
    }
    if log && !changes.is_empty() && now.report.is_clean() {
        log::prove_replay(devices, open, cache_bytes)?;
    }
    let parts = (parts, now.inventory.damages.len());
    let refused = refused.into_iter().collect();
    let after = now.report;
    Ok(Mended { before, after, changes, refused, losses, has_chunk_tree, parts, wished })
}

/// The scope that are not fulfilled yet.
struct Pending {
    scope: RepairScope,
    /// Whether the only change was made.
    made: bool,
    /// The metadata chunks that were added.
    new_chunks: usize,
    /// Places that may have blocks that no walk reaches.
    candidates: Candidates,
    space: SpaceRebuild,
    /// The parts of trees that lost items so far.
    lost_parts: Vec<Damage>,
    /// The subvolume that was undeleted. Its faults are mended, too.
    revived: Option<TreeId>,
}

impl Pending {
    /// Whether the item of an inode may be among those that were lost.
    fn may_have_lost(&self, tree: TreeId, inode: u64) -> bool {
        let key = Key::new(inode, ItemType::INODE_ITEM, 0);
        self.lost_parts
            .iter()
            .any(|part| part.tree == tree && part.key <= key && part.bound.is_none_or(|bound| key < bound))
    }
}

/// Whether the extent tree is written anew, once, because its faults could not be mended one by
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpaceRebuild {
    NotNeeded,
    Needed,
    Made,
}

/// Whether a fault goes if the extent tree is written anew.
fn is_about_extents(kind: FindingKind) -> bool {
    matches!(
        kind,
        FindingKind::ExtentMissing
            | FindingKind::ExtentUnreferenced
            | FindingKind::BackRefMissing
            | FindingKind::BackRefExtra
            | FindingKind::BackRefCount
            | FindingKind::BackRefOrphan
            | FindingKind::ExtentRefCount
            | FindingKind::ExtentLevel
            | FindingKind::ExtentGeneration
            | FindingKind::ExtentContent
            | FindingKind::ExtentOverlap
    )
}

/// The outcome of one round.
#[derive(Default)]
struct Round {
    changes: Vec<String>,
    refused: Vec<String>,
    losses: Vec<String>,
    wished: bool,
}

/// Mends as much as one look allows.
fn mend_once(now: &Look, pending: &mut Pending) -> Round {
    let Look { volume, inventory, .. } = now;
    let mut round = Round::default();
    let mut orphans = Orphans::find(volume, inventory, &mut pending.candidates);
    let mut reserved = orphans.addresses();
    reserved.extend(inventory.log_blocks.iter().map(|block| block.0));
    if let Some(change) = pending.scope.only.filter(|_| !pending.made) {
        reserved.extend(change.reserved(volume, inventory));
    }
    let free = FreeBlocks::new(volume, inventory, &reserved);
    let scope = pending.scope;
    let subvolumes = inventory.roots.iter().map(|root| root.id).filter(|id| objectid::is_subvolume(*id));
    let context = RoundContext::new(free, inventory.references.shared_blocks(), subvolumes.collect());
    if scope.keeps_apart || scope.only.is_some_and(RescueChange::keeps_apart) {
        context.set_scope(Scope::One);
    }
    mend_with(now, &context, &mut orphans, pending, &mut round);
    if context.ran_out() && scope.only.is_none() && pending.new_chunks < MOST_NEW_CHUNKS {
        pending.new_chunks += 1;
        match new_chunk::add_metadata_chunk(volume, &context, inventory) {
            Ok(change) => {
                // The next round tries again.
                if !round.wished {
                    pending.scope = scope;
                }
                round.refused.retain(|reason| !reason.contains(NO_ROOM));
                round.changes.push(change);
            }
            Err(error) => round.refused.push(format!("add a metadata chunk: {error}")),
        }
    }
    round
}

/// As [`mend_once`], with the blocks that are free now.
fn mend_with(
    now: &Look,
    context: &RoundContext,
    orphans: &mut Orphans,
    pending: &mut Pending,
    round: &mut Round,
) {
    let Look { volume, report, inventory } = now;
    let mut remedies: Vec<&Remedy> = report.remedies.iter().collect();
    if report.is_clean() {
        remedies.retain(|remedy| !matches!(remedy, Remedy::DropLeftSpace { .. }));
    }
    remedies.sort_by_key(|remedy| remedy.rank());
    if let Some(change) = pending.scope.only {
        make_only(now, context, change, remedies, pending, round);
        return;
    }
    if !inventory.is_whole() {
        remedies.retain(|remedy| remedy.is_local());
        apply_all(now, context, &remedies, pending, round);
        // A block that is mended shows what is below it.
        if round.changes.is_empty() {
            let made = structure::mend_damages(volume, context, orphans, inventory);
            round.changes.extend(made.changes);
            round.refused.extend(made.refused);
            round.losses.extend(made.losses);
            pending.lost_parts.extend(made.lost_parts);
        }
        return;
    }
    if pending.space == SpaceRebuild::Needed {
        pending.space = SpaceRebuild::Made;
        match space_trees::rebuild_space(volume, context, inventory) {
            Ok(made) => round.changes.extend(made),
            Err(error) => round.refused.push(format!("write the extent tree anew: {error}")),
        }
        return;
    }
    let scope = &mut pending.scope;
    if scope.init_extent_tree {
        scope.init_extent_tree = false;
        match space_trees::rebuild_space(volume, context, inventory) {
            Ok(made) => {
                round.wished = true;
                round.changes.extend(made);
                return;
            }
            Err(error) => round.refused.push(format!("write the extent tree anew: {error}")),
        }
    }
    if scope.init_csum_tree {
        scope.init_csum_tree = false;
        let (tree, empty) = (objectid::CSUM_TREE, Vec::new());
        match space_trees::replace_tree(volume, context, inventory, tree, &empty) {
            Ok(made) => {
                round.wished = true;
                round.changes.push(made);
                return;
            }
            Err(error) => round.refused.push(format!("write the checksum tree anew: {error}")),
        }
    }
    apply_all(now, context, &remedies, pending, round);
    if remedies.iter().any(|remedy| matches!(remedy, Remedy::AddCsums { .. })) {
        let unverified = report.findings.iter().filter(|finding| finding.kind == FindingKind::CsumMissing);
        let loss =
            |finding: &check::Finding| format!("{}: nothing verifies its data any more", finding.place);
        round.losses.extend(unverified.map(loss));
    }
}

/// Makes the only change, then applies the remedies that it needs.
fn make_only(
    now: &Look,
    context: &RoundContext,
    change: RescueChange,
    mut remedies: Vec<&Remedy>,
    pending: &mut Pending,
    round: &mut Round,
) {
    let Look { volume, report, inventory } = now;
    if !inventory.is_whole() {
        round.refused.push("make the change: parts of trees cannot be read; repair it first".to_owned());
        return;
    }
    // Further rounds fix the data that a report had no room for.
    if !pending.made || change.needs_data() {
        pending.made = true;
        match change.make(volume, context, inventory, report) {
            Ok(made) => {
                round.wished = !made.changes.is_empty();
                round.changes.extend(made.changes);
                round.refused.extend(made.refused);
                round.losses.extend(made.losses);
                pending.lost_parts.extend(made.lost_parts);
                pending.revived = made.revived;
            }
            Err(error) => round.refused.push(format!("make the change: {error}")),
        }
        if round.wished {
            return;
        }
    }
    if pending.revived.is_some() && pending.space == SpaceRebuild::NotNeeded {
        pending.space = SpaceRebuild::Made;
        match space_trees::rebuild_space(volume, context, inventory) {
            Ok(made) => round.changes.extend(made),
            Err(error) => round.refused.push(format!("write the extent tree anew: {error}")),
        }
        return;
    }
    remedies.retain(|remedy| {
        change.allows(remedy) || pending.revived.is_some_and(|tree| remedy.file_tree() == Some(tree))
    });
    apply_all(now, context, &remedies, pending, round);
}

fn apply_all(now: &Look, context: &RoundContext, remedies: &[&Remedy], pending: &Pending, round: &mut Round) {
    let Look { volume, inventory, .. } = now;
    let keeps_apart = context.scope() == Scope::One;
    let peers = Peers::of(remedies);
    // A checksum is the only proof of what its data was. It goes when nothing else can need it.
    let keeps_csums = remedies.iter().any(|remedy| remedy.gives_data_an_extent());
    for remedy in remedies {
        if keeps_csums && matches!(remedy, Remedy::DropCsums { .. }) {
            continue;
        }
        // A lost leaf had the inode: its name and kind stay.
        let blank = match remedy {
            Remedy::DropEntries { tree, index, target } if pending.may_have_lost(*tree, *target) => {
                Some(Remedy::BlankInode { tree: *tree, index: *index })
            }
            _ => None,
        };
        if !keeps_apart {
            // Another tree lost no leaf, and has no blank inode.
            context.set_scope(if blank.is_some() { Scope::These(Vec::new()) } else { peers.scope(remedy) });
        }
        let made = blank.as_ref().map(|blank| apply::apply(volume, context, inventory, blank));
        let (remedy, made) = match (&blank, made) {
            (Some(blank), Some(Ok(made))) => (blank, Ok(made)),
            _ => (*remedy, apply::apply(volume, context, inventory, remedy)),
        };
        match made {
            Ok(true) => {
                round.changes.push(remedy.to_string());
                round.losses.extend(remedy.guess());
            }
            Ok(false) => {}
            Err(error) => round.refused.push(format!("{remedy}: {error}")),
        }
    }
}
