//! The picture of a heatmap: an SVG or a PNG file.
//!
//! A PNG has the text in a font of 8 by 8 pixels, so that no fonts have to be installed.

use super::grid::{COLUMNS, Cell, Grid, KINDS, UNALLOCATED};
use crate::units::Units;
use anyhow::{Context as _, anyhow};
use font8x8::UnicodeFonts;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Width and height of a cell, and the margin around a grid, in pixels.
const CELL: i32 = 7;
const MARGIN: i32 = 20;
/// Height of a line of text in pixels.
const LINE: i32 = 20;
/// Pixels from the top of an SVG's line of text to that of a letter of eight pixels.
const LETTER_DROP: i32 = 3;

/// The format of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Scalable Vector Graphics.
    Svg,
    /// Portable Network Graphics.
    Png,
}

impl Format {
    /// Returns the format that the extension of `path` names.
    pub fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?;
        let is = |name| extension.eq_ignore_ascii_case(name);
        if is("svg") { Some(Self::Svg) } else { is("png").then_some(Self::Png) }
    }
}

/// Writes the picture of `grids` to `path`.
///
/// # Errors
/// The file cannot be created or written.
pub fn draw(path: &Path, format: Format, grids: &[Grid], title: &str) -> anyhow::Result<()> {
    let (width, height) = size_of(grids);
    match format {
        Format::Svg => Ok(std::fs::write(path, svg(grids, title)?)?),
        Format::Png => {
            let mut pixels = vec![0; 3 * (width * height) as usize];
            let area = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
            paint(&area, grids, title, write_letters).map_err(|error| anyhow!("{error}"))?;
            drop(area);
            let mut file = BufWriter::new(File::create(path)?);
            let mut encoder = png::Encoder::new(&mut file, width, height);
            encoder.set_color(png::ColorType::Rgb);
            let mut writer = encoder.write_header()?;
            writer.write_image_data(&pixels)?;
            writer.finish()?;
            file.flush().context("writing")
        }
    }
}

/// Returns the picture of `grids` as SVG.
///
/// # Errors
/// The library cannot draw it.
pub fn svg(grids: &[Grid], title: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, size_of(grids)).into_drawing_area();
    let font = ("sans-serif", 14).into_font();
    let write = |area: &Area<SVGBackend<'_>>, text: &str, at| {
        area.draw(&Text::new(text.to_owned(), at, font.clone()))
    };
    paint(&area, grids, title, write).map_err(|error| anyhow!("{error}"))?;
    drop(area);
    Ok(text)
}

/// Returns width and height in pixels.
fn size_of(grids: &[Grid]) -> (u32, u32) {
    let height = 2 * MARGIN + 2 * LINE + grids.iter().map(height_of).sum::<i32>();
    ((COLUMNS as i32 * CELL + 2 * MARGIN) as u32, height as u32)
}

type Area<DB> = DrawingArea<DB, Shift>;
type Drawn<DB> = Result<(), DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

fn height_of(grid: &Grid) -> i32 {
    LINE + grid.rows() as i32 * CELL + MARGIN
}

/// Draws the title, the legend and the grids. `write` draws text whose top left corner is given.
fn paint<DB: DrawingBackend>(
    area: &Area<DB>,
    grids: &[Grid],
    title: &str,
    write: impl Fn(&Area<DB>, &str, (i32, i32)) -> Drawn<DB>,
) -> Drawn<DB> {
    area.fill(&WHITE)?;
    write(area, title, (MARGIN, MARGIN / 2))?;
    let legend = KINDS.into_iter().chain([("unallocated", UNALLOCATED)]);
    let mut x = MARGIN;
    for (name, colour) in legend {
        let y = MARGIN / 2 + LINE;
        area.draw(&Rectangle::new([(x, y), (x + 14, y + 14)], colour.filled()))?;
        write(area, name, (x + 18, y))?;
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
        write(area, &text, (MARGIN, top))?;
        for (at, colour, length) in strips(&grid.cells) {
            let (row, column) = (at as i32 / COLUMNS as i32, at as i32 % COLUMNS as i32);
            let (x, y) = (MARGIN + column * CELL, top + LINE + row * CELL);
            let corners = [(x, y), (x + length as i32 * CELL, y + CELL)];
            area.draw(&Rectangle::new(corners, colour.filled()))?;
        }
        top += height_of(grid);
    }
    area.present()
}

/// Draws text pixel by pixel. A letter that the font lacks becomes a question mark.
fn write_letters(
    area: &Area<BitMapBackend<'_>>,
    text: &str,
    (x, y): (i32, i32),
) -> Drawn<BitMapBackend<'static>> {
    for (number, letter) in text.chars().enumerate() {
        let fonts = [font8x8::BASIC_FONTS.get(letter), font8x8::LATIN_FONTS.get(letter)];
        let rows = fonts.into_iter().flatten().next().or_else(|| font8x8::BASIC_FONTS.get('?'));
        for (row, bits) in rows.unwrap_or_default().into_iter().enumerate() {
            for column in (0..8).filter(|column| bits >> column & 1 != 0) {
                let at = (x + number as i32 * 8 + column, y + LETTER_DROP + row as i32);
                area.draw_pixel(at, &BLACK)?;
            }
        }
    }
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
    fn neighbours_of_one_colour_are_joined_within_a_row() {
        let mut cells = vec![Cell::default(); COLUMNS as usize + 3];
        cells[1].allocated[0] = 1.0;
        let strips = strips(&cells);
        let lengths: Vec<_> = strips.iter().map(|(at, _, length)| (*at, *length)).collect();
        assert_eq!(lengths, [(0, 1), (1, 1), (2, COLUMNS as usize - 2), (COLUMNS as usize, 3)]);
        assert_eq!((strips[0].1, strips[1].1), (UNALLOCATED, cells[1].colour()));
    }

    #[test]
    fn the_extension_names_the_format() {
        let of = |name| Format::of(Path::new(name));
        assert_eq!((of("a.SVG"), of("b/c.png")), (Some(Format::Svg), Some(Format::Png)));
        assert_eq!((of("png"), of("a.jpg")), (None, None));
    }
}
