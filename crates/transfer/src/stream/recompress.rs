//! A stream in another protocol, compression, or with another parent.
//!
//! Owns [`Recompress`]. It reads a stream from its start to its end and keeps the order of
//! commands, so it also works on pipes. At most one extent's data is held.
//!
//! **Losses of protocol 1:** a hole becomes zeros, an encoded write plain data, the creation time
//! goes. Other modes of `fallocate` are refused.

use super::fault::{StreamError, StreamFault};
use super::join::WrittenStream;
use crate::receive::{StreamReader, decode};
use crate::send::StreamWriter;
use papilio_engine::data::{compress, number_of_compression};
use papilio_engine::options::CompressionChoice;
use papilio_engine::tuning::VerifyCompression;
use papilio_format::items::file_extent::{Compression, MAX_UNCOMPRESSED};
use papilio_format::send_stream::{Command, EncodedWrite, Protocol, WRITE_SIZE};
use papilio_format::{Generation, Uuid};
use std::io::{Read, Write};

/// Bytes that the ranges of encoded writes are multiples of.
const SECTOR: u32 = 4096;
/// `FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE`.
const PUNCH_HOLE: u32 = 3;
/// The longest hole that becomes zeros.
const LONGEST_HOLE: u64 = 16 << 30;

/// The treatment of compressed and of plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recompression {
    /// Both stay as they are.
    Keep,
    /// All data becomes plain.
    Decompress,
    /// Plain data becomes encoded writes where that makes it smaller; encoded writes of another
    /// algorithm are compressed anew.
    Compress(CompressionChoice),
}

/// Rewrites streams.
#[derive(Clone, Debug)]
pub struct Recompress {
    protocol: Option<Protocol>,
    compression: Recompression,
    parents: Vec<(Uuid, Uuid, Option<Generation>)>,
}

impl Default for Recompress {
    fn default() -> Self {
        Self::new()
    }
}

impl Recompress {
    /// Changes nothing.
    pub const fn new() -> Self {
        Self { protocol: None, compression: Recompression::Keep, parents: Vec::new() }
    }

    /// Chooses the protocol; without it, each stream keeps its own, or gets protocol 2 if it is
    /// compressed.
    pub fn protocol(mut self, protocol: Option<Protocol>) -> Self {
        self.protocol = protocol;
        self
    }

    /// Chooses the treatment of the data.
    pub fn compression(mut self, compression: Recompression) -> Self {
        self.compression = compression;
        self
    }

    /// Names the parent or the source of clones with UUID `from` by another UUID, such as the one
    /// that the same snapshot has at another receiver, and by another transaction if one is given.
    pub fn parent(mut self, from: Uuid, to: Uuid, ctransid: Option<Generation>) -> Self {
        self.parents.push((from, to, ctransid));
        self
    }

    /// Rewrites all streams of `input`.
    ///
    /// # Errors
    /// A stream that is invalid, or that the protocol cannot express; an error of `out`.
    pub fn rewrite(
        &self,
        name: &str,
        input: &mut dyn Read,
        out: &mut dyn Write,
    ) -> Result<WrittenStream, StreamError> {
        let compresses = matches!(self.compression, Recompression::Compress(_));
        if compresses && self.protocol == Some(Protocol::V1) {
            return Err(StreamError::Invalid("compressed data needs protocol 2".into()));
        }
        let mut reader = StreamReader::new(input);
        let mut written = WrittenStream::default();
        let mut stream: Option<Rewrite<'_, '_>> = None;
        let mut out = Some(out);
        loop {
            let command = reader.next_command().map_err(|error| StreamError::in_stream(name, error))?;
            let Some(command) = command else { break };
            let rewrite = match &mut stream {
                Some(rewrite) => rewrite,
                none => {
                    let own = reader.protocol().unwrap_or(Protocol::V2);
                    let protocol = match self.protocol {
                        Some(protocol) => protocol,
                        None if compresses => Protocol::V2,
                        None => own,
                    };
                    let out = out.take().expect("the writer of the last stream gave it back");
                    let writer = StreamWriter::new(out, protocol, true);
                    none.insert(Rewrite { options: self, writer, plain: None })
                }
            };
            let at = |fault| StreamError::Command {
                stream: name.to_owned(),
                offset: reader.command_offset(),
                command: command.kind(),
                path: command.paths()[0].unwrap_or_default().to_vec(),
                fault,
            };
            rewrite.pass(&command).map_err(|refused| match refused {
                Refused::Fault(fault) => at(fault),
                Refused::Error(error) => error,
            })?;
            if command == Command::End
                && let Some(mut ended) = stream.take()
            {
                ended.flush()?;
                written.commands += ended.writer.commands();
                written.bytes += ended.writer.bytes();
                out = Some(ended.writer.into_inner());
            }
        }
        if let Some(mut rest) = stream {
            rest.flush()?;
            written.commands += rest.writer.commands();
            written.bytes += rest.writer.bytes();
        }
        Ok(written)
    }
}

/// The reason why a command is not passed on.
enum Refused {
    Fault(StreamFault),
    Error(StreamError),
}

impl From<StreamError> for Refused {
    fn from(error: StreamError) -> Self {
        Self::Error(error)
    }
}

/// One stream on its way.
struct Rewrite<'r, 'o> {
    options: &'r Recompress,
    writer: StreamWriter<'o>,
    /// Adjacent plain data of one file that is to be compressed.
    plain: Option<PlainRun>,
}

struct PlainRun {
    path: Vec<u8>,
    offset: u64,
    data: Vec<u8>,
}

