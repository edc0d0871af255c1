//! The sides of a comparison: the implementations that run each job.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One side of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The kernel's Btrfs over a loop device (or on the block device itself).
    Kernel,
    /// Papilio's fio engine with default tuning.
    Papilio,
    /// The fio engine of another build of Papilio (`--against`).
    PapilioOther,
    /// Papilio's fio engine with the job's switch in its slow position.
    PapilioSlow,
    /// Papilio's FUSE mount.
    Mount,
    /// The FUSE mount of another build of Papilio (`--against`).
    MountOther,
    /// Papilio's FUSE mount with requests over io_uring.
    MountRing,
    /// The backing file or device without a file system: the reference for its speed.
    Raw,
}

impl Side {
    /// All sides, in the order of tables and plots.
    pub const ALL: [Self; 8] = [
        Self::Kernel,
        Self::Papilio,
        Self::PapilioOther,
        Self::PapilioSlow,
        Self::Mount,
        Self::MountOther,
        Self::MountRing,
        Self::Raw,
    ];

    /// Name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Papilio => "papilio",
            Self::PapilioOther => "papilio-other",
            Self::PapilioSlow => "papilio-slow",
            Self::Mount => "mount",
            Self::MountOther => "mount-other",
            Self::MountRing => "mount-ring",
            Self::Raw => "raw",
        }
    }

    /// Description for a legend.
    pub fn description(self) -> &'static str {
        match self {
            Self::Kernel => "the kernel's Btrfs",
            Self::Papilio => "Papilio's engine in fio's process",
            Self::PapilioOther => "the engine of another build of Papilio (--against)",
            Self::PapilioSlow => "Papilio's engine with the job's switch in its slow position",
            Self::Mount => "Papilio's FUSE mount",
            Self::MountOther => "the FUSE mount of another build of Papilio (--against)",
            Self::MountRing => "Papilio's FUSE mount over io_uring",
            Self::Raw => "the backing file or device, no file system",
        }
    }

    /// Returns whether Papilio runs as the server of a FUSE mount, outside fio's process.
    pub fn is_mount(self) -> bool {
        matches!(self, Self::Mount | Self::MountOther | Self::MountRing)
    }

    /// Returns the side that runs the same with another build, if there is one.
    pub fn other_build(self) -> Option<Self> {
        match self {
            Self::Papilio => Some(Self::PapilioOther),
            Self::Mount => Some(Self::MountOther),
            _ => None,
        }
    }

    /// Returns whether the side runs another build.
    pub fn is_other_build(self) -> bool {
        matches!(self, Self::PapilioOther | Self::MountOther)
    }

    /// Returns the side with a name; `None` for an unknown name.
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
    fn each_name_denotes_one_side() {
        for side in Side::ALL {
            assert_eq!(Side::named(side.name()), Some(side));
            assert_eq!(serde_json::to_value(side).unwrap(), side.name());
        }
        assert_eq!(Side::named("Kernel"), None);
    }
}
