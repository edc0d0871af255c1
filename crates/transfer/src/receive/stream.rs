//! Reading a send stream command by command.
//!
//! Owns [`StreamReader`]. It holds one command in memory, whose length the format bounds.
//!
//! The *rest* of a stream is what a sender writes that resumes: a header of its own, the token, the
//! command that begins the subvolume, and the commands behind the position of the token. Other
//! receivers refuse its magic. The header has, in little endian: magic (13), version of the
//! protocol (4), length of the token (2), token.

use super::position::ResumeToken;
use papilio_engine::errors::{Error, Result};
use papilio_format::send_stream::{
    COMMAND_HEADER_SIZE, Command, CommandHeader, MAGIC, Protocol, STREAM_HEADER_SIZE, SendStreamFault,
};
use std::io::Read;

/// The first bytes of the rest of a stream.
const REST_MAGIC: [u8; 13] = *b"papilio-part\0";
/// The most bytes of a token.
const LONGEST_TOKEN: usize = 256;

/// Returns the header of the rest of a stream.
pub(crate) fn part_header(protocol: Protocol, token: &ResumeToken) -> Vec<u8> {
    let token = token.to_note();
    let mut header = REST_MAGIC.to_vec();
    header.extend((protocol as u32).to_le_bytes());
    header.extend((token.len() as u16).to_le_bytes());
    header.extend(token);
    header
}

/// Reads commands from a stream.
pub struct StreamReader<'a> {
    input: &'a mut dyn Read,
    /// Bytes read.
    offset: u64,
    /// Where the last command starts.
    command_offset: u64,
    protocol: Option<Protocol>,
    /// The checksum of the last command.
    checksum: u32,
    bytes: Vec<u8>,
    takes_rests: bool,
    /// The token of the rest whose header was read last.
    rest: Option<ResumeToken>,
}

impl<'a> StreamReader<'a> {
    /// Reads from `input`, which starts with the header of a stream.
    pub fn new(input: &'a mut dyn Read) -> Self {
        Self {
            input,
            offset: 0,
            command_offset: 0,
            protocol: None,
            checksum: 0,
            bytes: Vec::new(),
            takes_rests: false,
            rest: None,
        }
    }

    /// Chooses whether the rest of a stream is read like a stream.
    pub(super) fn take_rests(self, takes_rests: bool) -> Self {
        Self { takes_rests, ..self }
    }

    /// Takes the token of the rest that the last command begins.
    pub(super) fn take_rest(&mut self) -> Option<ResumeToken> {
        self.rest.take()
    }

    /// Returns the bytes read so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns where the last command starts, in bytes from the start of the input.
    pub fn command_offset(&self) -> u64 {
        self.command_offset
    }

    /// Returns the protocol of the stream that is being read. There is none between two streams.
    pub fn protocol(&self) -> Option<Protocol> {
        self.protocol
    }

    /// Returns the checksum of the last command, which covers all its bytes.
    pub fn checksum(&self) -> u32 {
        self.checksum
    }

    /// Reads the next command. Reads the header first at the start of a stream, which is where the
    /// input begins and after each [`Command::End`]. Returns `None` where the input ends between
    /// two streams.
    ///
    /// # Errors
    /// [`Error::SendStream`] with the place in the input; [`Error::Host`].
    pub fn next_command(&mut self) -> Result<Option<Command>> {
        let protocol = match self.protocol {
            Some(protocol) => protocol,
            None => {
                let mut header = [0; STREAM_HEADER_SIZE];
                let start = self.offset;
                if !self.fill(&mut header, start > 0)? {
                    return Ok(None);
                }
                if header.starts_with(&REST_MAGIC) {
                    header[..REST_MAGIC.len()].copy_from_slice(&MAGIC);
                    self.read_token(start)?;
                }
                let parsed = Protocol::parse(&header);
                let protocol = parsed.map_err(|error| error.fault.at(start + error.offset))?;
                self.protocol = Some(protocol);
                protocol
            }
        };
        let start = self.offset;
        self.command_offset = start;
        let mut header = [0; COMMAND_HEADER_SIZE];
        self.fill(&mut header, false)?;
        let header = CommandHeader::parse(&header, protocol, start)?;
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.resize(header.length, 0);
        self.fill(&mut bytes, false)?;
        let command = Command::parse(protocol, &header, &bytes, start)?;
        self.bytes = bytes;
        self.checksum = header.crc;
        if command == Command::End {
            self.protocol = None;
        }
        Ok(Some(command))
    }

    /// Reads the token of a rest, whose header starts at `start`.
    fn read_token(&mut self, start: u64) -> Result<()> {
        if !self.takes_rests {
            return Err(Error::Invalid(format!(
                "send stream, byte {start}: the rest of an interrupted stream, which only receive \
                 --resume takes"
            )));
        }
        let mut length = [0; 2];
        self.fill(&mut length, false)?;
        let length = usize::from(u16::from_le_bytes(length));
        let mut token = vec![0; length.min(LONGEST_TOKEN)];
        self.fill(&mut token, false)?;
        let token = ResumeToken::parse(&token).filter(|_| length <= LONGEST_TOKEN);
        let wrong = || Error::Invalid(format!("send stream, byte {start}: the token is not valid"));
        self.rest = Some(token.ok_or_else(wrong)?);
        Ok(())
    }

    /// Fills `buffer`. Returns false if the input ends before the first byte and `may_end` is set.
    fn fill(&mut self, buffer: &mut [u8], may_end: bool) -> Result<bool> {
        let start = self.offset;
        let mut have = 0;
        while have < buffer.len() {
            match self.input.read(&mut buffer[have..]) {
                Ok(0) if have == 0 && may_end => return Ok(false),
                Ok(0) => return Err(SendStreamFault::Cut { need: buffer.len(), have }.at(start).into()),
                Ok(count) => {
                    have += count;
                    self.offset += count as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Host { path: "send stream".into(), source }),
            }
        }
        Ok(true)
    }
}
