//! Which subvolumes and snapshots share which bytes, and what deleting some of them would free.
//!
//! Owns [`SpaceSharing`]: the bytes of data and of tree blocks for each set of subvolumes that hold
//! exactly these bytes together. All answers are sums over these sets, so that one walk answers for
//! every subvolume and every group of them. It needs no quotas.
//!
//! - An extent counts with its length on disk, compressed, once for a set, whatever number of
//!   references it has. A reference to a part of an extent keeps the whole extent.
//! - Inline extents are bytes of tree blocks.
//! - Subvolumes that are deleted and not yet cleaned do not count as holders: their own bytes are
//!   free soon.
//! - The checksum, extent and free space trees shrink, too, when files go. That is not counted.
//!
//! Kernel counterpart: qgroups (`fs/btrfs/qgroup.c`) count the same two numbers, referenced and
//! exclusive, for each subvolume.

mod child_runs;
mod estimate;
mod references;
mod root_sets;
mod shares;
mod walk;

pub use estimate::Estimate;
pub use shares::{SharedBytes, SharingOptions, SharingProgress};

use crate::dump::append_named_roots;
use papilio_engine::errors::{Error, Result};
use papilio_engine::items::trees::Trees;
use papilio_engine::jobs::usage::{Usage, usage};
use papilio_engine::subvolume::{self, Subvolume};
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::{Generation, TreeId};
use root_sets::Run;
use shares::Share;
use std::collections::HashMap;
use walk::SharingWalk;

/// The space of one subvolume.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubvolumeSpace {
    /// The subvolume.
    pub subvolume: Subvolume,
    /// Bytes that it holds, alone or with others.
    pub referenced: Estimate,
    /// Bytes that only it holds: deleting it, and nothing else, frees them.
    pub exclusive: Estimate,
}

/// Which subvolumes share which bytes.
#[derive(Debug)]
pub struct SpaceSharing {
    /// In the order of creation.
    subvolumes: Vec<Subvolume>,
    positions: HashMap<TreeId, usize>,
    shares: Vec<Share>,
    /// Subvolumes that are deleted and not yet cleaned.
    in_deletion: usize,
    /// Bytes of data in use by the block groups, if inodes were sampled.
    sampled_from: Option<u64>,
    blocks: u64,
    leaves_read: u64,
    errors: Vec<Error>,
    bad_blocks: u64,
}

impl SpaceSharing {
    /// Reads the trees of all subvolumes. Returns `None` if `progress` returned `false`.
    ///
    /// The trees must not change meanwhile: blocks that were freed and written anew give errors.
    ///
    /// # Errors
    /// The root tree cannot be read, or no temporary file can be used. Other blocks that cannot be
    /// read are left out: see [`SpaceSharing::bad_blocks`].
    pub fn measure(
        trees: &Trees,
        options: &SharingOptions,
        progress: &mut dyn FnMut(SharingProgress) -> bool,
    ) -> Result<Option<Self>> {
        let all = subvolume::list(trees)?;
        let total = all.len();
        let mut subvolumes: Vec<_> = all.into_iter().filter(|found| !found.is_being_deleted()).collect();
        subvolumes.sort_by_key(|subvolume| (subvolume.created, subvolume.id));
        let ids: Vec<TreeId> = subvolumes.iter().map(|subvolume| subvolume.id).collect();
        let positions: HashMap<_, _> = ids.iter().enumerate().map(|(position, id)| (*id, position)).collect();
        let usage = match options.sampled_leaves {
            Some(_) => Some(usage(trees)?),
            None => None,
        };
        let node_size = u64::from(trees.forest().volume().geometry().node_size);
        let in_use = |flag| usage.as_ref().map_or(0, |usage| in_use(usage, flag));
        let all_blocks = in_use(BlockGroupFlags::METADATA) / node_size;
        let mut walk = SharingWalk::new(trees.forest(), options, &ids, all_blocks);
        add_roots(trees, &positions, &mut walk)?;
        if !walk.run(progress)? {
            return Ok(None);
        }
        let sampled_from = match walk.is_sampled() {
            true => Some(in_use(BlockGroupFlags::DATA)),
            false => None,
        };
        let sets = &walk.sets;
        let share = |(set, tally): (_, walk::Tally)| Share {
            holders: sets.runs(set).into(),
            bytes: tally.bytes,
            groups: tally.groups,
        };
        let shares = std::mem::take(&mut walk.tallies).into_iter().map(share).collect();
        Ok(Some(Self {
            in_deletion: total - subvolumes.len(),
            shares,
            sampled_from,
            blocks: walk.blocks,
            leaves_read: walk.leaves_read,
            errors: walk.errors,
            bad_blocks: walk.bad_blocks,
            positions,
            subvolumes,
        }))
    }

    /// Returns the subvolumes that were measured, in the order of creation.
    pub fn subvolumes(&self) -> &[Subvolume] {
        &self.subvolumes
    }

