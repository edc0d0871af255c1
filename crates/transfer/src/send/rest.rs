//! The rest of a stream that the kernel or a server sends.
//!
//! Owns [`pass_rest`]. Such a sender cannot resume, so the commands that the receiver has are read
//! and compared with the token.

use crate::receive::{ResumeToken, SentSubvolume, StreamReader, outline_of, part_header};
use papilio_engine::errors::{Error, Result};
use papilio_format::Generation;
use papilio_format::send_stream::{Command, Protocol};
use std::io::{Read, Write};

/// Reads a stream from its start, and writes what follows the position of `token`.
///
/// # Errors
/// A token of another stream or of a snapshot that changed; an invalid stream; an error of `out`.
pub fn pass_rest(input: &mut dyn Read, token: ResumeToken, out: &mut dyn Write) -> Result<()> {
    let host = |source| Error::Host { path: "send stream".into(), source };
    let mut reader = StreamReader::new(input);
    let first = reader.next_command()?.ok_or_else(|| token.other_stream())?;
    let (uuid, ctransid) = match &first {
        Command::Subvol { uuid, ctransid, .. } | Command::Snapshot { uuid, ctransid, .. } => {
            (*uuid, Generation(*ctransid))
        }
        _ => return Err(token.other_stream()),
    };
    token.check(SentSubvolume { uuid, ctransid })?;
    let checksum = reader.checksum();
    let mut at = ResumeToken::start(token.subvolume, checksum, checksum);
    let protocol = reader.protocol().unwrap_or(Protocol::V1);
    while at.commands < token.commands {
        let command = reader.next_command()?.filter(|command| *command != Command::End);
        let command = command.ok_or_else(|| token.other_stream())?;
        let checksum = reader.checksum();
        at = at.after(checksum, outline_of(&command, checksum));
    }
    if !at.is_same(&token) {
        return Err(token.other_stream());
    }
    let mut start = part_header(protocol, &token);
    first.append_to(protocol, &mut start)?;
    out.write_all(&start).map_err(host)?;
    std::io::copy(input, out).map_err(host)?;
    out.flush().map_err(host)
}
