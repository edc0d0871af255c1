//! Roots that the caller chose instead of those of the superblock.
//!
//! Owns [`choose`], which makes a superblock in memory that names them, and [`header_at`].
//! Everything that opens or checks a file system then starts from that superblock. Nothing is
//! written.
//!
//! Kernel counterparts: `read_backup_root`, `init_tree_roots` (`fs/btrfs/disk-io.c`).

use super::chunk_tree::read_chunk_tree;
use super::roots::Roots;
use crate::btree::Forest;
use crate::errors::{Error, Result};
use crate::options::OpenOptions;
use crate::options::older::{OlderCause, OlderState, UnreplayedLog};
use crate::options::rescue::{FoundTrees, TreeRootChoice};
use crate::volume::Volume;
use papilio_device::Device;
use papilio_format::node::{NodeExpectation, NodeHeader};
use papilio_format::objectid::{self, Objectid};
use papilio_format::superblock::{RawSuperblock, RootBackup};
use papilio_format::{Generation, LogicalAddress, Superblock, TreeId};
use std::sync::Arc;

/// Bytes of the cache of tree blocks while roots are looked for.
const CACHE_BYTES: usize = 4 << 20;

/// Returns the options with a superblock that names the chosen roots, if they choose any.
///
/// # Errors
/// A choice that is no root of that tree: the error says what is there. As [`Volume::open`].
pub(crate) fn choose(devices: &[Arc<dyn Device>], options: &OpenOptions) -> Result<OpenOptions> {
    let rescue = &options.rescue;
    if !rescue.chooses_roots() {
        return Ok(options.clone());
    }
    let volume = Arc::new(Volume::open(devices.to_vec(), options)?);
    let mut found = match &rescue.found {
        Some(found) => FoundTrees::clone(found),
        None => found_of(&volume, volume.superblock().clone()),
    };
    let last = found.superblock.raw;
    if let Some(number) = rescue.backup {
        let backup = backup_root(&found.superblock.raw, number)?;
        name_backup(&mut found, &backup);
    }
    if let Some(address) = rescue.chunk_root {
        let header = root_at(&volume, address, objectid::CHUNK_TREE, "chunk root")?;
        let raw = &mut found.superblock.raw;
        raw.chunk_root = address;
        (raw.chunk_root_level, raw.chunk_root_generation) = (header.level, header.generation);
        found.chunk_tree = None;
    }
    match rescue.tree_root {
        Some(TreeRootChoice::Address(address)) => {
            let volume = with_chunks(devices, options, &found)?;
            let header = root_at(&volume, address, objectid::ROOT_TREE, "tree root")?;
            name_root(&mut found, address, header.level, header.generation);
        }
        Some(TreeRootChoice::Generation(generation)) => {
            let raw = &found.superblock.raw;
            if raw.generation != generation {
                let backup = raw
                    .super_roots
                    .iter()
                    .find(|backup| backup.tree_root.0 != 0 && backup.tree_root_generation == generation);
                let Some(backup) = backup.copied() else { return Err(no_generation(raw, generation)) };
                name_backup(&mut found, &backup);
            }
        }
        None => {}
    }
    name_older_choice(&mut found, &last);
    let mut chosen = options.clone();
    chosen.rescue.found = Some(Arc::new(found));
    chosen.rescue.chunk_root = None;
    chosen.rescue.tree_root = None;
    chosen.rescue.backup = None;
    Ok(chosen)
}

/// As [`choose`], and with `use_backup_root` chooses the newest backup root whose root tree can be
/// read, if the current one cannot.
///
/// # Errors
/// As [`choose`].
pub fn choose_readable(devices: &[Arc<dyn Device>], options: &OpenOptions) -> Result<OpenOptions> {
    let chosen = choose(devices, options)?;
    if !options.use_backup_root {
        return Ok(chosen);
    }
    let volume = Arc::new(Volume::open(devices.to_vec(), &chosen)?);
    let superblock = volume.superblock().clone();
    let found = match &chosen.rescue.found {
        Some(found) => FoundTrees::clone(found),
        None => found_of(&volume, superblock.clone()),
    };
    if is_readable(devices, &chosen, &found) {
        return Ok(chosen);
    }
    let mut backups = superblock.raw.super_roots;
    backups.sort_by_key(|backup| std::cmp::Reverse(backup.tree_root_generation));
    for backup in backups.iter().filter(|backup| backup.tree_root.0 != 0) {
        let mut other = found.clone();
        name_backup(&mut other, backup);
        if is_readable(devices, &chosen, &other) {
            let generation = backup.tree_root_generation;
            tracing::warn!("using the backup roots of generation {generation}");
            let mut options = chosen;
            options.rescue.found = Some(Arc::new(other));
            return Ok(options);
        }
    }
    Ok(chosen)
}

