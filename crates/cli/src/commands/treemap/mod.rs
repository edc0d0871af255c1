//! `papilio treemap`: a picture of the tree of directories, in which areas are disk space.
//!
//! - [`nodes`]: the files and directories that are large enough to be seen;
//! - [`layout`]: where their rectangles lie;
//! - [`places`]: when files were modified, and how well they are compressed;
//! - [`drawing`]: the picture as SVG; [`page`]: a page around it, which zooms.
//!
//! Space counts as in `papilio usage --tree`: once, for the shortest of its paths.

mod drawing;
mod layout;
mod nodes;
mod page;
mod places;

use super::filesystem::usage_tree::tally::Tally;
use super::filesystem::usage_tree::{Sampler, empty_tally, measure};
use crate::context::{Context, of_image};
use crate::holder;
use crate::mounted::Target;
use crate::output::Output;
use crate::time;
use crate::tree_source::TreeSource;
use crate::units::Units;
use crate::usage_error::UsageError;
use anyhow::Context as _;
use drawing::{Drawing, Palette, text_of};
use nodes::{NodeKind, Nodes};
use places::Places;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Samples without the option.
const SAMPLES: u64 = 5000;
/// Rectangles of a picture, and of a page, into which one can zoom.
const IN_PICTURE: usize = 3000;
/// See [`IN_PICTURE`].
const IN_PAGE: usize = 8000;
/// The largest directories and files that are listed beside a picture.
const LARGEST: usize = 50;
/// The ends of the ages in days, and their words.
const AGES: [(i64, &str); 5] =
    [(1, "a day"), (7, "a week"), (31, "a month"), (366, "a year"), (3 * 366, "three years")];

/// The ends of the shares of compressed files in percent, and their words.
const SHARES: [(u64, &str); 4] = [
    (25, "compressed to less than a quarter"),
    (50, "to less than a half"),
    (75, "to less than three quarters"),
    (u64::MAX, "to more"),
];

/// Draw the tree of directories as rectangles whose areas are the space that they take
///
/// A byte of data counts once, for the shortest of its paths, however many snapshots share it, as
/// in papilio usage --tree. An HTML page is one file, which loads nothing: a click or Enter zooms
/// into a directory, Escape goes back, and arrows walk from one to the next.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// The picture to create, in the format that its extension names: SVG or HTML
    #[arg(value_name = "FILE.svg|FILE.html", value_hint = clap::ValueHint::FilePath)]
    picture: PathBuf,
    /// Show subvolumes, the time since files were modified, or how well they are compressed, as
    /// colours
    #[arg(long, visible_alias = "color", value_name = "MEANING", value_enum)]
    #[arg(default_value_t = Colour::Subvolume)]
    colour: Colour,
    /// Estimate sizes from N random bytes of the data
    #[arg(long, value_name = "N", default_value_t = SAMPLES)]
    samples: u64,
    /// Seed the random numbers with N
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Look up every extent instead
    #[arg(long, conflicts_with_all = ["samples", "seed"])]
    exact: bool,
    /// Draw about N rectangles: 3000 in a picture, 8000 in a page
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rectangles: Option<u32>,
}

/// The meaning of colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Colour {
    /// The subvolume of a file.
    Subvolume,
    /// The time since a file was modified.
    Age,
    /// The bytes of a file on the disk, compared with those of the file.
    Compression,
}

