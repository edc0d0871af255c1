//! Streams in their order, and the subvolumes that they describe.
//!
//! Owns [`StreamChain`] and [`SentPart`]. Loading reads each stream once from its start, verifies
//! every checksum, and applies every command to a tree of its subvolume. A snapshot's tree begins
//! as a copy of its parent's, which shares what stays.

use super::budget::{Budget, Charge};
use super::fault::{StreamError, StreamFault};
use super::input::StreamInput;
use super::node::Origin;
use super::tree::{SentTree, fits};
use crate::receive::{SentSubvolume, StreamReader, decode};
use papilio_format::send_stream::{
    COMMAND_HEADER_SIZE, Command, CommandHeader, CommandKind, EncodedWrite, Protocol, STREAM_HEADER_SIZE,
    SendStreamError, SendStreamFault,
};
use papilio_format::{Generation, Uuid};
use std::io::Read;

/// Estimate of a subvolume's bytes without its tree.
const PART_BYTES: u64 = 1024;

/// The most subvolumes of a chain, and the most sources of clones that it lacks.
const MOST_SUBVOLUMES: usize = 1 << 16;

/// How streams are loaded.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    pub(super) trees: bool,
    pub(super) decompress: bool,
    pub(super) memory: u64,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl LoadOptions {
    /// Builds the trees in at most 4 GiB of memory.
    pub const fn new() -> Self {
        Self { trees: true, decompress: false, memory: 4 << 30 }
    }

    /// Chooses whether the trees are built. Without them, commands are only parsed and counted.
    pub const fn trees(mut self, trees: bool) -> Self {
        self.trees = trees;
        self
    }

    /// Decompresses each encoded write, to verify it.
    pub const fn decompress(mut self, decompress: bool) -> Self {
        self.decompress = decompress;
        self
    }

    /// Limits the memory of the trees, in bytes.
    pub const fn memory(mut self, memory: u64) -> Self {
        self.memory = memory;
        self
    }
}

/// The part of a stream that is about one subvolume.
#[derive(Debug)]
#[non_exhaustive]
pub struct SentPart {
    /// The subvolume's name.
    pub name: Vec<u8>,
    /// The subvolume's identity at the sender.
    pub identity: SentSubvolume,
    /// The parent's, unless the stream is a full one.
    pub parent: Option<SentSubvolume>,
    /// The index of the stream.
    pub stream: usize,
    /// The protocol.
    pub protocol: Protocol,
    /// Where the command that begins the subvolume starts in the stream, in bytes.
    pub start: u64,
    /// Where the last command ends.
    pub end: u64,
    /// Whether the command that ends the subvolume was read.
    pub complete: bool,
    /// Commands of each kind, by the kind's number.
    pub commands: [u64; CommandKind::ALL.len() + 1],
    /// Bytes of file data in plain writes.
    pub written: u64,
    /// Bytes of encoded writes as they lie in the stream.
    pub encoded: u64,
    /// Bytes that encoded writes put into files.
    pub decoded: u64,
    /// Bytes that are cloned.
    pub cloned: u64,
    pub(super) tree: Option<SentTree>,
    _charge: Charge,
}

impl SentPart {
    /// Returns the number of commands, with those that begin and end the subvolume.
    pub fn command_count(&self) -> u64 {
        self.commands.iter().sum()
    }

    /// Returns how often a command appears.
    pub fn count_of(&self, kind: CommandKind) -> u64 {
        self.commands[kind as usize]
    }

    fn count(&mut self, command: &Command) {
        self.commands[command.kind() as usize] += 1;
        match command {
            Command::Write { data, .. } => self.written += data.len() as u64,
            Command::EncodedWrite(write) => {
                self.encoded += write.data.len() as u64;
                self.decoded = self.decoded.saturating_add(write.file_length);
            }
            Command::Clone { length, .. } => self.cloned = self.cloned.saturating_add(*length),
            _ => {}
        }
    }
}