/// Returns the header of the block at `address`, of any tree and generation.
///
/// # Errors
/// [`Error::TreeBlock`] if no copy is a sound block.
pub(crate) fn header_at(volume: &Arc<Volume>, address: LogicalAddress) -> Result<NodeHeader> {
    let known = volume.geometry().generation;
    // A root may be newer than the superblock in use.
    volume.set_generation(Generation(u64::MAX));
    let forest = Forest::new(Arc::clone(volume), CACHE_BYTES);
    let block = forest.block(TreeId(0), &NodeExpectation::at(address));
    volume.set_generation(known);
    Ok(block?.view().header())
}

/// Returns the header of the root block of `tree` at `address`. The error says what else is there.
fn root_at(volume: &Arc<Volume>, address: LogicalAddress, tree: TreeId, what: &str) -> Result<NodeHeader> {
    let invalid = |text: String| Error::Invalid(format!("{what} {address}: {text}"));
    let header = header_at(volume, address).map_err(|error| match error {
        Error::TreeBlock { reason, .. } => invalid(format!("no tree block is there: {reason}")),
        other => invalid(other.to_string()),
    })?;
    if header.owner != tree {
        let (level, owner, generation) = (header.level, Objectid(header.owner.0), header.generation);
        return Err(invalid(format!(
            "it is a block of tree {owner}, level {level}, generation {generation}, not one of tree {}",
            Objectid(tree.0)
        )));
    }
    Ok(header)
}

/// Forgets the log if the chosen root tree is not that of the last commit, to which a log belongs,
/// and keeps for the reader that the choice is an older state.
fn name_older_choice(found: &mut FoundTrees, last: &RawSuperblock) {
    let raw = &mut found.superblock.raw;
    if (raw.root, raw.generation) == (last.root, last.generation) {
        return;
    }
    let log =
        UnreplayedLog { address: last.log_root, level: last.log_root_level, committed: last.generation };
    let log = Some(log).filter(|log| log.address.0 != 0);
    raw.log_root = LogicalAddress(0);
    let cause = OlderCause::Chosen { newest: last.generation };
    let older = OlderState::new(cause, raw.generation, log);
    found.older = Some(older).filter(|older| older.shown <= last.generation);
}

fn found_of(volume: &Volume, superblock: Superblock) -> FoundTrees {
    FoundTrees {
        superblock,
        newest: volume.geometry().generation,
        members: None,
        chunk_tree: None,
        blocks: None,
        older: None,
    }
}

fn backup_root(raw: &RawSuperblock, number: usize) -> Result<RootBackup> {
    let Some(backup) = raw.super_roots.get(number) else {
        return Err(Error::Invalid(format!("backup root {number}: they are numbered 0 to 3")));
    };
    if backup.tree_root.0 == 0 {
        return Err(Error::Invalid(format!("backup root {number}: the superblock has none there")));
    }
    Ok(*backup)
}

fn name_backup(found: &mut FoundTrees, backup: &RootBackup) {
    name_root(found, backup.tree_root, backup.tree_root_level, backup.tree_root_generation);
    if found.chunk_tree.is_none() {
        let raw = &mut found.superblock.raw;
        raw.chunk_root = backup.chunk_root;
        raw.chunk_root_level = backup.chunk_root_level;
        raw.chunk_root_generation = backup.chunk_root_generation;
    }
}

fn name_root(found: &mut FoundTrees, address: LogicalAddress, level: u8, generation: Generation) {
    let raw = &mut found.superblock.raw;
    (raw.root, raw.root_level, raw.generation) = (address, level, generation);
    found.newest = found.newest.max(generation);
}

fn no_generation(raw: &RawSuperblock, generation: Generation) -> Error {
    let mut known: Vec<u64> = raw.super_roots.iter().map(|backup| backup.tree_root_generation.0).collect();
    known.push(raw.generation.0);
    known.retain(|generation| *generation != 0);
    known.sort_unstable();
    known.dedup();
    let known = known.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    Error::Invalid(format!(
        "tree root of generation {generation}: the superblock knows those of {known} only; a scan may \
         find others"
    ))
}

/// Opens the volume with all chunks, as far as the chunk tree can be read.
fn with_chunks(
    devices: &[Arc<dyn Device>],
    options: &OpenOptions,
    found: &FoundTrees,
) -> Result<Arc<Volume>> {
    let mut options = options.clone();
    options.rescue.found = Some(Arc::new(found.clone()));
    let volume = Arc::new(Volume::open(devices.to_vec(), &options)?);
    let forest = Forest::new(Arc::clone(&volume), CACHE_BYTES);
    let roots = Roots::current(volume.superblock());
    read_chunk_tree(&volume, &forest.tree(objectid::CHUNK_TREE, roots.chunk_root), &options)?;
    Ok(volume)
}

fn is_readable(devices: &[Arc<dyn Device>], options: &OpenOptions, found: &FoundTrees) -> bool {
    let Ok(volume) = with_chunks(devices, options, found) else { return false };
    let forest = Forest::new(Arc::clone(&volume), CACHE_BYTES);
    let roots = Roots::current(volume.superblock());
    forest.tree(objectid::ROOT_TREE, roots.root).root_block().is_ok()
}
