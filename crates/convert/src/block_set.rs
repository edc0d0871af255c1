//! A set of block numbers that takes little memory.
//!
//! Owns [`BlockSet`]. Blocks are kept in containers of 32,768: as runs while these are few, else as
//! a bitmap of 4 KiB. A full or empty part of a device costs almost nothing, and 16 TiB of 4 KiB
//! blocks cost at most 512 MiB, whatever their pattern.
//!
//! **Invariant**: the runs of a container are sorted, and neither overlap nor touch.

use std::ops::Range;

/// Blocks of a container.
const CONTAINER: u64 = 32768;
/// Words of a container's bitmap.
const WORDS: usize = (CONTAINER / 64) as usize;
/// Runs of a container from which on a bitmap is smaller.
const RUNS_MAX: usize = 512;

/// The members of one container.
#[derive(Clone, Debug)]
enum Container {
    /// First and last member of each run.
    Runs(Vec<(u16, u16)>),
    Bits(Box<[u64; WORDS]>),
}

/// A set of block numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockSet {
    containers: Vec<Container>,
    length: u64,
}

impl Container {
    /// Adds first..=last. Returns how many were members before.
    fn insert(&mut self, first: u16, last: u16) -> u64 {
        match self {
            Self::Bits(words) => {
                let mut already = 0;
                for_words(first, last, |at, mask| {
                    already += u64::from((words[at] & mask).count_ones());
                    words[at] |= mask;
                });
                already
            }
            Self::Runs(runs) => {
                let from = runs.partition_point(|run| u32::from(run.1) + 1 < u32::from(first));
                let to = runs.partition_point(|run| u32::from(run.0) <= u32::from(last) + 1);
                let touched = &runs[from..to];
                let already = touched
                    .iter()
                    .map(|run| {
                        let (a, b) = (run.0.max(first), run.1.min(last));
                        if a <= b { u64::from(b - a) + 1 } else { 0 }
                    })
                    .sum();
                let start = touched.first().map_or(first, |run| run.0.min(first));
                let end = touched.last().map_or(last, |run| run.1.max(last));
                runs.splice(from..to, [(start, end)]);
                self.limit_runs();
                already
            }
        }
    }

    /// Removes first..=last. Returns how many were members.
    fn remove(&mut self, first: u16, last: u16) -> u64 {
        let mut removed = 0;
        match self {
            Self::Bits(words) => for_words(first, last, |at, mask| {
                removed += u64::from((words[at] & mask).count_ones());
                words[at] &= !mask;
            }),
            Self::Runs(runs) => {
                let from = runs.partition_point(|run| run.1 < first);
                let to = runs.partition_point(|run| run.0 <= last);
                let mut kept = Vec::new();
                for run in &runs[from..to] {
                    removed += u64::from(run.1.min(last) - run.0.max(first)) + 1;
                    if run.0 < first {
                        kept.push((run.0, first - 1));
                    }
                    if run.1 > last {
                        kept.push((last + 1, run.1));
                    }
                }
                runs.splice(from..to, kept);
                self.limit_runs();
            }
        }
        removed
    }

    /// Turns many runs into a bitmap.
    fn limit_runs(&mut self) {
        let Self::Runs(runs) = self else { return };
        if runs.len() > RUNS_MAX {
            let mut words = Box::new([0; WORDS]);
            for (first, last) in runs.iter() {
                for_words(*first, *last, |at, mask| words[at] |= mask);
            }
            *self = Self::Bits(words);
        }
    }

    /// Returns the run of members, or else of others, that starts at `at`, and whether they are
    /// members.
    fn run_at(&self, at: u16) -> (u64, bool) {
        match self {
            Self::Runs(runs) => {
                let next = runs.partition_point(|run| run.1 < at);
                match runs.get(next) {
                    Some(run) if run.0 <= at => (u64::from(run.1 - at) + 1, true),
                    Some(run) => (u64::from(run.0 - at), false),
                    None => (CONTAINER - u64::from(at), false),
                }
            }
            Self::Bits(words) => {
                let flip = |word: u64, member: bool| if member { !word } else { word };
                let (mut word, bit) = (usize::from(at) / 64, usize::from(at) % 64);
                let member = words[word] >> bit & 1 == 1;
                let mut rest = flip(words[word], member) >> bit << bit;
                while rest == 0 && word + 1 < WORDS {
                    word += 1;
                    rest = flip(words[word], member);
                }
                let end =
                    if rest == 0 { CONTAINER } else { word as u64 * 64 + u64::from(rest.trailing_zeros()) };
                (end - u64::from(at), member)
            }
        }
    }
}

/// Calls `act` with each word that first..=last touches, and its bits there.
fn for_words(first: u16, last: u16, mut act: impl FnMut(usize, u64)) {
    let (from, to) = (usize::from(first) / 64, usize::from(last) / 64);
    for word in from..=to {
        let mut mask = !0u64;
        if word == from {
            mask &= !0 << (first % 64);
        }
        if word == to {
            mask &= !0 >> (63 - last % 64);
        }
        act(word, mask);
    }
}

