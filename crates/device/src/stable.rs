//! `StableBuffer`: memory that may be lent to a device while its owner moves.
//!
//! Kernel counterpart: `IORING_REGISTER_BUFFERS`; the idea is that of tokio-uring's `IoBuf`.

use crate::aligned::AlignedBuffer;

/// An owned buffer whose bytes keep their address and length while it is moved.
///
/// # Safety
/// From one call of a method on, until the value is dropped or changed through another method of
/// its type, both methods return the same bytes, and moving the value does not move the bytes. An
/// array is therefore no stable buffer; a vector and a box are.
pub unsafe trait StableBuffer: Send + 'static {
    /// Returns the bytes.
    fn stable(&self) -> &[u8];

    /// Returns the bytes for changing them.
    fn stable_mut(&mut self) -> &mut [u8];
}

// SAFETY: a vector's bytes are on the heap, and only its own methods reallocate them.
unsafe impl StableBuffer for Vec<u8> {
    fn stable(&self) -> &[u8] {
        self
    }

    fn stable_mut(&mut self) -> &mut [u8] {
        self
    }
}

// SAFETY: the bytes are on the heap for the life of the box.
unsafe impl StableBuffer for Box<[u8]> {
    fn stable(&self) -> &[u8] {
        self
    }

    fn stable_mut(&mut self) -> &mut [u8] {
        self
    }
}

// SAFETY: the bytes are in a vector that never reallocates after construction.
unsafe impl StableBuffer for AlignedBuffer {
    fn stable(&self) -> &[u8] {
        self
    }

    fn stable_mut(&mut self) -> &mut [u8] {
        self
    }
}