/// Something about a chain that is doubtful, though every command could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainDoubt {
    /// The chain lacks a subvolume's parent, so its commands could not be checked.
    ParentMissing {
        /// The subvolume.
        name: Vec<u8>,
        /// The parent.
        parent: SentSubvolume,
    },
    /// The chain has another version of the parent. Receivers accept it.
    ParentChanged {
        /// The subvolume.
        name: Vec<u8>,
        /// The parent that the stream names.
        parent: SentSubvolume,
        /// The transaction of the one in the chain.
        found: Generation,
    },
    /// The chain lacks a source of clones.
    SourceMissing {
        /// The subvolume.
        name: Vec<u8>,
        /// The source.
        source: Uuid,
        /// Bytes that are cloned from it.
        bytes: u64,
    },
    /// A stream was made without data.
    NoData {
        /// The subvolume.
        name: Vec<u8>,
    },
}

/// Streams in their order.
#[derive(Debug)]
pub struct StreamChain {
    inputs: Vec<StreamInput>,
    /// The subvolumes, in the order in which they were sent.
    parts: Vec<SentPart>,
    /// The sources of clones that the chain lacks.
    pub(super) absent: Vec<Uuid>,
    doubts: Vec<ChainDoubt>,
}

impl StreamChain {
    /// Loads streams, which stay open for reading their data.
    ///
    /// # Errors
    /// A stream that is invalid, or a command that cannot be carried out.
    pub fn load(inputs: Vec<StreamInput>, options: LoadOptions) -> Result<Self, StreamError> {
        let mut loader = Loader::new(options);
        for input in &inputs {
            match input.outline() {
                Some(outline) => loader.outline(input.name(), outline)?,
                None => loader.stream(input.name(), &mut input.reader())?,
            }
        }
        Ok(loader.finish(inputs))
    }

    /// Loads one stream from a pipe. Only [`Self::parts`] and [`Self::doubts`] can be asked then.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn scan(name: &str, input: &mut dyn Read, options: LoadOptions) -> Result<Self, StreamError> {
        let mut loader = Loader::new(options);
        loader.stream(name, input)?;
        Ok(loader.finish(Vec::new()))
    }

    /// Returns the streams.
    pub fn inputs(&self) -> &[StreamInput] {
        &self.inputs
    }

    /// Returns the subvolumes in the order in which they were sent.
    pub fn parts(&self) -> &[SentPart] {
        &self.parts
    }

    /// Returns the doubts about the chain.
    pub fn doubts(&self) -> &[ChainDoubt] {
        &self.doubts
    }

    /// Returns the index of the subvolume with this name, or of the last one. Of several with the
    /// name, the last one counts.
    ///
    /// # Errors
    /// There is none.
    pub fn find(&self, name: Option<&[u8]>) -> Result<usize, StreamError> {
        let found = match name {
            Some(name) => self.parts.iter().rposition(|part| part.name == name),
            None => self.parts.len().checked_sub(1),
        };
        found.ok_or_else(|| {
            StreamError::Invalid(match name {
                Some(name) => {
                    format!("the streams have no subvolume {}", String::from_utf8_lossy(name))
                }
                None => "the streams have no subvolume".into(),
            })
        })
    }

    /// Returns the tree of a subvolume.
    pub(super) fn tree(&self, part: usize) -> Result<&SentTree, StreamError> {
        let part = &self.parts[part];
        part.tree.as_ref().ok_or_else(|| {
            let parent = part.parent.map_or(Uuid::nil(), |parent| parent.uuid);
            StreamError::Invalid(format!(
                "{}: the chain lacks the parent {parent}: give its stream first",
                String::from_utf8_lossy(&part.name)
            ))
        })
    }
}

/// A chain that is being loaded.
struct Loader {
    options: LoadOptions,
    budget: Budget,
    streams: u32,
    parts: Vec<SentPart>,
    absent: Vec<Uuid>,
    doubts: Vec<ChainDoubt>,
    /// The parents and sources that were missing when they were needed, with their users.
    wanted: Vec<Uuid>,
}

