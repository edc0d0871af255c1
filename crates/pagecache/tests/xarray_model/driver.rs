//! Operations on an XArray and on a plain map in parallel. The fuzz target uses this too.
//!
//! Owns the model: a map from first index to order, entry and marks. Two arrays run along, one
//! inserting in one walk and one in many. All three must agree after every operation.

use papilio_pagecache::xarray::{CacheInsert, Entry, Found, InsertError, Mark, NodePool, SplitError, XArray};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An operation. Indices are cut to the run's index space and aligned to the order.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Insert where only values may be.
    Insert { index: u64, order: u8, value: bool },
    /// Store over existing entries.
    Store { index: u64, order: u8, value: bool },
    /// Remove one entry.
    Erase { index: u64 },
    /// Remove all entries that overlap a range.
    RemoveRange { first: u64, count: u64 },
    /// Replace an entry, expecting the right one or a wrong one. A value replaces an item as in
    /// eviction.
    Exchange { index: u64, right: bool, new: Option<bool> },
    /// Split into pieces of one order.
    Split { index: u64, order: u8 },
    /// Split around an index.
    SplitAround { index: u64, order: u8 },
    /// Set or clear a mark.
    Mark { index: u64, mark: u8, set: bool },
    /// Compare everything.
    Compare,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stored {
    order: u8,
    entry: Entry,
    marks: u8,
}

/// The arrays and their model.
pub struct Driver {
    one_walk: XArray,
    many_walks: XArray,
    model: BTreeMap<u64, Stored>,
    /// Indices are below 2^bits, or the last 2^bits of all.
    bits: u32,
    high: bool,
    number: u64,
}

const MARKS: [Mark; 3] = Mark::ALL;
/// The most entries around which one comparison runs queries.
const QUERIED: usize = 8;

impl Driver {
    /// Starts with empty arrays. `bits` (0 to 64) is the width of the index space; `high` puts it
    /// at the end of all indices.
    pub fn new(bits: u32, high: bool) -> Self {
        let pool = Arc::new(NodePool::new(1 << 20));
        let (one_walk, many_walks) = (XArray::with_pool(Arc::clone(&pool)), XArray::with_pool(pool));
        Self { one_walk, many_walks, model: BTreeMap::new(), bits: bits.min(64), high, number: 0 }
    }

    /// Applies one operation to the arrays and the model.
    pub fn run(&mut self, operation: &Operation) {
        match *operation {
            Operation::Insert { index, order, value } => self.insert(index, order, value),
            Operation::Store { index, order, value } => {
                let (index, order) = self.place(index, order);
                let entry = self.entry(value);
                self.both(|array| array.store(index, order, entry));
                self.model_store(index, order, entry);
            }
            Operation::Erase { index } => {
                let index = self.cut(index);
                let expected = self.model_get(index).map(|(first, stored)| found(first, stored));
                assert_eq!(self.both(|array| array.erase(index)), expected);
                if let Some(expected) = expected {
                    self.model.remove(&expected.index);
                }
            }
            Operation::RemoveRange { first, count } => self.remove_range(first, count),
            Operation::Exchange { index, right, new } => self.exchange(index, right, new),
            Operation::Split { index, order } => self.split(index, order),
            Operation::SplitAround { index, order } => self.split_around(index, order),
            Operation::Mark { index, mark, set } => {
                let index = self.cut(index);
                let mark = MARKS[usize::from(mark) % 3];
                let there = self.model_get(index);
                let done =
                    self.both(
                        |array| if set { array.set_mark(index, mark) } else { array.clear_mark(index, mark) },
                    );
                assert_eq!(done, there.is_some());
                if let Some((first, _)) = there {
                    let marks = &mut self.model.get_mut(&first).expect("just found").marks;
                    *marks = if set { *marks | 1 << mark as u8 } else { *marks & !(1 << mark as u8) };
                }
            }
            Operation::Compare => self.compare(),
        }
    }

