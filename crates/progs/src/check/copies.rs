//! All copies of tree blocks, read by several threads ahead of a walk.
//!
//! Owns [`Copies`], [`ReadAhead`] and [`ways_to_read`].
//!
//! **Invariants**
//! - Every copy is read and verified, whichever thread does it.
//! - At most [`WINDOW`] blocks wait for the walk, so that memory is bounded.
//!
//! Locks: none; the threads end before a read returns.

use papilio_engine::btree::{Forest, TreeBlock};
use papilio_engine::errors::{BlockFault, Error};
use papilio_format::{Corrupt, LogicalAddress, NodeExpectation};
use std::collections::HashMap;
use std::thread;

/// The most blocks that are read ahead.
const WINDOW: usize = 128;
/// The fewest blocks that pay for threads.
const WORTH_THREADS: usize = 16;
/// The most threads.
const THREADS: usize = 8;

/// Returns the number of threads that a check reads with.
pub(super) fn threads() -> usize {
    thread::available_parallelism().map_or(1, |count| count.get().min(THREADS))
}

/// The results of reading all copies of a block.
pub(super) struct Copies {
    pub(super) good: Option<TreeBlock>,
    /// A copy that is valid by itself but not the block that its parent names.
    pub(super) other: Option<(usize, TreeBlock, Corrupt)>,
    pub(super) faults: Vec<(usize, BlockFault)>,
    /// Copies on missing devices, which are not faults.
    pub(super) missing: u64,
}

impl Copies {
    /// Reads every copy, and rebuilds the block from parity.
    pub(super) fn read(forest: &Forest, expected: &NodeExpectation) -> Self {
        let plain = NodeExpectation::at(expected.address);
        let mut copies = Self { good: None, other: None, faults: Vec::new(), missing: 0 };
        let ways = match ways_to_read(forest, expected.address) {
            Ok(ways) => ways,
            Err(error) => {
                copies.faults.push((0, BlockFault::Read(Box::new(error))));
                return copies;
            }
        };
        for copy in 0..ways {
            match forest.read_copy(&plain, copy) {
                Ok(block) => match block.meets(expected) {
                    Ok(()) => copies.good = copies.good.or(Some(block)),
                    Err(reason) if copies.other.is_none() => copies.other = Some((copy, block, reason)),
                    Err(reason) => copies.faults.push((copy, reason.into())),
                },
                Err(BlockFault::Read(error)) if matches!(*error, Error::DeviceMissing { .. }) => {
                    copies.missing += 1;
                }
                Err(fault) => copies.faults.push((copy, fault)),
            }
        }
        match &copies.other {
            // A stale copy beside a good one.
            Some((copy, _, reason)) if copies.good.is_some() => {
                copies.faults.push((*copy, reason.clone().into()));
            }
            // Identical copies have the same fault, which is reported once.
            Some((_, _, reason)) => {
                let reported = reason.to_string();
                copies.faults.retain(|(_, fault)| fault.to_string() != reported);
            }
            None => {}
        }
        copies
    }
}

/// Blocks that were read before the walk reached them.
#[derive(Default)]
pub(super) struct ReadAhead {
    ready: HashMap<LogicalAddress, (NodeExpectation, Copies)>,
}

impl ReadAhead {
    /// Returns the copies of a block. If they were not read yet, reads them together with those of
    /// the blocks that come `next`.
    pub(super) fn take(
        &mut self,
        forest: &Forest,
        expected: &NodeExpectation,
        next: impl Iterator<Item = NodeExpectation>,
    ) -> Copies {
        if let Some((read_for, copies)) = self.ready.remove(&expected.address)
            && read_for == *expected
        {
            return copies;
        }
        let next: Vec<_> = next.take(WINDOW).collect();
        // Asking for the processors opens files of the host.
        let threads = if next.len() < WORTH_THREADS { 1 } else { threads() };
        if threads == 1 {
            return Copies::read(forest, expected);
        }
        // The rest belongs to a node that the walk has left.
        self.ready.clear();
        let read = |part: &[NodeExpectation]| -> Vec<(NodeExpectation, Copies)> {
            part.iter().map(|expected| (*expected, Copies::read(forest, expected))).collect()
        };
        thread::scope(|scope| {
            let parts: Vec<_> = next
                .chunks(next.len().div_ceil(threads))
                .map(|part| scope.spawn(move || read(part)))
                .collect();
            let own = Copies::read(forest, expected);
            for part in parts {
                let found = part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                self.ready.extend(
                    found.into_iter().map(|(expected, copies)| (expected.address, (expected, copies))),
                );
            }
            own
        })
    }
}

/// Returns in how many ways a check reads an address: each copy, or with parity, the data itself
/// and one rebuild for each parity stripe.
pub(super) fn ways_to_read(forest: &Forest, address: LogicalAddress) -> Result<usize, Error> {
    let chunks = forest.volume().chunk_map();
    let chunk = chunks.require(address, 1)?;
    Ok(match chunk.profile().parity() {
        0 => chunk.copies(),
        parity => chunk.copies().min(1 + parity),
    })
}
