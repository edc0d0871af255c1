//! Recognises the content of a device before it is overwritten.
//!
//! Owns [`find_signature`]. It guards against mistakes; unknown content is overwritten.

use crate::errors::{Error, Result};
use papilio_device::{Device, signatures};
use papilio_format::PhysicalAddress;

/// Returns the format of the device's content, if it has a known signature.
///
/// # Errors
/// The device cannot be read.
pub fn find_signature(device: &dyn Device) -> Result<Option<&'static str>> {
    let found = signatures(device).map_err(|source| Error::Device {
        device: device.name().to_owned(),
        operation: "read",
        offset: PhysicalAddress(0),
        length: usize::try_from(device.size()).unwrap_or(usize::MAX),
        source,
    })?;
    Ok(found.first().map(|signature| signature.name))
}
