//! `papilio compsize`: how well files are compressed, in the format of the tool compsize.
//!
//! Each extent on disk counts once, whatever number of files and places refer to it. A mount of the
//! kernel can be searched by root only.

use crate::context::Context;
use crate::mounted::{Target, explain_visit, explain_walk};
use crate::operands::for_each_target;
use crate::output::Output;
use crate::units::Units;
use papilio::format::items::file_extent::Compression;
use papilio::{
    FileExtent, FileExtentKind, FileVisitor, FileWalk, UsedExtent, WalkError, WalkRoot, WantedExtents,
};
use serde_json::json;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;

/// Show how well files are compressed, for each algorithm
///
/// "Disk Usage" counts each extent once; "Uncompressed" is its size before compression.
/// "Referenced" counts each reference of a file, so reflinks and snapshots count again.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files and directories, in images or in mounts
    #[arg(value_name = "IMAGE:/PATH|PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Print sizes in bytes
    #[arg(short, long)]
    bytes: bool,
    /// Print one JSON object, with sizes in bytes
    #[arg(long)]
    json: bool,
}

/// How the bytes of an extent are stored. The order is that of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Storage {
    Written(Compression),
    Preallocated,
}

impl Storage {
    fn of(extent: &FileExtent) -> Self {
        match extent.kind {
            FileExtentKind::Preallocated => Self::Preallocated,
            _ => Self::Written(extent.compression),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Written(algorithm) => algorithm.name(),
            Self::Preallocated => "prealloc",
        }
    }
}

/// Sums of bytes.
#[derive(Clone, Copy, Debug, Default)]
struct StoredSizes {
    disk: u64,
    uncompressed: u64,
    referenced: u64,
}

impl StoredSizes {
    fn add(&mut self, other: Self) {
        self.disk = self.disk.saturating_add(other.disk);
        self.uncompressed = self.uncompressed.saturating_add(other.uncompressed);
        self.referenced = self.referenced.saturating_add(other.referenced);
    }

    /// Returns the stored bytes in percent of the uncompressed ones.
    fn percent(self) -> u64 {
        let percent = u128::from(self.disk) * 100 / u128::from(self.uncompressed.max(1));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }
}

/// The counts of a walk.
struct Counts<'a> {
    context: &'a Context,
    files: u64,
    references: u64,
    inline: u64,
    extents: HashSet<(u64, u64)>,
    sizes: BTreeMap<Storage, StoredSizes>,
    /// The file system that is walked; extents of others have the same addresses.
    file_system: u64,
}

impl FileVisitor for Counts<'_> {
    type Error = anyhow::Error;

    fn failed(&mut self, error: WalkError) -> anyhow::Result<()> {
        self.context.failure(&explain_walk(error));
        Ok(())
    }

    fn file(&mut self, _file: &WalkRoot, _depth: usize, extents: &[UsedExtent]) -> anyhow::Result<()> {
        self.files += 1;
        for (extent, _) in extents {
            let mut sizes = StoredSizes { referenced: extent.length, ..StoredSizes::default() };
            let counts = match extent.kind {
                FileExtentKind::Inline => {
                    self.inline += 1;
                    true
                }
                FileExtentKind::Regular | FileExtentKind::Preallocated => {
                    self.references += 1;
                    self.extents.insert((self.file_system, extent.address.0))
                }
            };
            if counts {
                (sizes.disk, sizes.uncompressed) = (extent.stored, extent.uncompressed);
            }
            self.sizes.entry(Storage::of(extent)).or_default().add(sizes);
        }
        Ok(())
    }
}

impl Args {
    /// Counts the files of all operands together.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        context.confine_to_targets(&self.paths);
        let mut output = Output::new()?;
        let mut walk = FileWalk::new(WantedExtents::Items);
        let mut found = Counts {
            context,
            files: 0,
            references: 0,
            inline: 0,
            extents: HashSet::new(),
            sizes: BTreeMap::new(),
            file_system: 0,
        };
        let mut known = Vec::new();
        for_each_target(context, &self.paths, Target::parse, |target| {
            let root = target.walk_root(context)?;
            let of = root.file_system().map_err(explain_walk)?;
            let place = known.iter().position(|known| *known == of);
            found.file_system = place.unwrap_or(known.len()) as u64;
            if place.is_none() {
                known.push(of);
            }
            walk.walk(root, &mut found).map_err(explain_visit)
        })?;
        match self.json {
            true => found.show_json(&mut output)?,
            false => found.show(&mut output, self.bytes)?,
        }
        Ok(output.finish()?)
    }
}

impl Counts<'_> {
    fn total(&self) -> StoredSizes {
        let mut total = StoredSizes::default();
        self.sizes.values().for_each(|sizes| total.add(*sizes));
        total
    }

    fn show(&self, output: &mut Output, bytes: bool) -> anyhow::Result<()> {
        output.text(format_args!(
            "Processed {} file{}, {} regular extents ({} refs), {} inline.\n",
            self.files,
            if self.files == 1 { "" } else { "s" },
            self.extents.len(),
            self.references,
            self.inline
        ))?;
        let text = |size: u64| match bytes {
            true => size.to_string(),
            false => Units::HUMAN.text(size),
        };
        let mut row = |name: &str, percent: &str, columns: [String; 3]| {
            let [disk, uncompressed, referenced] = columns;
            output.text(format_args!(
                "{name:<10} {percent:<8} {disk:<12} {uncompressed:<12} {referenced:<12}\n"
            ))
        };
        row("Type", "Perc", ["Disk Usage", "Uncompressed", "Referenced"].map(str::to_owned))?;
        let all = std::iter::once(("TOTAL", self.total()));
        for (name, sizes) in all.chain(self.sizes.iter().map(|(storage, sizes)| (storage.name(), *sizes))) {
            let percent = format!("{:3}%", sizes.percent());
            row(name, &percent, [sizes.disk, sizes.uncompressed, sizes.referenced].map(text))?;
        }
        Ok(())
    }

    fn show_json(&self, output: &mut Output) -> anyhow::Result<()> {
        let of = |sizes: StoredSizes| {
            json!({
                "disk_usage": sizes.disk,
                "uncompressed": sizes.uncompressed,
                "referenced": sizes.referenced,
                "percent": sizes.percent(),
            })
        };
        let types: serde_json::Map<_, _> =
            self.sizes.iter().map(|(storage, sizes)| (storage.name().to_owned(), of(*sizes))).collect();
        let object = json!({
            "files": self.files,
            "extents": self.extents.len(),
            "references": self.references,
            "inline": self.inline,
            "total": of(self.total()),
            "types": types,
        });
        Ok(output.text(format_args!("{object}\n"))?)
    }
}

#[cfg(test)]
mod tests {
    use super::StoredSizes;

    #[test]
    fn percentages_of_nothing_and_of_much() {
        let sizes = |disk, uncompressed| StoredSizes { disk, uncompressed, referenced: 0 };
        assert_eq!(sizes(0, 0).percent(), 0);
        assert_eq!(sizes(54, 100).percent(), 54);
        assert_eq!(sizes(u64::MAX / 2, u64::MAX).percent(), 49);
    }
}
