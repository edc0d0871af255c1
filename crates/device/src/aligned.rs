//! `AlignedBuffer`: memory at an address that direct I/O accepts.
//!
//! **Invariant:** the exposed bytes start at a multiple of the alignment.
//!
//! The buffer is an over-allocated `Vec` with a start offset, so it needs no unsafe code. The
//! vector never reallocates after construction.

use std::ops::{Deref, DerefMut};

/// Zeroed bytes whose address is a multiple of `alignment`.
#[derive(Debug)]
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

/// An alignment that every common device accepts.
const DIRECT: usize = 4096;

impl AlignedBuffer {
    /// Creates `length` zeroed bytes that devices take without copying them.
    pub fn for_direct_io(length: usize) -> Self {
        Self::new(length, DIRECT)
    }

    /// Creates `length` zeroed bytes at a multiple of `alignment`.
    ///
    /// # Panics
    /// If `alignment` is not a power of two.
    pub fn new(length: usize, alignment: usize) -> Self {
        assert!(alignment.is_power_of_two(), "alignment {alignment} is not a power of two");
        let bytes = vec![0; length + alignment - 1];
        let start = bytes.as_ptr().addr().next_multiple_of(alignment) - bytes.as_ptr().addr();
        Self { bytes, start, length }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_requested_alignment_and_length() {
        for alignment in [1, 2, 512, 4096, 65536] {
            for length in [0, 1, 511, 4096, 10_000] {
                let mut buffer = AlignedBuffer::new(length, alignment);
                assert_eq!(buffer.len(), length);
                assert!(buffer.as_ptr().addr().is_multiple_of(alignment));
                buffer.fill(7);
                assert!(buffer.iter().all(|byte| *byte == 7));
            }
        }
    }
}
