//! An entry: the buffers for one request and its reply. The kernel and the server own them in turn.
//!
//! Owns [`RingEntry`] and its memory.
//!
//! **Invariants**
//! - An `RingEntry` that code can access belongs to the server.
//! - The kernel may write the buffers from the entry's submission until the server has seen its
//!   completion. In this time the entry is in its queue's table, where nothing reads it.
//!
//! Kernel counterpart: `struct fuse_ring_ent` (`fs/fuse/dev_uring_i.h`).

use crate::dispatch::Message;
use crate::protocol::layout::{CommandRequest, EntryInOut, InHeader, OutHeader, RequestHeader, command};
use crate::protocol::request::{DecodeError, Head};
use io_uring::squeue::Entry128;
use io_uring::{opcode, types};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use zerocopy::{FromBytes, IntoBytes};

/// Offset of the payload in the entry's memory, on a page boundary because the kernel copies by
/// pages.
const PAYLOAD_AT: usize = 4096;
/// Offset of the two addresses that the kernel reads when an entry is registered.
const VECTORS_AT: usize = 1024;
/// Offset of the number of addresses in a submission (`len` of `struct io_uring_sqe`).
const SQE_LENGTH_AT: usize = 24;

const _: () = assert!(size_of::<RequestHeader>() <= VECTORS_AT);
const _: () = assert!(size_of::<Entry128>() == 128);

/// The buffers of one request.
#[derive(Debug)]
pub(super) struct RingEntry {
    memory: NonNull<u8>,
    payload: usize,
    queue: u16,
    /// The kernel's number for the current request.
    commit: u64,
    /// The head of the current request.
    head: Box<Result<Head, DecodeError>>,
}

// SAFETY: the entry exclusively owns its memory, which is not tied to a thread.
unsafe impl Send for RingEntry {}

impl RingEntry {
    /// Creates an entry of a queue with `payload` bytes for the payload.
    ///
    /// # Errors
    /// The memory cannot be mapped.
    pub(super) fn new(queue: u16, payload: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: this maps new memory at an address that the system chooses.
        let memory =
            unsafe { mmap_anonymous(std::ptr::null_mut(), PAYLOAD_AT + payload, protection, flags)? };
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let nothing = DecodeError::Malformed { opcode: 0, what: "no request was received" };
        Ok(Self { memory, payload, queue, commit: 0, head: Box::new(Err(nothing)) })
    }

    /// Returns the number of the entry's queue.
    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    /// Returns the submission that hands the entry to the kernel for the first time. The memory
    /// must stay mapped while the kernel has the entry.
    pub(super) fn registration(&mut self, device: BorrowedFd<'_>) -> Entry128 {
        // SAFETY: both offsets are inside the entry's memory, which belongs to the server now, and
        // aligned.
        let vectors = unsafe {
            let vectors = self.memory.add(VECTORS_AT).cast::<[libc::iovec; 2]>();
            vectors.write([
                libc::iovec { iov_base: self.memory.as_ptr().cast(), iov_len: size_of::<RequestHeader>() },
                libc::iovec { iov_base: self.memory.add(PAYLOAD_AT).as_ptr().cast(), iov_len: self.payload },
            ]);
            vectors
        };
        self.submission(device, command::REGISTER, 0, Some(vectors))
    }

    /// Returns the submission that hands the reply to the kernel and the entry back for the next
    /// request.
    pub(super) fn commit(&mut self, device: BorrowedFd<'_>) -> Entry128 {
        self.submission(device, command::COMMIT_AND_FETCH, self.commit, None)
    }

    fn submission(
        &self,
        device: BorrowedFd<'_>,
        operation: u32,
        commit: u64,
        vectors: Option<NonNull<[libc::iovec; 2]>>,
    ) -> Entry128 {
        let request = CommandRequest { flags: 0, commit, queue: self.queue, padding: [0; 6] };
        let mut bytes = [0; 80];
        bytes[..size_of::<CommandRequest>()].copy_from_slice(request.as_bytes());
        let address = vectors.map(|vectors| vectors.as_ptr() as u64);
        let device = types::Fd(device.as_raw_fd());
        let mut submission = opcode::UringCmd80::new(device, operation).cmd(bytes).addr(address).build();
        if vectors.is_some() {
            // SAFETY: `Entry128` is the kernel's 128-byte `struct io_uring_sqe` in C layout. It
            // holds plain integers, and this one is aligned.
            unsafe { (&raw mut submission).byte_add(SQE_LENGTH_AT).cast::<u32>().write(2) };
        }
        submission
    }

    /// Returns the headers of a request and its payload. Valid only after the kernel gave the entry
    /// back.
    pub(super) fn request(&mut self) -> (RequestHeader, &mut [u8]) {
        // SAFETY: the entry owns the memory, which belongs to the server now. Both ranges are
        // inside it and initialized, and this is the only reference.
        unsafe {
            let header = self.memory.cast::<RequestHeader>().read();
            let payload = std::slice::from_raw_parts_mut(self.memory.add(PAYLOAD_AT).as_ptr(), self.payload);
            (header, payload)
        }
    }

    /// Reads the head of the received request, and the kernel's number of it for
    /// [`RingEntry::reply`].
    pub(super) fn received(&mut self) {
        let (header, payload) = self.request();
        let head = Head::of_entry(&header, payload.len());
        (self.commit, *self.head) = (header.entry.commit, head);
    }
}

impl Message for RingEntry {
    fn open(&mut self) -> (Result<Head, DecodeError>, &mut [u8]) {
        (*self.head, self.request().1)
    }

    fn reply(&mut self, error: i32, bytes: usize) {
        let (mut header, _) = self.request();
        let (received, _) = InHeader::read_from_prefix(&header.in_out).expect("the header fits its field");
        let length = (size_of::<OutHeader>() + bytes) as u32;
        let out = OutHeader { length, error: -error, unique: received.unique };
        header.in_out[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        header.entry =
            EntryInOut { flags: 0, commit: self.commit, payload: bytes as u32, padding: 0, reserved: 0 };
        // SAFETY: as in `request`; the header goes back to where it was read.
        unsafe { self.memory.cast::<RequestHeader>().write(header) };
    }
}

impl Drop for RingEntry {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping from `new`, and no reference to it outlives the entry.
        let unmapped = unsafe { munmap(self.memory.as_ptr().cast(), PAYLOAD_AT + self.payload) };
        debug_assert!(unmapped.is_ok());
    }
}

const _: () = assert!(offset_of!(OutHeader, unique) == offset_of!(InHeader, unique));
