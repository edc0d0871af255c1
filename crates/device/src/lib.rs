//! Block devices: the [`Device`] trait, what implements it, and decorators that test what stands above.
//!
//! - [`FileDevice`]: a regular file or a block device; plain calls, and io_uring for deep queues.
//! - [`MemoryDevice`]: a sparse device in memory, with cheap snapshots.
//!
//! A device is held as `Arc<dyn Device>`. It knows bytes and physical addresses, and nothing of
//! Btrfs.
//!
//! ```
//! use papilio_device::{Device, MemoryDevice, PhysicalAddress};
//! use std::sync::Arc;
//!
//! # fn main() -> std::io::Result<()> {
//! // Ten tebibytes; only what is written takes memory.
//! let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(10 << 40));
//! device.write_at(b"papilio", PhysicalAddress(9 << 40))?;
//! device.flush()?;
//!
//! let mut buffer = [0; 7];
//! device.read_at(&mut buffer, PhysicalAddress(9 << 40))?;
//! assert_eq!(&buffer, b"papilio");
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_op_in_unsafe_fn)]

mod aligned;
mod device;
mod error;
mod file;
mod lock;
mod memory;
mod open;

pub use aligned::AlignedBuffer;
pub use device::{Access, Advice, Device, ReadRequest, WriteRequest};
pub use error::{OpenError, OpenErrorKind};
pub use file::{FileDevice, OpenOptions};
pub use memory::MemoryDevice;
pub use papilio_format::PhysicalAddress;
