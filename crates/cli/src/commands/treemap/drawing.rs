//! The treemap as SVG, alone or inside a page.
//!
//! Owns [`Drawing`]. Names come from the file system, which anybody may have made: each passes
//! [`text_of`] and [`escaped_markup`] on its way into the picture.

use super::layout::{Area, squarified};
use super::nodes::{Node, NodeKind, Nodes};
use crate::output::escaped;
use crate::units::Units;
use std::fmt::Write;

/// Width and height of the map, in pixels of a picture that is not scaled.
pub const WIDTH: f64 = 1200.0;
/// The height, see [`WIDTH`].
pub const HEIGHT: f64 = 800.0;
/// The height of a line of text above and below the map.
const LINE: f64 = 24.0;
/// Width of a letter, in its heights; a rough mean.
const LETTER: f64 = 0.56;
/// The colours of subvolumes on a light and on a dark ground.
const COLOURS: [(&str, &str); 10] = [
    ("#a6cee3", "#2f5f7a"),
    ("#b2df8a", "#44703a"),
    ("#fdbf6f", "#8a6220"),
    ("#cab2d6", "#5d4a78"),
    ("#fb9a99", "#7e3d3d"),
    ("#c7e9e3", "#2f6b62"),
    ("#e5d8bd", "#6b5d3a"),
    ("#f2b6d0", "#7a3f5d"),
    ("#ccd98c", "#5f6b2a"),
    ("#d4d4d8", "#51555b"),
];
/// The colours of ages, the youngest first.
const AGES: [(&str, &str); 7] = [
    ("#f4a582", "#a34e2e"),
    ("#fdd5b1", "#7d5a36"),
    ("#f3ecd0", "#5f5a3c"),
    ("#cfe3ea", "#3e5a63"),
    ("#a9cce0", "#33536b"),
    ("#86aecb", "#2b4460"),
    ("#d4d4d8", "#51555b"),
];

/// The colours of compression, the strongest first.
const COMPRESSION: [(&str, &str); 6] = [
    ("#7fbf9a", "#2c5f44"),
    ("#b5dcc0", "#446b52"),
    ("#e3efcf", "#5c6644"),
    ("#f6e0b5", "#7a6238"),
    ("#f0b49a", "#8a4a32"),
    ("#d4d4d8", "#51555b"),
];

/// Which colours nodes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Palette {
    /// One for each of the largest subvolumes; the last one is for all others.
    Subvolumes,
    /// From young to old; the last one is for files whose age is not known.
    Ages,
    /// From strong compression to none; the last one is for files without data, or where it is not
    /// known.
    Compression,
}

impl Palette {
    fn colours(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Subvolumes => &COLOURS,
            Self::Ages => &AGES,
            Self::Compression => &COMPRESSION,
        }
    }

    /// Returns the number of colours.
    pub fn count(self) -> usize {
        self.colours().len()
    }
}

/// A picture of nodes.
pub struct Drawing<'n> {
    /// The nodes.
    pub nodes: &'n Nodes,
    /// The title, which says what the picture shows.
    pub title: &'n str,
    /// The colours, and the words for those that appear.
    pub palette: Palette,
    /// Colours and their words.
    pub legend: &'n [(usize, String)],
    /// Whether a page shows it and zooms into it.
    pub is_in_page: bool,
}