impl Loader {
    fn new(options: LoadOptions) -> Self {
        Self {
            options,
            budget: Budget::new(options.memory),
            streams: 0,
            parts: Vec::new(),
            absent: Vec::new(),
            doubts: Vec::new(),
            wanted: Vec::new(),
        }
    }

    fn finish(self, inputs: Vec<StreamInput>) -> StreamChain {
        StreamChain { inputs, parts: self.parts, absent: self.absent, doubts: self.doubts }
    }

    fn stream(&mut self, name: &str, input: &mut dyn Read) -> Result<(), StreamError> {
        let mut reader = StreamReader::new(input);
        let mut open = false;
        while let Some(command) =
            reader.next_command().map_err(|error| StreamError::in_stream(name, error))?
        {
            let start = reader.command_offset();
            let at = |fault| StreamError::Command {
                stream: name.to_owned(),
                offset: start,
                command: command.kind(),
                path: command.paths()[0].unwrap_or_default().to_vec(),
                fault,
            };
            match &command {
                Command::Subvol { .. } | Command::Snapshot { .. } => {
                    let protocol = reader.protocol().unwrap_or(Protocol::V1);
                    self.begin(&command, protocol, start).map_err(at)?;
                    open = true;
                }
                _ if !open => return Err(at(StreamFault::NoSubvolume)),
                Command::End => {
                    let part = self.parts.last_mut().expect("a subvolume is open");
                    part.complete = true;
                    open = false;
                }
                _ => self.apply(&command, start).map_err(at)?,
            }
            let part = self.parts.last_mut().expect("a subvolume was begun");
            part.count(&command);
            part.end = reader.offset();
            if self.budget.is_exceeded() {
                return Err(at(StreamFault::Memory(self.budget.limit())));
            }
        }
        self.streams += 1;
        Ok(())
    }

    /// Loads a stream from its outline, see [`super::input`].
    fn outline(&mut self, name: &str, outline: &[u8]) -> Result<(), StreamError> {
        let format = |error: SendStreamError| StreamError::Format { stream: name.to_owned(), source: error };
        let cut =
            |at: usize, need| format(SendStreamFault::Cut { need, have: outline.len() - at }.at(at as u64));
        let header = outline.first_chunk().ok_or_else(|| cut(0, STREAM_HEADER_SIZE))?;
        let protocol = Protocol::parse(header).map_err(format)?;
        let (mut at, mut open) = (STREAM_HEADER_SIZE, false);
        while at < outline.len() {
            let Some((offset, rest)) = outline[at..].split_first_chunk() else { return Err(cut(at, 8)) };
            let start = u64::from_le_bytes(*offset);
            let Some((header, rest)) = rest.split_first_chunk() else {
                return Err(cut(at, COMMAND_HEADER_SIZE));
            };
            let header = CommandHeader::parse(header, protocol, start).map_err(format)?;
            let bytes = rest.get(..header.length).ok_or_else(|| cut(at, header.length))?;
            let command = Command::parse(protocol, &header, bytes, start).map_err(format)?;
            at += 8 + COMMAND_HEADER_SIZE + header.length;
            let fail = |fault| StreamError::Command {
                stream: name.to_owned(),
                offset: start,
                command: command.kind(),
                path: command.paths()[0].unwrap_or_default().to_vec(),
                fault,
            };
            match &command {
                Command::Subvol { .. } | Command::Snapshot { .. } if !open => {
                    self.begin(&command, protocol, start).map_err(fail)?;
                    open = true;
                }
                _ if !open => return Err(fail(StreamFault::NoSubvolume)),
                Command::End => {
                    self.parts.last_mut().expect("a subvolume is open").complete = true;
                    open = false;
                }
                Command::UpdateExtent { path, offset, size } => {
                    let origin = Origin::Written { stream: self.streams, at: start, protocol, skip: 0 };
                    let part = self.parts.last_mut().expect("a subvolume is open");
                    let tree = part.tree.as_mut();
                    tree.map_or(Ok(()), |tree| tree.write(path, *offset, *size, origin)).map_err(fail)?;
                }
                _ => self.apply(&command, start).map_err(fail)?,
            }
            let part = self.parts.last_mut().expect("a subvolume was begun");
            part.count(&command);
            part.end = start + (COMMAND_HEADER_SIZE + header.length) as u64;
            if self.budget.is_exceeded() {
                return Err(fail(StreamFault::Memory(self.budget.limit())));
            }
        }
        self.streams += 1;
        Ok(())
    }

