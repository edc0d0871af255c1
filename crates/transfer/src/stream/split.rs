//! One stream for each subvolume.
//!
//! Owns [`split`]. The commands are copied byte by byte. Where a sender left out the header or the
//! end between two subvolumes, they are added.

use super::chain::StreamChain;
use super::fault::StreamError;
use super::join::WrittenStream;
use papilio_format::send_stream::{Command, CommandKind};
use std::io::{self, Write};

/// Writes the stream of one subvolume of a chain to `out`.
///
/// # Errors
/// The stream cannot be read, or `out` not be written.
pub fn split(chain: &StreamChain, part: usize, out: &mut dyn Write) -> Result<WrittenStream, StreamError> {
    let part = &chain.parts()[part];
    let input = &chain.inputs()[part.stream];
    let header = part.protocol.header();
    let mut end = Vec::new();
    if part.count_of(CommandKind::End) == 0 {
        let appended = Command::End.append_to(part.protocol, &mut end);
        appended.map_err(|source| StreamError::Format { stream: input.name().into(), source })?;
    }
    let mut bytes = input.range(part.start, part.end);
    let copied = out.write_all(&header).and_then(|()| io::copy(&mut bytes, out));
    let written = copied.and_then(|copied| {
        out.write_all(&end)?;
        out.flush()?;
        Ok(copied)
    });
    let copied = written.map_err(|source| StreamError::host("send stream", source))?;
    if copied != part.end - part.start {
        return Err(StreamError::Invalid(format!("{}: the file was cut while it was read", input.name())));
    }
    let bytes = (header.len() + end.len()) as u64 + copied;
    Ok(WrittenStream { commands: part.command_count() + u64::from(!end.is_empty()), bytes })
}