impl Drawing<'_> {
    /// Returns the rules that give the picture its colours.
    pub fn style(&self) -> String {
        let mut style = String::from(
            "svg{background:#fff;font-family:system-ui,sans-serif}\
             text{fill:#1c1e21;pointer-events:none;text-rendering:geometricPrecision}\
             .n rect{stroke:#fff;stroke-width:.6px;vector-effect:non-scaling-stroke}\
             .d>rect{fill:#eceff1;stroke:#b0bec5}\
             .o>rect{fill:#dfe3e6}.m>rect{fill:#b9bec4}.u>rect{fill:#cdd1d5}",
        );
        let mut dark = String::from(
            "svg{background:#17191c}text{fill:#f0f0f0}.n rect{stroke:#17191c}\
             .d>rect{fill:#24282d;stroke:#4a5058}\
             .o>rect{fill:#343940}.m>rect{fill:#5a6068}.u>rect{fill:#474c53}",
        );
        for (number, (on_light, on_dark)) in self.palette.colours().iter().enumerate() {
            // Writing to a text does not fail.
            let _ = write!(style, ".c{number}>rect{{fill:{on_light}}}");
            let _ = write!(dark, ".c{number}>rect{{fill:{on_dark}}}");
        }
        format!("{style}@media(prefers-color-scheme:dark){{{dark}}}")
    }

    /// Returns the picture. Outside of a page it has its own title, legend and colours.
    pub fn svg(&self) -> String {
        let (above, below) = match self.is_in_page {
            true => (0.0, 0.0),
            false => (1.5 * LINE, LINE * (1 + self.legend.len().div_ceil(LEGEND_COLUMNS)) as f64),
        };
        let height = above + HEIGHT + below;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"tree\" \
             aria-label=\"{}\"",
            escaped_markup(self.title)
        );
        if !self.is_in_page {
            let _ = write!(svg, " width=\"{WIDTH}\" height=\"{height}\"");
        }
        svg += ">\n";
        if !self.is_in_page {
            let _ = writeln!(svg, "<style>{}</style>", self.style());
            let title = escaped_markup(self.title);
            let _ = writeln!(svg, "<text x=\"4\" y=\"24\" font-size=\"16\">{title}</text>");
            self.draw_legend(&mut svg, above + HEIGHT + LINE / 2.0);
        }
        self.draw_node(&mut svg, 0, Area { x: 0.0, y: above, width: WIDTH, height: HEIGHT });
        svg + "</svg>\n"
    }

    fn draw_legend(&self, svg: &mut String, top: f64) {
        let width = WIDTH / LEGEND_COLUMNS as f64;
        for (number, (colour, words)) in self.legend.iter().enumerate() {
            let x = (number % LEGEND_COLUMNS) as f64 * width;
            let y = top + (number / LEGEND_COLUMNS) as f64 * LINE;
            let words = escaped_markup(&shortened(words, (width / (13.0 * LETTER)) as usize - 4));
            let _ = writeln!(
                svg,
                "<g class=\"c{colour}\"><rect x=\"{:.1}\" y=\"{y:.1}\" width=\"14\" height=\"14\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"13\">{words}</text></g>",
                x + 4.0,
                x + 24.0,
                y + 12.0
            );
        }
    }

    /// Draws a node and those in it. Their depth is that of a tally, which is bounded.
    fn draw_node(&self, svg: &mut String, number: usize, area: Area) {
        // Nobody sees less, at the strongest zoom.
        let least = if self.is_in_page { 0.02 } else { 0.3 };
        if area.width < least || area.height < least {
            return;
        }
        let node = &self.nodes.0[number];
        let class = match node.kind {
            NodeKind::Whole | NodeKind::Directory => "n d".to_owned(),
            NodeKind::File => format!("n c{}", node.colour),
            NodeKind::Others(_) => "n o".to_owned(),
            NodeKind::Unreachable | NodeKind::Unread => "n u".to_owned(),
            NodeKind::Metadata => "n m".to_owned(),
        };
        let in_page = match (self.is_in_page, number) {
            (false, _) => String::new(),
            (true, 0) => " id=\"n0\" role=\"treeitem\" tabindex=\"0\"".to_owned(),
            (true, _) => format!(" id=\"n{number}\" role=\"treeitem\" tabindex=\"-1\""),
        };
        let Area { x, y, width, height } = area;
        let title = escaped_markup(&self.words_for(node));
        let _ = write!(
            svg,
            "<g class=\"{class}\"{in_page}><title>{title}</title>\
             <rect x=\"{x:.3}\" y=\"{y:.3}\" width=\"{width:.3}\" height=\"{height:.3}\"/>"
        );
        let is_open = matches!(node.kind, NodeKind::Whole | NodeKind::Directory);
        let strip = if is_open { (height * 0.045).min(20.0) } else { 0.0 };
        let letters = if is_open { strip * 0.75 } else { (height * 0.4).min(12.0).min(width * 0.12) };
        let label = self.label_of(node);
        let room = (width / (letters * LETTER)) as usize;
        // Letters of less than a pixel need a zoom.
        if letters > if self.is_in_page { 0.2 } else { 5.0 } && room > 3 {
            let _ = write!(
                svg,
                "<text x=\"{:.3}\" y=\"{:.3}\" font-size=\"{letters:.2}\">{}</text>",
                x + letters * 0.3,
                y + letters * 1.1,
                escaped_markup(&shortened(&label, room - 1))
            );
        }
        if is_open && !node.below.is_empty() {
            let sizes: Vec<u64> = node.below.iter().map(|below| self.nodes.0[*below].bytes).collect();
            let inside = area.inside(strip, width.min(height) * 0.006);
            svg.push('\n');
            for (below, area) in node.below.iter().zip(squarified(inside, &sizes)) {
                self.draw_node(svg, *below, area);
            }
        }
        svg.push_str("</g>\n");
    }

    fn label_of(&self, node: &Node) -> String {
        let size = Units::HUMAN.text(node.bytes);
        match node.kind {
            NodeKind::Whole => format!("/ {size}"),
            NodeKind::Directory => format!("{}/ {size}", text_of(node.name())),
            NodeKind::File => text_of(node.name()),
            NodeKind::Others(count) => format!("{count} others"),
            NodeKind::Unreachable => "of no file".to_owned(),
            NodeKind::Unread => "not readable".to_owned(),
            NodeKind::Metadata => "metadata".to_owned(),
        }
    }

    /// Returns what there is to know of a node.
    fn words_for(&self, node: &Node) -> String {
        let size = Units::HUMAN.text(node.bytes);
        let error = match node.error {
            0 => String::new(),
            error => format!(" ±{}", Units::HUMAN.text(error)),
        };
        let share = node.bytes as f64 / self.nodes.0[0].bytes.max(1) as f64 * 100.0;
        let what = match node.kind {
            NodeKind::Whole => "all that is used".to_owned(),
            NodeKind::Directory | NodeKind::File => text_of(&node.path),
            NodeKind::Others(count) => format!("{count} smaller entries of {}", text_of(&node.path)),
            NodeKind::Unreachable => "parts of extents that no file uses".to_owned(),
            NodeKind::Unread => "files that cannot be read".to_owned(),
            NodeKind::Metadata => "metadata: tree blocks".to_owned(),
        };
        format!("{what}: {size}{error}, {share:.1}%")
    }
}

