//! Reading a send stream command by command.
//!
//! Owns [`StreamReader`]. It holds one command in memory, whose length the format bounds.

use papilio_engine::errors::{Error, Result};
use papilio_format::send_stream::{
    COMMAND_HEADER_SIZE, Command, CommandHeader, Protocol, STREAM_HEADER_SIZE, SendStreamFault,
};
use std::io::Read;

/// Reads commands from a stream.
pub struct StreamReader<'a> {
    input: &'a mut dyn Read,
    /// Bytes read.
    offset: u64,
    protocol: Option<Protocol>,
    /// The checksum of the last command.
    checksum: u32,
    bytes: Vec<u8>,
}

impl<'a> StreamReader<'a> {
    /// Reads from `input`, which starts with the header of a stream.
    pub fn new(input: &'a mut dyn Read) -> Self {
        Self { input, offset: 0, protocol: None, checksum: 0, bytes: Vec::new() }
    }

    /// Returns the bytes read so far.
    pub fn offset(&self) -> u64 {
        self.offset
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
                let parsed = Protocol::parse(&header);
                let protocol = parsed.map_err(|error| error.fault.at(start + error.offset))?;
                self.protocol = Some(protocol);
                protocol
            }
        };
        let start = self.offset;
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
