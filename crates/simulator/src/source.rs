//! The operations of a run: drawn ones, or those of an earlier run: [`Source`].
//!
//! **Invariants**
//! - A source ends with a sync.
//! - An operation that makes no sense in its state, because a shorter run lacks an earlier one, is
//!   left out.

use crate::model::{Model, ROOT};
use crate::operation::{FileAt, Operation};
use crate::random::Generator;
use std::collections::VecDeque;

/// Where the operations of a run come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// As many as that, the last of them a sync.
    Drawn(Box<Generator>, u64),
    /// Those of an earlier run, and a sync.
    Given(std::vec::IntoIter<Operation>),
    /// No more.
    Ended,
}

impl Source {
    /// Draws operations.
    pub(crate) fn drawn(generator: Generator, operations: u64) -> Self {
        Self::Drawn(Box::new(generator), operations)
    }

    /// Repeats operations.
    pub(crate) fn given(operations: Vec<Operation>) -> Self {
        Self::Given(operations.into_iter())
    }

    /// Returns the next operation in a state.
    pub(crate) fn next(&mut self, model: &Model) -> Option<Operation> {
        self.next_after(&mut VecDeque::new(), model)
    }

    /// As [`Source::next`]; `first` are operations to run before others are drawn.
    pub(crate) fn next_after(&mut self, first: &mut VecDeque<Operation>, model: &Model) -> Option<Operation> {
        let next = match self {
            Self::Drawn(generator, left) if *left > 1 => {
                *left -= 1;
                return Some(first.pop_front().unwrap_or_else(|| generator.next(model)));
            }
            Self::Given(operations) => operations.find(|operation| makes_sense(operation, model)),
            Self::Drawn(..) => None,
            Self::Ended => return None,
        };
        next.or_else(|| {
            *self = Self::Ended;
            Some(Operation::Sync)
        })
    }
}

/// Whether an operation can run in a state that a shorter run led to.
pub(crate) fn makes_sense(operation: &Operation, model: &Model) -> bool {
    let is_open = |slot: u8| model.slots().any(|(open, _)| open == slot);
    let file = |file: &FileAt| match file {
        FileAt::Open(slot) => is_open(*slot),
        FileAt::Path(_) => true,
    };
    match operation {
        Operation::CreateUnnamed { slot, .. } | Operation::Open { slot, .. } => !is_open(*slot),
        Operation::Close { slot } | Operation::LinkOpen { slot, .. } => is_open(*slot),
        Operation::CloneRange { source, target, .. } => file(source) && file(target),
        Operation::Read { file: read, .. } | Operation::Fsync { file: read } => file(read),
        Operation::Limit { path, .. } => model.resolve(path, false).is_ok_and(|place| place.node == ROOT),
        // The generator deletes no subvolume in which a file is open.
        Operation::DeleteSubvolume { path } | Operation::RemoveDirectory { path } => {
            let place = model.resolve(path, false).ok().filter(|place| place.node == ROOT);
            place.is_none_or(|place| model.slots().all(|(_, open)| open.subvolume != place.subvolume))
        }
        other => other.data_target().is_none_or(file),
    }
}
