//! [`Sink`]: the writing half of a copy.

use super::event::Event;

/// What the events of a copy become.
pub trait Sink {
    /// A new source begins; its first event names its top.
    fn begin(&mut self, source: usize) -> Result<(), Stop>;
    /// Bytes of the file that the last `File` began.
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Stop>;
    /// Any other event. Failures of single files are reported and are no error here.
    fn take(&mut self, event: Event) -> Result<(), Stop>;
}

/// The whole copy cannot go on: a full destination, an archive that cannot be written.
#[derive(Debug)]
pub struct Stop(pub anyhow::Error);

impl<E: Into<anyhow::Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}
