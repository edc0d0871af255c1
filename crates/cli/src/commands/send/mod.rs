//! `papilio send`.
//!
//! [`mounted`] sends from a mounted file system, the rest from an image. [`candidate`] chooses the
//! parent where none is given.

mod candidate;
pub(super) mod mounted;

use crate::context::Context;
use crate::mounted::Target;
use crate::path::{ImagePath, parse_image_path};
use crate::stream_output::StreamOutput;
use crate::usage_error::UsageError;
use anyhow::Context as _;
use candidate::{Candidate, nearest, sent_uuid};
use indicatif::{ProgressBar, ProgressStyle};
use mounted::MountedSend;
use papilio::{FileSystem, PathError, ResumeToken, SendObserver, SendOptions, SendProtocol, Subvolume, Uuid};
use papilio_ioctl::SendRequest;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;

/// Send read-only snapshots as a stream
///
/// `btrfs receive` and `papilio receive` turn the stream into subvolumes again. Each snapshot that
/// is sent may serve as a source of clones for those after it. All snapshots are in one image, or
/// in mounts of one file system.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The snapshots
    #[arg(value_name = "IMAGE:/SNAPSHOT|PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    snapshots: Vec<OsString>,
    /// Send the difference from this snapshot, which the receiver has
    #[arg(short, value_name = "IMAGE:/PARENT|PATH", value_hint = clap::ValueHint::AnyPath)]
    parent: Option<OsString>,
    /// Use this snapshot, which the receiver has, as a source of clones; without -p, the nearest
    /// one is also the parent
    #[arg(short, value_name = "IMAGE:/SOURCE|PATH", value_hint = clap::ValueHint::AnyPath)]
    clone_source: Vec<OsString>,
    /// With several snapshots, omit the end command between them and the header of all but the
    /// first
    #[arg(short = 'e')]
    omit_ends: bool,
    /// Write to FILE instead of standard output
    #[arg(short = 'f', value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Name the changed ranges of files without their data
    #[arg(long)]
    no_data: bool,
    /// The protocol, 1 or 2; 0 means the newest
    #[arg(long, value_name = "N", value_parser = protocol, default_value = "1")]
    proto: u32,
    /// Send compressed extents as they lie; implies protocol 2
    #[arg(long)]
    compressed_data: bool,
    /// Go on where a receive was interrupted, which printed TOKEN; the other options are those of
    /// the first send. papilio receive --resume takes what is sent
    #[arg(long, value_name = "TOKEN")]
    resume: Option<String>,
}

/// Parses the number of a protocol, and says why there is no third one.
fn protocol(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number @ 0..=2) => Ok(number),
        Ok(3) => Err("protocol 3 is experimental in the kernel and may change: 1 and 2 are known".to_owned()),
        _ => Err("not 0, 1 or 2".to_owned()),
    }
}

