//! A change of the checksum algorithm.
//!
//! Owns [`change`].
//!
//! **Order**
//! 1. [`csum_tree`](super::csum_tree) reads all data that has checksums, verifies it, and writes a
//!    checksum tree with the new algorithm's into free space. Nothing refers to it yet: a power cut
//!    leaves the file system as it was.
//! 2. One commit puts that tree in the place of the old one. Its superblocks have the new algorithm
//!    and both flags, CHANGING_DATA_CSUM and CHANGING_META_CSUM, so that no one mounts it.
//! 3. Every tree block gets its new checksum in its place. Only its first sector changes.
//! 4. All superblocks lose the flags.
//!
//! After a power cut in step 3 a block has the checksum of either algorithm. The same change then
//! starts with that step again. `btrfstune` sets one of the flags at a time, so that the two
//! programs do not take over each other's change.

use super::change::Tuned;
use super::csum_tree;
use super::members::Members;
use super::reader::{BlockReader, Rewrite};
use super::rewrite::rewrite_all;
use papilio_engine::errors::{Error, Result};
use papilio_engine::mount;
use papilio_engine::options::OpenOptions;
use papilio_engine::volume::Volume;
use papilio_format::features::SuperblockFlags;
use papilio_format::{ChecksumType, objectid};

/// The flags of an interrupted change.
const FLAGS: SuperblockFlags = SuperblockFlags::CHANGING_DATA_CSUM.union(SuperblockFlags::CHANGING_META_CSUM);

/// Changes the algorithm to `wanted`, or finishes an interrupted change to it. `progress` is told
/// bytes.
pub(super) fn change(
    mut members: Members,
    wanted: ChecksumType,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Tuned> {
    let resumed = members.is_changing_checksums();
    let current = members.first().checksum_type();
    if resumed && current != wanted {
        return Err(Error::Invalid(format!(
            "a change to {} was interrupted: finish it first",
            current.name()
        )));
    }
    let total = members.first().raw.bytes_used;
    if !resumed {
        members.require_finished()?;
        members.require_no_seed()?;
        members.require_no_seeds_below()?;
        if current == wanted {
            let name = wanted.name();
            return Err(Error::Invalid(format!("the file system already has {name} checksums")));
        }
        replace_data_sums(&members, wanted, &mut |done| progress(done.min(total), total))?;
        members = Members::read(&members.devices())?;
    }
    // All superblocks, before a block changes: after a power cut in the commit they may differ.
    members.begin(|raw| raw.flags |= FLAGS)?;
    let volume = Volume::open_unfinished(members.devices(), &OpenOptions::new())?;
    let reader = BlockReader::new(&volume, Rewrite::Checksum);
    let blocks: Vec<_> = reader.all_blocks()?.into_iter().collect();
    let node_size = u64::from(volume.geometry().node_size);
    let data = total.saturating_sub(blocks.len() as u64 * node_size);
    let mut blocks_done = |done: u64, _: u64| progress((data + done * node_size).min(total), total);
    // The new checksum tree is among the blocks.
    let blocks = rewrite_all(&volume, &reader, &blocks, true, &mut blocks_done)?;
    members.finish(|raw| raw.flags -= FLAGS)?;
    Ok(Tuned { fsid: members.first().raw.fsid, blocks, resumed })
}

/// Replaces the checksum tree by one of algorithm `wanted`, and commits with the flags.
fn replace_data_sums(members: &Members, wanted: ChecksumType, progress: &mut dyn FnMut(u64)) -> Result<()> {
    let fs = mount::from_devices(members.devices(), &OpenOptions::new().write(true))?;
    let transactions = fs.transactions()?;
    let built = csum_tree::build(transactions, wanted, progress)?;
    fs.volume().flush()?;
    transactions.replace_tree(objectid::CSUM_TREE, &built)?;
    // Nothing else commits meanwhile.
    transactions.update_superblock(|raw| {
        raw.csum_type = wanted as u16;
        raw.flags |= FLAGS;
    });
    transactions.commit()
}
