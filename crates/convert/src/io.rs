//! Writes to a device, with the place in errors.

use crate::error::{ConvertError, Result};
use papilio_device::Device;
use papilio_format::PhysicalAddress;

/// Returns the error of a device.
fn failed(
    device: &dyn Device,
    operation: &'static str,
    offset: u64,
) -> impl Fn(std::io::Error) -> ConvertError + use<> {
    let device = device.name().to_owned();
    move |source| ConvertError::Device { device: device.clone(), operation, offset, source }
}

/// Writes to a device.
pub(crate) fn write(device: &dyn Device, bytes: &[u8], offset: u64) -> Result<()> {
    device.write_at(bytes, PhysicalAddress(offset)).map_err(failed(device, "write", offset))
}

/// Makes durable what was written.
pub(crate) fn flush(device: &dyn Device) -> Result<()> {
    device.flush().map_err(failed(device, "flush", 0))
}

/// Writes, and makes that durable. This is no single write that is forced through the caches: a
/// device that tears one is not better, and recorded tests tear what a flush has not followed.
pub(crate) fn write_durably(device: &dyn Device, bytes: &[u8], offset: u64) -> Result<()> {
    write(device, bytes, offset)?;
    flush(device)
}
