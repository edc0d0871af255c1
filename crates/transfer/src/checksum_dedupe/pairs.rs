//! Pairs of numbers, collected in any order and given back sorted, in bounded memory.
//!
//! Owns [`PairSorter`] and [`Pairs`]. Pairs beyond the bound are sorted and moved to a temporary
//! file without a name, and merged at the end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};

/// Bytes of one pair, in memory and in a file.
pub(super) const PAIR_BYTES: usize = 16;
/// Fewest pairs that are kept in memory.
const LEAST: usize = 1 << 10;

/// A number to sort by, and an address.
pub(super) type Pair = (u64, u64);

/// Pairs that are being collected.
pub(super) struct PairSorter {
    records: Vec<Pair>,
    /// Most pairs in memory.
    bound: usize,
    spilled: Vec<StoredPairs<File>>,
}

/// Pairs in a stream, as many as are left.
pub(super) struct StoredPairs<R: Read> {
    stream: BufReader<R>,
    left: u64,
}

/// Pairs in order.
pub(super) struct Pairs {
    memory: std::vec::IntoIter<Pair>,
    spilled: Vec<StoredPairs<File>>,
    /// The first pair of each source: a file, or memory as the last one.
    next: BinaryHeap<Reverse<(Pair, usize)>>,
}

impl PairSorter {
    /// Takes at most about `bytes` of memory.
    pub(super) fn new(bytes: usize) -> Self {
        Self { records: Vec::new(), bound: (bytes / PAIR_BYTES).max(LEAST), spilled: Vec::new() }
    }

    /// Adds a pair.
    ///
    /// # Errors
    /// The temporary file cannot be made or written.
    pub(super) fn push(&mut self, pair: Pair) -> io::Result<()> {
        if self.records.len() == self.bound {
            self.spill()?;
        }
        if self.records.len() == self.records.capacity() {
            // Growth by doubling would exceed the bound.
            let more = self.records.len().max(LEAST).min(self.bound - self.records.len());
            self.records.reserve_exact(more);
        }
        self.records.push(pair);
        Ok(())
    }

    /// Gives them back in order.
    ///
    /// # Errors
    /// A temporary file cannot be read.
    pub(super) fn sorted(mut self) -> io::Result<Pairs> {
        self.records.sort_unstable();
        let (memory, spilled) = (self.records.into_iter(), self.spilled);
        let mut sorted = Pairs { memory, spilled, next: BinaryHeap::new() };
        for source in 0..=sorted.spilled.len() {
            sorted.advance(source)?;
        }
        Ok(sorted)
    }

    fn spill(&mut self) -> io::Result<()> {
        self.records.sort_unstable();
        let mut file = BufWriter::new(tempfile::tempfile()?);
        for pair in &self.records {
            write_pair(&mut file, *pair)?;
        }
        let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        self.spilled.push(StoredPairs::new(file, self.records.len() as u64));
        self.records.clear();
        Ok(())
    }
}

/// Writes a pair as [`StoredPairs`] reads it.
pub(super) fn write_pair(out: &mut impl Write, (number, address): Pair) -> io::Result<()> {
    out.write_all(&number.to_le_bytes())?;
    out.write_all(&address.to_le_bytes())
}

impl<R: Read> StoredPairs<R> {
    /// Reads `left` pairs from a stream.
    pub(super) fn new(stream: R, left: u64) -> Self {
        Self { stream: BufReader::with_capacity(1 << 18, stream), left }
    }

    /// Returns the next one.
    ///
    /// # Errors
    /// The stream cannot be read, or ends early.
    pub(super) fn next(&mut self) -> io::Result<Option<Pair>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let mut bytes = [0; PAIR_BYTES];
        self.stream.read_exact(&mut bytes)?;
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Ok(Some((number(0), number(8))))
    }
}

impl Pairs {
    /// Returns the next one.
    ///
    /// # Errors
    /// A temporary file cannot be read.
    pub(super) fn next(&mut self) -> io::Result<Option<Pair>> {
        let Some(Reverse((pair, source))) = self.next.pop() else { return Ok(None) };
        self.advance(source)?;
        Ok(Some(pair))
    }

    /// Returns the next one without removing it.
    pub(super) fn peek(&self) -> Option<Pair> {
        self.next.peek().map(|Reverse((pair, _))| *pair)
    }

    /// Removes the pairs with the number `number`, and appends their addresses to `into`.
    ///
    /// # Errors
    /// As [`Pairs::next`].
    pub(super) fn take(&mut self, number: u64, into: &mut Vec<u64>) -> io::Result<()> {
        while let Some((_, address)) = self.peek().filter(|(next, _)| *next == number) {
            into.push(address);
            self.next()?;
        }
        Ok(())
    }

    fn advance(&mut self, source: usize) -> io::Result<()> {
        let next = match self.spilled.get_mut(source) {
            Some(file) => file.next()?,
            None => self.memory.next(),
        };
        self.next.extend(next.map(|pair| Reverse((pair, source))));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(bytes: usize) -> (Vec<Pair>, usize) {
        let mut sorter = PairSorter::new(bytes);
        for number in 0..20_000_u64 {
            sorter.push((number * 7919 % 701, number)).unwrap();
        }
        let files = sorter.spilled.len();
        let mut pairs = sorter.sorted().unwrap();
        let mut found = Vec::new();
        while let Some(pair) = pairs.next().unwrap() {
            found.push(pair);
        }
        (found, files)
    }

    #[test]
    fn spilled_pairs_come_back_in_the_same_order() {
        let (in_memory, files) = sorted(1 << 20);
        assert_eq!((in_memory.len(), files), (20_000, 0));
        assert!(in_memory.is_sorted());
        let (spilled, files) = sorted(PAIR_BYTES << 11);
        assert!(spilled == in_memory);
        assert_eq!(files, 9);
    }

    #[test]
    fn a_number_is_taken_with_all_its_addresses() {
        let mut sorter = PairSorter::new(1 << 20);
        for pair in [(5, 1), (3, 9), (5, 0), (7, 2)] {
            sorter.push(pair).unwrap();
        }
        let mut pairs = sorter.sorted().unwrap();
        let mut addresses = Vec::new();
        pairs.take(3, &mut addresses).unwrap();
        pairs.take(5, &mut addresses).unwrap();
        assert_eq!((addresses, pairs.peek()), (vec![9, 0, 1], Some((7, 2))));
    }
}
