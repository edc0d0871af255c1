//! Whom a job is run by.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One of those that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The kernel's Btrfs over a loop device (or on the block device itself).
    Kernel,
    /// Papilio's engine for fio, as it is.
    Papilio,
    /// Papilio's engine with the job's switch in its slow position.
    PapilioSlow,
    /// Papilio's FUSE mount.
    Mount,
    /// The same over io_uring.
    MountRing,
    /// The backing file or device itself, without a file system on it: the limit.
    Raw,
}

impl Side {
    /// All, in the order of tables and plots.
    pub const ALL: [Self; 6] =
        [Self::Kernel, Self::Papilio, Self::PapilioSlow, Self::Mount, Self::MountRing, Self::Raw];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Papilio => "papilio",
            Self::PapilioSlow => "papilio-slow",
            Self::Mount => "mount",
            Self::MountRing => "mount-ring",
            Self::Raw => "raw",
        }
    }

    /// What it is, for a legend.
    pub fn description(self) -> &'static str {
        match self {
            Self::Kernel => "the kernel's Btrfs",
            Self::Papilio => "Papilio in fio's process",
            Self::PapilioSlow => "the same, the job's switch in its slow position",
            Self::Mount => "Papilio's FUSE mount",
            Self::MountRing => "Papilio's FUSE mount over io_uring",
            Self::Raw => "the backing itself, no file system",
        }
    }

    /// Whether Papilio works in a process of its own, which serves a mount.
    pub fn is_mount(self) -> bool {
        matches!(self, Self::Mount | Self::MountRing)
    }

    /// The side of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|side| side.name() == name)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_to_one() {
        for side in Side::ALL {
            assert_eq!(Side::named(side.name()), Some(side));
            assert_eq!(serde_json::to_value(side).unwrap(), side.name());
        }
        assert_eq!(Side::named("Kernel"), None);
    }
}
