//! A chain as one stream.
//!
//! Owns [`JoinOptions`]. There are two ways:
//! - The chain begins with a full stream: the tree of the last subvolume becomes a new full stream,
//!   which has no data that a later subvolume replaced.
//! - The chain begins with an incremental stream: its commands, and those of the streams after it,
//!   become one stream from the first parent to the last subvolume. A clone whose source is a
//!   subvolume in between, which the receiver will not have, reads a temporary file instead. That
//!   file is made where the subvolume in between is complete, and removed at the end.

use super::chain::{SentPart, StreamChain};
use super::emit::{Emit, EmitOptions};
use super::fault::StreamError;
use crate::receive::{SentSubvolume, StreamReader, decode};
use crate::send::StreamWriter;
use papilio_format::send_stream::{Command, Protocol, WRITE_SIZE};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};

/// How a chain is joined.
#[derive(Clone, Debug, Default)]
pub struct JoinOptions {
    protocol: Option<Protocol>,
    decompress: bool,
    name: Option<Vec<u8>>,
}

/// A stream that was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WrittenStream {
    /// Commands.
    pub commands: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The files of one subvolume from which later ones clone, by path.
type Borrowed = BTreeMap<Vec<u8>, BorrowedFile>;

/// A file from which later subvolumes clone.
#[derive(Clone, Debug)]
struct BorrowedFile {
    /// The number of its temporary file.
    number: usize,
    /// Offset and length.
    ranges: BTreeSet<(u64, u64)>,
}

impl JoinOptions {
    /// Joins into the highest protocol of the streams, with encoded writes as they are.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses the protocol. Protocol 1 has no encoded writes, so they are decompressed.
    pub fn protocol(mut self, protocol: Option<Protocol>) -> Self {
        self.protocol = protocol;
        self
    }

    /// Decompresses encoded writes.
    pub fn decompress(mut self, decompress: bool) -> Self {
        self.decompress = decompress;
        self
    }

    /// Names the subvolume; without it, it keeps the name of the last one.
    pub fn name(mut self, name: Option<Vec<u8>>) -> Self {
        self.name = name;
        self
    }

    /// Writes the subvolume with index `last` of `chain` as one stream.
    ///
    /// # Errors
    /// A chain that is no sequence of parents and children; data that the chain lacks; an error of
    /// `out`.
    pub fn join(
        &self,
        chain: &StreamChain,
        last: usize,
        out: &mut dyn Write,
    ) -> Result<WrittenStream, StreamError> {
        let highest = chain.parts().iter().map(|part| part.protocol).max().unwrap_or(Protocol::V1);
        let protocol = self.protocol.unwrap_or(highest);
        let mut writer = StreamWriter::new(out, protocol, true);
        let part = &chain.parts()[last];
        let name = self.name.clone().unwrap_or_else(|| part.name.clone());
        if part.tree.is_some() {
            let options = EmitOptions {
                name,
                identity: part.identity,
                second_protocol: protocol >= Protocol::V2,
                encoded: protocol >= Protocol::V2 && !self.decompress,
                owners: true,
                within: &[],
            };
            let mut put = |command: &Command| writer.put(command).map_err(StreamError::Other);
            Emit::new(chain, last, options, &mut put)?.run()?;
        } else {
            let parts = sequence(chain, last)?;
            let decompress = self.decompress || protocol < Protocol::V2;
            Concatenation::new(chain, parts, name, decompress)?.write(&mut writer)?;
        }
        writer.flush().map_err(StreamError::Other)?;
        Ok(WrittenStream { commands: writer.commands(), bytes: writer.bytes() })
    }
}

/// Returns the subvolumes from the one whose parent the chain lacks to `last`, each the parent of
/// the next.
fn sequence(chain: &StreamChain, last: usize) -> Result<Vec<&SentPart>, StreamError> {
    let mut parts = vec![&chain.parts()[last]];
    loop {
        let first = parts.last().expect("it has the last one");
        let Some(parent) = first.parent else {
            return Err(StreamError::Invalid("a full stream has no tree".into()));
        };
        match chain.parts().iter().rfind(|part| part.identity.uuid == parent.uuid) {
            // A subvolume is begun after its parent, so this ends.
            Some(found) => parts.push(found),
            None => break,
        }
    }
    parts.reverse();
    Ok(parts)
}

/// Incremental streams that become one.
struct Concatenation<'a> {
    chain: &'a StreamChain,
    parts: Vec<&'a SentPart>,
    name: Vec<u8>,
    decompress: bool,
    /// For each subvolume but the last, the ranges that later ones clone from it.
    borrowed: Vec<Borrowed>,
    /// The times of the root at the end, if they were sent.
    root_times: Option<Command>,
}

impl<'a> Concatenation<'a> {
    /// Reads all parts once, to find the ranges that are cloned from subvolumes in between.
    fn new(
        chain: &'a StreamChain,
        parts: Vec<&'a SentPart>,
        name: Vec<u8>,
        decompress: bool,
    ) -> Result<Self, StreamError> {
        let borrowed = vec![Borrowed::new(); parts.len()];
        let mut this = Self { chain, parts, name, decompress, borrowed, root_times: None };
        for index in 0..this.parts.len() {
            let mut borrowed = std::mem::take(&mut this.borrowed);
            let mut times = this.root_times.take();
            this.for_each(index, &mut |command| {
                if let Command::Clone { clone_uuid, clone_path, clone_offset, length, .. } = command
                    && let Some(source) = this.between(index, *clone_uuid)
                {
                    let number = borrowed[source].len();
                    let file = borrowed[source]
                        .entry(clone_path.clone())
                        .or_insert_with(|| BorrowedFile { number, ranges: BTreeSet::new() });
                    file.ranges.insert((*clone_offset, *length));
                }
                if let Command::Utimes { path, .. } = command
                    && path.is_empty()
                {
                    times = Some(command.clone());
                }
                Ok(())
            })?;
            this.borrowed = borrowed;
            this.root_times = times;
        }
        let borrows = this.borrowed.iter().any(|borrowed| !borrowed.is_empty());
        if borrows && this.root_times.is_none() {
            let text = "joining needs temporary files, and no stream has the times of the root: \
                        give the chain from its full stream";
            return Err(StreamError::Invalid(text.into()));
        }
        Ok(this)
    }

