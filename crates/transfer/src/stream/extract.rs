//! A subvolume that lies in streams, as files of the host or as a tar archive.
//!
//! Owns [`Extract`]. To the host, it applies the commands of a full stream by the same means as a
//! receive, which confines every path to the directory. An entry that the host refuses is left out
//! and reported, and the rest goes on.

use super::chain::StreamChain;
use super::data::DataReader;
use super::emit::{Emit, EmitOptions, is_within};
use super::fault::StreamError;
use super::node::{NodeKind, NodeNumber, StreamContent, StreamNode};
use super::walk::Walk;
use crate::export::event::{Attributes, Event, Special};
use crate::export::problem::{ExportError, ExportObserver};
use crate::export::sink::Sink;
use crate::export::tar::TarSink;
use crate::image_path::ImagePath;
use crate::receive::{Interpreter, ReceiveTarget};
use papilio_engine::errors::Error;
use papilio_engine::items::xattr::Xattr;
use papilio_engine::subvolume::Received;
use papilio_format::items::inode::Timespec;
use papilio_format::send_stream::Command;
use std::collections::HashSet;
use std::io::Write;

/// Bytes that are read at once.
const STEP: u64 = 1 << 20;

/// Takes a subvolume out of streams.
#[derive(Clone, Debug)]
pub struct Extract {
    owners: bool,
    within: Vec<Vec<u8>>,
}

impl Default for Extract {
    fn default() -> Self {
        Self::new()
    }
}

impl Extract {
    /// Extracts all, with owners.
    pub const fn new() -> Self {
        Self { owners: true, within: Vec::new() }
    }

    /// Chooses whether files on the host get their owners, which only root can give.
    pub fn owners(mut self, owners: bool) -> Self {
        self.owners = owners;
        self
    }

    /// Extracts only these paths and all below them, with the directories above. They are relative
    /// to the subvolume's root.
    pub fn within(mut self, paths: Vec<Vec<u8>>) -> Self {
        self.within = paths;
        self
    }

    fn check_paths(&self, chain: &StreamChain, part: usize) -> Result<(), StreamError> {
        self.within.iter().try_for_each(|path| chain.entry(part, path).map(drop))
    }

    /// Makes the subvolume in `target`. `failed` hears of each entry that is missing or not whole.
    ///
    /// # Errors
    /// The subvolume cannot be made; a stream that cannot be read; data that the chain lacks.
    pub fn to_target(
        &self,
        chain: &StreamChain,
        part: usize,
        target: &mut dyn ReceiveTarget,
        failed: &mut dyn FnMut(&Error),
    ) -> Result<(), StreamError> {
        self.check_paths(chain, part)?;
        let (name, identity) = (chain.parts()[part].name.clone(), chain.parts()[part].identity);
        let interpreter = Interpreter { uuid: identity.uuid, decompress: true };
        let options = EmitOptions {
            name,
            identity,
            second_protocol: true,
            encoded: false,
            owners: self.owners,
            within: &self.within,
        };
        // The paths that could not be made.
        let mut missing: HashSet<Vec<u8>> = HashSet::new();
        let mut put = |command: &Command| -> Result<(), StreamError> {
            match command {
                Command::Subvol { path, .. } => return Ok(target.begin(path, None)?),
                Command::End => {
                    let (uuid, sent) = (identity.uuid, identity.ctransid);
                    let send_time = Timespec::default();
                    return Ok(target.finish(&Received { uuid, sent, send_time })?);
                }
                _ => {}
            }
            let path = command.paths()[0].unwrap_or_default();
            if missing.contains(path) {
                return Ok(());
            }
            if let Err(source) = interpreter.apply(target, command) {
                let kind = command.kind();
                let error = Error::Receive { command: kind, path: path.to_vec(), source: Box::new(source) };
                if is_full(&error) {
                    return Err(error.into());
                }
                failed(&error);
                if !path.is_empty() {
                    missing.insert(path.to_vec());
                }
            }
            Ok(())
        };
        Emit::new(chain, part, options, &mut put)?.run()
    }