impl Args {
    /// Draws the picture.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let extension = self.picture.extension().map(|end| end.to_ascii_lowercase());
        let is_page = match extension.as_deref().and_then(|end| end.to_str()) {
            Some("svg") => false,
            Some("html" | "htm") => true,
            _ => {
                let text = format!("{}: a treemap's name ends in .svg or .html", self.picture.display());
                return Err(UsageError::new(text).into());
            }
        };
        if let Ok(Target::Image(path)) = Target::parse(holder::place_of(Path::new(&self.path)).as_os_str()) {
            context.confine_to_output(&self.picture, [path.image]);
        }
        let source = TreeSource::open(context, &self.path)?;
        let chunks = source.chunks()?;
        let mut found = empty_tally(&chunks, self.exact);
        let sampler = (!self.exact).then(|| Sampler::new(&source, &chunks, self.seed));
        measure(context, &source, sampler, self.samples, &mut found)?;
        let most = self.rectangles.map_or(if is_page { IN_PAGE } else { IN_PICTURE }, |most| most as usize);
        let mut nodes = Nodes::choose(&found, most);
        let (palette, legend) = match self.colour {
            Colour::Subvolume => (Palette::Subvolumes, colour_subvolumes(&source, &mut nodes)?),
            Colour::Age => (Palette::Ages, colour_ages(context, &source, &mut nodes)?),
            Colour::Compression => (Palette::Compression, colour_compression(context, &source, &mut nodes)?),
        };
        let title = self.title(&found);
        let drawing = Drawing { nodes: &nodes, title: &title, palette, legend: &legend, is_in_page: is_page };
        let picture = if is_page { page::page(&drawing) } else { drawing.svg() };
        let shown = self.picture.display();
        fs::write(&self.picture, picture).with_context(|| shown.to_string())?;
        if context.verbosity >= 0 {
            let mut output = Output::new()?;
            output.text(format_args!("{shown}: {} files and directories\n", nodes.0.len() - 1))?;
            output.finish()?;
        }
        Ok(())
    }

    fn title(&self, found: &Tally) -> String {
        title(self.path.as_encoded_bytes(), found)
    }
}

fn title(name: &[u8], found: &Tally) -> String {
    let name = text_of(name);
    let (data, metadata) = (Units::HUMAN.text(found.data), Units::HUMAN.text(found.metadata));
    let how = match found.exact {
        true => "every extent".to_owned(),
        false => format!("{} samples", found.all),
    };
    let (unread, _) = found.bytes(found.unread);
    let unread = match found.unread {
        0 => String::new(),
        _ => format!("; {} in files that cannot be read", Units::HUMAN.text(unread)),
    };
    format!("{name}: data {data}, metadata {metadata} ({how}){unread}")
}

/// A treemap of a file system, and its largest directories and files.
pub struct DrawnTree {
    /// The picture.
    pub svg: String,
    /// One sentence on the whole.
    pub title: String,
    /// Path and bytes of the largest, the largest first.
    pub largest: Vec<(String, u64)>,
}

/// Draws the tree of a file system that is open, from samples.
///
/// # Errors
/// A tree block that cannot be read.
pub fn draw(context: &Context, source: &TreeSource, name: &[u8]) -> anyhow::Result<DrawnTree> {
    let chunks = source.chunks()?;
    let mut found = empty_tally(&chunks, false);
    measure(context, source, Some(Sampler::new(source, &chunks, 0)), SAMPLES, &mut found)?;
    let mut nodes = Nodes::choose(&found, IN_PICTURE);
    let legend = colour_subvolumes(source, &mut nodes)?;
    let title = title(name, &found);
    let palette = Palette::Subvolumes;
    let svg = Drawing { nodes: &nodes, title: &title, palette, legend: &legend, is_in_page: false }.svg();
    let is_entry = |kind: NodeKind| matches!(kind, NodeKind::Directory | NodeKind::File);
    let entries = nodes.0.iter().filter(|node| is_entry(node.kind));
    let mut largest: Vec<_> = entries.map(|node| (text_of(&node.path), node.bytes)).collect();
    largest.sort_by(|one, other| other.1.cmp(&one.1).then(one.0.cmp(&other.0)));
    largest.truncate(LARGEST);
    Ok(DrawnTree { svg, title, largest })
}

