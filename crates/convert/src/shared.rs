//! Blocks that several files share.
//!
//! Owns [`SharedExtents`], the runs of blocks with more than one reference, and [`References`],
//! which counts references and compares them with what the source says.
//!
//! A run becomes one extent of Btrfs, and each file refers to its part of it. Memory: 16 bytes for
//! each run, and 8 more while references are counted.

use std::ops::Range;

/// Mixes a number's bits, so that sums of different numbers hardly ever are equal.
pub(crate) fn scatter(number: u64) -> u64 {
    // The finalizer of SplitMix64.
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// A run of blocks that files share.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    length: u32,
    references: u32,
}

impl Run {
    fn range(&self) -> Range<u64> {
        self.start..self.start + u64::from(self.length)
    }
}

/// The runs, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedExtents {
    runs: Vec<Run>,
}

/// A part of a range of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedPart {
    pub(crate) blocks: Range<u64>,
    /// The run that holds it, if files share it, and the number of that run.
    pub(crate) run: Option<(usize, Range<u64>)>,
}

impl SharedExtents {
    /// Creates an empty list.
    pub(crate) const fn none() -> Self {
        Self { runs: Vec::new() }
    }

    /// Adds a run behind all others. Returns false if it is not behind them, or too long.
    pub(crate) fn push(&mut self, blocks: Range<u64>, references: u32) -> bool {
        let end = self.runs.last().map_or(0, |run| run.range().end);
        let Ok(length) = u32::try_from(blocks.end.saturating_sub(blocks.start)) else { return false };
        if blocks.start < end || length == 0 {
            return false;
        }
        self.runs.push(Run { start: blocks.start, length, references });
        true
    }

    /// Whether any of `blocks` is shared.
    pub(crate) fn intersects(&self, blocks: &Range<u64>) -> bool {
        let at = self.runs.partition_point(|run| run.range().end <= blocks.start);
        self.runs.get(at).is_some_and(|run| run.start < blocks.end)
    }

    /// Cuts a range where sharing begins and ends.
    pub(crate) fn parts(&self, blocks: Range<u64>) -> impl Iterator<Item = SharedPart> + '_ {
        let mut at = blocks.start;
        let mut next = self.runs.partition_point(|run| run.range().end <= blocks.start);
        std::iter::from_fn(move || {
            if at >= blocks.end {
                return None;
            }
            let start = at;
            match self.runs.get(next) {
                Some(run) if run.start <= at => {
                    let range = run.range();
                    at = range.end.min(blocks.end);
                    next += 1;
                    Some(SharedPart { blocks: start..at, run: Some((next - 1, range)) })
                }
                run => {
                    at = run.map_or(blocks.end, |run| run.start.min(blocks.end));
                    Some(SharedPart { blocks: start..at, run: None })
                }
            }
        })
    }
}

/// Counts references to shared runs.
///
/// Each run has the sum of the weights of all blocks that are referred to. Blocks have different
/// weights, so that a sum that is right means, almost certainly, that each block's count is.
#[derive(Debug)]
pub(crate) struct References<'a> {
    shared: &'a SharedExtents,
    sums: Vec<u64>,
}

/// Returns the weight of a range of blocks.
fn weight(blocks: &Range<u64>) -> u64 {
    scatter(blocks.end).wrapping_sub(scatter(blocks.start))
}

impl<'a> References<'a> {
    /// Counts from zero.
    pub(crate) fn new(shared: &'a SharedExtents) -> Self {
        Self { shared, sums: vec![0; shared.runs.len()] }
    }

    /// Counts a reference to a part of a run.
    pub(crate) fn add(&mut self, run: usize, blocks: &Range<u64>) {
        self.sums[run] = self.sums[run].wrapping_add(weight(blocks));
    }

    /// Returns the first run whose references are not as many as the source says.
    pub(crate) fn first_wrong(&self) -> Option<Range<u64>> {
        let mut both = self.shared.runs.iter().zip(&self.sums);
        let is_wrong =
            |(run, sum): &(&Run, &u64)| weight(&run.range()).wrapping_mul(run.references.into()) != **sum;
        both.find(is_wrong).map(|(run, _)| run.range())
    }

    /// Returns the blocks of all runs.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.shared.runs.iter().map(Run::range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> SharedExtents {
        let mut shared = SharedExtents::default();
        assert!(shared.push(10..20, 2) && shared.push(20..25, 3) && shared.push(40..50, 2));
        assert!(!shared.push(45..60, 2) && !shared.push(60..60, 2));
        shared
    }

    #[test]
    fn ranges_are_cut_where_sharing_changes() {
        let shared = sample();
        let parts = |blocks| -> Vec<_> {
            shared
                .parts(blocks)
                .map(|part| (part.blocks.start, part.blocks.end, part.run.map(|(_, run)| run.start)))
                .collect()
        };
        assert_eq!(
            parts(5..45),
            [(5, 10, None), (10, 20, Some(10)), (20, 25, Some(20)), (25, 40, None), (40, 45, Some(40))]
        );
        assert_eq!(parts(12..13), [(12, 13, Some(10))]);
        assert_eq!(parts(50..60), [(50, 60, None)]);
        assert!(shared.intersects(&(0..11)) && !shared.intersects(&(25..40)));
    }

    #[test]
    fn references_are_compared_block_by_block() {
        let shared = sample();
        let refer = |ranges: &[Range<u64>]| {
            let mut references = References::new(&shared);
            for range in ranges {
                for part in shared.parts(range.clone()) {
                    if let Some((run, _)) = part.run {
                        references.add(run, &part.blocks);
                    }
                }
            }
            references.first_wrong()
        };
        assert_eq!(refer(&[5..60, 10..22, 20..50, 22..25]), None);
        assert_eq!(refer(&[5..60, 10..22, 21..50, 22..25]), Some(20..25));
        // As many references in all, but not to each block.
        assert_eq!(refer(&[10..50, 10..19, 18..19, 20..25, 20..25, 40..50]), Some(10..20));
    }
}
