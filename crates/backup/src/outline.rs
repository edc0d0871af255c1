//! The outline of a stream: its commands without their data, and where each of them starts.
//!
//! Owns [`Outliner`], which makes the outline of a stream that passes by. The format is that of
//! `StreamInput::of_pieces`. With it, a backup's files are listed and found without its data.

use crate::error::{BackupError, Result};
use crate::manifest::BaseName;
use papilio::format::send_stream::{COMMAND_HEADER_SIZE, CommandHeader, STREAM_HEADER_SIZE};
use papilio::{SendCommand, SendProtocol, SendStreamError};

/// The facts that the first command of a stream gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamHead {
    /// The name of the subvolume.
    pub name: Vec<u8>,
    /// The snapshot.
    pub snapshot: BaseName,
    /// The snapshot that the stream is the difference from.
    pub base: Option<BaseName>,
}

/// Makes the outline of a stream of one subvolume.
#[derive(Debug, Default)]
pub struct Outliner {
    /// The bytes of the command that is not complete yet.
    buffer: Vec<u8>,
    /// Where the buffer starts in the stream.
    offset: u64,
    protocol: Option<SendProtocol>,
    head: Option<StreamHead>,
    has_ended: bool,
}

fn wrong(error: SendStreamError) -> BackupError {
    BackupError::Invalid(format!("send stream: {error}"))
}

impl Outliner {
    /// Takes the next bytes of the stream, and appends their outline to `outline`.
    ///
    /// # Errors
    /// The bytes are no stream of one subvolume, or a checksum is wrong.
    pub fn take(&mut self, bytes: &[u8], outline: &mut Vec<u8>) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        let mut at = 0;
        if self.protocol.is_none() {
            let Some(header) = self.buffer.first_chunk::<STREAM_HEADER_SIZE>() else { return Ok(()) };
            self.protocol = Some(SendProtocol::parse(header).map_err(wrong)?);
            outline.extend_from_slice(header);
            at = STREAM_HEADER_SIZE;
        }
        while let Some(length) = self.command(at, outline)? {
            at += length;
        }
        self.buffer.drain(..at);
        self.offset += at as u64;
        Ok(())
    }

    /// Takes the command at a place of the buffer, and returns its length, if it is complete.
    fn command(&mut self, at: usize, outline: &mut Vec<u8>) -> Result<Option<usize>> {
        let protocol = self.protocol.expect("the header was read");
        let Some((header, rest)) = self.buffer[at..].split_first_chunk::<COMMAND_HEADER_SIZE>() else {
            return match self.has_ended && at < self.buffer.len() {
                true => Err(BackupError::Invalid("send stream: more follows after its end".into())),
                false => Ok(None),
            };
        };
        let start = self.offset + at as u64;
        let header = CommandHeader::parse(header, protocol, start).map_err(wrong)?;
        let Some(attributes) = rest.get(..header.length) else { return Ok(None) };
        let command = SendCommand::parse(protocol, &header, attributes, start).map_err(wrong)?;
        let length = COMMAND_HEADER_SIZE + header.length;
        if self.has_ended
            || matches!(command, SendCommand::Subvol { .. } | SendCommand::Snapshot { .. })
                != self.head.is_none()
        {
            return Err(BackupError::Invalid(format!(
                "send stream: byte {start}: not the stream of one subvolume"
            )));
        }
        outline.extend(start.to_le_bytes());
        match &command {
            SendCommand::Write { path, offset, data } => {
                append_range(outline, protocol, path, *offset, data.len() as u64)?;
            }
            SendCommand::EncodedWrite(write) => {
                append_range(outline, protocol, &write.path, write.offset, write.file_length)?;
            }
            _ => outline.extend_from_slice(&self.buffer[at..at + length]),
        }
        match command {
            SendCommand::Subvol { path, uuid, ctransid } => {
                self.head =
                    Some(StreamHead { name: path, snapshot: BaseName { uuid, ctransid }, base: None });
            }
            SendCommand::Snapshot { path, uuid, ctransid, clone_uuid, clone_ctransid } => {
                let base = Some(BaseName { uuid: clone_uuid, ctransid: clone_ctransid });
                self.head = Some(StreamHead { name: path, snapshot: BaseName { uuid, ctransid }, base });
            }
            SendCommand::End => self.has_ended = true,
            _ => {}
        }
        Ok(Some(length))
    }

    /// Returns the facts of the first command.
    ///
    /// # Errors
    /// The stream is not complete.
    pub fn finish(self) -> Result<StreamHead> {
        let head = self.head.filter(|_| self.has_ended && self.buffer.is_empty());
        head.ok_or_else(|| BackupError::Invalid("send stream: it ends before its end command".into()))
    }
}

fn append_range(
    outline: &mut Vec<u8>,
    protocol: SendProtocol,
    path: &[u8],
    offset: u64,
    size: u64,
) -> Result<()> {
    let range = SendCommand::UpdateExtent { path: path.to_vec(), offset, size };
    range.append_to(protocol, outline).map_err(wrong)
}
