//! Eviction: choosing folios to evict, and the shadows they leave behind.
//!
//! Owns the policy:
//! - A new folio is inactive. At the tail of the inactive list, a folio accessed twice becomes
//!   active. A folio that cannot be evicted (dirty, under writeback or in use) is rotated to the
//!   head, and any other is evicted.
//! - An evicted folio leaves a *shadow* in its mapping's tree: the time on a clock that counts
//!   pages evicted and activated.
//! - When the page is inserted again, the time since then is its *refault distance*: the number of
//!   additional inactive pages that would have kept it cached. If the active list is at least that
//!   long, the folio becomes active at once, and as many pages of the active list are examined for
//!   deactivation.
//! - Pages of a scan, accessed only once, pass through the inactive list alone.
//!
//! **Invariant**: the queue of nodes that hold only shadows is at most an eighth of the cache's
//! pages long; beyond that the oldest such node is pruned. A node that also holds folios has at
//! most 63 shadows for each. Nodes are charged to the limit like folios.
//!
//! Kernel counterpart: mm/vmscan.c and mm/workingset.c.

use crate::PAGE_SHIFT;
use crate::folio::Folio;
use crate::folio::record::{Record, flag};
use crate::lru::{List, Lru};
use crate::shared::{MappingInner, Shared};
use crate::sync;
use crate::xarray::XArray;
use arrayvec::ArrayVec;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Largest number of folios in one eviction batch.
const BATCH: usize = 32;
/// Largest number of folios removed from a file under one acquisition of its tree's lock.
const AT_ONCE: usize = 8;
/// Largest number of folios examined under one acquisition of a shard's lock.
const SCAN: u64 = 128;
/// Number of bits of the clock that a shadow stores.
const AGE_BITS: u32 = 60;

/// The value that an evicted folio leaves in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shadow {
    /// Clock value at eviction.
    age: u64,
    /// Whether the folio belonged to the working set.
    workingset: bool,
}

impl Shadow {
    fn payload(self) -> u64 {
        (self.age & ((1 << AGE_BITS) - 1)) << 1 | u64::from(self.workingset)
    }

    fn from_payload(payload: u64) -> Self {
        Self { age: payload >> 1, workingset: payload & 1 != 0 }
    }
}

/// Evicts until at most `target` bytes are charged. Returns false if that is impossible.
pub(crate) fn shrink_to(shared: &Arc<Shared>, target: u64) -> bool {
    let shards = u64::from(shared.lru.shards());
    // Since the last eviction: folios examined, and consecutive shards found empty.
    let (mut fruitless, mut empty) = (0, 0);
    let mut press = false;
    let mut shard = None;
    while shared.bytes() > target {
        let number = *shard.get_or_insert_with(|| shared.lru.next_turn());
        // Visit the shards in turn, independently of other threads.
        shard = Some(number.wrapping_add(1));
        let (freed, scanned) = pass(shared, number, shared.bytes().saturating_sub(target), press);
        if freed {
            (fruitless, empty, press) = (0, 0, false);
            continue;
        }
        fruitless += scanned;
        empty = if scanned == 0 { empty + 1 } else { 0 };
        let folios = shared.lru.count().1;
        // If a whole pass over the inactive lists freed nothing, deactivate folios of the active
        // lists.
        press = fruitless > folios;
        if (empty >= shards || fruitless > 4 * folios + SCAN * shards) && !prune_shadow_nodes(shared, 0) {
            if shared.isolated.load(Acquire) == 0 {
                return shared.bytes() <= target;
            }
            // Other threads are evicting the folios that are off the lists: let them finish.
            sync::relax();
        }
    }
    true
}

/// Examines folios of one shard and evicts about `want` bytes or a batch. Returns whether any folio
/// was evicted, and the number examined. With `press`, also deactivates folios of the active list.
fn pass(shared: &Arc<Shared>, shard: u32, want: u64, press: bool) -> (bool, u64) {
    let mut batch = ArrayVec::<Folio, BATCH>::new();
    let scanned = {
        let mut lru = shared.lru.lock(shard);
        if press {
            lru.pressure = lru.pressure.max(BATCH as u64);
        }
        let mut scanned = deactivate(shared, &mut lru);
        // Evict a whole batch at a time, unless the shard is so small that this is much of it.
        let enough = (lru.folios() / 8 + 1).min(BATCH as u64) as usize;
        let mut bytes = 0;
        while scanned < SCAN && !batch.is_full() && (bytes < want || batch.len() < enough) {
            let Some(record) = lru.tail(&shared.arena, List::Inactive) else { break };
            scanned += 1;
            lru.prefetch_before(&shared.arena, record);
            if let Some(folio) = examine(shared, &mut lru, record) {
                bytes += folio.len() as u64;
                batch.push(folio);
            }
        }
        if !batch.is_empty() {
            shared.isolated.fetch_add(batch.len() as u64, Relaxed);
        }
        scanned
    };
    if batch.is_empty() {
        return (false, scanned);
    }
    let isolated = batch.len() as u64;
    let evicted = evict_all(shared, batch);
    if !evicted.is_empty() {
        shared.counters.here().evictions.fetch_add(evicted.len() as u64, Relaxed);
        // SAFETY: freezing took their counts to 0, and `shared` is kept alive by the caller.
        unsafe { Shared::free_all(shared.pointer(), &evicted) };
    }
    shared.isolated.fetch_sub(isolated, Release);
    (!evicted.is_empty(), scanned)
}

