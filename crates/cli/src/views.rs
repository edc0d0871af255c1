//! The pictures of commands, for servers that show them.

use crate::args::GlobalArgs;
use crate::commands::{heatmap, treemap};
use crate::context::Context;
use crate::tree_source::TreeSource;
use crate::units::Units;
use papilio::FileSystem;
use std::path::Path;

/// A picture of a file system, and the same as a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DrawnView {
    /// An SVG document.
    pub svg: String,
    /// One sentence on the whole.
    pub title: String,
    /// The heads of the columns.
    pub columns: &'static [&'static str],
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

fn source(fs: &FileSystem, name: &str) -> TreeSource {
    TreeSource::Image { fs: fs.clone(), path: Path::new(name).to_owned() }
}

/// Draws which directories take how much space, as `papilio treemap` does. `name` is that of the
/// image.
///
/// # Errors
/// A tree block that cannot be read.
pub fn draw_usage(fs: &FileSystem, name: &str) -> anyhow::Result<DrawnView> {
    // No progress bar.
    let context = Context::resolve(GlobalArgs { quiet: 1, ..GlobalArgs::default() });
    let drawn = treemap::draw(&context, &source(fs, name), name.as_bytes())?;
    let rows =
        drawn.largest.into_iter().map(|(path, bytes)| vec![path, Units::HUMAN.text(bytes).to_string()]);
    Ok(DrawnView { svg: drawn.svg, title: drawn.title, columns: &["Path", "Space"], rows: rows.collect() })
}

/// Draws where data, metadata and free space lie, as `papilio heatmap` does.
///
/// # Errors
/// A tree block that cannot be read.
pub fn draw_heatmap(fs: &FileSystem, name: &str) -> anyhow::Result<DrawnView> {
    let grids = heatmap::filled(&source(fs, name))?;
    let text = |bytes: f64| Units::HUMAN.text(bytes as u64).to_string();
    let rows = grids.iter().map(|grid| {
        let sum = |kind: usize| grid.cells.iter().map(|cell| cell.allocated[kind]).sum::<f64>();
        let used: f64 = grid.cells.iter().map(|cell| cell.used).sum();
        let kinds = (0..heatmap::KINDS.len()).map(|kind| text(sum(kind)));
        [format!("device {}", grid.devid), Units::HUMAN.text(grid.total).to_string()]
            .into_iter()
            .chain(kinds)
            .chain([text(used)])
            .collect()
    });
    Ok(DrawnView {
        svg: heatmap::svg(&grids, name)?,
        title: format!("{name}: where data, metadata and free space lie"),
        columns: &["Device", "Size", "Data", "Metadata", "System", "Data and metadata", "Used"],
        rows: rows.collect(),
    })
}
