//! `Stack`: the layers over files, to be shown.

use crate::content::Content;
use crate::error::{LayerError, Result};
use crate::keys::Keys;
use crate::options::LayerOptions;
use crate::search::{Search, describe};
use papilio_device::{Access, ImageOptions, LayerChoice, OpenOptions};
use std::path::Path;

/// A device of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackEntry {
    /// The name of the device.
    pub name: String,
    /// The layer that made it, such as "LUKS2"; empty for a file.
    pub made_by: String,
    /// A text about its content.
    pub content: String,
    /// Bytes.
    pub size: u64,
    /// The entries that it lies on, by their places in the list.
    pub below: Vec<usize>,
    /// Why the layer can only be read, if it can.
    pub read_only: Option<String>,
    /// Whether it has a Btrfs file system.
    pub is_btrfs: bool,
}

/// The layers over a file, and what kept others from being opened.
#[derive(Debug)]
pub struct Stack {
    /// The devices, those below first.
    pub entries: Vec<StackEntry>,
    /// The layers that could not be opened.
    pub faults: Vec<LayerError>,
}

impl Stack {
    /// Finds the layers over the file or device at `path`. Nothing is locked or written.
    ///
    /// # Errors
    /// A file that cannot be opened; layers in a circle.
    pub fn read(path: &Path, options: &LayerOptions, image: &ImageOptions) -> Result<Self> {
        let open = OpenOptions::new(Access::ReadOnly).lock(false);
        let failed = |error: papilio_device::OpenError| LayerError::NotFound(error.to_string());
        let base = open.open_base(path, image).map_err(failed)?.disk;
        let keys = Keys::default();
        let mut search = Search::new(options, &keys, path, &open, image);
        search.add_base(base)?;
        search.run(LayerChoice::Top)?;
        let entries = search.nodes.iter().map(|node| StackEntry {
            name: node.device.name().to_owned(),
            made_by: node.made_by.clone(),
            content: describe(node),
            size: node.device.size(),
            below: node.below.clone(),
            read_only: node.read_only.clone(),
            is_btrfs: matches!(node.content, Content::Btrfs(_)),
        });
        Ok(Self { entries: entries.collect(), faults: search.faults })
    }

    /// Draws the stack as a tree. A device that lies on several is drawn below the first.
    pub fn draw(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (at, entry) in self.entries.iter().enumerate().filter(|(_, entry)| entry.below.is_empty()) {
            lines.push(line(entry));
            self.draw_over(at, "", &mut lines);
        }
        lines
    }

    fn draw_over(&self, at: usize, indent: &str, lines: &mut Vec<String>) {
        let over: Vec<usize> =
            (0..self.entries.len()).filter(|over| self.entries[*over].below.contains(&at)).collect();
        for (number, next) in over.iter().enumerate() {
            let is_last = number + 1 == over.len();
            let (branch, more) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            let entry = &self.entries[*next];
            if entry.below.first() != Some(&at) {
                lines.push(format!("{indent}{branch}{} (see above)", entry.made_by));
                continue;
            }
            lines.push(format!("{indent}{branch}{}", line(entry)));
            self.draw_over(*next, &format!("{indent}{more}"), lines);
        }
    }
}

fn line(entry: &StackEntry) -> String {
    let made_by = if entry.made_by.is_empty() { &entry.name } else { &entry.made_by };
    let read_only =
        entry.read_only.as_ref().map_or(String::new(), |reason| format!(" [read-only: {reason}]"));
    format!("{made_by}, {} bytes: {}{read_only}", entry.size, entry.content)
}