/// Examines the tail of the inactive list: moves the folio to the head of a list, or takes it off
/// the lists to be evicted.
fn examine(shared: &Arc<Shared>, lru: &mut Lru, record: &Record) -> Option<Folio> {
    let flags = record.flags.load(Acquire);
    if shared.options.working_set && flags & flag::HOT != 0 {
        record.clear(flag::HOT | flag::REFERENCED);
        lru.rotate(&shared.arena, record, List::Active);
        shared.age.fetch_add(record.pages(), Relaxed);
        shared.counters.here().activations.fetch_add(1, Relaxed);
        return None;
    }
    let second_chance = !shared.options.working_set && flags & flag::REFERENCED != 0;
    if second_chance {
        record.clear(flag::HOT | flag::REFERENCED);
    }
    let stays =
        second_chance || flags & (flag::DIRTY | flag::WRITEBACK) != 0 || record.refs.load(Relaxed) > 1;
    if stays || !record.try_get() {
        lru.rotate(&shared.arena, record, List::Inactive);
        return None;
    }
    lru.remove(&shared.arena, record);
    // SAFETY: `try_get` has just counted this reference.
    Some(unsafe { Folio::from_counted(record, shared) })
}

/// Moves old folios from the active to the inactive list if the latter is short or refaults demand
/// it. Returns the number examined.
fn deactivate(shared: &Shared, lru: &mut Lru) -> u64 {
    let mut scanned = 0;
    while scanned < BATCH as u64 {
        let [inactive, active] = lru.pages;
        if inactive * 2 >= active && lru.pressure == 0 {
            break;
        }
        let Some(record) = lru.tail(&shared.arena, List::Active) else { break };
        scanned += 1;
        lru.prefetch_before(&shared.arena, record);
        lru.pressure = lru.pressure.saturating_sub(record.pages());
        let referenced = record.clear(flag::HOT | flag::REFERENCED) & (flag::HOT | flag::REFERENCED) != 0;
        let to = if referenced { List::Active } else { List::Inactive };
        lru.rotate(&shared.arena, record, to);
    }
    scanned
}

/// Removes folios that are off the lists from their files, and puts those that cannot be removed
/// back on a list. Returns the records of the others, unreferenced, for the caller to free.
fn evict_all(shared: &Arc<Shared>, batch: ArrayVec<Folio, BATCH>) -> ArrayVec<NonNull<Record>, BATCH> {
    let mut evicted = ArrayVec::new();
    // Advance the clock once for all. If some folios stay, the clock runs slightly fast.
    let mut age = shared.age.fetch_add(batch.iter().map(|folio| folio.record().pages()).sum(), Relaxed);
    let mut batch = batch.into_iter();
    let file_of = |folio: &Folio| folio.record().mapping.load(Acquire);
    while let Some(first) = batch.as_slice().first() {
        let id = file_of(first);
        let Some(mapping) = shared.mapping_by_id(id) else {
            // The folio was truncated, or its mapping is being dropped. Its last user frees it.
            batch.next();
            continue;
        };
        // The tree nodes are scattered in memory: load them in parallel, before taking the lock.
        for folio in batch.as_slice().iter().take(AT_ONCE).take_while(|folio| file_of(folio) == id) {
            mapping.reader.prefetch(folio.index());
        }
        let mut kept = ArrayVec::<Folio, AT_ONCE>::new();
        let mut only_shadows = ArrayVec::<u64, AT_ONCE>::new();
        let mut tree = sync::lock(&mapping.tree);
        // One acquisition of the tree's lock serves several folios of the same file.
        for _ in 0..AT_ONCE {
            if batch.as_slice().first().is_none_or(|folio| file_of(folio) != id) {
                break;
            }
            let folio = batch.next().expect("it was there");
            let (index, left_at) = (folio.index(), age);
            age += folio.record().pages();
            match evict(shared, &mapping, &mut tree, folio, left_at) {
                Ok((record, shadows)) => {
                    evicted.push(record);
                    if shadows {
                        only_shadows.push(index);
                    }
                }
                Err(folio) => kept.push(folio),
            }
        }
        drop(tree);
        for folio in kept {
            let record = folio.record();
            shared.lru.lock_of(record).add(&shared.arena, record, List::Inactive);
        }
        for index in only_shadows {
            note_shadow_node(shared, id, index);
        }
    }
    evicted
}

