//! Block devices: the [`Device`] trait, what implements it, and decorators that test what stands above.
//!
//! - [`FileDevice`]: a regular file or a block device; plain calls, and io_uring for deep queues.
//! - [`MemoryDevice`]: a sparse device in memory, with cheap snapshots.
//! - [`FaultDevice`]: fails, corrupts or cuts short, on demand and repeatably.
//! - [`Recording`]: keeps what was written to some devices, and makes every state that a loss of
//!   power could have left.
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
//!
//! A file is locked while it is open, and says plainly why it can't be opened:
//!
//! ```
//! use papilio_device::{Access, Device, FileDevice, OpenErrorKind, PhysicalAddress, ReadRequest};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let image = tempfile::NamedTempFile::new()?;
//! image.as_file().set_len(1 << 20)?;
//! let device = FileDevice::open(image.path(), Access::ReadWrite)?;
//! let error = FileDevice::open(image.path(), Access::ReadOnly).unwrap_err();
//! assert!(matches!(error.kind, OpenErrorKind::InUseByProcess));
//!
//! device.write_at(&[7; 8192], PhysicalAddress(4096))?;
//! let mut blocks = [[0; 4096]; 16];
//! let mut requests: Vec<_> = blocks
//!     .iter_mut()
//!     .enumerate()
//!     .map(|(at, block)| ReadRequest::new(PhysicalAddress(at as u64 * 4096), block))
//!     .collect();
//! device.read_many(&mut requests); // All at once, over io_uring where the host has it.
//! for request in requests {
//!     request.result?;
//! }
//! assert_eq!((blocks[0], blocks[1], blocks[2]), ([0; 4096], [7; 4096], [7; 4096]));
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_op_in_unsafe_fn)]

mod aligned;
mod device;
mod error;
mod fault;
mod file;
mod lock;
mod loop_use;
mod memory;
mod open;
mod recorder;
mod uring;

pub use aligned::AlignedBuffer;
pub use device::{Access, Advice, Device, ReadRequest, WriteRequest};
pub use error::{OpenError, OpenErrorKind};
pub use fault::{CallCounts, CallKind, FaultDevice};
pub use file::{FileDevice, OpenOptions};
pub use memory::MemoryDevice;
pub use papilio_format::PhysicalAddress;
pub use recorder::{Action, Event, RecorderDevice, Recording, Replay, SECTOR_SIZE};