    fn begin(&mut self, command: &Command, protocol: Protocol, start: u64) -> Result<(), StreamFault> {
        let (name, identity, parent) = match command {
            Command::Snapshot { path, uuid, ctransid, clone_uuid, clone_ctransid } => {
                let parent = SentSubvolume { uuid: *clone_uuid, ctransid: Generation(*clone_ctransid) };
                (path, SentSubvolume { uuid: *uuid, ctransid: Generation(*ctransid) }, Some(parent))
            }
            Command::Subvol { path, uuid, ctransid } => {
                (path, SentSubvolume { uuid: *uuid, ctransid: Generation(*ctransid) }, None)
            }
            _ => return Err(StreamFault::NoSubvolume),
        };
        if matches!(&name[..], b"" | b"." | b"..") || name.contains(&b'/') {
            return Err(StreamFault::InvalidName(name.clone()));
        }
        if self.wanted.contains(&identity.uuid) {
            return Err(StreamFault::Later(identity.uuid));
        }
        if self.parts.iter().any(|part| part.identity == identity) {
            return Err(StreamFault::Twice(identity.uuid));
        }
        if self.parts.len() >= MOST_SUBVOLUMES {
            return Err(StreamFault::TooMany);
        }
        // With -e, senders leave out the end between subvolumes.
        if let Some(last) = self.parts.last_mut().filter(|last| last.stream == self.streams as usize) {
            last.complete = true;
        }
        let tree = match parent {
            None => Some(SentTree::new(&self.budget)),
            Some(parent) => self.parent_tree(name, parent),
        };
        self.parts.push(SentPart {
            name: name.clone(),
            identity,
            parent,
            stream: self.streams as usize,
            protocol,
            start,
            end: start,
            complete: false,
            commands: [0; CommandKind::ALL.len() + 1],
            written: 0,
            encoded: 0,
            decoded: 0,
            cloned: 0,
            tree: tree.filter(|_| self.options.trees),
            _charge: self.budget.charge(PART_BYTES),
        });
        Ok(())
    }

    /// Returns the subvolume with an identity. As for receivers, the UUID decides.
    fn position(&self, sent: SentSubvolume) -> Option<usize> {
        let exact = self.parts.iter().rposition(|part| part.identity == sent);
        exact.or_else(|| self.parts.iter().rposition(|part| part.identity.uuid == sent.uuid))
    }

    fn parent_tree(&mut self, name: &[u8], parent: SentSubvolume) -> Option<SentTree> {
        let Some(position) = self.position(parent) else {
            self.doubts.push(ChainDoubt::ParentMissing { name: name.to_vec(), parent });
            self.want(parent.uuid);
            return None;
        };
        let found = &self.parts[position];
        if found.identity.ctransid != parent.ctransid {
            let found = found.identity.ctransid;
            self.doubts.push(ChainDoubt::ParentChanged { name: name.to_vec(), parent, found });
        }
        self.parts[position].tree.clone()
    }

    fn want(&mut self, uuid: Uuid) {
        if !self.wanted.contains(&uuid) {
            self.wanted.push(uuid);
        }
    }

