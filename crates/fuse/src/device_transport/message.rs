//! A request that was read from `/dev/fuse`, and its reply.
//!
//! Owns [`DeviceMessage`], one buffer for both.
//!
//! **Invariants**
//! - The data of a write starts on a page boundary, so that it can go to a device as it lies. The
//!   answer to a read lies there too.

use crate::dispatch::Message;
use crate::protocol::init::MAX_WRITE;
use crate::protocol::layout::{InHeader, OutHeader, ReadIn, WriteIn};
use crate::protocol::request::{DecodeError, Head};
use zerocopy::{FromBytes, IntoBytes};

const PAGE: usize = 4096;

/// Memory from a page boundary on. The system gives pages to it as they are written, which it does
/// not where an allocation asks for an alignment and zeros.
#[derive(Debug)]
struct Pages {
    memory: Box<[u8]>,
    /// Offset of the first page boundary.
    start: usize,
}

impl Pages {
    fn new() -> Self {
        let memory = vec![0; (PAGES + 1) * PAGE].into_boxed_slice();
        let start = memory.as_ptr().align_offset(PAGE);
        Self { memory, start }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..PAGES * PAGE]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..PAGES * PAGE]
    }
}

/// Length of a write's header and argument, and of a read's, before the data.
const BEFORE_DATA: usize = size_of::<InHeader>() + size_of::<WriteIn>();
/// Offset in the buffer at which a request starts.
const START: usize = PAGE - BEFORE_DATA;
/// Pages of a buffer: one that ends with a write's header, the data, and one to spare.
const PAGES: usize = MAX_WRITE as usize / PAGE + 2;

const _: () = assert!(size_of::<ReadIn>() == size_of::<WriteIn>());

/// A request and its reply in one buffer.
#[derive(Debug)]
pub(crate) struct DeviceMessage {
    pages: Pages,
    head: Result<Head, DecodeError>,
    /// Number of the request, which the reply repeats.
    unique: u64,
    /// Offset of the payload, and of the reply's body.
    body: usize,
    /// Length of the whole reply in bytes.
    reply: usize,
    /// Whether the request came from the second descriptor, which its reply must go to.
    from_second: bool,
}

impl DeviceMessage {
    /// Creates a message without a request. Its memory takes up space once it is written.
    pub(crate) fn new() -> Self {
        let nothing = DecodeError::Malformed { opcode: 0, what: "no request was read" };
        Self { pages: Pages::new(), head: Err(nothing), unique: 0, body: PAGE, reply: 0, from_second: false }
    }

    /// Returns the space for a request.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.pages.bytes_mut()[START..]
    }

    /// Accepts a request of `length` bytes, which the kernel wrote to [`DeviceMessage::space`].
    pub(crate) fn received(&mut self, length: usize) {
        self.from_second = false;
        let bytes = &self.pages.bytes()[START..START + length];
        self.unique = InHeader::read_from_prefix(bytes).map_or(0, |(general, _)| general.unique);
        self.head = Head::of_message(bytes);
        self.body = match &self.head {
            Ok(head) => START + length - head.payload,
            Err(_) => PAGE,
        };
    }

    /// As [`DeviceMessage::received`], for a request from the second descriptor.
    pub(super) fn received_from_second(&mut self, length: usize) {
        self.received(length);
        self.from_second = true;
    }

    /// As [`DeviceMessage::received`], for a request of another machine's kernel. The process that
    /// it names is none of this machine, so the server must not look for it.
    pub(crate) fn received_from_guest(&mut self, length: usize) {
        let bytes = &mut self.pages.bytes_mut()[START..START + length];
        if let Ok((general, _)) = InHeader::mut_from_prefix(bytes) {
            general.pid = 0;
        }
        self.received(length);
    }

    /// Returns whether the reply goes to the second descriptor.
    pub(super) fn is_from_second(&self) -> bool {
        self.from_second
    }

    /// Returns the head of the request.
    pub(crate) fn head(&self) -> Result<Head, DecodeError> {
        self.head
    }

    /// Returns the complete reply.
    pub(crate) fn reply_bytes(&self) -> &[u8] {
        let start = self.body - size_of::<OutHeader>();
        &self.pages.bytes()[start..start + self.reply]
    }
}

impl Message for DeviceMessage {
    fn open(&mut self) -> (Result<Head, DecodeError>, &mut [u8]) {
        (self.head, &mut self.pages.bytes_mut()[self.body..])
    }

    fn reply(&mut self, error: i32, bytes: usize) {
        self.reply = size_of::<OutHeader>() + bytes;
        let header = OutHeader { length: self.reply as u32, error: -error, unique: self.unique };
        // The header goes where the request's argument was, which has been copied.
        let bytes = self.pages.bytes_mut();
        bytes[self.body - size_of::<OutHeader>()..self.body].copy_from_slice(header.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::layout::opcode;
    use zerocopy::FromZeros;

    fn receive(message: &mut DeviceMessage, operation: u32, rest: &[u8]) {
        let length = size_of::<InHeader>() + rest.len();
        let header =
            InHeader { length: length as u32, opcode: operation, unique: 9, ..FromZeros::new_zeroed() };
        message.space()[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        message.space()[size_of::<InHeader>()..length].copy_from_slice(rest);
        message.received(length);
    }

    #[test]
    fn data_of_writes_is_aligned_and_replies_follow_their_header() {
        let mut message = DeviceMessage::new();
        let argument = WriteIn { size: 5, ..FromZeros::new_zeroed() };
        receive(&mut message, opcode::WRITE, &[argument.as_bytes(), b"hello"].concat());
        let (head, body) = message.open();
        assert_eq!((head.unwrap().payload, &body[..5]), (5, &b"hello"[..]));
        assert_eq!(body.as_ptr() as usize % PAGE, 0);
        assert!(body.len() >= MAX_WRITE as usize);
        message.open().1[..3].copy_from_slice(b"abc");
        message.reply(0, 3);
        let reply = message.reply_bytes();
        assert_eq!(
            (reply.len(), &reply[..4], &reply[8..16]),
            (19, &[19, 0, 0, 0][..], &[9, 0, 0, 0, 0, 0, 0, 0][..])
        );
        assert_eq!(&reply[16..], b"abc");
        message.reply(libc::ENOENT, 0);
        assert_eq!(message.reply_bytes()[4..8], (-libc::ENOENT).to_ne_bytes());
    }

    /// Bytes of memory that the process holds (proc_pid_statm(5)).
    fn resident() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * PAGE
    }

    #[test]
    fn a_message_takes_memory_as_it_is_written() {
        const MESSAGES: usize = 100;
        let before = resident();
        let messages: Vec<_> = (0..MESSAGES)
            .map(|_| {
                let mut message = DeviceMessage::new();
                receive(&mut message, opcode::LOOKUP, b"name\0");
                message
            })
            .collect();
        let grown = resident().saturating_sub(before);
        assert!(grown < MESSAGES * MAX_WRITE as usize / 4, "{grown} bytes");
        assert!(messages.iter().all(|message| message.head().is_ok()));
    }

    #[test]
    fn malformed_messages_are_answered() {
        let mut message = DeviceMessage::new();
        receive(&mut message, opcode::WRITE, &[0; 20]);
        assert!(message.head().is_err());
        message.reply(libc::EIO, 0);
        assert_eq!(message.reply_bytes()[8], 9);
        // Not even a header.
        message.received(3);
        assert!(message.head().is_err());
    }
}
