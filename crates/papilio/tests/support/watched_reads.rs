//! A memory device whose reads first pass a function of the test.

use papilio_device::{Access, Device, MemoryDevice, PhysicalAddress};
use std::fmt;
use std::io;
use std::sync::Arc;

/// A device whose requests wait. Its reads first pass a function, which may hold or fail them.
pub struct WatchedReads {
    inner: Arc<MemoryDevice>,
    before: Box<dyn Fn() -> io::Result<()> + Send + Sync>,
}

impl WatchedReads {
    /// Has each read of `inner` call `before`.
    pub fn new(
        inner: Arc<MemoryDevice>,
        before: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self { inner, before: Box::new(before) }
    }
}

impl fmt::Debug for WatchedReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedReads").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Device for WatchedReads {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn access(&self) -> Access {
        self.inner.access()
    }

    fn waits(&self) -> bool {
        true
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        (self.before)()?;
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.inner.write_at(buffer, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        self.inner.discard(offset, length)
    }
}
