//! References to tree blocks or extents, collected in any order and given back by address.
//!
//! Owns [`HolderReferences`] and [`SortedReferences`]. All references to one address are merged:
//! their sets of subvolumes are united. Memory is bounded: references beyond the bound are sorted
//! and moved to a temporary file without a name, and merged at the end.

use super::root_sets::{RootSets, SetId};
use rayon::slice::ParallelSliceMut;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};

/// Bytes of one reference in a temporary file.
const STORED_BYTES: usize = 20;

/// A reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HolderReference {
    /// The logical address of the block or extent.
    pub(super) address: u64,
    /// The generation of a block, or what [`super::walk`] knows of an extent. Merging keeps the
    /// smaller one.
    pub(super) detail: u64,
    /// The subvolumes that refer to it.
    pub(super) set: SetId,
}

/// References that are being collected.
#[derive(Debug)]
pub(super) struct HolderReferences {
    records: Vec<HolderReference>,
    /// Most records in memory.
    bound: usize,
    spilled: Vec<Spilled>,
}

/// Sorted references in a file.
#[derive(Debug)]
struct Spilled {
    file: BufReader<File>,
    left: u64,
}

impl HolderReferences {
    /// Keeps at most `bound` references in memory.
    pub(super) fn new(bound: usize) -> Self {
        Self { records: Vec::new(), bound: bound.max(2), spilled: Vec::new() }
    }

    /// Adds a reference.
    ///
    /// # Errors
    /// The temporary file cannot be made or written.
    pub(super) fn push(&mut self, reference: HolderReference, sets: &mut RootSets) -> io::Result<()> {
        if self.records.len() == self.bound {
            self.merge(sets);
            if self.records.len() > self.bound / 2 {
                self.spill()?;
            }
        }
        self.records.push(reference);
        Ok(())
    }

    /// Returns whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.spilled.is_empty()
    }

    /// Returns the number of addresses, counted several times if they are in several files.
    pub(super) fn len(&self) -> u64 {
        self.records.len() as u64 + self.spilled.iter().map(|run| run.left).sum::<u64>()
    }

    /// Gives them back by address, each address once.
    ///
    /// # Errors
    /// A temporary file cannot be read.
    pub(super) fn sorted(mut self, sets: &mut RootSets) -> io::Result<SortedReferences> {
        self.merge(sets);
        let mut sorted = SortedReferences {
            memory: self.records.into_iter(),
            spilled: self.spilled,
            next: BinaryHeap::new(),
            united: Vec::new(),
        };
        for source in 0..=sorted.spilled.len() {
            sorted.advance(source)?;
        }
        Ok(sorted)
    }

    fn merge(&mut self, sets: &mut RootSets) {
        self.records.par_sort_unstable();
        let (mut from, mut merged) = (0, 0);
        while let Some(first) = self.records.get(from).copied() {
            let rest = &self.records[from..];
            let same = rest.partition_point(|reference| reference.address == first.address);
            let set = sets.union(rest[..same].iter().map(|reference| reference.set));
            self.records[merged] = HolderReference { set, ..first };
            (from, merged) = (from + same, merged + 1);
        }
        self.records.truncate(merged);
    }

    fn spill(&mut self) -> io::Result<()> {
        let mut file = BufWriter::new(tempfile::tempfile()?);
        for record in &self.records {
            file.write_all(&record.address.to_le_bytes())?;
            file.write_all(&record.detail.to_le_bytes())?;
            file.write_all(&record.set.0.to_le_bytes())?;
        }
        let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.seek(SeekFrom::Start(0))?;
        self.spilled.push(Spilled { file: BufReader::new(file), left: self.records.len() as u64 });
        self.records.clear();
        Ok(())
    }
}

impl Spilled {
    fn next(&mut self) -> io::Result<Option<HolderReference>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let mut bytes = [0; STORED_BYTES];
        self.file.read_exact(&mut bytes)?;
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let set = u32::from_le_bytes(bytes[16..].try_into().expect("4 bytes"));
        Ok(Some(HolderReference { address: number(0), detail: number(8), set: SetId(set) }))
    }
}

/// References by address, each address once.
#[derive(Debug)]
pub(super) struct SortedReferences {
    memory: std::vec::IntoIter<HolderReference>,
    spilled: Vec<Spilled>,
    /// The first reference of each source: a file, or memory as the last one.
    next: BinaryHeap<Reverse<(HolderReference, usize)>>,
    /// Memory for the sets of one address.
    united: Vec<SetId>,
}

impl SortedReferences {
    /// Returns the next one.
    ///
    /// # Errors
    /// A temporary file cannot be read.
    pub(super) fn next(&mut self, sets: &mut RootSets) -> io::Result<Option<HolderReference>> {
        let Some(Reverse((mut merged, source))) = self.next.pop() else { return Ok(None) };
        self.advance(source)?;
        self.united.clear();
        self.united.push(merged.set);
        while let Some(Reverse((other, source))) = self.next.peek().copied() {
            if other.address != merged.address {
                break;
            }
            self.united.push(other.set);
            self.next.pop();
            self.advance(source)?;
        }
        merged.set = sets.union(self.united.iter().copied());
        Ok(Some(merged))
    }

    fn advance(&mut self, source: usize) -> io::Result<()> {
        let next = match self.spilled.get_mut(source) {
            Some(file) => file.next()?,
            None => self.memory.next(),
        };
        self.next.extend(next.map(|reference| Reverse((reference, source))));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Returns each address with its detail and the members of its set.
    fn collected(bound: usize) -> (BTreeMap<u64, (u64, BTreeSet<u32>)>, bool) {
        let mut sets = RootSets::default();
        let mut references = HolderReferences::new(bound);
        for number in 0..5000_u64 {
            let set = sets.single((number * 7 % 31) as u32);
            let reference = HolderReference { address: number * 7919 % 701, detail: 5 + number % 3, set };
            references.push(reference, &mut sets).unwrap();
        }
        let spills = !references.spilled.is_empty();
        let mut sorted = references.sorted(&mut sets).unwrap();
        let mut found = BTreeMap::new();
        let mut last = None;
        while let Some(reference) = sorted.next(&mut sets).unwrap() {
            assert!(last < Some(reference.address));
            last = Some(reference.address);
            let members = sets.runs(reference.set).iter().flat_map(|run| run.first..=run.last).collect();
            found.insert(reference.address, (reference.detail, members));
        }
        (found, spills)
    }

    #[test]
    fn spilled_references_are_merged_as_those_in_memory() {
        let (in_memory, spills) = collected(1 << 20);
        assert!(!spills && in_memory.len() == 701);
        assert!(in_memory.values().all(|(detail, _)| *detail == 5));
        for bound in [2, 64, 701, 1401, 1402] {
            let (found, spills) = collected(bound);
            assert!(found == in_memory, "at most {bound} in memory");
            // Half of the memory must be free after merging.
            assert_eq!(spills, bound < 1402, "at most {bound} in memory");
        }
    }
}
