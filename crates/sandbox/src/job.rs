//! The jobs of processes, from which all their rights follow.

/// The purpose of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Reads images and prints: `ls`, `cat`, `check`, `dump-tree`, `send`.
    Read,
    /// Reads images or streams, and writes files below a directory of the host: `restore`, `cp`.
    Extract,
    /// Serves images to clients that connect: `serve`.
    Serve,
    /// Serves a mount through FUSE: `mount`.
    Mount,
}

impl Job {
    /// All jobs.
    pub const ALL: [Self; 4] = [Self::Read, Self::Extract, Self::Serve, Self::Mount];

    /// Returns the name, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Extract => "extract",
            Self::Serve => "serve",
            Self::Mount => "mount",
        }
    }
}
