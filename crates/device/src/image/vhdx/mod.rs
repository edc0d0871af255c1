//! VHDX images of Hyper-V: fixed and dynamic ones.
//!
//! The source is [MS-VHDX]. [`header`] reads and writes the headers, [`layout`] reads regions and
//! metadata, [`log`] the changes that a program left behind, and [`blocks`] the table of blocks.
//! The crate `vhdx-core` is no help: it does not write, and applies a log to wrong places.
//!
//! **Invariant**: an image that needs a parent is refused.
//!
//! Table entries are written in place, and not through the log. The log exists to keep 4 KiB of
//! table whole. An entry has eight bytes inside of one sector, and names a block that is durable
//! already, so the file is valid whichever entries reach it.

mod blocks;
mod header;
mod layout;
mod log;

use super::sparse::{Growing, SparseDevice};
use crate::device::Device;
use crate::error::OpenErrorKind;
use blocks::BlockTable;
use header::{Header, fault};
use layout::Layout;
use log::Log;
use std::sync::Arc;

/// Opens an image for reading. A log that was not applied counts as applied.
pub(super) fn open(file: Arc<dyn Device>) -> Result<SparseDevice, OpenErrorKind> {
    let header = Header::read(&*file)?;
    let log = Log::read(&*file, &header)?;
    let layout = Layout::read(&*file, &log)?;
    let units = BlockTable::read(&*file, &log, &layout)?;
    Ok(SparseDevice::reader(file, units))
}

/// Opens an image for reading and writing. A log that was not applied is applied to the file.
pub(super) fn open_writable(file: Arc<dyn Growing>) -> Result<SparseDevice, OpenErrorKind> {
    let header = Header::read(&*file)?;
    let log = Log::read(&*file, &header)?;
    let layout = Layout::read(&*file, &log)?;
    let units = BlockTable::read(&*file, &log, &layout)?;
    let reserved = layout.regions(&header);
    // The header still names the log, which may be applied again.
    log.apply(&*file).map_err(OpenErrorKind::Io)?;
    let tables = BlockTable::new(header, &layout);
    SparseDevice::writer(file, units, &reserved, Box::new(tables)).map_err(fault)
}
