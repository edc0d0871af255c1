//! Random bytes of the system.
//!
//! The sandbox leaves the process with this file alone.

use std::fs::File;
use std::io::{self, Read};

/// Returns random bytes.
///
/// # Errors
/// The system has none.
pub(crate) fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Returns random bytes as hexadecimal digits.
///
/// # Errors
/// As [`bytes`].
pub(crate) fn digits<const N: usize>() -> io::Result<String> {
    Ok(bytes::<N>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}
