//! `papilio heatmap`: a picture of where data, metadata and free space lie on each device.
//!
//! A device is a grid of cells in the order of its bytes. The hue of a cell stands for the kind of
//! chunk that takes most of it, the strength for the part of that which is used.

mod grid;
mod picture;

use crate::context::Context;
use crate::output::Output;
use crate::tree_source::{TreeSource, UsedChunk};
use crate::usage_error::UsageError;
use anyhow::anyhow;
pub use grid::{Cell, Grid, KINDS};
use papilio::format::items::block_group::BlockGroupFlags;
use papilio::format::items::device::DeviceItem;
use papilio::format::{ItemType, Key, objectid};
use picture::Format;
pub use picture::svg;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

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
    /// The picture to create, in the format that its extension names: SVG or PNG
    #[arg(value_name = "FILE.svg|FILE.png", value_hint = clap::ValueHint::FilePath)]
    picture: PathBuf,
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
        let Some(format) = Format::of(&self.picture) else {
            let text = format!("{}: a picture's name ends in .svg or .png", self.picture.display());
            return Err(UsageError::new(text).into());
        };
        let source = TreeSource::open(context, &self.path)?;
        let grids = filled(&source)?;
        let shown = self.picture.display();
        picture::draw(&self.picture, format, &grids, &self.path.to_string_lossy())
            .map_err(|error| anyhow!("{shown}: {error}"))?;
        if context.verbosity >= 0 {
            let mut output = Output::new()?;
            output.text(format_args!("{shown}: {} devices\n", grids.len()))?;
            output.finish()?;
        }
        Ok(())
    }
}

/// Returns the grid of each device, filled with its chunks and extents.
///
/// # Errors
/// A tree block that cannot be read.
pub fn filled(source: &TreeSource) -> anyhow::Result<Vec<Grid>> {
    let mut grids = grids(source)?;
    let chunks = source.chunks()?;
    for chunk in &chunks {
        spread(&mut grids, chunk, 0, chunk.item.length, |cell, bytes| {
            cell.allocated[kind_of(chunk.item.flags)] += bytes;
        })?;
    }
    add_extents(source, &chunks, &mut grids)?;
    Ok(grids.into_values().collect())
}

fn add_extents(
    source: &TreeSource,
    chunks: &[UsedChunk],
    grids: &mut BTreeMap<u64, Grid>,
) -> anyhow::Result<()> {
    let node_size = source.node_size()?;
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
