//! Times: nanoseconds and seconds since 1970 as Python has them.
//!
//! Owns the conversions between [`Timespec`] and Python's numbers.

use papilio::Timespec;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;

const BILLION: i128 = 1_000_000_000;

/// Returns nanoseconds since 1970.
pub fn to_ns(time: Timespec) -> i128 {
    i128::from(time.seconds) * BILLION + i128::from(time.nanoseconds)
}

/// Returns seconds since 1970.
pub fn to_seconds(time: Timespec) -> f64 {
    time.seconds as f64 + f64::from(time.nanoseconds) / 1e9
}

/// Returns the time of nanoseconds since 1970.
///
/// # Errors
/// `OverflowError` for a time that 64 bits of seconds do not hold.
pub fn from_ns(ns: i128) -> PyResult<Timespec> {
    let seconds = i64::try_from(ns.div_euclid(BILLION))
        .map_err(|_| PyOverflowError::new_err("the time is out of range"))?;
    Ok(Timespec { seconds, nanoseconds: ns.rem_euclid(BILLION) as u32 })
}

/// Returns the time of a number of seconds, an `int` or a `float`.
///
/// # Errors
/// `ValueError` for one that is no number; `OverflowError`.
pub fn from_seconds(seconds: &Bound<'_, PyAny>) -> PyResult<Timespec> {
    if let Ok(seconds) = seconds.extract::<i64>() {
        return Ok(Timespec { seconds, nanoseconds: 0 });
    }
    let seconds: f64 = seconds.extract()?;
    if seconds.is_nan() {
        return Err(PyValueError::new_err("the time is not a number"));
    }
    let whole = seconds.floor();
    if whole.abs() >= i64::MAX as f64 {
        return Err(PyOverflowError::new_err("the time is out of range"));
    }
    from_ns(whole as i128 * BILLION + ((seconds - whole) * 1e9).round() as i128)
}
