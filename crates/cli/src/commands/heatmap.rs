//! `papilio heatmap`: a picture of where data, metadata and free space lie on each device.
//!
//! A device is a grid of cells in the order of its bytes. The hue of a cell stands for the kind of
//! chunk that takes most of it, the strength for the part of that which is used.

use crate::context::Context;
use crate::mounted::Target;
use crate::output::Output;
use crate::tree_source::{TreeSource, UsedChunk};
use crate::units::Units;
use crate::usage_error::UsageError;
use anyhow::anyhow;
use papilio::format::items::block_group::BlockGroupFlags;
use papilio::format::items::device::DeviceItem;
use papilio::format::{ItemType, Key, objectid};
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Cells in a row.
const COLUMNS: u64 = 128;
/// Most rows of a device.
const ROWS: u64 = 64;
/// Least bytes of a cell.
const LEAST: u64 = 64 << 10;
/// Width and height of a cell, and the margin around a grid, in pixels.
const CELL: i32 = 7;
const MARGIN: i32 = 20;
/// Height of a line of text in pixels.
const LINE: i32 = 20;

const UNALLOCATED: RGBColor = RGBColor(232, 232, 232);
/// The kinds of chunks: name, colour where all is used.
const KINDS: [(&str, RGBColor); 4] = [
    ("data", RGBColor(31, 119, 180)),
    ("metadata", RGBColor(214, 96, 39)),
    ("system", RGBColor(117, 60, 160)),
    ("data and metadata", RGBColor(44, 140, 60)),
];
/// How much of its colour a cell has if nothing in it is used.
const FAINT: f64 = 0.2;

/// Draw where data, metadata and free space lie on each device
///
/// Each device is a grid of cells in the order of its bytes. The colour says which kind of chunk
/// takes most of a cell, and its strength how much of that is used. Where a chunk is striped, the
/// place of its extents on each device is that of their share of the chunk.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// The picture to create, in the format SVG
    #[arg(value_name = "FILE.svg", value_hint = clap::ValueHint::FilePath)]
    picture: PathBuf,
}

/// A part of a device.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// Bytes of chunks of each kind.
    allocated: [f64; KINDS.len()],
    used: f64,
}

/// A device.
struct Grid {
    devid: u64,
    total: u64,
    cell_bytes: u64,
    cells: Vec<Cell>,
}

impl Grid {
    fn new(devid: u64, total: u64) -> Self {
        let cell_bytes = total.div_ceil(COLUMNS * ROWS).next_multiple_of(LEAST).max(LEAST);
        let cells = vec![Cell::default(); total.div_ceil(cell_bytes).max(1) as usize];
        Self { devid, total, cell_bytes, cells }
    }

    fn rows(&self) -> i32 {
        (self.cells.len() as u64).div_ceil(COLUMNS) as i32
    }

    fn height(&self) -> i32 {
        LINE + self.rows() * CELL + MARGIN
    }

