//! The handshake: the client negotiates options, and chooses the export.
//!
//! Owns [`negotiate`]. The state machine has two states:
//!
//! ```text
//! greeting --client flags--> options --GO, EXPORT_NAME--> transmission
//!                              |  ^
//!                              +--+ any other option; ABORT and bad input end the connection
//! ```
//!
//! With TLS, options before `STARTTLS` get a refusal. After it the client negotiates anew, so that
//! nothing counts which somebody between the two has put in before.
//!
//! **Invariants**
//! - Nothing that a client sends here reaches the device.
//! - A client of a server with TLS learns nothing of the export before it has a channel.
//! - The data of an option are at most [`MAX_OPTION`] bytes in memory; more are refused.

use crate::export::Export;
use crate::protocol::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, FIXED_NEWSTYLE, MAX_OPTION, MAX_PAYLOAD, NO_ZEROES, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, SERVER_MAGIC, info, option, option_reply, u16_at, u32_at, u64_at,
};
use crate::stream::{Stream, Tls};
use std::io::{self, Read, Write};

/// The most options of one client.
const MAX_OPTIONS: usize = 1000;

/// The agreement of client and server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// Whether replies are structured.
    pub structured: bool,
    /// Whether the client may ask for `base:allocation`.
    pub block_status: bool,
}

/// The end of an option.
enum Next {
    /// Another option follows.
    Option,
    /// Transmission begins.
    Transmission,
    /// The connection ends.
    End,
}

/// Negotiates with a client. Returns `None` if the client ends the connection or breaks the
/// protocol.
pub(crate) fn negotiate(
    stream: &Stream,
    export: &Export,
    shared: bool,
    tls: Option<&dyn Tls>,
) -> io::Result<Option<Agreement>> {
    let agreed = Agreement::default();
    let mut session = Handshake { stream, export, shared, tls, no_zeroes: false, agreed };
    if !session.greet()? {
        return Ok(None);
    }
    for _ in 0..MAX_OPTIONS {
        match session.option()? {
            Next::Option => {}
            Next::Transmission => return Ok(Some(session.agreed)),
            Next::End => return Ok(None),
        }
    }
    Ok(None)
}

struct Handshake<'a> {
    stream: &'a Stream,
    export: &'a Export,
    /// Whether several connections are allowed.
    shared: bool,
    /// Without a channel of it, a client is not served.
    tls: Option<&'a dyn Tls>,
    /// Whether the client does without padding after EXPORT_NAME.
    no_zeroes: bool,
    agreed: Agreement,
}

