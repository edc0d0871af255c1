//! The bytes of files that lie in streams.
//!
//! Owns [`DataReader`]. It reads the commands that hold a range, and verifies their checksums
//! again.

use super::fault::StreamError;
use super::input::StreamInput;
use super::node::{Origin, StreamContent};
use crate::receive::decode;
use papilio_format::Uuid;
use papilio_format::send_stream::{Command, EncodedWrite};

/// Reads the data of files.
#[derive(Debug)]
pub(super) struct DataReader<'a> {
    inputs: &'a [StreamInput],
    absent: &'a [Uuid],
    /// The command that was read last: stream, byte, and its data.
    last: Option<(u32, u64, Payload)>,
}

/// The data of a write, and the compressed extent that it came from.
#[derive(Debug)]
struct Payload {
    bytes: Vec<u8>,
    encoded: Option<EncodedWrite>,
}

impl<'a> DataReader<'a> {
    pub(super) fn new(inputs: &'a [StreamInput], absent: &'a [Uuid]) -> Self {
        Self { inputs, absent, last: None }
    }

    /// Reads the bytes at `offset` of a file. Ranges without data are zeros.
    ///
    /// # Errors
    /// A stream that cannot be read or changed since; data that no stream of the chain has.
    pub(super) fn read(
        &mut self,
        content: &StreamContent,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), StreamError> {
        buffer.fill(0);
        for (at, piece) in content.pieces(offset, offset + buffer.len() as u64) {
            let part = (at - offset) as usize..(at - offset + piece.length) as usize;
            buffer[part].copy_from_slice(self.bytes(piece.origin, piece.length)?);
        }
        Ok(())
    }

    /// Returns the bytes of a range of one piece.
    pub(super) fn bytes(&mut self, origin: Origin, length: u64) -> Result<&[u8], StreamError> {
        let Origin::Written { stream, at, skip, .. } = origin else { return Err(self.missing(origin)) };
        let payload = self.payload(origin)?;
        let range = skip as usize..(skip + length) as usize;
        if range.end > payload.bytes.len() {
            let name = self.inputs[stream as usize].name();
            return Err(StreamError::Invalid(format!("{name}: byte {at}: the stream changed")));
        }
        Ok(&self.payload(origin)?.bytes[range])
    }

    /// Returns the encoded write that a piece came from, if it did.
    pub(super) fn encoded(&mut self, origin: Origin) -> Result<Option<&EncodedWrite>, StreamError> {
        Ok(self.payload(origin)?.encoded.as_ref())
    }

    fn missing(&self, origin: Origin) -> StreamError {
        StreamError::Invalid(match origin {
            Origin::Absent(source) => {
                let uuid = self.absent.get(source as usize).copied().unwrap_or_default();
                format!("the data lies in subvolume {uuid}, which the chain lacks")
            }
            _ => "the stream was made without data".into(),
        })
    }

    fn payload(&mut self, origin: Origin) -> Result<&Payload, StreamError> {
        let Origin::Written { stream, at, protocol, .. } = origin else { return Err(self.missing(origin)) };
        let known = self.last.as_ref().is_some_and(|(known, place, _)| (*known, *place) == (stream, at));
        if !known {
            let input = &self.inputs[stream as usize];
            let command = input.command_at(at, protocol);
            let command = command.map_err(|error| StreamError::in_stream(input.name(), error))?;
            let payload = match command {
                Command::Write { data, .. } => Payload { bytes: data, encoded: None },
                Command::EncodedWrite(write) => Payload {
                    bytes: decode(&write).map_err(|error| {
                        StreamError::Invalid(format!("{}: byte {at}: {error}", input.name()))
                    })?,
                    encoded: Some(write),
                },
                _ => {
                    return Err(StreamError::Invalid(format!(
                        "{}: byte {at}: the stream changed",
                        input.name()
                    )));
                }
            };
            self.last = Some((stream, at, payload));
        }
        Ok(&self.last.as_ref().expect("it was just read").2)
    }
}
