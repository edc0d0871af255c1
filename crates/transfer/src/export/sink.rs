//! [`Sink`]: the writing half of a copy.

use super::event::Event;
use super::problem::ExportError;

/// The writer of a copy, which turns events into files.
pub trait Sink {
    /// Begins a source. Its first event describes the source's own inode.
    ///
    /// # Errors
    /// An error that ends the copy, such as a full destination. So do the other methods.
    fn begin(&mut self, source: usize) -> Result<(), ExportError>;
    /// Writes bytes of the file that the last [`Event::File`] began.
    ///
    /// # Errors
    /// As [`Self::begin`].
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ExportError>;
    /// Handles any other event. Reports failures of single files instead of returning them.
    ///
    /// # Errors
    /// As [`Self::begin`].
    fn take(&mut self, event: Event) -> Result<(), ExportError>;
}
