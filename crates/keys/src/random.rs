//! Random bytes for keys, salts and nonces.

use std::fs::File;
use std::io::{self, Read};

/// Returns random bytes of the operating system.
///
/// # Errors
/// The host's error.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
