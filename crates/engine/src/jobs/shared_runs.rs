//! Runs of pieces that become one extent each, and the groups that move together.
//!
//! Owns [`WindowPiece`], [`Run`] and [`RunGroup`].
//!
//! **Invariants**
//! - A run consists of neighbours in one file that are shared alike.
//! - With a piece of an extent, its group has all pieces of that extent.
//! - A group has a run whose pieces lie apart on disk, so that merging it leaves fewer fragments.
//!
//! **Locks**: none. Kernel counterpart: `defrag_collect_targets` (`fs/btrfs/defrag.c`).

use crate::namespace::Place;
use crate::transaction::{ExtentPiece, PieceSharing};
use papilio_format::LogicalAddress;
use std::collections::{BTreeMap, HashMap};

/// A part of an extent, where a file has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowPiece {
    pub(super) piece: ExtentPiece,
    /// Whether it begins in the file where the window's piece before it ends.
    pub(super) follows: bool,
    pub(super) place: Place,
    /// The file offset.
    pub(super) offset: u64,
}

impl WindowPiece {
    /// Whether `next` is the following part of the same extent.
    pub(super) fn continues_in(&self, next: &ExtentPiece) -> bool {
        self.piece.extent == next.extent && self.piece.offset + self.piece.length == next.offset
    }

    /// Whether `next` begins on disk where this one ends.
    pub(super) fn touches(&self, next: &Self) -> bool {
        self.piece.address().0 + self.piece.length == next.piece.address().0
    }
}

/// Pieces that become one extent.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) pieces: Vec<WindowPiece>,
}

impl Run {
    pub(super) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.piece.length).sum()
    }

    fn is_fragmented(&self) -> bool {
        self.pieces.windows(2).any(|pair| !pair[0].touches(&pair[1]))
    }
}

/// Runs that have extents in common, directly or by way of others.
#[derive(Clone, Debug)]
pub(super) struct RunGroup {
    pub(super) runs: Vec<Run>,
}

impl RunGroup {
    /// Bytes of the new extents.
    pub(super) fn bytes(&self) -> u64 {
        self.runs.iter().map(Run::bytes).sum()
    }

    /// The old extents with their lengths.
    pub(super) fn extents(&self) -> BTreeMap<LogicalAddress, u64> {
        let pieces = self.runs.iter().flat_map(|run| &run.pieces);
        pieces.map(|piece| (piece.piece.extent, piece.piece.extent_length)).collect()
    }
}

/// Splits a window into runs of at most `largest` bytes and `most` pieces, or one piece.
pub(super) fn runs(window: &[WindowPiece], sharing: &[PieceSharing], largest: u64, most: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let (mut open, mut bytes) = (None, 0);
    for (piece, sharing) in window.iter().zip(sharing) {
        let PieceSharing::Movable(number) = sharing else {
            open = None;
            continue;
        };
        bytes += piece.piece.length;
        let joins = |run: &&mut Run| {
            piece.follows && open == Some(*number) && bytes <= largest && run.pieces.len() < most
        };
        match runs.last_mut().filter(joins) {
            Some(run) => run.pieces.push(*piece),
            _ => {
                runs.push(Run { pieces: vec![*piece] });
                bytes = piece.piece.length;
            }
        }
        open = Some(*number);
    }
    runs
}

/// Joins runs that have extents in common, and leaves the groups out that gain nothing.
pub(super) fn groups(runs: Vec<Run>) -> Vec<RunGroup> {
    // The group of each run, by its first run.
    let mut leaders: Vec<usize> = (0..runs.len()).collect();
    let mut by_extent: HashMap<LogicalAddress, usize> = HashMap::new();
    for (index, run) in runs.iter().enumerate() {
        for piece in &run.pieces {
            let other = *by_extent.entry(piece.piece.extent).or_insert(index);
            let (one, two) = (leader(&mut leaders, index), leader(&mut leaders, other));
            leaders[one.max(two)] = one.min(two);
        }
    }
    let mut groups: BTreeMap<usize, RunGroup> = BTreeMap::new();
    for (index, run) in runs.into_iter().enumerate() {
        let first = leader(&mut leaders, index);
        groups.entry(first).or_insert_with(|| RunGroup { runs: Vec::new() }).runs.push(run);
    }
    groups.into_values().filter(|group| group.runs.iter().any(Run::is_fragmented)).collect()
}

fn leader(leaders: &mut [usize], mut index: usize) -> usize {
    while leaders[index] != index {
        leaders[index] = leaders[leaders[index]];
        index = leaders[index];
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_format::{InodeNumber, TreeId};

    const K: u64 = 1024;

    fn piece(extent: u64, offset: u64, length: u64, follows: bool) -> WindowPiece {
        let place = Place { tree: TreeId(5), inode: InodeNumber(257) };
        let extent = LogicalAddress(extent);
        let piece = ExtentPiece { extent, extent_length: 64 * K, offset, length };
        WindowPiece { piece, follows, place, offset: 0 }
    }

    fn lengths(runs: &[Run]) -> Vec<usize> {
        runs.iter().map(|run| run.pieces.len()).collect()
    }

    #[test]
    fn runs_end_where_sharing_changes_and_at_gaps() {
        let window: Vec<_> = (0..6).map(|at| piece(at << 20, 0, 4 * K, at != 4)).collect();
        let movable = |numbers: [u32; 6]| numbers.map(PieceSharing::Movable).to_vec();
        assert_eq!(lengths(&runs(&window, &movable([0; 6]), 1 << 20, 99)), [4, 2]);
        assert_eq!(lengths(&runs(&window, &movable([0; 6]), 1 << 20, 3)), [3, 1, 2]);
        assert_eq!(lengths(&runs(&window, &movable([0, 0, 1, 1, 1, 0]), 1 << 20, 99)), [2, 2, 1, 1]);
        assert_eq!(lengths(&runs(&window, &movable([0; 6]), 12 * K, 99)), [3, 1, 2]);
        let mut sharing = movable([0; 6]);
        sharing[1] = PieceSharing::Stays(crate::transaction::StayReason::OtherParts);
        assert_eq!(lengths(&runs(&window, &sharing, 1 << 20, 99)), [1, 2, 2]);
    }

    #[test]
    fn an_extent_moves_with_all_its_pieces() {
        // Extent 0 is in the first and the third run, and extent 3 alone.
        let all = [
            Run { pieces: vec![piece(0, 0, 4 * K, false), piece(1 << 20, 0, 4 * K, true)] },
            Run { pieces: vec![piece(2 << 20, 0, 4 * K, false), piece(2 << 20, 4 * K, 4 * K, true)] },
            Run { pieces: vec![piece(0, 8 * K, 4 * K, false)] },
        ];
        let groups = groups(all.to_vec());
        assert_eq!(groups.len(), 1, "the second run is contiguous");
        assert_eq!(groups[0].runs.len(), 2);
        assert_eq!((groups[0].bytes(), groups[0].extents().len()), (12 * K, 2));
    }
}
