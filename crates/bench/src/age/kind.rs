//! The kinds of work that age a file system: [`Workload`].

/// The work that ages a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// Random operations on files and names, with syncs and snapshots, at a constant fill
    Churn,
    /// Fill the device until no space is left, and delete almost everything
    Fill,
    /// Make snapshots of files that change, then delete them all
    Snapshots,
    /// Make extents in one file
    Extents,
    /// Make names in one directory, look them up and remove them
    Names,
    /// Write one file from start to end again and again
    Stream,
}

impl Workload {
    /// Returns the unit of its amount.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Churn => "operations",
            Self::Fill => "times full",
            Self::Snapshots => "snapshots",
            Self::Extents => "extents",
            Self::Names => "names",
            Self::Stream => "seconds",
        }
    }

    /// Returns its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Churn => "churn",
            Self::Fill => "fill",
            Self::Snapshots => "snapshots",
            Self::Extents => "extents",
            Self::Names => "names",
            Self::Stream => "stream",
        }
    }

    /// Returns the amount of a short run.
    pub(super) fn default_amount(self) -> u64 {
        match self {
            Self::Churn | Self::Extents | Self::Names => 1_000_000,
            Self::Fill => 100,
            Self::Snapshots => 1000,
            Self::Stream => 60,
        }
    }

    /// Returns the size of the device in bytes.
    pub(super) fn default_size(self) -> u64 {
        match self {
            Self::Fill => 512 << 20,
            Self::Names => 8 << 30,
            _ => 2 << 30,
        }
    }
}
