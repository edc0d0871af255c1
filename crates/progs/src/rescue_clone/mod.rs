//! A clone of a damaged file system: a new one, with all that can be read.
//!
//! - `roots`: the subvolumes that the root tree names, and their references
//! - `tree`: the items of a subvolume, copied as they are except for the places of data
//! - `inodes`: the inode whose items are copied, made anew where its own item is lost
//! - `shared`: the tree blocks that subvolumes share
//! - `extents`: data extents, copied once each
//! - `loss`, `report`: the missing parts
//!
//! Subvolumes keep their ids, UUIDs, times, flags and inode numbers, and share data as before.
//! Those that come from one another share tree blocks as before, unless they share few, or the
//! blocks lost something.
//!
//! **Invariants**
//! - The source is only read.
//! - Everything that the clone lacks is reported.
//!
//! Kernel counterpart: none.

mod extents;
mod inodes;
mod loss;
mod report;
pub(super) mod roots;
mod shared;
mod tree;

pub use loss::CloneLoss;
pub use report::{CloneProgress, Cloned};

use crate::mkfs::{MkfsFeature, MkfsOptions};
use extents::Extents;
use papilio_engine::errors::Result;
use papilio_engine::file::fs_info::FsInfo;
use papilio_engine::mount::older_files;
use papilio_engine::subvolume::{self, default_subvolume};
use papilio_format::Generation;
use papilio_format::features::{CompatRoFeatures, IncompatFeatures};
use papilio_format::items::chunk::RaidProfile;
use papilio_format::items::root_ref::RootRef;
use papilio_format::objectid;
use report::Listener;
use roots::SubvolumeRoots;
use shared::{Bases, Leaves, Plan, by_family};
use tree::TreeCopy;

/// Features of a file system that the clone must have as soon as its items are there.
const KEPT_FEATURES: IncompatFeatures = IncompatFeatures::COMPRESS_LZO
    .union(IncompatFeatures::COMPRESS_ZSTD)
    .union(IncompatFeatures::EXTENDED_IREF);

/// Returns the options that make an empty file system for a clone of `source`.
pub fn options_for(source: &FsInfo) -> MkfsOptions {
    let superblock = source.volume().superblock();
    let geometry = source.volume().geometry();
    let has_bgt = geometry.compat_ro.contains(CompatRoFeatures::BLOCK_GROUP_TREE);
    MkfsOptions::new()
        .label(superblock.label().to_vec())
        .node_size(geometry.node_size)
        .sector_size(geometry.sector_size)
        .checksum(geometry.checksum_type)
        // Where data is lost, no item has to say that there is a hole.
        .feature(MkfsFeature::NoHoles, true)
        .feature(MkfsFeature::BlockGroupTree, has_bgt)
        .metadata_profile(RaidProfile::Dup)
}

/// Returns the reasons why the source shows an older state than its newest, unless its reader asked
/// for that state, and the files that are older.
fn older_parts(source: &FsInfo) -> Vec<CloneLoss> {
    let mut losses = Vec::new();
    for state in source.older.iter().filter(|state| !state.is_asked()) {
        losses.push(CloneLoss::of("", state));
        let files = state.log.map_or_else(Vec::new, |log| older_files(&source.trees, log));
        losses.extend(files.iter().map(|file| CloneLoss::of(&file.path, file.reason())));
    }
    losses
}

/// Copies all subvolumes of `source` into `target`, a new and empty file system that was made with
/// [`options_for`].
///
/// # Errors
/// [`papilio_engine::Error::NoSpace`]; failures of the target's devices. Faults of the source are
/// told to `events`, and are no errors.
pub fn clone_into(source: &FsInfo, target: &FsInfo, events: &mut dyn FnMut(CloneProgress)) -> Result<Cloned> {
    let transactions = target.transactions()?;
    let geometry = source.volume().geometry();
    let newest = source.volume().superblock().raw.generation;
    // Items with the numbers of later transactions would not be valid.
    transactions.start_at(Generation(newest.0 + 1));
    let features = source.volume().superblock().raw.incompat_flags;
    transactions.require_features(features.intersection(KEPT_FEATURES));
    let roots = SubvolumeRoots::read(&source.trees);
    let mut listener = Listener::new(&source.trees, &roots, events);
    for loss in older_parts(source).iter().chain(&roots.losses) {
        listener.lose(loss.clone());
    }
    let checksums = source.trees.find(objectid::CSUM_TREE).ok().flatten().map(|open| open.tree.clone());
    let checksums = checksums.filter(|tree| tree.root_block().is_ok());
    let mut extents = Extents::new(source.volume(), checksums, transactions);
    if !extents.verifies() {
        listener.lose(CloneLoss::of("", "the checksum tree cannot be read: no data is verified"));
    }
    for family in by_family(&roots.subvolumes) {
        let mut bases = Bases::default();
        for (at, id) in family.iter().enumerate() {
            let root = &roots.subvolumes[id];
            // Two trees may have different blocks in place of one that cannot be read.
            let differs =
                root.tree.forest().replaces_inner_blocks() || root.tree.require_root_block().is_err();
            let plan = match differs {
                true => Plan::whole(),
                false => Plan::after(&root.tree, &bases),
            };
            if plan.base.is_some() {
                transactions.commit()?;
            }
            let (offset, item) = (root.key_offset, &root.item);
            let live =
                transactions.change(8, |handle| subvolume::adopt(handle, *id, offset, item, plan.base))?;
            let copy = TreeCopy::new(&root.tree, &live, transactions, &mut extents, &mut listener, geometry);
            let lost = copy.run(&plan.ranges, plan.base.is_some())?;
            if at + 1 < family.len() {
                bases.add(Leaves::of(&root.tree, &lost));
            }
        }
    }
    for (child, parent, reference) in roots.references() {
        let reference = RootRef::parse(reference).expect("it was parsed when it was read");
        transactions.change(4, |handle| subvolume::link(handle, parent, child, &reference))?;
    }
    if let Ok(default) = default_subvolume(&source.trees)
        && default != objectid::FS_TREE
        && roots.subvolumes.contains_key(&default)
    {
        transactions.change(4, |handle| subvolume::set_default(handle, default))?;
    }
    transactions.commit()?;
    for (id, root) in &roots.subvolumes {
        transactions.change(4, |handle| subvolume::keep_change(handle, *id, &root.item))?;
    }
    transactions.commit()?;
    let bytes = extents.bytes;
    source.trees.forest().faults().show_root(None);
    for fault in source.trees.forest().faults().all() {
        listener.lose(CloneLoss::of("", fault));
    }
    Ok(Cloned { subvolumes: roots.subvolumes.len(), bytes, losses: listener.losses, mended: Vec::new() })
}