impl Args {
    /// Sends the snapshots.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        StreamOutput::check(self.file.as_deref())?;
        let token = self.resume.as_ref().map(|text| text.parse::<ResumeToken>());
        let token = token.transpose().map_err(|error| UsageError::new(format!("--resume: {error}")))?;
        match Target::parse(&self.snapshots[0])? {
            Target::Image(first) => self.send_from_image(context, &first, token),
            Target::Mounted(_) => self.send_mounted(context, token),
        }
    }

    /// Returns the parts that -e leaves out of the stream with this index.
    fn omitted(&self, index: usize) -> Omitted {
        let last = index + 1 == self.snapshots.len();
        Omitted { header: self.omit_ends && index > 0, end: self.omit_ends && !last }
    }

    fn send_from_image(
        &self,
        context: &Context,
        first: &ImagePath,
        token: Option<ResumeToken>,
    ) -> anyhow::Result<()> {
        match &self.file {
            None => context.confine_to_images([first.image.clone()]),
            Some(file) => context.confine_to_output(file, [first.image.clone()]),
        }
        let fs = context.open(&first.image)?;
        let find = |argument: &OsString| subvolume(context, &fs, first, argument);
        let snapshots: Vec<Subvolume> = self.snapshots.iter().map(find).collect::<Result<_, _>>()?;
        let parent = self.parent.as_ref().map(find).transpose()?;
        let mut sources: Vec<Candidate> = Vec::new();
        for argument in &self.clone_source {
            sources.push(Candidate::of(&find(argument)?));
        }
        let protocol = match (self.proto, self.compressed_data) {
            (1, false) => SendProtocol::V1,
            _ => SendProtocol::V2,
        };
        let identity = |snapshot: &Subvolume| sent_uuid(snapshot.received_uuid, snapshot.uuid);
        let resumed = token.map(|token| position_of(&token, snapshots.iter().map(identity))).transpose()?;
        let mut out = StreamOutput::open(self.file.as_deref())?;
        for (index, snapshot) in snapshots.iter().enumerate() {
            let own = Candidate::of(snapshot);
            if resumed.is_some_and(|resumed| index < resumed) {
                sources.push(own);
                continue;
            }
            let parent = parent.as_ref().map_or_else(|| nearest(&own, &sources), |parent| Some(parent.id));
            let omitted = self.omitted(index);
            let mut send = SendOptions::new()
                .parent(parent)
                .no_data(self.no_data)
                .protocol(protocol)
                .omit_header(omitted.header)
                .omit_end(omitted.end)
                .compressed_data(self.compressed_data)
                .resume(token.filter(|_| resumed == Some(index)));
            for source in &sources {
                send = send.clone_source(source.id);
            }
            at_subvolume(context, &self.snapshots[index].display());
            let mut progress = SendProgress::new(context);
            let sent = send.send(&fs, snapshot.id, &mut out, &mut progress);
            context.set_progress(None);
            progress.finish();
            sent.with_context(|| {
                format!("{}:/{}", first.image.display(), String::from_utf8_lossy(&snapshot.name))
            })?;
            sources.push(own);
        }
        out.finish()
    }

    fn send_mounted(&self, context: &Context, token: Option<ResumeToken>) -> anyhow::Result<()> {
        let open = |argument: &OsString| MountedSend::open(argument);
        let snapshots: Vec<MountedSend> = self.snapshots.iter().map(open).collect::<Result<_, _>>()?;
        let parent = self.parent.as_ref().map(open).transpose()?;
        let others: Vec<MountedSend> = self.clone_source.iter().map(open).collect::<Result<_, _>>()?;
        let mut all = snapshots.iter().chain(&parent).chain(&others);
        if let Some(other) = all.find(|other| !other.is_beside(&snapshots[0])) {
            let text = format!("{}: all snapshots must be in one file system", other.operand());
            return Err(UsageError::new(text).into());
        }
        let mut sources: Vec<&MountedSend> = others.iter().collect();
        let resumed = token.map(|token| position_of(&token, snapshots.iter().map(MountedSend::sent_uuid)));
        let resumed = resumed.transpose()?;
        let mut out = StreamOutput::open(self.file.as_deref())?;
        for (index, snapshot) in snapshots.iter().enumerate() {
            if resumed.is_some_and(|resumed| index < resumed) {
                sources.push(snapshot);
                continue;
            }
            let token = token.filter(|_| resumed == Some(index));
            let omitted = self.omitted(index);
            let request = SendRequest {
                protocol: if self.compressed_data && self.proto == 1 { 2 } else { self.proto },
                no_data: self.no_data,
                compressed: self.compressed_data,
                // The commands that the receiver has are read, so they need a header.
                omit_header: omitted.header && token.is_none(),
                omit_end: omitted.end,
                ..SendRequest::default()
            };
            at_subvolume(context, &snapshot.operand());
            let progress = SendProgress::new(context);
            let bar = progress.bar.clone();
            let sent = snapshot.send(request, parent.as_ref(), &sources, token, &mut out, &mut |bytes| {
                if let Some(bar) = &bar {
                    bar.set_message(indicatif::BinaryBytes(bytes).to_string());
                    bar.tick();
                }
            });
            context.set_progress(None);
            progress.finish();
            sent?;
            sources.push(snapshot);
        }
        out.finish()
    }
}

/// Returns which of several snapshots a token is of.
fn position_of(token: &ResumeToken, mut uuids: impl Iterator<Item = Uuid>) -> anyhow::Result<usize> {
    let wanted = token.subvolume().uuid;
    let found = uuids.position(|uuid| uuid == wanted);
    found.with_context(|| format!("the token is of subvolume {wanted}, which is none of these snapshots"))
}

/// The parts of a stream that are left out.
#[derive(Clone, Copy, Debug)]
struct Omitted {
    header: bool,
    end: bool,
}

/// Prints which subvolume is sent, as btrfs-progs does.
fn at_subvolume(context: &Context, operand: &dyn std::fmt::Display) {
    if context.verbosity >= 0 && context.arguments().drop_in {
        context.note(format_args!("At subvol {operand}"));
    }
}

/// Returns the subvolume that an argument names, which must be in the file system of the first.
fn subvolume(
    context: &Context,
    fs: &FileSystem,
    first: &ImagePath,
    argument: &OsString,
) -> anyhow::Result<Subvolume> {
    let path = parse_image_path(argument)?;
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

/// The bar on standard error, if that is a terminal.
pub(super) struct SendProgress {
    bar: Option<ProgressBar>,
}

impl SendProgress {
    pub(super) fn new(context: &Context) -> Self {
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

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl SendObserver for SendProgress {
    fn progress(&mut self, done: u64, all: u64, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(all);
            bar.set_position(done);
            bar.set_message(indicatif::BinaryBytes(bytes).to_string());
        }
    }
}
