//! Merging: parts of data extents become new extents, and everything that refers to them follows.
//!
//! Owns [`Transactions::merge`] and [`MergedExtent`]. The parts have been copied to new space one
//! behind the other. One transaction of its own lets every file extent of every tree refer to the
//! new extents, and drops the old ones.
//!
//! **Invariants**
//! - As in [`super::relocate`], trees share the copies of their blocks as they shared the blocks.
//! - A new extent consists of pieces that are shared alike ([`super::extent_sharing`]). So no
//!   subvolume holds data that it did not hold before, and data never needs more space.
//! - Nothing changes if any piece is not as the caller found it.
//!
//! **Locks**: those of [`Transactions::relocate`].
//!
//! Kernel counterpart: none.

use super::extent_sharing::{ExtentPiece, PieceSharing};
use super::handle::DataExtent;
use super::moved_data::{Growth, MovedData, MovedPart};
use super::transaction::Transactions;
use crate::errors::{Error, Result};
use papilio_format::LogicalAddress;
use std::collections::BTreeMap;

/// A new extent, whose bytes have been copied.
#[derive(Clone, Debug)]
pub(crate) struct MergedExtent {
    /// Where it is.
    pub(crate) place: DataExtent,
    /// The parts of old extents that it consists of, in order.
    pub(crate) pieces: Vec<ExtentPiece>,
    /// Runs of checksums, by the address of their first sector.
    pub(crate) checksums: Vec<(LogicalAddress, Vec<u8>)>,
}

impl Transactions {
    /// Lets everything that refers to parts of old extents refer to the new extents, in a
    /// transaction of its own, which is durable on return. Calls `moved` after the trees lead to
    /// the new places, and before the old ones may be freed. Returns whether each new extent's
    /// parts are what they were when they were copied; unless all are, nothing has changed.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`]; a block or an item that cannot be read, or that contradicts
    /// another. Nothing has changed then, and the caller releases the new space. An error later
    /// makes the file system read-only.
    pub(crate) fn merge(&self, merged: &[MergedExtent], moved: &mut dyn FnMut()) -> Result<Vec<bool>> {
        self.might_change();
        let pieces: Vec<_> = merged.iter().flat_map(|extent| extent.pieces.iter().copied()).collect();
        let mut looked = None;
        let result = self.commit_alone(|buffer| {
            let changed = || Error::Invalid("extents changed before they were merged".to_owned());
            let look = self.look_at(&pieces)?.ok_or_else(changed)?;
            let fit = looked.insert(fitting(merged, &look.sharing));
            if fit.contains(&false) {
                return Err(changed());
            }
            let sums = merged.iter().flat_map(|extent| extent.checksums.iter().cloned()).collect();
            self.carry_out(&look.plan, &parts_of(merged), sums, &Growth::NONE, buffer)?;
            moved();
            Ok(())
        });
        match (result, looked) {
            (Ok(()), Some(fit)) => Ok(fit),
            (Err(_), Some(fit)) if fit.contains(&false) => Ok(fit),
            (Err(error), _) => Err(error),
            (Ok(()), None) => unreachable!("a merge looks first"),
        }
    }
}

/// Returns for each new extent whether its pieces are shared alike.
fn fitting(merged: &[MergedExtent], sharing: &[PieceSharing]) -> Vec<bool> {
    let mut rest = sharing;
    let fits = |extent: &MergedExtent| {
        let (own, others) = rest.split_at(extent.pieces.len());
        rest = others;
        own.iter().all(|sharing| matches!(sharing, PieceSharing::Movable(_)) && *sharing == own[0])
    };
    merged.iter().map(fits).collect()
}

/// Returns where the parts of each old extent are now.
fn parts_of(merged: &[MergedExtent]) -> BTreeMap<LogicalAddress, MovedData> {
    let mut parts: BTreeMap<LogicalAddress, Vec<MovedPart>> = BTreeMap::new();
    for extent in merged {
        let mut at = 0;
        for piece in &extent.pieces {
            let (offset, length) = (piece.offset, piece.length);
            let part = MovedPart { offset, length, extent: extent.place, at };
            parts.entry(piece.extent).or_default().push(part);
            at += length;
        }
    }
    parts.into_iter().map(|(from, parts)| (from, MovedData::Parts(parts))).collect()
}