    /// Adds the bytes of a range to the cells that it covers.
    fn add(&mut self, start: f64, length: f64, mut add: impl FnMut(&mut Cell, f64)) {
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
    fn colour(&self) -> RGBColor {
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

fn kind_of(flags: BlockGroupFlags) -> usize {
    match flags & BlockGroupFlags::TYPE_MASK {
        BlockGroupFlags::DATA => 0,
        BlockGroupFlags::METADATA => 1,
        BlockGroupFlags::SYSTEM => 2,
        _ => 3,
    }
}

impl Args {
    /// Draws the picture.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if self.picture.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("svg")) {
            let text = format!("{}: only pictures in the format .svg can be drawn", self.picture.display());
            return Err(UsageError::new(text).into());
        }
        let source = TreeSource::open(context, &self.path)?;
        let mut grids = grids(&source)?;
        let chunks = source.chunks()?;
        for chunk in &chunks {
            spread(&mut grids, chunk, 0, chunk.item.length, |cell, bytes| {
                cell.allocated[kind_of(chunk.item.flags)] += bytes;
            })?;
        }
        self.add_extents(context, &source, &chunks, &mut grids)?;
        let grids: Vec<Grid> = grids.into_values().collect();
        let shown = self.picture.display();
        draw(&self.picture, &grids, &self.path.to_string_lossy())
            .map_err(|error| anyhow!("{shown}: {error}"))?;
        if context.verbosity >= 0 {
            let mut output = Output::new()?;
            output.text(format_args!("{shown}: {} devices\n", grids.len()))?;
            output.finish()?;
        }
        Ok(())
    }

    fn add_extents(
        &self,
        context: &Context,
        source: &TreeSource,
        chunks: &[UsedChunk],
        grids: &mut BTreeMap<u64, Grid>,
    ) -> anyhow::Result<()> {
        let node_size: u64 = match Target::parse(&self.path)? {
            Target::Image(path) => context.open(&path.image)?.superblock().raw.node_size.into(),
            Target::Mounted(mounted) => {
                mounted.open()?.fs_info().map_err(|error| mounted.at(&error))?.node_size.into()
            }
        };
        source.search(objectid::EXTENT_TREE, (Key::MIN, Key::MAX), 0, |key, _| {
            let length = match key.item_type {
                ItemType::EXTENT_ITEM => key.offset,
                ItemType::METADATA_ITEM => node_size,
                _ => return Ok(()),
            };
            let after = chunks.partition_point(|chunk| chunk.start.0 <= key.objectid);
            let Some(chunk) = after.checked_sub(1).map(|at| &chunks[at]) else { return Ok(()) };
            let offset = key.objectid - chunk.start.0;
            let length = length.min(chunk.item.length.saturating_sub(offset));
            spread(grids, chunk, offset, length, |cell, bytes| cell.used += bytes)
        })
    }
}

/// Returns an empty grid for each device.
fn grids(source: &TreeSource) -> anyhow::Result<BTreeMap<u64, Grid>> {
    let mut grids = BTreeMap::new();
    let keys = crate::tree_source::range_of(objectid::DEV_ITEMS, ItemType::DEV_ITEM);
    source.search(objectid::CHUNK_TREE, keys, 0, |key, item| {
        let item = DeviceItem::parse(item).map_err(|reason| anyhow!("device {}: {reason}", key.offset))?;
        grids.insert(key.offset, Grid::new(key.offset, item.total_bytes));
        Ok(())
    })?;
    Ok(grids)
}

/// Adds a range of a chunk to the cells of all its stripes.
fn spread(
    grids: &mut BTreeMap<u64, Grid>,
    chunk: &UsedChunk,
    offset: u64,
    length: u64,
    mut add: impl FnMut(&mut Cell, f64),
) -> anyhow::Result<()> {
    let bytes = chunk.item.stripe_bytes().map_err(|reason| anyhow!("chunk {}: {reason}", chunk.start))?;
    let scale = bytes as f64 / chunk.item.length.max(1) as f64;
    for stripe in &chunk.item.stripes {
        let Some(grid) = grids.get_mut(&stripe.devid.0) else { continue };
        grid.add(stripe.offset.0 as f64 + offset as f64 * scale, length as f64 * scale, &mut add);
    }
    Ok(())
}

fn draw(path: &Path, grids: &[Grid], title: &str) -> Result<(), Box<dyn std::error::Error>> {
    let width = COLUMNS as i32 * CELL + 2 * MARGIN;
    let height = 2 * MARGIN + 2 * LINE + grids.iter().map(Grid::height).sum::<i32>();
    let root = SVGBackend::new(path, (width as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let font = ("sans-serif", 14).into_font();
    root.draw(&Text::new(title.to_owned(), (MARGIN, MARGIN / 2), font.clone()))?;
    let legend = KINDS.into_iter().chain([("unallocated", UNALLOCATED)]);
    let mut x = MARGIN;
    for (name, colour) in legend {
        let y = MARGIN / 2 + LINE;
        root.draw(&Rectangle::new([(x, y), (x + 14, y + 14)], colour.filled()))?;
        root.draw(&Text::new(name, (x + 18, y), font.clone()))?;
        x += 40 + 8 * name.len() as i32;
    }
    let mut top = MARGIN + 2 * LINE;
    for grid in grids {
        let text = format!(
            "device {}: {}, a cell is {}",
            grid.devid,
            Units::HUMAN.text(grid.total),
            Units::HUMAN.text(grid.cell_bytes)
        );
        root.draw(&Text::new(text, (MARGIN, top), font.clone()))?;
        for (at, colour, length) in strips(&grid.cells) {
            let (row, column) = (at as i32 / COLUMNS as i32, at as i32 % COLUMNS as i32);
            let (x, y) = (MARGIN + column * CELL, top + LINE + row * CELL);
            let corners = [(x, y), (x + length as i32 * CELL, y + CELL)];
            root.draw(&Rectangle::new(corners, colour.filled()))?;
        }
        top += grid.height();
    }
    root.present()?;
    Ok(())
}

/// Joins neighbours of one colour in a row: the first cell, the colour, the number of cells.
fn strips(cells: &[Cell]) -> Vec<(usize, RGBColor, usize)> {
    let mut strips: Vec<(usize, RGBColor, usize)> = Vec::new();
    for (at, cell) in cells.iter().enumerate() {
        let colour = cell.colour();
        match strips.last_mut() {
            Some((_, last, length)) if *last == colour && at % COLUMNS as usize != 0 => *length += 1,
            _ => strips.push((at, colour, 1)),
        }
    }
    strips
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
        assert_eq!(strips(&grid.cells).len(), 4);
        assert_eq!((shade(KINDS[0].1, 1.0), shade(BLACK, 2.0)), (KINDS[0].1, BLACK));
    }
}
