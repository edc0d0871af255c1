//! `Extents`: writes that are in memory only, as ranges of blocks that do not overlap.
//!
//! It owns the bytes. A later write replaces the parts of earlier ones that it covers.
//!
//! **Invariant**: extents do not overlap, none is empty, and `bytes` is the sum of their data.
//!
//! **Locks**: none of its own.

use super::layout::BLOCK;
use slatedb::bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

/// The content of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Bytes: whole blocks.
    Data(Bytes),
    /// Zeros, which take no space.
    Zeros,
}

impl Content {
    /// Returns the content of `count` blocks from `skip` on.
    fn part(&self, skip: u64, count: u64) -> Self {
        match self {
            Self::Data(bytes) => {
                Self::Data(bytes.slice((skip * BLOCK) as usize..((skip + count) * BLOCK) as usize))
            }
            Self::Zeros => Self::Zeros,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Data(bytes) => bytes.len() as u64,
            Self::Zeros => 0,
        }
    }
}

/// Writes in memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Extents {
    /// By their first block: the block after the last, and the content.
    extents: BTreeMap<u64, (u64, Content)>,
    bytes: u64,
}

impl Extents {
    pub(super) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Returns the bytes of data.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes a range of blocks.
    pub(super) fn insert(&mut self, range: Range<u64>, content: Content) {
        let mut add = |start: u64, end: u64, content: Content, extents: &mut BTreeMap<_, _>| {
            self.bytes += content.bytes();
            extents.insert(start, (end, content));
        };
        // Only the first overlapping extent can begin before the range.
        let first = self.extents.range(..range.start).next_back().map(|(start, _)| *start);
        let from = first.filter(|start| self.extents[start].0 > range.start).unwrap_or(range.start);
        let old: Vec<u64> = self.extents.range(from..range.end).map(|(start, _)| *start).collect();
        let mut removed = 0;
        for start in old {
            let Some((end, content)) = self.extents.remove(&start) else { continue };
            removed += content.bytes();
            if start < range.start {
                add(start, range.start, content.part(0, range.start - start), &mut self.extents);
            }
            if end > range.end {
                add(range.end, end, content.part(range.end - start, end - range.end), &mut self.extents);
            }
        }
        add(range.start, range.end, content, &mut self.extents);
        self.bytes -= removed;
    }

    /// Returns the extents in order: blocks and content.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Range<u64>, &Content)> {
        self.extents.iter().map(|(start, (end, content))| (*start..*end, content))
    }

    /// Calls `found` with each part of a range that is here, and returns the others in order.
    pub(super) fn read(
        &self,
        range: Range<u64>,
        mut found: impl FnMut(Range<u64>, Content),
    ) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        let before = self.extents.range(..range.start).next_back();
        for (start, (end, content)) in before.into_iter().chain(self.extents.range(range.clone())) {
            let part = (*start).max(at)..(*end).min(range.end);
            if part.is_empty() {
                continue;
            }
            if at < part.start {
                gaps.push(at..part.start);
            }
            at = part.end;
            found(part.clone(), content.part(part.start - start, part.end - part.start));
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_agree_with_a_model() {
        let mut random = fastrand::Rng::with_seed(9);
        for _ in 0..100 {
            let mut extents = Extents::default();
            let mut model: [Option<u8>; 64] = [None; 64];
            for _ in 0..random.u32(1..40) {
                let start = random.u64(0..64);
                let range = start..random.u64(start..64) + 1;
                let byte = random.u8(0..5);
                let content = match byte {
                    0 => Content::Zeros,
                    byte => {
                        let length = (range.end - range.start) * BLOCK;
                        Content::Data(Bytes::from(vec![byte; length as usize]))
                    }
                };
                extents.insert(range.clone(), content);
                model[range.start as usize..range.end as usize].fill(Some(byte));
                let mut seen = [None; 64];
                let part = random.u64(0..32)..random.u64(33..64);
                let gaps = extents.read(part.clone(), |range, content| {
                    let byte = match &content {
                        Content::Zeros => 0,
                        Content::Data(bytes) => {
                            assert_eq!(bytes.len() as u64, (range.end - range.start) * BLOCK);
                            bytes[0]
                        }
                    };
                    seen[range.start as usize..range.end as usize].fill(Some(byte));
                });
                for gap in gaps {
                    assert!(model[gap.start as usize..gap.end as usize].iter().all(Option::is_none));
                }
                let part = part.start as usize..part.end as usize;
                assert_eq!(seen[part.clone()], model[part]);
                let data = model.iter().flatten().filter(|byte| **byte > 0).count() as u64;
                assert_eq!(extents.bytes(), data * BLOCK);
                assert!(
                    extents.iter().zip(extents.iter().skip(1)).all(|(one, next)| one.0.end <= next.0.start)
                );
            }
        }
    }
}