    fn apply(&mut self, command: &Command, start: u64) -> Result<(), StreamFault> {
        let part = self.parts.last_mut().expect("a subvolume is open");
        if let Command::EncodedWrite(write) = command {
            check_encoded(write, self.options.decompress)?;
        }
        if let Command::UpdateExtent { .. } = command {
            let doubt = ChainDoubt::NoData { name: part.name.clone() };
            if self.doubts.last() != Some(&doubt) {
                self.doubts.push(doubt);
            }
        }
        if let Command::Clone { .. } = command {
            return self.clone_range(command);
        }
        let origin = Origin::Written { stream: self.streams, at: start, protocol: part.protocol, skip: 0 };
        part.tree.as_mut().map_or(Ok(()), |tree| tree.apply(command, origin))
    }

    fn clone_range(&mut self, command: &Command) -> Result<(), StreamFault> {
        let Command::Clone { offset, length, path, clone_uuid, clone_ctransid, clone_path, clone_offset } =
            command
        else {
            return Err(StreamFault::NoSubvolume);
        };
        fits(*offset, *length)?;
        fits(*clone_offset, *length)?;
        let last = self.parts.len() - 1;
        let own = *clone_uuid == self.parts[last].identity.uuid;
        let sent = SentSubvolume { uuid: *clone_uuid, ctransid: Generation(*clone_ctransid) };
        let source = if own { Some(last) } else { self.position(sent) };
        let pieces: Vec<(u64, super::node::StreamPiece)> = match source.map(|source| &self.parts[source].tree)
        {
            Some(Some(tree)) => {
                let content = tree.content(clone_path)?;
                let end = clone_offset + length;
                if end > content.size {
                    let (offset, length) = (*clone_offset, *length);
                    return Err(StreamFault::Range { offset, length, source_file: true });
                }
                content.pieces(*clone_offset, end).collect()
            }
            Some(None) | None => {
                if self.absent.len() >= MOST_SUBVOLUMES {
                    return Err(StreamFault::TooMany);
                }
                let absent = self.absent(*clone_uuid, *length);
                let piece = super::node::StreamPiece { length: *length, origin: Origin::Absent(absent) };
                vec![(*clone_offset, piece)]
            }
        };
        let Some(tree) = &mut self.parts[last].tree else { return Ok(()) };
        tree.change(path, |content| {
            content.clear(*offset, offset + length);
            for (at, piece) in pieces {
                content.extents.insert(offset + (at - clone_offset), piece);
            }
            content.size = content.size.max(offset + length);
        })
    }

    /// Notes that bytes are cloned from a subvolume that the chain lacks. Returns its index.
    fn absent(&mut self, uuid: Uuid, length: u64) -> u32 {
        self.want(uuid);
        let name = &self.parts.last().expect("a subvolume is open").name;
        let known = self.doubts.iter_mut().rev().find_map(|doubt| match doubt {
            ChainDoubt::SourceMissing { name: known, source, bytes } if known == name && *source == uuid => {
                Some(bytes)
            }
            _ => None,
        });
        match known {
            Some(bytes) => *bytes = bytes.saturating_add(length),
            None => {
                let doubt = ChainDoubt::SourceMissing { name: name.clone(), source: uuid, bytes: length };
                self.doubts.push(doubt);
            }
        }
        let index = self.absent.iter().position(|known| *known == uuid).unwrap_or_else(|| {
            self.absent.push(uuid);
            self.absent.len() - 1
        });
        u32::try_from(index).expect("each needs a command")
    }
}

/// Checks the lengths of an encoded write, and its data if `decompress` is set.
fn check_encoded(write: &EncodedWrite, decompress: bool) -> Result<(), StreamFault> {
    let end = write.unencoded_offset.checked_add(write.file_length);
    if end.is_none_or(|end| end > write.unencoded_length) {
        return Err(StreamFault::Encoded("the range is not inside the encoded extent".into()));
    }
    match decompress {
        true => decode(write).map(drop).map_err(|error| StreamFault::Encoded(error.to_string())),
        false => Ok(()),
    }
}