/// Gives each of the largest subvolumes a colour, and returns the words for these.
fn colour_subvolumes(source: &TreeSource, nodes: &mut Nodes) -> anyhow::Result<Vec<(usize, String)>> {
    let all = match source {
        TreeSource::Image { fs, path } => fs.subvolumes().map_err(|error| of_image(path, error))?,
        TreeSource::Mounted { mounted, root } => root.subvolumes().map_err(|error| mounted.at(&error))?,
    };
    let paths = all.into_iter().filter_map(|one| Some([b"/", &one.path?[..]].concat()));
    let paths: HashMap<Vec<u8>, usize> = paths.enumerate().map(|(number, path)| (path, number)).collect();
    // Which subvolume a node is in: its own, or that of the node above, which comes before it.
    let top = paths.get(&b"/"[..]).copied().unwrap_or(usize::MAX);
    let mut own = vec![top; nodes.0.len()];
    let mut sizes: HashMap<usize, u64> = HashMap::new();
    let mut pending = vec![0];
    while let Some(number) = pending.pop() {
        let node = &nodes.0[number];
        if node.below.is_empty() && !node.path.is_empty() {
            *sizes.entry(own[number]).or_default() += node.bytes;
        }
        for below in &node.below {
            own[*below] = paths.get(&nodes.0[*below].path).copied().unwrap_or(own[number]);
            pending.push(*below);
        }
    }
    let mut order: Vec<(usize, u64)> = sizes.into_iter().collect();
    order.sort_by_key(|(number, bytes)| (std::cmp::Reverse(*bytes), *number));
    let last = Palette::Subvolumes.count() - 1;
    let colours: HashMap<usize, usize> =
        order.iter().enumerate().map(|(rank, (number, _))| (*number, rank.min(last))).collect();
    for (node, own) in nodes.0.iter_mut().zip(own) {
        node.colour = colours.get(&own).copied().unwrap_or(last);
    }
    let names: HashMap<usize, Vec<u8>> = paths.into_iter().map(|(path, number)| (number, path)).collect();
    let words = |(rank, (number, _)): (usize, &(usize, u64))| {
        let name = names.get(number).map_or_else(|| "no subvolume".to_owned(), |path| text_of(path));
        (rank, name)
    };
    let mut legend: Vec<(usize, String)> = order.iter().take(last).enumerate().map(words).collect();
    if let Some(others) = order.len().checked_sub(last).filter(|others| *others > 0) {
        legend.push((last, format!("{others} other subvolumes")));
    }
    Ok(legend)
}

/// Returns a fact about a file. One that cannot be read is not known, and an error of the command.
fn known<T>(context: &Context, fact: anyhow::Result<Option<T>>) -> Option<T> {
    fact.unwrap_or_else(|error| {
        context.error(format_args!("{error:#}"));
        None
    })
}

/// Gives files colours by the time since they were modified, and returns the words for these.
fn colour_ages(
    context: &Context,
    source: &TreeSource,
    nodes: &mut Nodes,
) -> anyhow::Result<Vec<(usize, String)>> {
    let ages = Places::of(source)?;
    let (now, last) = (time::now(), Palette::Ages.count() - 1);
    let mut seen = vec![false; Palette::Ages.count()];
    for node in nodes.0.iter_mut().filter(|node| node.kind == NodeKind::File) {
        let days = known(context, ages.modified(&node.path))
            .map(|modified| now.saturating_sub(modified) / (24 * 3600));
        let age = |days: i64| AGES.iter().position(|(end, _)| days < *end).unwrap_or(AGES.len());
        node.colour = days.map_or(last, age);
        seen[node.colour] = true;
    }
    let words = |colour: usize| match AGES.get(colour) {
        Some((_, words)) => format!("modified within {words}"),
        None if colour == last => "not known".to_owned(),
        None => "older".to_owned(),
    };
    Ok((0..=last).filter(|colour| seen[*colour]).map(|colour| (colour, words(colour))).collect())
}

/// Gives files colours by how well they are compressed, and returns the words for these.
fn colour_compression(
    context: &Context,
    source: &TreeSource,
    nodes: &mut Nodes,
) -> anyhow::Result<Vec<(usize, String)>> {
    let places = Places::of(source)?;
    let last = Palette::Compression.count() - 1;
    let mut seen = vec![false; Palette::Compression.count()];
    for node in nodes.0.iter_mut().filter(|node| node.kind == NodeKind::File) {
        node.colour = match known(context, places.stored(&node.path)) {
            None => last,
            Some(share) if !share.is_compressed => SHARES.len(),
            Some(share) => SHARES.iter().position(|(end, _)| share.percent() < *end).unwrap_or(SHARES.len()),
        };
        seen[node.colour] = true;
    }
    let words = |colour: usize| match SHARES.get(colour) {
        Some((_, words)) => (*words).to_owned(),
        None if colour == last => "not known".to_owned(),
        None => "not compressed".to_owned(),
    };
    Ok((0..=last).filter(|colour| seen[*colour]).map(|colour| (colour, words(colour))).collect())
}
