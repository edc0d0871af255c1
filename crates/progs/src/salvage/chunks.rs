//! The chunk map without a chunk tree.
//!
//! Owns [`rebuild_chunks`] and [`RebuiltChunks`]. There are three sources, the better first:
//! 1. chunk items: the system chunks of a good superblock, and those in leaves that a scan found,
//!    of each chunk the newest;
//! 2. device extents with the block group of the same address. The order of stripes matters only
//!    for striped profiles, and is found by the content ([`super::striped`]);
//! 3. pairs of a logical and a physical address from the blocks themselves, for the range between
//!    the first and the last block with the same distance.
//!
//! **Invariants**
//! - The chunks do not overlap: one from a better source, or a newer one, comes first.
//! - Source 3 gives metadata only; data has no address of its own on disk.
//!
//! Kernel counterpart: none; `btrfs rescue chunk-recover` does it alike.

use super::block_scan::BlockScan;
use super::striped::Evidence;
use papilio_format::items::block_group::BlockGroupFlags;
use papilio_format::items::chunk::{ChunkItem, RaidProfile, STRIPE_LENGTH, Stripe};
use papilio_format::{DeviceId, Generation, LogicalAddress, PhysicalAddress, Uuid};
use std::collections::BTreeMap;

/// The number of chunks from each source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkSources {
    /// Chunk items.
    pub items: usize,
    /// Device extents and block groups.
    pub device_extents: usize,
    /// Places of tree blocks.
    pub blocks: usize,
    /// Block groups of which no chunk could be made.
    pub lost: usize,
}

/// A chunk map in ascending order.
#[derive(Clone, Debug, Default)]
pub(crate) struct RebuiltChunks {
    pub(crate) chunks: BTreeMap<LogicalAddress, ChunkItem>,
    pub(crate) sources: ChunkSources,
}

impl RebuiltChunks {
    /// Returns whether a chunk overlaps the range.
    fn overlaps(&self, start: LogicalAddress, length: u64) -> bool {
        let end = start.0.saturating_add(length);
        let before = self.chunks.range(..LogicalAddress(end)).next_back();
        before.is_some_and(|(known, chunk)| known.0.saturating_add(chunk.length) > start.0)
    }

    fn add(&mut self, start: LogicalAddress, chunk: ChunkItem) -> bool {
        if chunk.length == 0
            || start.checked_add(chunk.length).is_none()
            || self.overlaps(start, chunk.length)
        {
            return false;
        }
        self.chunks.insert(start, chunk);
        true
    }
}

/// Rebuilds the chunk map. `system` are the system chunks of a good superblock, `uuids` the UUIDs
/// of the devices.
pub(super) fn rebuild_chunks(
    evidence: &Evidence<'_>,
    system: Vec<(LogicalAddress, ChunkItem)>,
    uuids: &BTreeMap<DeviceId, Uuid>,
) -> RebuiltChunks {
    let (scan, places) = (evidence.scan, evidence.places);
    let mut rebuilt = RebuiltChunks::default();
    for (start, item) in system {
        if item.validate(start, &scan.geometry()).is_ok() && rebuilt.add(start, item) {
            rebuilt.sources.items += 1;
        }
    }
    let mut items: Vec<_> = scan.chunks.iter().collect();
    items.sort_by_key(|(_, (generation, _))| std::cmp::Reverse(*generation));
    for (start, (_, item)) in items {
        if item.validate(*start, &scan.geometry()).is_ok() && rebuilt.add(*start, item.clone()) {
            rebuilt.sources.items += 1;
        }
    }
    from_device_extents(evidence, uuids, &mut rebuilt);
    from_blocks(scan, uuids, places, &mut rebuilt);
    let lost = |(start, (_, (length, _))): (&LogicalAddress, &(Generation, (u64, BlockGroupFlags)))| {
        !rebuilt.overlaps(*start, *length)
    };
    rebuilt.sources.lost = scan.block_groups.iter().filter(|group| lost(*group)).count();
    rebuilt
}