impl Rewrite<'_, '_> {
    fn put(&mut self, command: &Command) -> Result<(), StreamError> {
        self.writer.put(command).map_err(StreamError::Other)
    }

    fn flush(&mut self) -> Result<(), StreamError> {
        self.flush_plain()?;
        self.writer.flush().map_err(StreamError::Other)
    }

    fn pass(&mut self, command: &Command) -> Result<(), Refused> {
        match command {
            Command::Write { path, offset, data } => return Ok(self.data(path, *offset, data)?),
            Command::EncodedWrite(write) => return self.encoded(write),
            _ => self.flush_plain()?,
        }
        let first = self.writer.protocol() == Protocol::V1;
        match command {
            Command::Fallocate { path, mode: PUNCH_HOLE, offset, size } if first => {
                if *size > LONGEST_HOLE {
                    let (offset, length) = (*offset, *size);
                    return Err(Refused::Fault(StreamFault::Range { offset, length, source_file: false }));
                }
                let mut done = 0;
                while done < *size {
                    let length = (size - done).min(WRITE_SIZE as u64);
                    let (path, data) = (path.clone(), vec![0; length as usize]);
                    self.put(&Command::Write { path, offset: offset + done, data })?;
                    done += length;
                }
                Ok(())
            }
            Command::Fallocate { mode, .. } if first => {
                Err(Refused::Fault(StreamFault::FallocateMode(*mode)))
            }
            // No receiver applies it.
            Command::Fileattr { .. } if first => Ok(()),
            Command::Utimes { path, atime, mtime, ctime, otime: None } if !first => {
                let (path, atime, mtime, ctime) = (path.clone(), *atime, *mtime, *ctime);
                let otime = Some(ctime);
                Ok(self.put(&Command::Utimes { path, atime, mtime, ctime, otime })?)
            }
            other => Ok(self.put(&self.renamed(other))?),
        }
    }

    /// Returns a command with other identities of subvolumes.
    fn renamed(&self, command: &Command) -> Command {
        let mut command = command.clone();
        if let Command::Snapshot { clone_uuid, clone_ctransid, .. }
        | Command::Clone { clone_uuid, clone_ctransid, .. } = &mut command
            && let Some((_, to, other)) = self.options.parents.iter().find(|(from, ..)| from == clone_uuid)
        {
            *clone_uuid = *to;
            *clone_ctransid = other.map_or(*clone_ctransid, |other| other.0);
        }
        command
    }

    fn encoded(&mut self, write: &EncodedWrite) -> Result<(), Refused> {
        let keeps = match self.options.compression {
            Recompression::Keep => self.writer.protocol() >= Protocol::V2,
            Recompression::Decompress => false,
            Recompression::Compress(choice) => {
                write.compression != 0
                    && write.compression == number_of_compression(choice.algorithm(), SECTOR)
            }
        };
        if keeps {
            self.flush_plain()?;
            return Ok(self.put(&Command::EncodedWrite(write.clone()))?);
        }
        let data = decode(write).map_err(|error| Refused::Fault(StreamFault::Encoded(error.to_string())))?;
        Ok(self.data(&write.path, write.offset, &data)?)
    }

    /// Takes plain data.
    fn data(&mut self, path: &[u8], offset: u64, data: &[u8]) -> Result<(), StreamError> {
        if !matches!(self.options.compression, Recompression::Compress(_)) {
            let limit = self.most_plain();
            for (number, part) in data.chunks(limit).enumerate() {
                let (path, offset) = (path.to_vec(), offset + (number * limit) as u64);
                self.put(&Command::Write { path, offset, data: part.to_vec() })?;
            }
            return Ok(());
        }
        let (mut offset, mut data) = (offset, data);
        while !data.is_empty() {
            let continues = self
                .plain
                .as_ref()
                .is_some_and(|plain| plain.path == path && plain.offset + plain.data.len() as u64 == offset);
            if !continues {
                self.flush_plain()?;
            }
            let plain =
                self.plain.get_or_insert_with(|| PlainRun { path: path.to_vec(), offset, data: Vec::new() });
            let room = MAX_UNCOMPRESSED as usize - plain.data.len();
            let (part, rest) = data.split_at(room.min(data.len()));
            plain.data.extend_from_slice(part);
            offset += part.len() as u64;
            data = rest;
            if plain.data.len() as u64 == MAX_UNCOMPRESSED {
                self.flush_plain()?;
            }
        }
        Ok(())
    }

    /// Returns the most bytes of a plain write.
    fn most_plain(&self) -> usize {
        match self.writer.protocol() {
            Protocol::V1 => WRITE_SIZE,
            _ => MAX_UNCOMPRESSED as usize,
        }
    }

    /// Writes the data that is collected: compressed, if that is smaller.
    fn flush_plain(&mut self) -> Result<(), StreamError> {
        let Some(PlainRun { path, offset, data }) = self.plain.take() else { return Ok(()) };
        if let Recompression::Compress(choice) = self.options.compression
            && choice.algorithm() != Compression::None
            && offset.is_multiple_of(u64::from(SECTOR))
        {
            let mut packed = Vec::new();
            if compress(choice, &data, &mut packed, SECTOR, VerifyCompression::default()) {
                let length = data.len() as u64;
                return self.put(&Command::EncodedWrite(EncodedWrite {
                    path,
                    offset,
                    file_length: length,
                    unencoded_length: length,
                    unencoded_offset: 0,
                    compression: number_of_compression(choice.algorithm(), SECTOR),
                    encryption: Some(0),
                    data: packed,
                }));
            }
        }
        self.put(&Command::Write { path, offset, data })
    }
}
