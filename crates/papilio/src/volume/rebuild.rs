//! Reading from RAID5 and RAID6 what cannot be read directly.
//!
//! Owns [`rebuild`]: a piece of one data column out of the other columns of its row. Columns that
//! cannot be read count as lost, up to as many as there is parity.
//!
//! Invariant: it holds at most four pieces in memory (a piece is at most 64 KiB), however many
//! stripes there are. Takes no lock. Kernel counterpart: `raid56_parity_recover` and
//! `set_rbio_raid6_extra_error` (`fs/btrfs/raid56.c`).

use super::parity::Syndrome;
use crate::Result;

/// The columns of a row, and which of them is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Data columns.
    pub(crate) data: usize,
    /// Parity columns, 1 or 2.
    pub(crate) parity: usize,
    /// The data column to rebuild.
    pub(crate) target: usize,
}

impl Row {
    /// The column that attempt `attempt` takes as lost besides the target: with 1 none (so that P
    /// rebuilds), with 2 P (so that Q does), and from 3 on each other data column, the last one
    /// first. That is how the kernel numbers its mirrors.
    pub(crate) fn assumed_lost(&self, attempt: usize) -> Option<usize> {
        if attempt < 2 {
            return None;
        }
        let column = (self.data + self.parity).checked_sub(attempt)?;
        if column <= self.target { column.checked_sub(1) } else { Some(column) }
    }
}

/// Fills `out` with the row's target, by way `attempt` (1 and up). `read` fills a buffer with the
/// same bytes of the column that it is given.
///
/// # Errors
/// The first error of `read`, where too much is lost.
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
            return Err(first_error.expect("assumptions alone never lose too much"));
        }
    }

    let (p_column, q_column) = (row.data, row.data + 1);
    if let Some(other) = other_lost {
        if assumed_lost == Some(p_column) {
            return Err(first_error.expect("P was assumed lost, so the other was not"));
        }
        // Only with two parity columns, else too much were lost by now.
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
    use crate::Error;

    #[test]
    fn attempts_assume_losses_as_the_kernel_numbers_them() {
        let row = |target| Row { data: 4, parity: 2, target };
        let assumed = |target| (1..6).map(|attempt| row(target).assumed_lost(attempt)).collect::<Vec<_>>();
        // First none, then P, then the other data columns from the last one down.
        assert_eq!(assumed(0), [None, Some(4), Some(3), Some(2), Some(1)]);
        assert_eq!(assumed(2), [None, Some(4), Some(3), Some(1), Some(0)]);
        assert_eq!(assumed(3), [None, Some(4), Some(2), Some(1), Some(0)]);
        let raid5 = Row { data: 2, parity: 1, target: 1 };
        assert_eq!(raid5.assumed_lost(1), None);
        let smallest = Row { data: 1, parity: 2, target: 0 };
        assert_eq!((smallest.assumed_lost(1), smallest.assumed_lost(2)), (None, Some(1)));
    }

    /// Which columns an attempt reads when `bad` ones fail, and whether it succeeds.
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
    fn only_what_is_needed_is_read() {
        let raid6 = Row { data: 3, parity: 2, target: 1 };
        assert_eq!(columns_read(raid6, 1, &[]), (vec![0, 2, 3], true), "P is enough");
        assert_eq!(columns_read(raid6, 1, &[3]), (vec![0, 2, 3, 4], true), "Q after P failed");
        assert_eq!(columns_read(raid6, 1, &[0]), (vec![0, 2, 3, 4], true), "two lost: P and Q");
        assert_eq!(columns_read(raid6, 2, &[]), (vec![0, 2, 4], true), "Q alone");
        assert_eq!(columns_read(raid6, 3, &[]), (vec![0, 3, 4], true), "column 2 taken as bad");
        assert_eq!(columns_read(raid6, 4, &[]), (vec![2, 3, 4], true), "column 0 taken as bad");
    }

    #[test]
    fn too_much_lost_is_an_error() {
        let raid5 = Row { data: 3, parity: 1, target: 1 };
        for bad in [0, 2, 3] {
            assert!(!columns_read(raid5, 1, &[bad]).1, "RAID5 without column {bad} too");
        }
        let raid6 = Row { data: 3, parity: 2, target: 1 };
        for bad in [[0, 2], [0, 3], [0, 4], [2, 3], [2, 4], [3, 4]] {
            assert!(!columns_read(raid6, 1, &bad).1, "RAID6 without columns {bad:?} too");
        }
        assert!(!columns_read(raid6, 2, &[0]).1, "P taken as bad, and another column lost");
        assert!(!columns_read(raid6, 3, &[3]).1, "column 2 taken as bad, and P lost");
    }
}