    /// Returns the index of an earlier subvolume of the sequence.
    fn between(&self, index: usize, uuid: papilio_format::Uuid) -> Option<usize> {
        self.parts[..index].iter().rposition(|part| part.identity.uuid == uuid)
    }

    fn last(&self) -> &'a SentPart {
        self.parts.last().expect("a sequence has a subvolume")
    }

    /// Calls `each` for the commands of a subvolume between the first and the end.
    fn for_each(
        &self,
        index: usize,
        each: &mut dyn FnMut(&Command) -> Result<(), StreamError>,
    ) -> Result<(), StreamError> {
        let part = self.parts[index];
        let input = &self.chain.inputs()[part.stream];
        let at = |error| StreamError::in_stream(input.name(), error);
        let header = part.protocol.header();
        let mut bytes = (&header[..]).chain(input.range(part.start, part.end));
        let mut reader = StreamReader::new(&mut bytes);
        // The first command begins the subvolume.
        reader.next_command().map_err(at)?;
        // Where senders leave out the end, the bytes end between two commands.
        let length = header.len() as u64 + part.end - part.start;
        while reader.offset() < length {
            match reader.next_command().map_err(at)? {
                Some(Command::End) | None => break,
                Some(command) => each(&command)?,
            }
        }
        Ok(())
    }

    /// Returns the path of the temporary file for a file of subvolume `source`.
    fn temporary(&self, source: usize, path: &[u8]) -> Vec<u8> {
        let number = self.borrowed[source].get(path).map_or(0, |file| file.number);
        let uuid = self.last().identity.uuid;
        format!(".papilio-join-{uuid}-{source}-{number}").into_bytes()
    }

    fn write(&self, writer: &mut StreamWriter<'_>) -> Result<(), StreamError> {
        let SentSubvolume { uuid, ctransid } = self.last().identity;
        let parent = self.parts[0].parent.expect("a sequence begins with an incremental stream");
        put(
            writer,
            &Command::Snapshot {
                path: self.name.clone(),
                uuid,
                ctransid: ctransid.0,
                clone_uuid: parent.uuid,
                clone_ctransid: parent.ctransid.0,
            },
        )?;
        for index in 0..self.parts.len() {
            self.for_each(index, &mut |command| self.pass(index, command, writer))?;
            for (path, file) in &self.borrowed[index] {
                let temporary = self.temporary(index, path);
                put(writer, &Command::Mkfile { path: temporary.clone(), inode: 0 })?;
                for &(offset, length) in &file.ranges {
                    put(
                        writer,
                        &Command::Clone {
                            offset,
                            length,
                            path: temporary.clone(),
                            clone_uuid: uuid,
                            clone_ctransid: ctransid.0,
                            clone_path: path.clone(),
                            clone_offset: offset,
                        },
                    )?;
                }
            }
        }
        let mut borrows = false;
        for (index, borrowed) in self.borrowed.iter().enumerate() {
            for path in borrowed.keys() {
                borrows = true;
                put(writer, &Command::Unlink { path: self.temporary(index, path) })?;
            }
        }
        if let Some(times) = self.root_times.as_ref().filter(|_| borrows) {
            put(writer, times)?;
        }
        put(writer, &Command::End)
    }

    /// Writes a command of a subvolume, changed where it names a subvolume of the sequence.
    fn pass(
        &self,
        index: usize,
        command: &Command,
        writer: &mut StreamWriter<'_>,
    ) -> Result<(), StreamError> {
        let SentSubvolume { uuid, ctransid } = self.last().identity;
        let own = self.parts[index].identity.uuid;
        let changed;
        let command = match command {
            Command::Clone { offset, length, path, clone_uuid, clone_path, clone_offset, .. } => {
                let clone_path = match self.between(index, *clone_uuid) {
                    _ if *clone_uuid == own => clone_path.clone(),
                    Some(source) => self.temporary(source, clone_path),
                    None => return put(writer, command),
                };
                changed = Command::Clone {
                    offset: *offset,
                    length: *length,
                    path: path.clone(),
                    clone_uuid: uuid,
                    clone_ctransid: ctransid.0,
                    clone_path,
                    clone_offset: *clone_offset,
                };
                &changed
            }
            Command::EncodedWrite(write) if self.decompress => {
                let data = decode(write).map_err(StreamError::Other)?;
                for (number, part) in data.chunks(WRITE_SIZE).enumerate() {
                    let offset = write.offset + (number * WRITE_SIZE) as u64;
                    put(writer, &Command::Write { path: write.path.clone(), offset, data: part.to_vec() })?;
                }
                return Ok(());
            }
            other => other,
        };
        put(writer, command)
    }
}

fn put(writer: &mut StreamWriter<'_>, command: &Command) -> Result<(), StreamError> {
    writer.put(command).map_err(StreamError::Other)
}
