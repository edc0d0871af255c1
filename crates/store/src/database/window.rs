//! `Window`: where the blocks of 1 MiB of a device are.
//!
//! It owns the value of a `w` key: a byte of flags; if [`BITS`] is set, 32 bytes with a bit for
//! each block under its own key; then the runs, 24 bytes each, in order. A run has the segment's
//! number, its origin and its blocks less one, the index of the first block in it, the first block
//! in the window, and the blocks less one.
//!
//! **Invariants**
//! - Runs do not overlap, lie in the window and in their segments, and cover no block with a bit.
//! - A block with neither a bit nor a run reads as zeros.

use super::segment::{MOST_BLOCKS, SegmentRef};
use std::ops::Range;
use ulid::Ulid;

/// Blocks of a window.
pub(super) const WINDOW: u64 = 256;
const BITS: u8 = 1;
const RUN: usize = 24;

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nowhere: it reads as zeros.
    Hole,
    /// In the database, under its own key.
    Database,
    /// In a segment, at this index. The following blocks of a stretch have the following indices.
    Segment(SegmentRef, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u16,
    count: u16,
    segment: SegmentRef,
    index: u32,
}

impl Run {
    fn end(&self) -> u16 {
        self.first + self.count
    }

    /// Returns the part of the run from `first` to `end`, which lie in it.
    fn part(&self, first: u16, end: u16) -> Self {
        Self {
            first,
            count: end - first,
            segment: self.segment,
            index: self.index + u32::from(first - self.first),
        }
    }
}

/// Where the blocks of a window are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    bits: [u64; 4],
    runs: Vec<Run>,
}

impl Window {
    /// The window of a device of version 1: each block is under its own key, or nowhere.
    pub(super) fn earlier() -> Self {
        Self { bits: [u64::MAX; 4], runs: Vec::new() }
    }

    /// Returns whether the window has holes only.
    pub(super) fn is_empty(&self) -> bool {
        self.bits == [0; 4] && self.runs.is_empty()
    }

    fn bit(&self, block: u16) -> bool {
        self.bits[usize::from(block / 64)] >> (block % 64) & 1 != 0
    }

    /// Calls `each` with the stretches of a range, in order, and their places.
    pub(super) fn for_each(&self, range: Range<u16>, mut each: impl FnMut(Range<u16>, Place)) {
        let mut at = range.start;
        let mut runs = self.runs.iter().skip_while(|run| run.end() <= range.start).peekable();
        while at < range.end {
            if let Some(run) = runs.next_if(|run| run.first <= at) {
                let part = run.part(at, run.end().min(range.end));
                each(at..part.end(), Place::Segment(part.segment, part.index));
                at = part.end();
                continue;
            }
            let end = runs.peek().map_or(range.end, |run| run.first.min(range.end));
            while at < end {
                let bit = self.bit(at);
                let next = (at..end).find(|block| self.bit(*block) != bit).unwrap_or(end);
                each(at..next, if bit { Place::Database } else { Place::Hole });
                at = next;
            }
        }
    }