fn from_device_extents(
    evidence: &Evidence<'_>,
    uuids: &BTreeMap<DeviceId, Uuid>,
    rebuilt: &mut RebuiltChunks,
) {
    let scan = evidence.scan;
    let mut groups: Vec<_> = scan.block_groups.iter().collect();
    groups.sort_by_key(|(_, (generation, _))| std::cmp::Reverse(*generation));
    for (start, (_, (length, flags))) in groups {
        let Ok(profile) = RaidProfile::from_flags(*flags) else { continue };
        let whole = whole_copies(profile);
        let of_chunk = scan.device_extents.iter().filter(|(_, (_, (chunk, _)))| chunk == start);
        let count = of_chunk.clone().count();
        let columns = profile.data_stripes(count).max(1) as u64;
        let (copies, size) = (whole.unwrap_or(count), length / columns);
        let mut extents: Vec<_> = of_chunk
            .filter(|(_, (_, (_, found)))| *found == size && size * columns == *length)
            .map(|(place, (generation, _))| (*generation, *place))
            .collect();
        // A chunk may have been relocated, and another one created at its address since.
        extents.sort_by_key(|(generation, _)| std::cmp::Reverse(*generation));
        extents.truncate(copies);
        if extents.len() < copies {
            continue;
        }
        let stripe = |(_, (devid, offset)): &(Generation, (DeviceId, PhysicalAddress))| {
            Some(Stripe { devid: *devid, offset: *offset, device_uuid: *uuids.get(devid)? })
        };
        let Some(stripes) = extents.iter().map(stripe).collect::<Option<Vec<_>>>() else { continue };
        let mut chunk = chunk_item(*length, *flags, stripes);
        if whole.is_none() {
            if profile == RaidProfile::Raid10 {
                chunk.sub_stripes = 2;
            }
            let Some(ordered) = evidence.order(*start, &chunk) else { continue };
            chunk = ordered;
        }
        if rebuilt.add(*start, chunk) {
            rebuilt.sources.device_extents += 1;
        }
    }
}

/// Returns the number of copies of a profile whose stripes are all the same.
fn whole_copies(profile: RaidProfile) -> Option<usize> {
    match profile {
        RaidProfile::Single => Some(1),
        RaidProfile::Dup | RaidProfile::Raid1 => Some(2),
        RaidProfile::Raid1c3 => Some(3),
        RaidProfile::Raid1c4 => Some(4),
        _ => None,
    }
}

/// A run of blocks of one device with the same distance between logical and physical address.
#[derive(Clone, Copy, Debug)]
struct MappedRun {
    device: usize,
    first: LogicalAddress,
    end: LogicalAddress,
    offset: PhysicalAddress,
}

fn from_blocks(
    scan: &BlockScan,
    uuids: &BTreeMap<DeviceId, Uuid>,
    places: &[DeviceId],
    rebuilt: &mut RebuiltChunks,
) {
    let size = u64::from(scan.node_size);
    let mut runs: BTreeMap<(usize, u64), MappedRun> = BTreeMap::new();
    for block in scan.blocks.iter() {
        let Some(end) = block.address.checked_add(size) else { continue };
        if rebuilt.overlaps(block.address, size) {
            continue;
        }
        let distance = block.offset.0.wrapping_sub(block.address.0);
        let run = runs.entry((block.device, distance)).or_insert(MappedRun {
            device: block.device,
            first: block.address,
            end,
            offset: block.offset,
        });
        if block.address < run.first {
            (run.first, run.offset) = (block.address, block.offset);
        }
        run.end = run.end.max(end);
    }
    // Runs with the same addresses are copies of one another. The longest decides.
    let mut runs: Vec<MappedRun> = runs.into_values().collect();
    runs.sort_by_key(|run| (std::cmp::Reverse(run.end.0 - run.first.0), run.device, run.offset));
    while let Some(main) = runs.first().copied() {
        let touches = |run: &MappedRun| run.first < main.end && main.first < run.end;
        let (copies, rest): (Vec<MappedRun>, Vec<MappedRun>) = runs.into_iter().partition(touches);
        runs = rest;
        let stripe = |run: &MappedRun| {
            let devid = *places.get(run.device)?;
            // A shorter copy may lack the first blocks.
            let offset = run.offset.0.checked_sub(run.first.0.saturating_sub(main.first.0))?;
            let device_uuid = uuids.get(&devid).copied().unwrap_or_default();
            Some(Stripe { devid, offset: PhysicalAddress(offset), device_uuid })
        };
        let aligned = copies.iter().filter(|run| run.first >= main.first);
        let stripes: Vec<Stripe> = aligned.filter_map(stripe).take(4).collect();
        let profile = match stripes.len() {
            0 => continue,
            1 => BlockGroupFlags::empty(),
            2 if stripes[0].devid == stripes[1].devid => BlockGroupFlags::DUP,
            2 => BlockGroupFlags::RAID1,
            3 => BlockGroupFlags::RAID1C3,
            _ => BlockGroupFlags::RAID1C4,
        };
        let flags = BlockGroupFlags::METADATA | profile;
        if rebuilt.add(main.first, chunk_item(main.end.0 - main.first.0, flags, stripes)) {
            rebuilt.sources.blocks += 1;
        }
    }
}

fn chunk_item(length: u64, flags: BlockGroupFlags, stripes: Vec<Stripe>) -> ChunkItem {
    ChunkItem {
        length,
        owner: 2,
        stripe_length: STRIPE_LENGTH,
        flags,
        io_align: STRIPE_LENGTH as u32,
        io_width: STRIPE_LENGTH as u32,
        sector_size: 4096,
        sub_stripes: 1,
        stripes,
    }
}