    /// Compares all entries and marks, and the results of all queries around a few entries.
    pub fn compare(&self) {
        for array in [&self.one_walk, &self.many_walks] {
            array.check().expect("the tree is well formed");
            let all: Vec<Found> = array.iter(0..=u64::MAX).collect();
            let expected: Vec<Found> =
                self.model.iter().map(|(first, stored)| found(*first, *stored)).collect();
            assert!(all == expected, "array {all:?}, model {expected:?}");
            for mark in MARKS {
                let marked: Vec<u64> =
                    array.iter_marked(0..=u64::MAX, mark).map(|found| found.index).collect();
                let expected = self.model.iter().filter(|(_, stored)| stored.marks >> mark as u8 & 1 != 0);
                assert!(marked.iter().eq(expected.map(|(first, _)| first)), "{mark:?}");
                assert_eq!(array.any_marked(mark), !marked.is_empty());
            }
            let reader = array.reader();
            // Queries around all entries take time that grows with the square of their number.
            let start = self.number as usize % self.model.len().saturating_sub(QUERIED).max(1);
            for (number, (first, stored)) in self.model.iter().skip(start).take(QUERIED).enumerate() {
                // A hole may be hundreds of entries away.
                let holes = number == 0;
                let last = first + ((1 << stored.order) - 1);
                for index in [*first, first + (last - first) / 2, last] {
                    assert_eq!(reader.load(index), Some(stored.entry));
                    assert_eq!(array.get(index), Some(found(*first, *stored)));
                }
                if let Some(after) = last.checked_add(1) {
                    let next = self.model.range(after..).next().map(|(first, stored)| found(*first, *stored));
                    assert_eq!(array.next(after..=u64::MAX), next);
                    assert_eq!(array.next_item(after..=u64::MAX), self.model_next_item(after));
                    if holes {
                        assert_eq!(array.next_hole(*first..=u64::MAX), self.model_hole(*first));
                    }
                }
                if let Some(before) = first.checked_sub(1) {
                    let previous = self.model.range(..=before).next_back();
                    assert_eq!(
                        array.previous(0..=before),
                        previous.map(|(first, stored)| found(*first, *stored))
                    );
                    if holes {
                        assert_eq!(array.previous_hole(0..=last), self.model_previous_hole(last));
                    }
                }
            }
        }
    }

    fn insert(&mut self, index: u64, order: u8, value: bool) {
        let (index, order) = self.place(index, order);
        let entry = self.entry(value);
        let last = index + ((1 << order) - 1);
        let before = self.model_get(index).map(|(first, _)| first).unwrap_or(index);
        let inside: Vec<Found> =
            self.model.range(before..=last).map(|(first, stored)| found(*first, *stored)).collect();
        let one = try_insert(&mut self.one_walk, index, order, entry, CacheInsert::OneWalk);
        let many = try_insert(&mut self.many_walks, index, order, entry, CacheInsert::ManyWalks);
        assert_eq!(one, many, "both insertion methods agree");
        if let Some(item) = inside.iter().find(|found| found.entry.is_item()) {
            assert_eq!(one, Err(*item));
            return;
        }
        let inserted = one.expect("no item is in the way");
        assert_eq!(inserted.shadow, inside.last().copied());
        assert_eq!(inserted.split, inside.last().is_some_and(|found| found.order > order));
        self.model_store(index, order, entry);
    }

    fn remove_range(&mut self, first: u64, count: u64) {
        let first = self.cut(first);
        let last = first.saturating_add(count);
        let start = self.model_get(first).map(|(first, _)| first).unwrap_or(first);
        let expected: Vec<Found> =
            self.model.range(start..=last).map(|(first, stored)| found(*first, *stored)).collect();
        for array in [&mut self.one_walk, &mut self.many_walks] {
            let mut removed = Vec::new();
            array.remove_range(first..=last, |found| removed.push(found));
            assert_eq!(removed, expected);
        }
        for found in expected {
            self.model.remove(&found.index);
        }
    }

    fn exchange(&mut self, index: u64, right: bool, new: Option<bool>) {
        let index = self.cut(index);
        let there = self.model_get(index);
        let new = new.map(|value| self.entry(value));
        let other = self.entry(false);
        let expected = if right { there.map(|(_, stored)| stored.entry) } else { Some(other) };
        if right
            && let Some((first, stored)) = there
            && stored.entry.is_item()
            && let Some(entry @ Entry::Value(value)) = new
        {
            // The same in one walk, as eviction does it.
            let only_values = self.both(|array| array.replace_item(index, value));
            assert_eq!(only_values, Some(self.both(|array| array.values_only(index)).is_some()));
            self.model.get_mut(&first).expect("just found").entry = entry;
            return;
        }
        let result = self.both(|array| array.compare_exchange(index, expected, new));
        if !right {
            assert_eq!(result, Err(there.map(|(first, stored)| found(first, stored))));
            return;
        }
        assert_eq!(result, Ok(()));
        match (there, new) {
            (Some((first, _)), None) => {
                self.model.remove(&first);
            }
            (Some((first, _)), Some(entry)) => self.model.get_mut(&first).expect("just found").entry = entry,
            (None, Some(entry)) => self.model_store(index, 0, entry),
            (None, None) => {}
        }
    }

    fn split(&mut self, index: u64, order: u8) {
        let (index, order) = (self.cut(index), order % 10);
        let base = self.number;
        self.number += 512;
        let there = self.model_get(index);
        let result = self.both(|array| {
            let pool = Arc::clone(array.pool());
            let mut preload = pool.preload(0);
            loop {
                let mut number = base;
                let split = array.try_split(index, order, &mut preload, |_| {
                    number += 1;
                    Entry::Item(number)
                });
                match split {
                    Err(SplitError::NeedNodes(count)) => preload.fill(count),
                    other => break other,
                }
            }
        });
        match there {
            None => assert_eq!(result, Err(SplitError::Missing)),
            Some((first, stored)) if stored.order <= order => {
                assert_eq!(result, Err(SplitError::NotLarger(found(first, stored))));
            }
            Some((first, stored)) => {
                assert_eq!(result, Ok(found(first, stored)));
                for piece in 0..1u64 << (stored.order - order) {
                    let entry = Entry::Item(base + piece + 1);
                    self.model.insert(first + (piece << order), Stored { order, entry, marks: stored.marks });
                }
            }
        }
    }

