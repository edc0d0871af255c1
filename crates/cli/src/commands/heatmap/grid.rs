//! A device as a grid of cells.

use plotters::prelude::*;

/// Cells in a row.
pub const COLUMNS: u64 = 128;
/// Most rows of a device.
const ROWS: u64 = 64;
/// Least bytes of a cell.
const LEAST: u64 = 64 << 10;

/// The colour of space that belongs to no chunk.
pub const UNALLOCATED: RGBColor = RGBColor(232, 232, 232);
/// The kinds of chunks: name, colour where all is used.
pub const KINDS: [(&str, RGBColor); 4] = [
    ("data", RGBColor(31, 119, 180)),
    ("metadata", RGBColor(214, 96, 39)),
    ("system", RGBColor(117, 60, 160)),
    ("data and metadata", RGBColor(44, 140, 60)),
];
/// How much of its colour a cell has if nothing in it is used.
const FAINT: f64 = 0.2;

/// A part of a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cell {
    /// Bytes of chunks of each kind.
    pub allocated: [f64; KINDS.len()],
    /// Bytes of them that are used.
    pub used: f64,
}

/// A device.
pub struct Grid {
    pub devid: u64,
    /// The device's size in bytes.
    pub total: u64,
    /// Bytes that a cell stands for.
    pub cell_bytes: u64,
    pub cells: Vec<Cell>,
}

impl Grid {
    /// Makes the grid of a device of `total` bytes on which nothing is allocated.
    pub fn new(devid: u64, total: u64) -> Self {
        let cell_bytes = total.div_ceil(COLUMNS * ROWS).next_multiple_of(LEAST).max(LEAST);
        let cells = vec![Cell::default(); total.div_ceil(cell_bytes).max(1) as usize];
        Self { devid, total, cell_bytes, cells }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        (self.cells.len() as u64).div_ceil(COLUMNS)
    }

    /// Adds the bytes of a range to the cells that it covers.
    pub fn add(&mut self, start: f64, length: f64, mut add: impl FnMut(&mut Cell, f64)) {
        let size = self.cell_bytes as f64;
        let end = start + length;
        let mut at = (start / size) as usize;
        while at < self.cells.len() && (at as f64) * size < end {
            let (from, to) = (start.max(at as f64 * size), end.min((at + 1) as f64 * size));
            add(&mut self.cells[at], to - from);
            at += 1;
        }
    }
}

impl Cell {
    /// Returns the colour of the kind that takes most of the cell, as strong as it is used.
    pub fn colour(&self) -> RGBColor {
        let all: f64 = self.allocated.iter().sum();
        if all <= 0.0 {
            return UNALLOCATED;
        }
        let largest = (0..KINDS.len())
            .fold(0, |best, kind| if self.allocated[kind] > self.allocated[best] { kind } else { best });
        shade(KINDS[largest].1, self.used / all)
    }
}

/// Returns a colour in the strength of a part from 0 to 1.
fn shade(colour: RGBColor, part: f64) -> RGBColor {
    let strength = FAINT + (1.0 - FAINT) * part.clamp(0.0, 1.0);
    let mix = |value: u8| (255.0 - (255.0 - f64::from(value)) * strength).round() as u8;
    RGBColor(mix(colour.0), mix(colour.1), mix(colour.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_spread_over_cells() {
        let mut grid = Grid::new(1, 1 << 20);
        assert_eq!((grid.cell_bytes, grid.cells.len()), (LEAST, 16));
        let size = LEAST as f64;
        grid.add(size / 2.0, 2.0 * size, |cell, bytes| cell.allocated[1] += bytes);
        grid.add(size, size / 2.0, |cell, bytes| cell.used += bytes);
        let allocated: Vec<f64> = grid.cells.iter().map(|cell| cell.allocated[1]).collect();
        assert_eq!(allocated[..4], [size / 2.0, size, size / 2.0, 0.0]);
        assert_eq!(grid.cells[1].colour(), shade(KINDS[1].1, 0.5));
        assert_eq!(grid.cells[3].colour(), UNALLOCATED);
        assert_eq!((shade(KINDS[0].1, 1.0), shade(BLACK, 2.0)), (KINDS[0].1, BLACK));
    }
}
