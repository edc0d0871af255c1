//! `Blocks`: which blocks of an object are in memory, on their way, or failed.
//!
//! It owns the bytes of the blocks in memory, and evicts those that were used longest ago.
//!
//! **Invariants**
//! - A block that is [`Slot::Coming`] has a task that will call [`Blocks::arrived`] for it.
//! - The blocks that are here have at most `limit` bytes, or one block.
//!
//! **Locks**: none of its own; its user has it in a mutex.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of a block: the unit of the caches. The last block of an object may be shorter.
pub(super) const BLOCK: u64 = 64 << 10;

/// A failed attempt.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    kind: io::ErrorKind,
    reason: Arc<str>,
}

impl Fault {
    pub(super) fn new(error: &io::Error) -> Self {
        Self { kind: error.kind(), reason: error.to_string().into() }
    }

    pub(super) fn to_error(&self) -> io::Error {
        io::Error::new(self.kind, self.reason.to_string())
    }
}

#[derive(Debug)]
enum Slot {
    Coming,
    Here {
        bytes: Arc<[u8]>,
        used: u64,
    },
    /// It failed at this time. A read that began later tries again.
    Failed(Fault, Instant),
}

/// The state of a block for a read.
#[derive(Debug)]
pub(super) enum Found {
    Here(Arc<[u8]>),
    Coming,
    Failed(Fault),
    Absent,
}

/// The blocks of an object.
#[derive(Debug)]
pub(super) struct Blocks {
    slots: HashMap<u64, Slot>,
    /// The blocks that are here, by the time of their last use.
    order: BTreeMap<u64, u64>,
    clock: u64,
    bytes: u64,
    limit: u64,
}

impl Blocks {
    pub(super) fn new(limit: u64) -> Self {
        Self { slots: HashMap::new(), order: BTreeMap::new(), clock: 0, bytes: 0, limit }
    }

    /// Looks a block up for a read that began at `began`.
    pub(super) fn find(&mut self, block: u64, began: Instant) -> Found {
        match self.slots.get_mut(&block) {
            None => Found::Absent,
            Some(Slot::Coming) => Found::Coming,
            Some(Slot::Failed(fault, at)) if *at >= began => Found::Failed(fault.clone()),
            Some(Slot::Failed(..)) => Found::Absent,
            Some(Slot::Here { bytes, used }) => {
                let bytes = Arc::clone(bytes);
                self.order.remove(used);
                self.clock += 1;
                *used = self.clock;
                self.order.insert(self.clock, block);
                Found::Here(bytes)
            }
        }
    }

    /// Returns whether a block is neither here nor on its way.
    pub(super) fn is_absent(&self, block: u64) -> bool {
        matches!(self.slots.get(&block), None | Some(Slot::Failed(..)))
    }

    /// Notes that a task will bring the block.
    pub(super) fn coming(&mut self, block: u64) {
        self.slots.insert(block, Slot::Coming);
    }

    /// Notes the outcome for a block that was on its way.
    pub(super) fn arrived(&mut self, block: u64, outcome: Result<Arc<[u8]>, Fault>) {
        if !matches!(self.slots.get(&block), Some(Slot::Coming)) {
            return;
        }
        let slot = match outcome {
            Err(fault) => Slot::Failed(fault, Instant::now()),
            Ok(bytes) => {
                self.clock += 1;
                self.bytes += bytes.len() as u64;
                self.order.insert(self.clock, block);
                Slot::Here { bytes, used: self.clock }
            }
        };
        self.slots.insert(block, slot);
        while self.bytes > self.limit && self.order.len() > 1 {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            if let Some(Slot::Here { bytes, .. }) = self.slots.remove(&oldest) {
                self.bytes -= bytes.len() as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(blocks: &mut Blocks, block: u64) {
        blocks.coming(block);
        blocks.arrived(block, Ok(vec![block as u8; 10].into()));
    }

    #[test]
    fn the_block_used_longest_ago_is_evicted() {
        let mut blocks = Blocks::new(30);
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
        let mut blocks = Blocks::new(30);
        let began = Instant::now();
        blocks.coming(7);
        blocks.arrived(7, Err(Fault::new(&io::Error::other("lost"))));
        assert!(matches!(blocks.find(7, began), Found::Failed(_)));
        let later = Instant::now() + std::time::Duration::from_secs(1);
        assert!(matches!(blocks.find(7, later), Found::Absent));
        assert!(blocks.is_absent(7));
    }
}