impl Handshake<'_> {
    fn greet(&mut self) -> io::Result<bool> {
        let mut greeting = Vec::with_capacity(18);
        greeting.extend(SERVER_MAGIC.to_be_bytes());
        greeting.extend(OPTION_MAGIC.to_be_bytes());
        greeting.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
        self.stream.write_all(&greeting)?;
        let mut flags = [0; 4];
        self.stream.read_exact(&mut flags)?;
        let flags = u32_at(&flags, 0);
        self.no_zeroes = flags & u32::from(NO_ZEROES) != 0;
        // A client with flags that the server did not offer is to be disconnected.
        Ok(flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) == 0)
    }

    fn option(&mut self) -> io::Result<Next> {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header)?;
        if u64_at(&header, 0) != OPTION_MAGIC {
            return Ok(Next::End);
        }
        let (option, length) = (u32_at(&header, 8), u32_at(&header, 12));
        if length > MAX_OPTION {
            // More than any payload is no option, but a client that lost its place.
            if length > MAX_PAYLOAD || option == option::EXPORT_NAME {
                return Ok(Next::End);
            }
            skip(self.stream, length)?;
            return self.reply(option, option_reply::TOO_BIG, &[]);
        }
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data)?;
        if let Some(tls) = self.tls
            && !self.stream.is_secure()
        {
            match option {
                option::STARTTLS => return self.start_tls(tls, &data),
                option::ABORT => {}
                // This option has no reply for errors.
                option::EXPORT_NAME => return Ok(Next::End),
                _ => return self.reply(option, option_reply::TLS_REQUIRED, &[]),
            }
        }
        match option {
            option::EXPORT_NAME => self.export_name(&data),
            option::ABORT => {
                // The client may be gone without the reply.
                let _ = self.reply(option, option_reply::ACK, &[]);
                Ok(Next::End)
            }
            // The client has a channel.
            option::STARTTLS if self.tls.is_some() => self.reply(option, option_reply::INVALID, &[]),
            option::LIST => self.list(&data),
            option::INFO | option::GO => self.info(option, &data),
            option::STRUCTURED_REPLY => {
                if !data.is_empty() {
                    return self.reply(option, option_reply::INVALID, &[]);
                }
                self.agreed.structured = true;
                self.reply(option, option_reply::ACK, &[])
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(option, &data),
            _ => self.reply(option, option_reply::UNSUPPORTED, &[]),
        }
    }

    fn start_tls(&mut self, tls: &dyn Tls, data: &[u8]) -> io::Result<Next> {
        if !data.is_empty() {
            return self.reply(option::STARTTLS, option_reply::INVALID, &[]);
        }
        self.reply(option::STARTTLS, option_reply::ACK, &[])?;
        self.stream.secure(tls)?;
        self.agreed = Agreement::default();
        Ok(Next::Option)
    }

    fn reply(&self, option: u32, kind: u32, data: &[u8]) -> io::Result<Next> {
        let mut reply = Vec::with_capacity(20 + data.len());
        reply.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        reply.extend(option.to_be_bytes());
        reply.extend(kind.to_be_bytes());
        reply.extend((data.len() as u32).to_be_bytes());
        reply.extend(data);
        let mut stream = self.stream;
        stream.write_all(&reply)?;
        Ok(Next::Option)
    }

    fn abilities(&self) -> u16 {
        self.export.abilities(self.shared, self.agreed.structured)
    }

    /// The oldest way to choose an export. It knows no errors.
    fn export_name(&mut self, name: &[u8]) -> io::Result<Next> {
        if !self.export.answers_to(name) {
            return Ok(Next::End);
        }
        let mut reply = self.export.size().to_be_bytes().to_vec();
        reply.extend(self.abilities().to_be_bytes());
        if !self.no_zeroes {
            reply.extend([0; 124]);
        }
        self.stream.write_all(&reply)?;
        Ok(Next::Transmission)
    }

    fn list(&self, data: &[u8]) -> io::Result<Next> {
        if !data.is_empty() {
            return self.reply(option::LIST, option_reply::INVALID, &[]);
        }
        self.reply(option::LIST, option_reply::SERVER, &with_length(self.export.name().as_bytes()))?;
        self.reply(option::LIST, option_reply::ACK, &[])
    }

    /// Tells about an export; GO also chooses it.
    fn info(&mut self, option: u32, data: &[u8]) -> io::Result<Next> {
        let Some((name, wanted)) = parse_info(data) else {
            return self.reply(option, option_reply::INVALID, &[]);
        };
        if !self.export.answers_to(name) {
            return self.reply(option, option_reply::UNKNOWN, &[]);
        }
        let mut export = info::EXPORT.to_be_bytes().to_vec();
        export.extend(self.export.size().to_be_bytes());
        export.extend(self.abilities().to_be_bytes());
        self.reply(option, option_reply::INFO, &export)?;
        let told = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE];
        for kind in told.into_iter().filter(|kind| wanted.contains(kind)) {
            let mut text = kind.to_be_bytes().to_vec();
            match kind {
                info::NAME => text.extend(self.export.name().as_bytes()),
                info::DESCRIPTION => text.extend(self.export.description().as_bytes()),
                _ => {
                    let sizes = [1, self.export.preferred_block(), MAX_PAYLOAD];
                    text.extend(sizes.into_iter().flat_map(u32::to_be_bytes));
                }
            }
            self.reply(option, option_reply::INFO, &text)?;
        }
        self.reply(option, option_reply::ACK, &[])?;
        Ok(if option == option::GO { Next::Transmission } else { Next::Option })
    }

    /// Lists or chooses metadata contexts; there is one.
    fn contexts(&mut self, option: u32, data: &[u8]) -> io::Result<Next> {
        let sets = option == option::SET_META_CONTEXT;
        let parsed = parse_contexts(data).filter(|_| !sets || self.agreed.structured);
        let Some((name, queries)) = parsed else {
            return self.reply(option, option_reply::INVALID, &[]);
        };
        if !self.export.answers_to(name) {
            return self.reply(option, option_reply::UNKNOWN, &[]);
        }
        let is_asked = |query: &&[u8]| *query == BASE_ALLOCATION.as_bytes() || !sets && *query == b"base:";
        let asked = queries.iter().any(is_asked) || !sets && queries.is_empty();
        if sets {
            self.agreed.block_status = asked;
        }
        if asked {
            let id = if sets { BASE_ALLOCATION_ID } else { 0 };
            let mut context = id.to_be_bytes().to_vec();
            context.extend(BASE_ALLOCATION.as_bytes());
            self.reply(option, option_reply::META_CONTEXT, &context)?;
        }
        self.reply(option, option_reply::ACK, &[])
    }
}

