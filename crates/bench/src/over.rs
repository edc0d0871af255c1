//! The quantities that a sweep varies.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The quantity that a sweep varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// Concurrent jobs.
    Threads,
    /// Extents of the job's one file.
    Extents,
    /// Snapshots that share all of the file system's blocks.
    Snapshots,
}

impl Over {
    /// Returns the default points.
    pub(crate) fn points(self) -> &'static [u64] {
        match self {
            Self::Threads => &[1, 2, 4, 16],
            Self::Extents => &[1_000, 10_000, 100_000, 1_000_000, 10_000_000],
            Self::Snapshots => &[1, 10, 100, 1000],
        }
    }

    /// Returns what the points count, for axis labels and table headings.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Threads => "concurrent jobs",
            Self::Extents => "extents of the file",
            Self::Snapshots => "snapshots",
        }
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Threads => "threads",
            Self::Extents => "extents",
            Self::Snapshots => "snapshots",
        })
    }
}
