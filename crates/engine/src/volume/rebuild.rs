//! Rebuilding unreadable data of RAID5 and RAID6.
//!
//! Owns [`rebuild`], which computes a piece of one data column from the other columns of its row.
//! Unreadable columns count as lost, up to the number of parity columns.
//!
//! **Invariant**: a rebuild holds at most four pieces (of up to 64 KiB) in memory, whatever the
//! number of stripes.
//!
//! **Locks**: none; the caller holds the row's lock.
//!
//! Kernel counterpart: `raid56_parity_recover` and `set_rbio_raid6_extra_error`
//! (`fs/btrfs/raid56.c`).

use super::parity::Syndrome;
use crate::errors::Result;

/// The shape of a row, and the column to rebuild.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Number of data columns.
    pub(crate) data: usize,
    /// Number of parity columns, 1 or 2.
    pub(crate) parity: usize,
    /// The data column to rebuild.
    pub(crate) target: usize,
}

impl Row {
    /// Returns the column, besides the target, that attempt `attempt` assumes lost.
    ///
    /// Attempt 1 assumes none, so P rebuilds. Attempt 2 assumes P lost, so Q rebuilds. Attempts
    /// from 3 on each assume another data column lost, the last column first. The kernel numbers
    /// its mirrors in this way.
    pub(crate) fn assumed_lost(&self, attempt: usize) -> Option<usize> {
        if attempt < 2 {
            return None;
        }
        let column = (self.data + self.parity).checked_sub(attempt)?;
        if column <= self.target { column.checked_sub(1) } else { Some(column) }
    }
}

/// Fills `out` with the row's target by attempt `attempt` (1 and up). `read` fills a buffer with
/// the same bytes of the given column.
///
/// # Errors
/// Returns the first error of `read` if too many columns are lost.
pub(crate) fn rebuild(
    row: Row,
    attempt: usize,
    out: &mut [u8],
    mut read: impl FnMut(usize, &mut [u8]) -> Result<()>,
) -> Result<()> {
    assert!(row.target < row.data && (1..=2).contains(&row.parity), "a row with parity");
    let assumed_lost = row.assumed_lost(attempt);
    let mut scratch = vec![0; out.len()];
    let mut syndrome = Syndrome::new(out.len(), row.parity == 2);
    let mut other_lost = None;
    let mut lost = 1;
    let mut first_error = None;

    for column in (0..row.data).rev() {
        if column == row.target {
            syndrome.add_next_lower(None);
            continue;
        }
        let result = if assumed_lost == Some(column) { None } else { Some(read(column, &mut scratch)) };
        if let Some(Ok(())) = result {
            syndrome.add_next_lower(Some(&scratch));
            continue;
        }
        if let Some(Err(error)) = result {
            first_error.get_or_insert(error);
        }
        syndrome.add_next_lower(None);
        other_lost = Some(column);
        lost += 1;
        if lost > row.parity {
            return Err(
                first_error.expect("an attempt assumes at most as many losses as there are parity columns")
            );
        }
    }

    let (p_column, q_column) = (row.data, row.data + 1);
    if let Some(other) = other_lost {
        if assumed_lost == Some(p_column) {
            return Err(first_error.expect("only one column is assumed lost, so the other loss has an error"));
        }
        // This needs two parity columns; with one, the loop above has returned.
        let mut q = vec![0; out.len()];
        read(p_column, &mut scratch).map_err(|error| first_error.take().unwrap_or(error))?;
        read(q_column, &mut q).map_err(|error| first_error.take().unwrap_or(error))?;
        syndrome.solve_by_both(&scratch, &q, row.target, other, out);
        return Ok(());
    }
    if assumed_lost != Some(p_column) {
        match read(p_column, &mut scratch) {
            Ok(()) => {
                syndrome.solve_by_p(&scratch, out);
                return Ok(());
            }
            Err(error) if row.parity == 1 => return Err(error),
            Err(error) => first_error = Some(error),
        }
    }
    read(q_column, &mut scratch).map_err(|error| first_error.take().unwrap_or(error))?;
    syndrome.solve_by_q(&scratch, row.target, out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::Error;

    #[test]
    fn attempts_match_the_kernels_mirror_numbers() {
        let row = |target| Row { data: 4, parity: 2, target };
        let assumed = |target| (1..6).map(|attempt| row(target).assumed_lost(attempt)).collect::<Vec<_>>();
        // First none, then P, then the other data columns in descending order.
        assert_eq!(assumed(0), [None, Some(4), Some(3), Some(2), Some(1)]);
        assert_eq!(assumed(2), [None, Some(4), Some(3), Some(1), Some(0)]);
        assert_eq!(assumed(3), [None, Some(4), Some(2), Some(1), Some(0)]);
        let raid5 = Row { data: 2, parity: 1, target: 1 };
        assert_eq!(raid5.assumed_lost(1), None);
        let smallest = Row { data: 1, parity: 2, target: 0 };
        assert_eq!((smallest.assumed_lost(1), smallest.assumed_lost(2)), (None, Some(1)));
    }

    /// Returns the columns that an attempt reads when the `bad` ones fail, and whether it succeeds.
    fn columns_read(row: Row, attempt: usize, bad: &[usize]) -> (Vec<usize>, bool) {
        let mut seen = Vec::new();
        let result = rebuild(row, attempt, &mut [0; 8], |column, buffer| {
            seen.push(column);
            buffer.fill(0);
            if bad.contains(&column) { Err(Error::Invalid("bad".to_owned())) } else { Ok(()) }
        });
        seen.sort_unstable();
        (seen, result.is_ok())
    }

    #[test]
    fn rebuild_reads_only_needed_columns() {
        let raid6 = Row { data: 3, parity: 2, target: 1 };
        assert_eq!(columns_read(raid6, 1, &[]), (vec![0, 2, 3], true), "P is enough");
        assert_eq!(columns_read(raid6, 1, &[3]), (vec![0, 2, 3, 4], true), "Q after P failed");
        assert_eq!(columns_read(raid6, 1, &[0]), (vec![0, 2, 3, 4], true), "two lost: P and Q");
        assert_eq!(columns_read(raid6, 2, &[]), (vec![0, 2, 4], true), "Q alone");
        assert_eq!(columns_read(raid6, 3, &[]), (vec![0, 3, 4], true), "column 2 assumed bad");
        assert_eq!(columns_read(raid6, 4, &[]), (vec![2, 3, 4], true), "column 0 assumed bad");
    }

    #[test]
    fn too_many_losses_are_an_error() {
        let raid5 = Row { data: 3, parity: 1, target: 1 };
        for bad in [0, 2, 3] {
            assert!(!columns_read(raid5, 1, &[bad]).1, "RAID5 without column {bad} too");
        }
        let raid6 = Row { data: 3, parity: 2, target: 1 };
        for bad in [[0, 2], [0, 3], [0, 4], [2, 3], [2, 4], [3, 4]] {
            assert!(!columns_read(raid6, 1, &bad).1, "RAID6 without columns {bad:?} too");
        }
        assert!(!columns_read(raid6, 2, &[0]).1, "P assumed bad, and another column lost");
        assert!(!columns_read(raid6, 3, &[3]).1, "column 2 assumed bad, and P lost");
    }
}