    /// Returns the number of subvolumes that are deleted and not yet cleaned. They are no holders.
    pub fn in_deletion(&self) -> usize {
        self.in_deletion
    }

    /// Returns whether the bytes of data are estimates.
    pub fn is_sampled(&self) -> bool {
        self.sampled_from.is_some()
    }

    /// Returns the number of tree blocks in subvolumes.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the number of leaves that were read.
    pub fn leaves_read(&self) -> u64 {
        self.leaves_read
    }

    /// Returns the number of blocks that could not be read. Nothing below them is counted.
    pub fn bad_blocks(&self) -> u64 {
        self.bad_blocks
    }

    /// Returns the first few errors.
    pub fn errors(&self) -> &[Error] {
        &self.errors
    }

    /// Returns the number of different sets of subvolumes that hold bytes together.
    pub fn sets(&self) -> usize {
        self.shares.len()
    }

    /// Returns the bytes of all subvolumes together.
    pub fn total(&self) -> Estimate {
        self.estimate(|_| true)
    }

    /// Returns the space of every subvolume, in the order of creation.
    pub fn by_subvolume(&self) -> Vec<SubvolumeSpace> {
        let mut sums: Vec<_> =
            self.subvolumes.iter().map(|_| (estimate::Sum::default(), estimate::Sum::default())).collect();
        for share in &self.shares {
            for holder in share.holders() {
                sums[holder].0.add(share);
            }
            if let [Run { first, last }] = *share.holders
                && first == last
            {
                sums[first as usize].1.add(share);
            }
        }
        let whole = self.whole();
        self.subvolumes
            .iter()
            .zip(sums)
            .map(|(subvolume, (referenced, exclusive))| SubvolumeSpace {
                subvolume: subvolume.clone(),
                referenced: referenced.estimate(&whole, self.sampled_from),
                exclusive: exclusive.estimate(&whole, self.sampled_from),
            })
            .collect()
    }

    /// Returns the bytes that are free once these subvolumes, and no others, are deleted and
    /// cleaned. Subvolumes that were not measured count for nothing.
    pub fn freed_by(&self, deleted: &[TreeId]) -> Estimate {
        let mut chosen = vec![false; self.subvolumes.len()];
        deleted.iter().filter_map(|id| self.positions.get(id)).for_each(|position| chosen[*position] = true);
        self.estimate(|share| share.holders().all(|holder| chosen[holder]))
    }

    /// Chooses subvolumes whose deletion frees at least `wanted` bytes of data and metadata, the
    /// first of `candidates` first. None of them could be left out. `None` if all candidates
    /// together free less.
    pub fn choose(&self, wanted: u64, candidates: &[TreeId]) -> Option<Vec<TreeId>> {
        let freed = |chosen: &[TreeId]| self.freed_by(chosen).bytes.total();
        if freed(candidates) < wanted {
            return None;
        }
        let (mut enough, mut too_few) = (candidates.len(), 0);
        while too_few < enough {
            let middle = usize::midpoint(too_few, enough);
            match freed(&candidates[..middle]) >= wanted {
                true => enough = middle,
                false => too_few = middle + 1,
            }
        }
        let mut chosen = candidates[..enough].to_vec();
        // The last one is needed, since fewer were not enough. Of the others, younger ones are
        // spared first.
        for position in (0..chosen.len().saturating_sub(1)).rev() {
            let spared = chosen.remove(position);
            if freed(&chosen) < wanted {
                chosen.insert(position, spared);
            }
        }
        Some(chosen)
    }

    fn whole(&self) -> estimate::Sum {
        let mut whole = estimate::Sum::default();
        self.shares.iter().for_each(|share| whole.add(share));
        whole
    }

    fn estimate(&self, counts: impl Fn(&Share) -> bool) -> Estimate {
        let mut sum = estimate::Sum::default();
        self.shares.iter().filter(|share| counts(share)).for_each(|share| sum.add(share));
        sum.estimate(&self.whole(), self.sampled_from)
    }
}

/// Returns the bytes that the block groups of a kind have in use. In mixed ones, data and tree
/// blocks count together.
fn in_use(usage: &Usage, kind: BlockGroupFlags) -> u64 {
    let meant = usage.spaces.iter().filter(|space| space.kind.contains(kind));
    meant.fold(0, |sum: u64, space| sum.saturating_add(space.used))
}

/// Adds the root blocks of the subvolumes to a walk.
fn add_roots(trees: &Trees, positions: &HashMap<TreeId, usize>, walk: &mut SharingWalk<'_>) -> Result<()> {
    let mut roots = Vec::new();
    append_named_roots(&trees.root_tree(), &mut roots)?;
    for root in roots {
        if let Some(position) = positions.get(&root.id) {
            let generation = root.generation.unwrap_or(Generation(0));
            walk.add_root(*position as u32, root.address, root.level, generation)?;
        }
    }
    Ok(())
}
