//! Times of the interface.
//!
//! Owns [`papilio_time`] and its conversions.

use crate::failure::{Failure, Result};
use papilio::Timespec;

/// A point in time.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_time {
    /// Whole seconds since 1970, negative before.
    pub seconds: i64,
    /// Further nanoseconds, normally below 1,000,000,000.
    pub nanoseconds: u32,
    /// Zero.
    pub reserved: u32,
}

/// Returns a time of the interface.
pub(crate) fn time(time: Timespec) -> papilio_time {
    papilio_time { seconds: time.seconds, nanoseconds: time.nanoseconds, reserved: 0 }
}

/// Returns a time of the library.
///
/// # Errors
/// `EINVAL` for too many nanoseconds.
pub(crate) fn timespec(seconds: i64, nanoseconds: u32) -> Result<Timespec> {
    if nanoseconds > 999_999_999 {
        return Err(Failure::invalid(format!("{nanoseconds} nanoseconds are not below a second")));
    }
    Ok(Timespec { seconds, nanoseconds })
}
