//! Eviction: which folio goes, and what it leaves behind.
//!
//! Owns the policy. A new folio is inactive. At the tail of the inactive list a folio that was accessed twice becomes active,
//! one that cannot go (dirty, being written, in use) is passed over, and any other is evicted. It leaves a *shadow*
//! in its mapping's tree: the time, on a clock that counts pages evicted and activated. When it is inserted again, the
//! time since then is the *refault distance*: how many more inactive pages there would have had to be to keep it. If the active list is
//! at least as long, the folio is worth more than what is there: it becomes active at once, and as much of
//! the active list is looked at. Pages of a scan, seen once and never again, pass through the inactive list only.
//!
//! Shadows are bounded by their nodes: a node with nothing but shadows joins a queue, and when that is longer than an eighth of
//! the cache's pages, the oldest is pruned. (A node with folios holds at most 63 shadows for each.) Nodes
//! are charged like folios.
//!
//! The kernel's counterparts are mm/vmscan.c and mm/workingset.c.

use crate::PAGE_SHIFT;
use crate::cache::Shared;
use crate::folio::Folio;
use crate::folio::record::{Record, flag};
use crate::lru::{List, Lru};
use crate::mapping::MappingInner;
use crate::sync;
use crate::xarray::XArray;
use arrayvec::ArrayVec;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Folios evicted at a time.
const BATCH: usize = 32;
/// Folios taken out of a file with its tree locked once.
const AT_ONCE: usize = 8;
/// Folios looked at with a shard of the lists locked.
const SCAN: u64 = 128;
/// Bits of the clock that a shadow remembers.
const AGE_BITS: u32 = 60;

/// What an evicted folio leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shadow {
    /// The clock when it left.
    age: u64,
    /// Whether it had been the working set's.
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

/// Nodes that held nothing but shadows when they were noted: mapping and an index.
pub(crate) struct ShadowNodes {
    queue: VecDeque<(u64, u64)>,
}

impl ShadowNodes {
    pub fn new() -> Self {
        Self { queue: VecDeque::new() }
    }
}

/// Evicts until at most `target` bytes are charged; false when that cannot be.
pub(crate) fn shrink_to(shared: &Arc<Shared>, target: u64) -> bool {
    let shards = u64::from(shared.lru.shards());
    // Looks since something was evicted: at folios, and at shards without any.
    let (mut fruitless, mut empty) = (0, 0);
    let mut press = false;
    let mut shard = None;
    while shared.bytes() > target {
        let number = *shard.get_or_insert_with(|| shared.lru.next_turn());
        // All shards, one after the other, whatever others do.
        shard = Some(number.wrapping_add(1));
        let (freed, scanned) = pass(shared, number, shared.bytes().saturating_sub(target), press);
        if freed {
            (fruitless, empty, press) = (0, 0, false);
            continue;
        }
        fruitless += scanned;
        empty = if scanned == 0 { empty + 1 } else { 0 };
        let folios = shared.lru.count().1;
        // When all of the inactive lists has been looked at for nothing, the active ones must give.
        press = fruitless > folios;
        if (empty >= shards || fruitless > 4 * folios + SCAN * shards) && !prune_shadow_nodes(shared, 0) {
            if shared.isolated.load(Acquire) == 0 {
                return shared.bytes() <= target;
            }
            // Others are evicting what is not on the lists now.
            sync::relax();
        }
    }
    true
}

/// Looks at some folios of a shard and evicts what may go, about `want` bytes or a batch. Gives whether anything left, and
/// how many were looked at. With `press`, the active list gives some.
fn pass(shared: &Arc<Shared>, shard: u32, want: u64, press: bool) -> (bool, u64) {
    let mut batch = ArrayVec::<Folio, BATCH>::new();
    let scanned = {
        let mut lru = shared.lru.lock(shard);
        if press {
            lru.pressure = lru.pressure.max(BATCH as u64);
        }
        let mut scanned = deactivate(shared, &mut lru);
        // A batch is evicted at a time, unless the cache is so small that this would be much of it.
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
        unsafe { Shared::free_all(NonNull::from(&**shared), &evicted) };
    }
    shared.isolated.fetch_sub(isolated, Release);
    (!evicted.is_empty(), scanned)
}

/// Looks at the tail of the inactive list: the folio goes elsewhere, or is taken off to be evicted.
fn examine(shared: &Shared, lru: &mut Lru, record: &Record) -> Option<Folio> {
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

/// Moves old folios of the active list to the inactive one, when that has become short or refaults press.
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

/// Takes folios that have been taken off their lists out of their files; puts those back where that cannot be. Gives the
/// records of the others, to which nobody refers any more, to be freed.
fn evict_all(shared: &Arc<Shared>, batch: ArrayVec<Folio, BATCH>) -> ArrayVec<NonNull<Record>, BATCH> {
    let mut evicted = ArrayVec::new();
    // One step for all; that some may stay makes the clock a little fast.
    let mut age = shared.age.fetch_add(batch.iter().map(|folio| folio.record().pages()).sum(), Relaxed);
    let mut batch = batch.into_iter();
    let file_of = |folio: &Folio| folio.record().mapping.load(Acquire);
    while let Some(first) = batch.as_slice().first() {
        let id = file_of(first);
        let Some(mapping) = shared.mapping_by_id(id) else {
            // Truncated meanwhile, or its mapping is going: it goes with its last user.
            batch.next();
            continue;
        };
        // Each lies somewhere else: what is waited for, is waited for by all at once and without the lock.
        for folio in batch.as_slice().iter().take(AT_ONCE).take_while(|folio| file_of(folio) == id) {
            mapping.reader.prefetch(folio.index());
        }
        let mut kept = ArrayVec::<Folio, AT_ONCE>::new();
        let mut only_shadows = ArrayVec::<u64, AT_ONCE>::new();
        let mut tree = sync::lock(&mapping.tree);
        // With the tree locked, some of the same file.
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

/// Takes a folio out of its file, whose tree is locked, and leaves a shadow of that `age`; gives the folio back where that
/// cannot be. Gives its record, and whether it left its node with nothing but shadows.
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
    // Its reference and the tree's are gone with the freezing.
    std::mem::forget(folio);
    // SAFETY: the folio is ours alone now, and freed by the caller.
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

/// Prunes the oldest nodes that still hold nothing but shadows until the queue is no longer than `bound`. Gives
/// whether a node went.
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

/// Puts a folio that has been inserted on a list; where there was a shadow, by what that says.
pub(crate) fn join(shared: &Shared, record: &Record, shadow: Option<u64>) {
    let mut lru = shared.lru.lock_of(record);
    let list = match shadow {
        Some(payload) => refault(shared, &mut lru, record, Shadow::from_payload(payload)),
        None => List::Inactive,
    };
    lru.add(&shared.arena, record, list);
}

/// A folio has been inserted where this shadow was: which list does it join?
fn refault(shared: &Shared, lru: &mut Lru, record: &Record, shadow: Shadow) -> List {
    let counts = shared.counters.here();
    counts.refaults.fetch_add(1, Relaxed);
    let distance = shared.age.load(Relaxed).wrapping_sub(shadow.age) & ((1 << AGE_BITS) - 1);
    // The shard has its part of what is active.
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
    fn a_shadow_remembers() {
        for age in [0, 1, (1 << AGE_BITS) - 1] {
            for workingset in [false, true] {
                let shadow = Shadow { age, workingset };
                assert_eq!(Shadow::from_payload(shadow.payload()), shadow);
            }
        }
    }
}
