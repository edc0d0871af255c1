//! An entry: buffers for one request and its reply, which the kernel and the server own in turn.
//!
//! Owns [`Entry`] and the memory that it stands for. Invariant: an `Entry` that can be reached is the server's;
//! while the kernel may write its buffers (from its submission until the completion was seen), it lies in its
//! queue's table, where nobody looks at it. Kernel counterpart: `struct fuse_ring_ent` (`fs/fuse/dev_uring_i.h`).

use super::protocol::{CommandRequest, EntryInOut, InHeader, OutHeader, RequestHeader, command};
use io_uring::squeue::Entry128;
use io_uring::{opcode, types};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use zerocopy::{FromBytes, IntoBytes};

/// Where the payload begins: page by page, as the kernel copies.
const PAYLOAD_AT: usize = 4096;
/// Where the two addresses lie that the kernel is told when an entry is registered.
const VECTORS_AT: usize = 1024;
/// Where a submission says how many addresses there are (`len` of `struct io_uring_sqe`).
const SQE_LENGTH_AT: usize = 24;

const _: () = assert!(size_of::<RequestHeader>() <= VECTORS_AT);
const _: () = assert!(size_of::<Entry128>() == 128);

/// Buffers of the server's.
#[derive(Debug)]
pub(super) struct Entry {
    memory: NonNull<u8>,
    payload: usize,
    queue: u16,
    /// The request that is being answered, as the kernel numbers it.
    commit: u64,
}

// SAFETY: the memory is the entry's own, wherever it is.
unsafe impl Send for Entry {}

impl Entry {
    /// An entry of a queue, with room for `payload` bytes.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn new(queue: u16, payload: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: new memory, at an address that the system chooses.
        let memory =
            unsafe { mmap_anonymous(std::ptr::null_mut(), PAYLOAD_AT + payload, protection, flags)? };
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory, payload, queue, commit: 0 })
    }

    /// Its queue, by number.
    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    /// The submission that gives it to the kernel for the first time. The memory must stay while the kernel has
    /// it.
    pub(super) fn registration(&mut self, device: BorrowedFd<'_>) -> Entry128 {
        // SAFETY: the places lie in the entry's memory, which is the server's now, and are aligned to pages.
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

    /// The submission that gives the reply to the kernel, and the entry for the next request.
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
            // SAFETY: an `Entry128` is the kernel's `struct io_uring_sqe` of 128 bytes, in C's layout; it holds
            // plain integers, and this one is aligned.
            unsafe { (&raw mut submission).byte_add(SQE_LENGTH_AT).cast::<u32>().write(2) };
        }
        submission
    }

    /// The headers of a request, and its payload. To be called on an entry that the kernel gave back.
    pub(super) fn request(&mut self) -> (RequestHeader, &mut [u8]) {
        // SAFETY: the memory is the entry's own, lives as long as it and is the server's now; both places lie
        // in it and are initialised, and the reference is the only one.
        unsafe {
            let header = self.memory.cast::<RequestHeader>().read();
            let payload = std::slice::from_raw_parts_mut(self.memory.add(PAYLOAD_AT).as_ptr(), self.payload);
            (header, payload)
        }
    }

    /// Remembers which request it is that the kernel put into the entry, for [`Entry::reply`].
    pub(super) fn received(&mut self) {
        self.commit = self.request().0.entry.commit;
    }

    /// Puts a request in, as the kernel would.
    #[cfg(test)]
    pub(super) fn receive(&mut self, header: RequestHeader, payload: &[u8]) {
        self.request().1[..payload.len()].copy_from_slice(payload);
        // SAFETY: as in `reply`.
        unsafe { self.memory.cast::<RequestHeader>().write(header) };
        self.received();
    }

    /// Completes the reply: `error` is 0 or a number of an error, and `bytes` of the payload belong to it.
    pub(super) fn reply(&mut self, error: i32, bytes: usize) {
        let (mut header, _) = self.request();
        let (received, _) = InHeader::read_from_prefix(&header.in_out).expect("it is smaller than its room");
        let length = (size_of::<OutHeader>() + bytes) as u32;
        let out = OutHeader { length, error: -error, unique: received.unique };
        header.in_out[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        header.entry =
            EntryInOut { flags: 0, commit: self.commit, payload: bytes as u32, padding: 0, reserved: 0 };
        // SAFETY: as in `request`; the header is written back to where it was read.
        unsafe { self.memory.cast::<RequestHeader>().write(header) };
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, in its full length; no reference to it outlives the entry.
        let unmapped = unsafe { munmap(self.memory.as_ptr().cast(), PAYLOAD_AT + self.payload) };
        debug_assert!(unmapped.is_ok());
    }
}

const _: () = assert!(offset_of!(OutHeader, unique) == offset_of!(InHeader, unique));