impl BlockSet {
    /// Creates an empty set of numbers below `length`.
    pub(crate) fn new(length: u64) -> Self {
        let containers = vec![Container::Runs(Vec::new()); length.div_ceil(CONTAINER) as usize];
        Self { containers, length }
    }

    /// Adds blocks, as far as they are below the set's length. Returns how many were members
    /// before.
    pub(crate) fn insert(&mut self, blocks: Range<u64>) -> u64 {
        self.change(blocks, Container::insert)
    }

    /// Removes blocks. Returns how many were members.
    pub(crate) fn remove(&mut self, blocks: Range<u64>) -> u64 {
        self.change(blocks, Container::remove)
    }

    /// Calls `act` with each container that a range touches, and sums its results.
    fn change(&mut self, blocks: Range<u64>, act: impl Fn(&mut Container, u16, u16) -> u64) -> u64 {
        let (mut at, end) = (blocks.start, blocks.end.min(self.length));
        let mut sum = 0;
        while at < end {
            let container = at / CONTAINER;
            let last = end.min((container + 1) * CONTAINER) - 1;
            let (first, to) = ((at % CONTAINER) as u16, (last % CONTAINER) as u16);
            sum += act(&mut self.containers[container as usize], first, to);
            at = last + 1;
        }
        sum
    }

    /// Returns whether all of `blocks` are members.
    pub(crate) fn contains(&self, blocks: &Range<u64>) -> bool {
        if blocks.end > self.length {
            return blocks.is_empty();
        }
        let mut at = blocks.start;
        while at < blocks.end {
            match self.run_at(at) {
                (length, true) => at += length,
                _ => return false,
            }
        }
        true
    }

    /// Returns whether any of `blocks` is a member.
    pub(crate) fn intersects(&self, blocks: &Range<u64>) -> bool {
        self.runs_from(blocks.start).next().is_some_and(|run| run.start < blocks.end)
    }

    /// Returns the number of members in a range.
    pub(crate) fn count(&self, blocks: Range<u64>) -> u64 {
        self.runs_from(blocks.start)
            .take_while(|run| run.start < blocks.end)
            .map(|run| run.end.min(blocks.end) - run.start)
            .sum()
    }

    /// Returns the runs of members from a number on, each as long as it is.
    pub(crate) fn runs_from(&self, mut at: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        std::iter::from_fn(move || {
            while at < self.length {
                let (length, member) = self.run_at(at);
                if !member {
                    at += length;
                    continue;
                }
                let start = at;
                while at < self.length {
                    match self.run_at(at) {
                        (length, true) => at += length,
                        _ => break,
                    }
                }
                return Some(start..at.min(self.length));
            }
            None
        })
    }

    /// Returns the runs of members.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs_from(0)
    }

    /// Returns the run within one container that starts at `at`.
    fn run_at(&self, at: u64) -> (u64, bool) {
        self.containers[(at / CONTAINER) as usize].run_at((at % CONTAINER) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_behaves_like_a_table() {
        const LENGTH: u64 = 3 * CONTAINER + 1000;
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut set = BlockSet::new(LENGTH);
            let mut table = vec![false; LENGTH as usize];
            let most = if seed % 2 == 0 { 3 } else { 5000 };
            for _ in 0..if seed % 2 == 0 { 6000 } else { 40 } {
                let start = random.u64(0..LENGTH);
                let end = (start + random.u64(1..=most)).min(LENGTH);
                let slots = &mut table[start as usize..end as usize];
                let already = slots.iter().filter(|slot| **slot).count() as u64;
                let removes = random.u8(0..4) == 0;
                slots.fill(!removes);
                let counted = if removes { set.remove(start..end) } else { set.insert(start..end) };
                assert_eq!(counted, already);
            }
            let listed: Vec<_> = set.runs().collect();
            assert!(listed.windows(2).all(|pair| pair[0].end < pair[1].start));
            let mut shown = vec![false; LENGTH as usize];
            listed.iter().for_each(|run| shown[run.start as usize..run.end as usize].fill(true));
            assert!(shown == table);
            for _ in 0..500 {
                let start = random.u64(0..LENGTH);
                let end = (start + random.u64(0..100)).min(LENGTH);
                let slots = &table[start as usize..end as usize];
                assert_eq!(set.contains(&(start..end)), slots.iter().all(|slot| *slot));
                assert_eq!(set.intersects(&(start..end)), slots.iter().any(|slot| *slot));
                assert_eq!(set.count(start..end), slots.iter().filter(|slot| **slot).count() as u64);
            }
        }
    }

    #[test]
    fn numbers_past_the_end_are_no_members() {
        let mut set = BlockSet::new(10);
        assert_eq!(set.insert(5..20), 0);
        assert_eq!(set.insert(0..20), 5);
        assert!(set.contains(&(0..10)) && !set.contains(&(9..11)));
        let runs: Vec<_> = set.runs().map(|run| (run.start, run.end)).collect();
        assert_eq!(runs, [(0, 10)]);
    }
}