    fn split_around(&mut self, index: u64, order: u8) {
        let (index, order) = self.place(index, order);
        let there = self.model_get(index);
        let result = self.both(|array| {
            let pool = Arc::clone(array.pool());
            let mut preload = pool.preload(2);
            array.try_split_around(index, order, &mut preload)
        });
        match there {
            None => assert_eq!(result, Err(SplitError::Missing)),
            Some((first, stored)) if stored.order <= order => {
                assert_eq!(result, Err(SplitError::NotLarger(found(first, stored))));
            }
            Some((first, stored)) => {
                assert_eq!(result, Ok(found(first, stored)));
                self.model_split(first, index, order);
            }
        }
    }

    fn both<R: PartialEq + std::fmt::Debug>(&mut self, mut run: impl FnMut(&mut XArray) -> R) -> R {
        let one = run(&mut self.one_walk);
        let many = run(&mut self.many_walks);
        assert_eq!(one, many);
        one
    }

    fn entry(&mut self, value: bool) -> Entry {
        self.number += 1;
        if value { Entry::Value(self.number) } else { Entry::Item(self.number) }
    }

    fn cut(&self, index: u64) -> u64 {
        let mask = if self.bits == 64 { u64::MAX } else { (1 << self.bits) - 1 };
        if self.high { index | !mask } else { index & mask }
    }

    fn place(&self, index: u64, order: u8) -> (u64, u8) {
        let order = order % 10;
        (self.cut(index) & !((1 << order) - 1), order)
    }

    fn model_get(&self, index: u64) -> Option<(u64, Stored)> {
        let (first, stored) = self.model.range(..=index).next_back()?;
        (index - first < 1 << stored.order).then_some((*first, *stored))
    }

    /// Halves the entry at `first` until the piece around `index` has the order.
    fn model_split(&mut self, first: u64, index: u64, order: u8) {
        let mut stored = self.model.remove(&first).expect("there is one");
        let mut first = first;
        while stored.order > order {
            stored.order -= 1;
            let upper = first + (1 << stored.order);
            if index < upper {
                self.model.insert(upper, stored);
            } else {
                self.model.insert(first, stored);
                first = upper;
            }
        }
        self.model.insert(first, stored);
    }

    fn model_store(&mut self, index: u64, order: u8, entry: Entry) {
        if let Some((first, stored)) = self.model_get(index)
            && stored.order > order
        {
            self.model_split(first, index, order);
        }
        let last = index + ((1 << order) - 1);
        let gone: Vec<u64> = self.model.range(index..=last).map(|(first, _)| *first).collect();
        for first in gone {
            self.model.remove(&first);
        }
        self.model.insert(index, Stored { order, entry, marks: 0 });
    }

    fn model_next_item(&self, after: u64) -> Option<Found> {
        let mut items = self.model.range(after..).filter(|(_, stored)| stored.entry.is_item());
        items.next().map(|(first, stored)| found(*first, *stored))
    }

    fn model_hole(&self, mut index: u64) -> Option<u64> {
        while let Some((first, stored)) = self.model_get(index) {
            index = found(first, stored).last().checked_add(1)?;
        }
        Some(index)
    }

    fn model_previous_hole(&self, mut index: u64) -> Option<u64> {
        while let Some((first, _)) = self.model_get(index) {
            index = first.checked_sub(1)?;
        }
        Some(index)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.compare();
        let pool = Arc::clone(self.one_walk.pool());
        let nodes = |array: &XArray| array.check().expect("the tree is well formed");
        assert_eq!(pool.in_use(), nodes(&self.one_walk) + nodes(&self.many_walks), "no node is leaked");
        self.one_walk.clear();
        self.many_walks.remove_range(0..=u64::MAX, |_| {});
        assert_eq!(pool.in_use(), 0, "every node is released");
    }
}

fn found(index: u64, stored: Stored) -> Found {
    Found { index, order: stored.order, entry: stored.entry }
}

fn try_insert(
    array: &mut XArray,
    index: u64,
    order: u8,
    entry: Entry,
    how: CacheInsert,
) -> Result<papilio_pagecache::xarray::Inserted, Found> {
    let pool = Arc::clone(array.pool());
    let mut preload = pool.preload(0);
    for _ in 0..3 {
        match array.try_insert(index, order, entry, how, &mut preload) {
            Ok(inserted) => return Ok(inserted),
            Err(InsertError::Occupied(found)) => return Err(found),
            Err(InsertError::NeedNodes(count)) => {
                assert!(count > preload.len(), "requested {count} nodes although the preload has them");
                preload.fill(count);
            }
        }
    }
    panic!("an insertion keeps requesting nodes");
}