    /// Gives a range a new place.
    pub(super) fn set(&mut self, range: Range<u16>, place: Place) {
        let mut runs = Vec::with_capacity(self.runs.len() + 2);
        for run in &self.runs {
            if run.first < range.start {
                runs.push(run.part(run.first, run.end().min(range.start)));
            }
            if run.end() > range.end {
                runs.push(run.part(run.first.max(range.end), run.end()));
            }
        }
        if let Place::Segment(segment, index) = place {
            runs.push(Run { first: range.start, count: range.end - range.start, segment, index });
        }
        runs.sort_unstable_by_key(|run| run.first);
        runs.dedup_by(|next, run| {
            let joins = run.end() == next.first
                && run.segment == next.segment
                && run.index + u32::from(run.count) == next.index;
            if joins {
                run.count += next.count;
            }
            joins
        });
        self.runs = runs;
        for block in range {
            let (word, mask) = (usize::from(block / 64), 1 << (block % 64));
            match place {
                Place::Database => self.bits[word] |= mask,
                _ => self.bits[word] &= !mask,
            }
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let has_bits = self.bits != [0; 4];
        let mut bytes = vec![u8::from(has_bits) * BITS];
        if has_bits {
            self.bits.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        }
        for run in &self.runs {
            bytes.extend_from_slice(&run.segment.id.0.to_be_bytes());
            bytes.extend_from_slice(&run.segment.origin.to_le_bytes());
            bytes.extend_from_slice(&(run.segment.blocks - 1).to_le_bytes());
            bytes.extend_from_slice(&(run.index as u16).to_le_bytes());
            bytes.extend_from_slice(&[run.first as u8, (run.count - 1) as u8]);
        }
        bytes
    }

    /// Reads a window. `None` if the bytes break an invariant.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (flags, mut rest) = bytes.split_first()?;
        let mut window = Self::default();
        match *flags {
            0 => {}
            BITS => {
                let (bits, runs) = rest.split_at_checked(32)?;
                for (word, bytes) in window.bits.iter_mut().zip(bits.chunks_exact(8)) {
                    *word = u64::from_le_bytes(bytes.try_into().ok()?);
                }
                rest = runs;
            }
            _ => return None,
        }
        if rest.len() % RUN != 0 {
            return None;
        }
        for bytes in rest.chunks_exact(RUN) {
            let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let id = Ulid(u128::from_be_bytes(bytes[..16].try_into().ok()?));
            let segment = SegmentRef { id, origin: short(16), blocks: short(18).checked_add(1)? };
            let (first, count) = (u16::from(bytes[22]), u16::from(bytes[23]) + 1);
            let run = Run { first, count, segment, index: u32::from(short(20)) };
            let follows = window.runs.last().is_none_or(|last| last.end() <= first);
            let is_inside = u64::from(run.end()) <= WINDOW
                && u64::from(segment.blocks) <= MOST_BLOCKS
                && run.index + u32::from(count) <= u32::from(segment.blocks);
            if !follows || !is_inside || (first..run.end()).any(|block| window.bit(block)) {
                return None;
            }
            window.runs.push(run);
        }
        Some(window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(window: &Window, range: Range<u16>) -> Vec<Place> {
        let mut places = Vec::new();
        let mut at = range.start;
        window.for_each(range.clone(), |stretch, place| {
            assert!(stretch.start == at && stretch.end > at);
            at = stretch.end;
            places.extend(stretch.clone().map(|block| match place {
                Place::Segment(segment, index) => {
                    Place::Segment(segment, index + u32::from(block - stretch.start))
                }
                place => place,
            }));
        });
        assert_eq!(at, range.end);
        places
    }

    #[test]
    fn windows_agree_with_a_model_and_are_read_back() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..200 {
            let mut window = if random.bool() { Window::default() } else { Window::earlier() };
            let first = if window.is_empty() { Place::Hole } else { Place::Database };
            let mut model = vec![first; WINDOW as usize];
            for _ in 0..random.u32(1..30) {
                let start = random.u16(0..256);
                let range = start..random.u16(start..256) + 1;
                let count = range.end - range.start;
                let segment = SegmentRef {
                    id: Ulid(random.u128(0..4)),
                    origin: 0,
                    blocks: random.u16(count..=MOST_BLOCKS as u16),
                };
                let place = match random.u8(0..4) {
                    0 => Place::Hole,
                    1 => Place::Database,
                    _ => Place::Segment(segment, random.u32(0..=u32::from(segment.blocks - count))),
                };
                window.set(range.clone(), place);
                for block in range.clone() {
                    model[usize::from(block)] = match place {
                        Place::Segment(segment, index) => {
                            Place::Segment(segment, index + u32::from(block - range.start))
                        }
                        place => place,
                    };
                }
                assert_eq!(places(&window, 0..256), model);
                let part = random.u16(0..128)..random.u16(129..256);
                assert_eq!(
                    places(&window, part.clone()),
                    model[usize::from(part.start)..usize::from(part.end)]
                );
                assert_eq!(Window::parse(&window.to_bytes()), Some(window.clone()));
                assert_eq!(window.is_empty(), model.iter().all(|place| *place == Place::Hole));
            }
        }
    }

    #[test]
    fn damaged_windows_are_refused_or_keep_the_invariants() {
        let mut window = Window::default();
        let segment = SegmentRef { id: Ulid(7), origin: 1, blocks: 300 };
        window.set(0..10, Place::Database);
        window.set(10..200, Place::Segment(segment, 100));
        window.set(20..30, Place::Hole);
        let bytes = window.to_bytes();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                if let Some(window) = Window::parse(&damaged) {
                    assert_eq!(window.to_bytes(), damaged);
                    places(&window, 0..256);
                }
            }
            let shorter = Window::parse(&bytes[..at]);
            assert!(shorter.is_none_or(|shorter| shorter.to_bytes() == bytes[..at]));
        }
    }
}