/// Removes a folio from its file and leaves a shadow with this `age`. The tree is locked.
///
/// Returns the record, and whether the node now holds only shadows. Returns the folio if it cannot
/// be evicted.
fn evict(
    shared: &Shared,
    mapping: &MappingInner,
    tree: &mut XArray,
    folio: Folio,
    age: u64,
) -> Result<(NonNull<Record>, bool), Folio> {
    let record = folio.record();
    if record.has(flag::DIRTY | flag::WRITEBACK) || !record.freeze(2) {
        return Err(folio);
    }
    let index = folio.index();
    let record = NonNull::from(record);
    // Freezing consumed its reference and the tree's.
    std::mem::forget(folio);
    // SAFETY: no other thread can reach the folio now, and the caller frees it.
    let frozen = unsafe { record.as_ref() };
    if !shared.options.working_set {
        mapping.take_frozen(tree, frozen);
        return Ok((record, false));
    }
    let shadow = Shadow { age, workingset: frozen.has(flag::WORKINGSET) };
    let only_shadows = tree.replace_item(index, shadow.payload()).expect("an attached folio is in the tree");
    mapping.left(frozen);
    Ok((record, only_shadows))
}

fn note_shadow_node(shared: &Arc<Shared>, mapping: u64, index: u64) {
    sync::lock(&shared.shadow_nodes).queue.push_back((mapping, index));
    let bound = (shared.options.limit >> PAGE_SHIFT) / 8;
    prune_shadow_nodes(shared, bound.max(16) as usize);
}

/// Prunes the oldest queued nodes that still hold only shadows until the queue has at most `bound`
/// entries. Returns whether a node was pruned.
fn prune_shadow_nodes(shared: &Arc<Shared>, bound: usize) -> bool {
    let mut pruned = false;
    loop {
        let oldest = {
            let mut nodes = sync::lock(&shared.shadow_nodes);
            if nodes.queue.len() <= bound {
                return pruned;
            }
            nodes.queue.pop_front()
        };
        let Some((id, index)) = oldest else { return pruned };
        let Some(mapping) = shared.mapping_by_id(id) else { continue };
        let mut tree = sync::lock(&mapping.tree);
        if let Some(range) = tree.values_only(index) {
            tree.remove_range(range, |_| {});
            shared.counters.here().shadow_nodes_pruned.fetch_add(1, Relaxed);
            pruned = true;
        }
    }
}

/// Puts a newly inserted folio on the list that its shadow, if any, selects.
pub(crate) fn join(shared: &Shared, record: &Record, shadow: Option<u64>) {
    let mut lru = shared.lru.lock_of(record);
    let list = match shadow {
        Some(payload) => refault(shared, &mut lru, record, Shadow::from_payload(payload)),
        None => List::Inactive,
    };
    lru.add(&shared.arena, record, list);
}

/// Returns the list for a folio that was inserted where this shadow was.
fn refault(shared: &Shared, lru: &mut Lru, record: &Record, shadow: Shadow) -> List {
    let counts = shared.counters.here();
    counts.refaults.fetch_add(1, Relaxed);
    let distance = shared.age.load(Relaxed).wrapping_sub(shadow.age) & ((1 << AGE_BITS) - 1);
    // A shard holds its proportional part of the active pages.
    if distance > lru.pages[List::Active as usize] * u64::from(shared.lru.shards()) {
        return List::Inactive;
    }
    lru.pressure += record.pages();
    record.set(flag::WORKINGSET);
    shared.age.fetch_add(record.pages(), Relaxed);
    counts.activations.fetch_add(1, Relaxed);
    List::Active
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shadow_payload_round_trips() {
        for age in [0, 1, (1 << AGE_BITS) - 1] {
            for workingset in [false, true] {
                let shadow = Shadow { age, workingset };
                assert_eq!(Shadow::from_payload(shadow.payload()), shadow);
            }
        }
    }
}
