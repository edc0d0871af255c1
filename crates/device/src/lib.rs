//! Block devices: the [`Device`] trait, its implementations, and decorators for tests.
//!
//! - [`FileDevice`]: a regular file or a block device. It uses plain calls, and io_uring for deep
//!   queues.
//! - [`PartitionDevice`]: a range of another device; [`PartitionTable`] finds those of a disk.
//! - [`OpenOptions::open_image`] opens disk images of other formats than raw.
//! - [`install_layers`] lets encrypted volumes, arrays and logical volumes in images be opened, by
//!   the crate `papilio-layers`.
//! - [`install_object_stores`] lets images at URLs be opened, by the crate `papilio-store`.
//! - [`MemoryDevice`]: a sparse device in memory with cheap snapshots.
//! - [`OverlayDevice`]: keeps all writes in memory; the device below it is only read.
//! - [`UndoDevice`]: saves old blocks in an undo file before they are overwritten.
//! - [`DelayDevice`]: answers after a fixed time, as a disk or a network would.
//! - [`DeadlineDevice`]: fails calls that a device does not answer in time.
//! - [`ShuffleDevice`]: completes started requests late and out of order, by seed.
//! - [`FaultDevice`]: fails, corrupts or truncates on demand, repeatably.
//! - [`Recording`]: records the writes to one or more devices, and builds every state that a power
//!   loss could have left behind.
//!
//! A device is held as `Arc<dyn Device>`. This crate knows bytes and physical addresses; it knows
//! nothing about Btrfs.
//!
//! ```
//! use papilio_device::{Device, MemoryDevice, PhysicalAddress};
//! use std::sync::Arc;
//!
//! # fn main() -> std::io::Result<()> {
//! // Ten tebibytes; only written chunks take memory.
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
//! An open file is locked, and a failed open names its cause:
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
//!     .map(|(index, block)| ReadRequest::new(PhysicalAddress(index as u64 * 4096), block))
//!     .collect();
//! device.read_many(&mut requests); // All at once, over io_uring where the host supports it.
//! for request in requests {
//!     request.result?;
//! }
//! assert_eq!((blocks[0], blocks[1], blocks[2]), ([0; 4096], [7; 4096], [7; 4096]));
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_op_in_unsafe_fn)]

mod aligned;
pub mod archive;
mod backing;
mod clock;
mod deadline;
mod delay;
mod device;
mod driver;
mod ending;
mod error;
mod fault;
mod file;
mod host;
mod image;
mod layers;
mod load;
mod lock;
mod lock_owner;
mod loop_use;
mod memory;
#[cfg(not(target_os = "linux"))]
mod no_uring;
mod object_store;
mod object_stores;
mod open;
mod overlay;
pub mod partclone;
mod partition;
mod partition_table;
mod recorder;
mod shuffle;
mod signature;
mod stable;
mod started;
mod undo;
#[cfg(target_os = "linux")]
mod uring;
mod url;
mod workers;

#[cfg(not(target_os = "linux"))]
use no_uring as uring;

pub use aligned::AlignedBuffer;
pub use clock::{coarse_time, thread_cpu_time};
pub use deadline::DeadlineDevice;
pub use delay::DelayDevice;
pub use device::{
    Access, Advice, Device, ReadRequest, RingTarget, WriteRequest, check_read, check_write, read_only,
};
pub use driver::{Completed, Driver, Piece};
pub use ending::announce_ending;
pub use error::{OpenError, OpenErrorKind};
pub use fault::{CallCounts, CallKind, FaultDevice};
pub use file::FileDevice;
pub use host::WakeFd;
pub use image::{
    ImageFormat, ImageOptions, ImagePart, ImageTarget, OpenedImage, PartitionChoice, has_layers,
    is_inside_image, is_raw_file, split_partition,
};
pub use layers::{LayerChoice, LayerRequest, Layers, install_layers};
pub use load::{Busy, Load};
pub use lock::restore_readers_locks;
pub use memory::MemoryDevice;
pub use object_store::ObjectStore;
pub use object_stores::{
    ObjectStores, RemoteCache, RemoteOptions, RequestCounts, StoreCheckpoint, StoreCleaned, StoreInfo,
    StoreKey, StoreRequests, StoreWatch, install_object_stores, object_stores, url_text,
};
pub use open::OpenOptions;
pub use overlay::{OverlayDevice, OverlayFull};
pub use papilio_format::PhysicalAddress;
pub use partition::PartitionDevice;
pub use partition_table::{Partition, PartitionTable, PartitionType, TableKind};
pub use recorder::{Action, Event, RecorderDevice, Recording, Replay, SECTOR_SIZE};
pub use shuffle::ShuffleDevice;
pub use signature::{Signature, SignatureUse, describe_content, signatures};
pub use stable::StableBuffer;
pub use started::{Direction, Job, StartedOp};
pub use undo::{UndoDevice, UndoFile, UndoIdentity, UndoLog, UndoMember};
pub use uring::io_uring_available;
pub use url::{URL_SCHEMES, is_store_url, is_url, url_prefix};
