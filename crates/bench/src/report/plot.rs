//! Shared parts of all plots: the SVG document, colours, fonts and number formats.
//!
//! Text, grid and background have fixed colours ([`INK`], [`GRID`], white). A page can select them
//! by their attributes and replace them. The sides' colours are distinguishable to colour-blind
//! readers.

use super::escape;
use super::statistics::{nanoseconds, number};
use crate::side::Side;
use plotters::style::{IntoFont, RGBColor, TextStyle};

/// Colour of text and axes.
pub const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);
/// Colour of grid lines.
pub const GRID: RGBColor = RGBColor(0xcc, 0xcc, 0xcc);

/// Colours for lines that do not stand for sides, in order of use.
pub const COLOURS: [RGBColor; 8] = [
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x00, 0x00, 0x00),
    RGBColor(0x8c, 0x8c, 0x8c),
];

/// A plot as an SVG document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plot {
    /// File name without a suffix.
    pub name: String,
    /// Title of the plot.
    pub title: String,
    /// The SVG document.
    pub svg: String,
}

impl Plot {
    /// Makes a plot of an SVG document, with its title as the accessible label.
    pub(crate) fn new(name: String, title: String, svg: &str) -> Self {
        let label = escape::html(&title);
        let svg = svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{label}\" "), 1);
        Self { name, title, svg }
    }
}

/// Returns a side's colour, from the palette of Okabe and Ito.
pub fn colour(side: Side) -> RGBColor {
    match side {
        Side::Kernel => RGBColor(0x00, 0x72, 0xb2),
        Side::Papilio => RGBColor(0xd5, 0x5e, 0x00),
        Side::PapilioOther => RGBColor(0x56, 0xb4, 0xe9),
        Side::PapilioSlow => RGBColor(0xe6, 0x9f, 0x00),
        Side::Mount => RGBColor(0x00, 0x9e, 0x73),
        Side::MountOther => RGBColor(0xf0, 0xe4, 0x42),
        Side::MountRing => RGBColor(0xcc, 0x79, 0xa7),
        Side::Raw => RGBColor(0x8c, 0x8c, 0x8c),
    }
}

/// Returns the plots' font in a size.
pub(crate) fn font(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// Formats a number on an axis with no more digits than necessary.
pub(crate) fn axis_number(value: f64) -> String {
    if value >= 1.0 && (value - value.round()).abs() < 1e-9 {
        return number(value.round()).trim_end_matches(".00").trim_end_matches(".0").to_owned();
    }
    if value == 0.0 { "0".to_owned() } else { number(value) }
}

/// Formats a count with a suffix: `16`, `10k`, `1M`. Neighbouring labels of an axis stay apart.
pub(crate) fn short_count(value: u64) -> String {
    match value {
        0 => "0".to_owned(),
        value if value.is_multiple_of(1_000_000) => format!("{}M", value / 1_000_000),
        value if value.is_multiple_of(1000) => format!("{}k", value / 1000),
        value => value.to_string(),
    }
}

/// Formats a time in nanoseconds on an axis.
pub(crate) fn axis_time(value: f64) -> String {
    nanoseconds(value).replace(".00 ", " ").replace(".0 ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_short_numbers() {
        assert_eq!([0.0, 1.0, 10.0, 2000.0, 0.5].map(axis_number), ["0", "1", "10", "2,000", "0.50"]);
        assert_eq!([0, 16, 1500, 10_000, 1_000_000].map(short_count), ["0", "16", "1500", "10k", "1M"]);
    }
}
