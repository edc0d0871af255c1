//! `Blocks`: which blocks of objects are in memory, on their way, or failed.
//!
//! It owns the bytes of the blocks in memory, and evicts those that were used longest ago.
//!
//! **Invariants**
//! - A block that is [`Slot::Coming`] has a task that will call [`Blocks::arrived`] for it.
//! - The blocks that are here have at most `limit` bytes, or one block.
//!
//! **Locks**: none of its own; its user has it in a mutex.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of a block: the unit of the caches. The last block of an object may be shorter.
pub(crate) const BLOCK: u64 = 64 << 10;

/// A failed attempt.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    kind: io::ErrorKind,
    reason: Arc<str>,
}

impl Fault {
    pub(crate) fn new(error: &io::Error) -> Self {
        Self { kind: error.kind(), reason: error.to_string().into() }
    }

    pub(crate) fn to_error(&self) -> io::Error {
        io::Error::new(self.kind, self.reason.to_string())
    }
}

#[derive(Debug)]
enum Slot<V> {
    Coming,
    Here {
        value: V,
        used: u64,
    },
    /// It failed at this time. A read that began later tries again.
    Failed(Fault, Instant),
}

/// The state of a block for a read.
#[derive(Debug)]
pub(crate) enum Found<V> {
    Here(V),
    Coming,
    Failed(Fault),
    Absent,
}

/// Blocks by their keys. A value has the bytes of a block, `weigh` returns how many.
#[derive(Debug)]
pub(crate) struct Blocks<K, V> {
    slots: HashMap<K, Slot<V>>,
    /// The blocks that are here, by the time of their last use.
    order: BTreeMap<u64, K>,
    clock: u64,
    bytes: u64,
    limit: u64,
    weigh: fn(&V) -> u64,
}

impl<K: Copy + Eq + Hash, V: Clone> Blocks<K, V> {
    pub(crate) fn new(limit: u64, weigh: fn(&V) -> u64) -> Self {
        Self { slots: HashMap::new(), order: BTreeMap::new(), clock: 0, bytes: 0, limit, weigh }
    }

    /// Looks a block up for a read that began at `began`.
    pub(crate) fn find(&mut self, block: K, began: Instant) -> Found<V> {
        match self.slots.get_mut(&block) {
            None => Found::Absent,
            Some(Slot::Coming) => Found::Coming,
            Some(Slot::Failed(fault, at)) if *at >= began => Found::Failed(fault.clone()),
            Some(Slot::Failed(..)) => Found::Absent,
            Some(Slot::Here { value, used }) => {
                let value = value.clone();
                self.order.remove(used);
                self.clock += 1;
                *used = self.clock;
                self.order.insert(self.clock, block);
                Found::Here(value)
            }
        }
    }

    /// Adds those of `wanted` to `found` that are here or have failed, and returns those that are
    /// absent. They are noted as coming.
    pub(crate) fn take(
        &mut self,
        wanted: &[K],
        began: Instant,
        found: &mut HashMap<K, Result<V, Fault>>,
    ) -> Vec<K> {
        let mut absent = Vec::new();
        for key in wanted {
            if found.contains_key(key) {
                continue;
            }
            match self.find(*key, began) {
                Found::Here(value) => drop(found.insert(*key, Ok(value))),
                Found::Failed(fault) => drop(found.insert(*key, Err(fault))),
                Found::Coming => {}
                Found::Absent => {
                    self.coming(*key);
                    absent.push(*key);
                }
            }
        }
        absent
    }

    /// Returns whether a block is neither here nor on its way.
    pub(crate) fn is_absent(&self, block: K) -> bool {
        matches!(self.slots.get(&block), None | Some(Slot::Failed(..)))
    }

    /// Notes that a task will bring the block, and returns whether it was absent.
    pub(crate) fn want(&mut self, block: K) -> bool {
        let is_absent = self.is_absent(block);
        if is_absent {
            self.coming(block);
        }
        is_absent
    }

    /// Notes that a task will bring the block.
    pub(crate) fn coming(&mut self, block: K) {
        self.slots.insert(block, Slot::Coming);
    }

    /// Notes the outcome for a block that was on its way.
    pub(crate) fn arrived(&mut self, block: K, outcome: Result<V, Fault>) {
        if !matches!(self.slots.get(&block), Some(Slot::Coming)) {
            return;
        }
        let slot = match outcome {
            Err(fault) => Slot::Failed(fault, Instant::now()),
            Ok(value) => {
                self.clock += 1;
                self.bytes += (self.weigh)(&value);
                self.order.insert(self.clock, block);
                Slot::Here { value, used: self.clock }
            }
        };
        self.slots.insert(block, slot);
        while self.bytes > self.limit && self.order.len() > 1 {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            if let Some(Slot::Here { value, .. }) = self.slots.remove(&oldest) {
                self.bytes -= (self.weigh)(&value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Bytes = Arc<[u8]>;

    fn new(limit: u64) -> Blocks<u64, Bytes> {
        Blocks::new(limit, |bytes| bytes.len() as u64)
    }

    fn put(blocks: &mut Blocks<u64, Bytes>, block: u64) {
        blocks.coming(block);
        blocks.arrived(block, Ok(vec![block as u8; 10].into()));
    }

    #[test]
    fn the_block_used_longest_ago_is_evicted() {
        let mut blocks = new(30);
        let now = Instant::now();
        (0..3).for_each(|block| put(&mut blocks, block));
        assert!(matches!(blocks.find(0, now), Found::Here(_)));
        put(&mut blocks, 3);
        assert!(matches!(blocks.find(1, now), Found::Absent));
        for block in [0, 2, 3] {
            assert!(matches!(blocks.find(block, now), Found::Here(bytes) if bytes[0] == block as u8));
        }
        assert_eq!(blocks.bytes, 30);
    }

    #[test]
    fn a_failure_is_seen_by_those_that_waited_for_it() {
        let mut blocks = new(30);
        let began = Instant::now();
        blocks.coming(7);
        blocks.arrived(7, Err(Fault::new(&io::Error::other("lost"))));
        assert!(matches!(blocks.find(7, began), Found::Failed(_)));
        let later = Instant::now() + std::time::Duration::from_secs(1);
        assert!(matches!(blocks.find(7, later), Found::Absent));
        assert!(blocks.is_absent(7));
    }
}