    /// Writes the subvolume as a tar archive in pax format, below a directory with its name.
    ///
    /// # Errors
    /// As [`Self::to_target`], and those of the archive.
    pub fn to_tar(
        &self,
        chain: &StreamChain,
        part: usize,
        archive: &mut dyn Write,
        archive_name: &str,
        observer: &dyn ExportObserver,
    ) -> Result<(), StreamError> {
        self.check_paths(chain, part)?;
        let tree = chain.tree(part)?;
        let name = &chain.parts()[part].name;
        let source = ImagePath::unnamed([b"/", &name[..]].concat());
        let mut archived = Archived {
            sink: TarSink::new(observer, archive, archive_name.to_owned(), vec![source]),
            reader: DataReader::new(chain.inputs(), &chain.absent),
            links: HashSet::new(),
        };
        archived.sink.begin(0).map_err(archive_error)?;
        let (mut walk, mut depth) = (Walk::whole(tree), 0);
        while let Some((path, number)) = walk.step()? {
            if !is_within(&path, &self.within) {
                continue;
            }
            let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count();
            while depth > names {
                archived.sink.take(Event::LeaveDirectory).map_err(archive_error)?;
                depth -= 1;
            }
            archived.add(&path, number, tree.node(number))?;
            depth += usize::from(tree.node(number).is_directory());
        }
        for _ in 0..depth {
            archived.sink.take(Event::LeaveDirectory).map_err(archive_error)?;
        }
        archived.sink.finish().map_err(archive_error)
    }
}

/// Whether the host has no space left, which ends the run.
fn is_full(error: &Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let Error::Receive { source, .. } = error else { return false };
    match &**source {
        Error::Host { source, .. } => {
            matches!(source.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
        }
        _ => false,
    }
}

/// A tar archive that is being written.
struct Archived<'a> {
    sink: TarSink<'a, &'a mut dyn Write>,
    reader: DataReader<'a>,
    /// Inodes with several names of which one was written.
    links: HashSet<NodeNumber>,
}

impl Archived<'_> {
    fn add(&mut self, path: &[u8], number: NodeNumber, node: &StreamNode) -> Result<(), StreamError> {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
        let key = (0, 0, u64::from(number));
        let id = (node.links > 1 && !node.is_directory()).then_some(key);
        if id.is_some() && !self.links.insert(number) {
            let size = match &node.kind {
                NodeKind::File(content) => content.size,
                _ => 0,
            };
            return self.take(Event::Link { name, id: key, size });
        }
        let attributes = attributes_of(node);
        let special =
            |special| Event::Special { name: name.clone(), attributes: attributes.clone(), special, id };
        match &node.kind {
            NodeKind::Directory { .. } => self.take(Event::EnterDirectory { name, attributes }),
            NodeKind::File(content) => {
                let segments = content.segments();
                let whole = segments == [(0, content.size)] || content.size == 0;
                let segments = (!whole).then_some(segments);
                let size = content.size;
                self.take(Event::File { name, attributes, size, id, segments, twin: None })?;
                self.data(path, content)?;
                self.take(Event::EndFile { missing: 0 })
            }
            NodeKind::Symlink(target) => {
                let target = target.to_vec();
                self.take(Event::Symlink { name, attributes, target, id })
            }
            NodeKind::Fifo => self.take(special(Special::Fifo)),
            NodeKind::Socket => self.take(special(Special::Socket)),
            NodeKind::Character { major, minor } => {
                self.take(special(Special::Character { major: *major, minor: *minor }))
            }
            NodeKind::Block { major, minor } => {
                self.take(special(Special::Block { major: *major, minor: *minor }))
            }
        }
    }

    fn take(&mut self, event: Event) -> Result<(), StreamError> {
        self.sink.take(event).map_err(archive_error)
    }

    fn data(&mut self, path: &[u8], content: &StreamContent) -> Result<(), StreamError> {
        let mut buffer = Vec::new();
        for (start, length) in content.segments() {
            let (mut at, end) = (start, start + length);
            while at < end {
                buffer.resize((end - at).min(STEP) as usize, 0);
                self.reader.read(content, at, &mut buffer).map_err(|error| match error {
                    StreamError::Invalid(text) => {
                        StreamError::Invalid(format!("/{}: {text}", String::from_utf8_lossy(path)))
                    }
                    other => other,
                })?;
                self.sink.data(at, &buffer).map_err(archive_error)?;
                at += buffer.len() as u64;
            }
        }
        Ok(())
    }
}

fn attributes_of(node: &StreamNode) -> Attributes {
    let (atime, mtime) = node.times.map_or_else(Default::default, |times| (times.atime, times.mtime));
    let xattrs = node.xattrs.iter();
    let xattrs = xattrs.map(|(name, value)| Xattr { name: name.to_vec(), value: value.to_vec() });
    Attributes {
        permissions: node.mode,
        uid: node.uid,
        gid: node.gid,
        atime,
        mtime,
        xattrs: xattrs.collect(),
    }
}

fn archive_error(error: ExportError) -> StreamError {
    match error {
        ExportError::Archive { name, error } => StreamError::Host { name, source: error },
        ExportError::Refused(error) => StreamError::Other(error),
        other => StreamError::Invalid(other.to_string()),
    }
}
