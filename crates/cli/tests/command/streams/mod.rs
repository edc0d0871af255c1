//! Tests of `papilio stream` and of resumed sends.
//!
//! - `PAPILIO_STREAM_CHAINS` sets the number of chains that are joined (1).
//! - `PAPILIO_RESUME_PAIRS` sets the number of pairs that are sent with cuts (6).

mod archives;
mod hostile;
mod kernel_chains;
mod resume;
mod sending_back;

pub use kernel_chains::assert_equal;

use std::ffi::OsStr;
use std::process::Command;

/// Runs the stock tool, which must succeed.
fn btrfs<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Vec<u8> {
    let output = Command::new("btrfs").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("the setting is a number"))
}
