//! [`Sink`]: the writing half of a copy.

use super::event::Event;

/// The writer of a copy, which turns events into files.
pub trait Sink {
    /// Begins a source. Its first event describes the source's own inode.
    fn begin(&mut self, source: usize) -> Result<(), Stop>;
    /// Writes bytes of the file that the last [`Event::File`] began.
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Stop>;
    /// Handles any other event. Reports failures of single files instead of returning them.
    fn take(&mut self, event: Event) -> Result<(), Stop>;
}

/// An error that ends the whole copy, such as a full destination.
#[derive(Debug)]
pub struct Stop(pub anyhow::Error);

impl<E: Into<anyhow::Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}
