//! Requests on files and their completions.
//!
//! Owns [`IoRequest`], [`IoOperation`] and [`IoCompletion`], which an
//! [`IoQueue`](super::io_queue::IoQueue) carries out. Locks: none.

use crate::file::File;
use papilio_device::StableBuffer;
use papilio_engine::errors::Result;
use std::sync::Arc;

/// An operation on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoOperation<B> {
    /// Reads into `buffer` at byte `offset`, as [`File::read_at`].
    Read {
        /// The buffer to fill; its length is the number of bytes to read.
        buffer: B,
        /// File offset in bytes.
        offset: u64,
    },
    /// Writes `buffer` at byte `offset`, as [`File::write_at`].
    Write {
        /// The bytes to write.
        buffer: B,
        /// File offset in bytes.
        offset: u64,
    },
    /// Makes the file durable, as [`File::sync_all`].
    Fsync,
    /// Makes the file's data durable, as [`File::sync_data`].
    Fdatasync,
    /// Makes a hole, as [`File::punch_hole`].
    PunchHole {
        /// File offset in bytes.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Allocates space for a range, as [`File::allocate`].
    Allocate {
        /// File offset in bytes.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Whether to keep the file's size if the range ends past it.
        keep_size: bool,
    },
}

/// A request: an operation, its file, and a token that identifies the completion.
#[derive(Clone, Debug)]
pub struct IoRequest<B> {
    /// The file.
    pub file: Arc<File>,
    /// The operation.
    pub operation: IoOperation<B>,
    /// A number chosen by the caller and returned in the completion. Tokens need not be unique.
    pub token: u64,
}

/// The result of a request.
#[derive(Debug)]
#[non_exhaustive]
pub struct IoCompletion<B> {
    /// The token of the request.
    pub token: u64,
    /// The buffer of a read or a write.
    pub buffer: Option<B>,
    /// Bytes read, written, punched or allocated; 0 for syncs. Only a read at the end of the file,
    /// and a write that does not fit, give fewer than requested.
    pub result: Result<usize>,
}

impl<B: StableBuffer> IoOperation<B> {
    /// Runs the operation in the calling thread.
    fn run(&mut self, file: &File) -> Result<usize> {
        match self {
            IoOperation::Read { buffer, offset } => file.read_at(buffer.stable_mut(), *offset),
            IoOperation::Write { buffer, offset } => file.write_at(buffer.stable(), *offset),
            IoOperation::Fsync => file.sync_all().map(|()| 0),
            IoOperation::Fdatasync => file.sync_data().map(|()| 0),
            IoOperation::PunchHole { offset, length } => {
                file.punch_hole(*offset, *length).map(|()| *length as usize)
            }
            IoOperation::Allocate { offset, length, keep_size } => {
                file.allocate(*offset, *length, *keep_size).map(|()| *length as usize)
            }
        }
    }

    fn into_buffer(self) -> Option<B> {
        match self {
            IoOperation::Read { buffer, .. } | IoOperation::Write { buffer, .. } => Some(buffer),
            _ => None,
        }
    }
}

impl<B: StableBuffer> IoRequest<B> {
    /// Runs the request at once in the calling thread, as a queue of depth 1 does.
    pub fn run(mut self) -> IoCompletion<B> {
        let result = self.operation.run(&self.file);
        IoCompletion { token: self.token, buffer: self.operation.into_buffer(), result }
    }
}