/// Returns bytes after their length.
fn with_length(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

/// Reads and forgets `length` bytes.
pub(crate) fn skip(stream: &Stream, length: u32) -> io::Result<()> {
    let skipped = io::copy(&mut stream.take(length.into()), &mut io::sink())?;
    if skipped < length.into() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// Splits bytes of a length that precedes them off `data`.
fn split_sized(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_at_checked(4)?;
    rest.split_at_checked(u32_at(length, 0) as usize)
}

/// Parses the data of INFO and GO: the name, and the kinds of information that are wanted.
fn parse_info(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let (name, rest) = split_sized(data)?;
    let (count, rest) = rest.split_at_checked(2)?;
    let wanted: Vec<u16> = rest.chunks_exact(2).map(|kind| u16_at(kind, 0)).collect();
    (rest.len() == 2 * usize::from(u16_at(count, 0))).then_some((name, wanted))
}

/// Parses the data of LIST_META_CONTEXT and SET_META_CONTEXT: the name, and the queries.
fn parse_contexts(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (name, rest) = split_sized(data)?;
    let (count, mut rest) = rest.split_at_checked(4)?;
    let mut queries = Vec::new();
    for _ in 0..u32_at(count, 0) {
        let (query, after) = split_sized(rest)?;
        queries.push(query);
        rest = after;
    }
    rest.is_empty().then_some((name, queries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_info_is_parsed_or_refused() {
        let data = b"\0\0\0\x02ab\0\x02\0\x01\0\x03";
        assert_eq!(parse_info(data), Some((&b"ab"[..], vec![1, 3])));
        for end in 0..data.len() {
            assert_eq!(parse_info(&data[..end]), None, "{end}");
        }
        assert_eq!(parse_info(b"\xff\xff\xff\xffab\0\0"), None);
        assert_eq!(parse_info(b"\0\0\0\0\0\0x"), None);
    }

    #[test]
    fn data_of_contexts_is_parsed_or_refused() {
        let data = b"\0\0\0\x01x\0\0\0\x02\0\0\0\x01a\0\0\0\x02bc";
        assert_eq!(parse_contexts(data), Some((&b"x"[..], vec![&b"a"[..], b"bc"])));
        for end in 0..data.len() {
            assert_eq!(parse_contexts(&data[..end]), None, "{end}");
        }
        assert_eq!(parse_contexts(b"\0\0\0\0\xff\xff\xff\xff"), None);
    }
}
