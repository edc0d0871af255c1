//! `papilio send`.

use crate::context::Context;
use crate::path::ImagePath;
use crate::usage_error::UsageError;
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use papilio::format::TreeId;
use papilio::{FileSystem, PathError, SendObserver, SendOptions, SendProtocol, Subvolume};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

/// Send read-only snapshots as a stream
///
/// `btrfs receive` and `papilio receive` turn the stream into subvolumes again. Each snapshot that
/// is sent may serve as a source of clones for those after it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The snapshots
    #[arg(value_name = "IMAGE:/SNAPSHOT", required = true, value_hint = clap::ValueHint::AnyPath)]
    snapshots: Vec<OsString>,
    /// Send the difference from this snapshot, which the receiver has
    #[arg(short, value_name = "IMAGE:/PARENT", value_hint = clap::ValueHint::AnyPath)]
    parent: Option<OsString>,
    /// Use this snapshot, which the receiver has, as a source of clones; without -p, the nearest
    /// one is also the parent
    #[arg(short, value_name = "IMAGE:/SOURCE", value_hint = clap::ValueHint::AnyPath)]
    clone_source: Vec<OsString>,
    /// Write to FILE instead of standard output
    #[arg(short = 'f', value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Name the changed ranges of files without their data
    #[arg(long)]
    no_data: bool,
    /// The protocol, 1 or 2; 0 means the newest
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=2), default_value = "1")]
    proto: u32,
    /// Send compressed extents as they lie; implies protocol 2
    #[arg(long)]
    compressed_data: bool,
}

impl Args {
    /// Sends the snapshots.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let first = ImagePath::parse(&self.snapshots[0])?;
        let fs = context.open(&first.image)?;
        let find = |argument: &OsString| subvolume(context, &fs, &first, argument);
        let snapshots: Vec<Subvolume> = self.snapshots.iter().map(find).collect::<Result<_, _>>()?;
        let parent = self.parent.as_ref().map(find).transpose()?;
        let mut sources: Vec<Subvolume> = self.clone_source.iter().map(find).collect::<Result<_, _>>()?;
        let protocol = match (self.proto, self.compressed_data) {
            (1, false) => SendProtocol::V1,
            _ => SendProtocol::V2,
        };
        let mut out: Box<dyn Write> = match &self.file {
            Some(path) => Box::new(crate::context::create_host_file(path)?),
            None if std::io::stdout().is_terminal() => {
                let text = "a stream is not for a terminal: use -f FILE, or redirect standard output";
                return Err(UsageError::new(text).into());
            }
            None => Box::new(std::io::stdout().lock()),
        };
        for snapshot in snapshots {
            let parent =
                parent.as_ref().map_or_else(|| nearest(&snapshot, &sources), |parent| Some(parent.id));
            let mut send = SendOptions::new()
                .parent(parent)
                .no_data(self.no_data)
                .protocol(protocol)
                .compressed_data(self.compressed_data);
            for source in &sources {
                send = send.clone_source(source.id);
            }
            let mut progress = Progress::new(context);
            let sent = send.send(&fs, snapshot.id, &mut *out, &mut progress);
            context.set_progress(None);
            progress.finish();
            sent.with_context(|| {
                format!("{}:/{}", first.image.display(), String::from_utf8_lossy(&snapshot.name))
            })?;
            sources.push(snapshot);
        }
        Ok(())
    }
}

/// Returns the subvolume that an argument names, which must be in the file system of the first.
fn subvolume(
    context: &Context,
    fs: &FileSystem,
    first: &ImagePath,
    argument: &OsString,
) -> anyhow::Result<Subvolume> {
    let path = ImagePath::parse(argument)?;
    if path.image != first.image {
        let text = format!("{path}: all snapshots must be in {}", first.image.display());
        return Err(UsageError::new(text).into());
    }
    let inode = context.inode(&path, true)?;
    if !inode.is_subvolume_root() {
        anyhow::bail!("{path}: {}", PathError::NoSubvolume);
    }
    let found = fs.subvolume(inode.tree()).map_err(|error| context.at(&path, &error))?;
    if !found.is_read_only() {
        anyhow::bail!("{path}: the subvolume is not read-only, which send needs");
    }
    Ok(found)
}

/// Returns the source that shares its origin with the snapshot and changed last before or after it.
fn nearest(snapshot: &Subvolume, sources: &[Subvolume]) -> Option<TreeId> {
    sources
        .iter()
        .filter(|source| {
            let siblings = !snapshot.parent_uuid.is_nil() && source.parent_uuid == snapshot.parent_uuid;
            siblings || source.uuid == snapshot.parent_uuid || source.parent_uuid == snapshot.uuid
        })
        .min_by_key(|source| source.changed.0.abs_diff(snapshot.changed.0))
        .map(|source| source.id)
}

/// The bar on standard error, if that is a terminal.
struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    fn new(context: &Context) -> Self {
        let shown = context.verbosity >= 0 && std::io::stderr().is_terminal();
        let bar = shown.then(|| {
            let bar = ProgressBar::new(0);
            let form = "{elapsed_precise} [{wide_bar}] {pos}/{len} inodes {msg}";
            if let Ok(style) = ProgressStyle::with_template(form) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar
        });
        context.set_progress(bar.clone());
        Self { bar }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl SendObserver for Progress {
    fn progress(&mut self, done: u64, all: u64, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(all);
            bar.set_position(done);
            bar.set_message(indicatif::BinaryBytes(bytes).to_string());
        }
    }
}
