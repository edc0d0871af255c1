//! Entrances for fuzz targets and tests: the decoder alone, and a server without a kernel.
//!
//! Owns [`decode`], [`agree`] and [`Served`]. They take the bytes that a kernel
//! would send. They check the rules for every answer, so that a target only has to make requests.
//!
//! Built with the feature `fuzzing` only.

use crate::cpu_latency::CpuLatency;
use crate::device_transport::DeviceMessage;
use crate::dispatch::Dispatcher;
use crate::ioctl::MountInfo;
use crate::options::MountOptions;
use crate::protocol::init::{MAX_WRITE, Negotiated, negotiate};
use crate::protocol::layout::{EntryInOut, InHeader, OutHeader, RequestHeader, opcode};
use crate::protocol::request::{DecodeError, Head, Request};
use crate::server::Server;
use papilio::FileSystem;
use std::path::Path;
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The verdict of the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A request that the server answers.
    Request,
    /// A list of nodes to forget, and their number.
    Forgotten(u64),
    /// The kernel's offer.
    Offer,
    /// An operation that the server does not implement.
    Unknown,
    /// A request that no file system fulfils, and its errno.
    Refused(i32),
    /// Bytes that the kernel would not send.
    Malformed,
}

/// Decodes a message as the transport over `/dev/fuse` does, and as that over io_uring does. Both
/// must come to the same verdict.
pub fn decode(message: &[u8]) -> Decoded {
    let head = match Head::of_message(message) {
        Ok(head) => head,
        Err(error) => return verdict(error),
    };
    let payload = &message[message.len() - head.payload..];
    let decoded = decode_body(&head, payload);
    // A ring has the argument and the payload in two buffers.
    let argument = &message[size_of::<InHeader>()..message.len() - head.payload];
    let mut header = RequestHeader::new_zeroed();
    header.in_out[..size_of::<InHeader>()].copy_from_slice(head.general.as_bytes());
    header.operation[..argument.len()].copy_from_slice(argument);
    header.entry = EntryInOut { payload: head.payload as u32, ..EntryInOut::new_zeroed() };
    let of_ring = match Head::of_entry(&header, payload.len()) {
        Ok(head) => decode_body(&head, payload),
        Err(error) => verdict(error),
    };
    assert_eq!(of_ring, decoded, "the transports disagree on {:?}", head.general);
    decoded
}

fn decode_body(head: &Head, payload: &[u8]) -> Decoded {
    match head.general.opcode {
        opcode::FORGET | opcode::BATCH_FORGET => match head.forgotten(payload) {
            Ok(nodes) => {
                let count = nodes.count();
                assert!(count <= 1 + payload.len() / 16, "more nodes than the message holds");
                Decoded::Forgotten(count as u64)
            }
            Err(error) => verdict(error),
        },
        opcode::INIT => match head.offer() {
            Ok(offer) => {
                let _ = negotiate(&offer, &MountOptions::default(), true);
                Decoded::Offer
            }
            Err(error) => verdict(error),
        },
        _ => match Request::decode(head, payload) {
            Ok(_) => Decoded::Request,
            Err(error) => verdict(error),
        },
    }
}

/// Answers a kernel's offer as a mount with default options does. Returns the answer's bytes, or
/// nothing if the message is no offer, or of a kernel whose protocol is another one.
pub fn agree(message: &[u8]) -> Option<Vec<u8>> {
    let head = Head::of_message(message).ok().filter(|head| head.general.opcode == opcode::INIT)?;
    match negotiate(&head.offer().ok()?, &MountOptions::default(), false) {
        Negotiated::Agreed(out, _) => Some(out.as_bytes().to_vec()),
        Negotiated::Again(_) | Negotiated::TooOld(..) => None,
    }
}

fn verdict(error: DecodeError) -> Decoded {
    match error {
        DecodeError::Malformed { .. } => Decoded::Malformed,
        DecodeError::Unknown(_) => Decoded::Unknown,
        DecodeError::Refused(errno) => Decoded::Refused(errno.code()),
    }
}

/// A server that answers messages from memory.
pub struct Served {
    fs: FileSystem,
    dispatcher: Dispatcher,
    message: DeviceMessage,
}

/// The answer to a message.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// 0, or the errno.
    pub error: i32,
    /// The reply after its header.
    pub body: &'a [u8],
}

impl Served {
    /// Serves `fs` as a writable mount does.
    ///
    /// # Errors
    /// The root directory cannot be read.
    pub fn new(fs: FileSystem) -> papilio::Result<Self> {
        let options = MountOptions::default();
        let nowhere = Path::new("/nonexistent/papilio");
        let server = Server::new(fs.clone(), MountInfo::new(nowhere, nowhere, &options), &options)?;
        let dispatcher = Dispatcher::new(Arc::new(server), false, CpuLatency::off());
        Ok(Self { fs, dispatcher, message: DeviceMessage::new() })
    }

    /// Answers one message, on this thread and without a kernel that drops its caches. Returns
    /// nothing if the message gets no reply.
    ///
    /// # Panics
    /// The reply is none that the kernel accepts, or the message is longer than any of the
    /// kernel's.
    pub fn serve(&mut self, bytes: &[u8]) -> Option<Answered<'_>> {
        let space = self.message.space();
        assert!(bytes.len() <= space.len(), "a message of {} bytes", bytes.len());
        space[..bytes.len()].copy_from_slice(bytes);
        self.message.received(bytes.len());
        let _ = self.dispatcher.lane(&mut self.message);
        if self.dispatcher.forget(&mut self.message) {
            return None;
        }
        let _ = self.dispatcher.answer(&mut self.message);
        let reply = self.message.reply_bytes();
        let (header, body) = OutHeader::read_from_prefix(reply).expect("a reply has a header");
        let unique = InHeader::read_from_prefix(bytes).map_or(0, |(general, _)| general.unique);
        assert_eq!((header.length as usize, header.unique), (reply.len(), unique));
        assert!(body.len() <= MAX_WRITE as usize + 4096, "a reply of {} bytes", body.len());
        let error = -header.error;
        assert!((0..512).contains(&error) && (error == 0 || body.is_empty()), "errno {error}");
        Some(Answered { error, body })
    }

    /// Ends the server and commits.
    ///
    /// # Errors
    /// The last commit fails.
    pub fn close(self) -> papilio::Result<()> {
        let Self { fs, dispatcher, .. } = self;
        drop(dispatcher);
        fs.close()
    }
}