/// Words of the legend side by side.
const LEGEND_COLUMNS: usize = 4;

/// Returns the beginning of a text, if it has more than `most` letters.
fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Returns a name as text that a browser shows as it is: control characters, letters that change
/// the direction of writing, and those that XML does not have are escaped.
pub fn text_of(name: &[u8]) -> String {
    let mut text = String::new();
    for letter in String::from_utf8_lossy(&escaped(name)).chars() {
        let is_hidden = letter.is_control()
            || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
            || matches!(letter, '\u{feff}' | '\u{61c}' | '\u{fdd0}'..='\u{fdef}')
            || u32::from(letter) & 0xfffe == 0xfffe;
        match is_hidden {
            true => text.extend(letter.escape_unicode()),
            false => text.push(letter),
        }
    }
    text
}

/// Returns a text for the content or an attribute of XML and HTML.
pub fn escaped_markup(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::filesystem::usage_tree::tally::Tally;

    #[test]
    fn names_cannot_leave_their_place() {
        assert_eq!(text_of(b"a\nb\xff\x1b"), r"a\nb\377\033");
        assert_eq!(text_of("x\u{202e}y\u{ffff}\u{85}".as_bytes()), r"x\u{202e}y\u{ffff}\302\205");
        assert_eq!(text_of("grün 日本".as_bytes()), "grün 日本");
        assert_eq!(escaped_markup("<script>'\"&"), "&lt;script&gt;&#39;&quot;&amp;");
        let mut tally = Tally { data: 1 << 20, exact: true, ..Tally::default() };
        let hostile = [&b"<script>alert(1)<"[..], b"/\"onload=\"x", b"</title>]]>", b"\x01\xff"];
        for (number, name) in hostile.into_iter().enumerate() {
            tally.add(Some(name), 1000 << number);
        }
        let nodes = Nodes::choose(&tally, 100);
        for is_in_page in [false, true] {
            let legend = [(0, "<b>&".to_owned())];
            let palette = Palette::Subvolumes;
            let drawing = Drawing { nodes: &nodes, title: "<i>", palette, legend: &legend, is_in_page };
            let svg = drawing.svg();
            assert!(svg.contains("&lt;script&gt;alert(1)&lt;"), "{svg}");
            let tags = svg.split('<').skip(1).map(|tag| tag.split([' ', '>', '/']).next().unwrap());
            assert!(
                tags.clone().all(|tag| ["", "svg", "style", "g", "title", "rect", "text"].contains(&tag)),
                "{:?}",
                tags.collect::<Vec<_>>()
            );
            assert!(!svg.contains("\"onload") && !svg.contains('\x01'), "{svg}");
        }
    }

    #[test]
    fn titles_tell_sizes_and_errors() {
        let mut tally = Tally { data: 100 << 20, metadata: 1 << 20, ..Tally::default() };
        tally.add(Some(b"/home/large"), 90);
        tally.add(Some(b"/b"), 10);
        let nodes = Nodes::choose(&tally, 100);
        let palette = Palette::Ages;
        let drawing = Drawing { nodes: &nodes, title: "t", palette, legend: &[], is_in_page: false };
        let svg = drawing.svg();
        for part in ["<title>/home/large: 90.00MiB ±", "89.1%</title>", ">home/ 90.00MiB</text>"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert!(svg.contains("<title>metadata: tree blocks: 1.00MiB, 1.0%</title>"), "{svg}");
        assert_eq!(shortened("abcdef", 4), "abc…");
        // Every rectangle has a title.
        assert_eq!(svg.matches("<rect").count(), svg.matches("<title").count());
    }
}
