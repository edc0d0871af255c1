//! The version of Linux that a new file system is made for.
//!
//! Owns [`KernelVersion`]. btrfs-progs have the versions of the kernels that they came with, so
//! that one number stands for the kernel and the tools of its time.

use std::fmt;
use std::str::FromStr;

/// A version of Linux, such as 5.15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

impl FromStr for KernelVersion {
    type Err = String;

    /// Parses `5.15`, and what `uname -r` prints: `5.15.0-91-generic`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no version of Linux, such as 5.15");
        let mut numbers = text.split(['.', '-']).map(|number| number.parse().map_err(|_| wrong()));
        let major = numbers.next().unwrap_or_else(|| Err(wrong()))?;
        let minor = numbers.next().unwrap_or_else(|| Err(wrong()))?;
        Ok(Self { major, minor })
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_and_compared() {
        let version = |text: &str| text.parse::<KernelVersion>();
        assert_eq!(version("5.15").unwrap(), KernelVersion { major: 5, minor: 15 });
        assert_eq!(version("6.1.0-28-amd64").unwrap(), KernelVersion { major: 6, minor: 1 });
        assert!(version("5.4").unwrap() < version("5.15").unwrap());
        assert!(version("6.1").unwrap() > version("5.15").unwrap());
        for wrong in ["", "5", "five.1", "5.x", ".", "-1.2"] {
            assert!(version(wrong).is_err(), "{wrong}");
        }
    }
}
