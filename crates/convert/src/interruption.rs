//! The states in which a power cut may leave a device at the end of a conversion or a way back.
//!
//! Owns [`Interruption`] and [`Finished`].

/// The state of a device on which a conversion or a way back was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Interruption {
    /// The device is Btrfs. The old superblock is still there, and superblock copies may be
    /// missing.
    Conversion,
    /// A part of the write that makes the device Btrfs was done.
    TornConversion {
        /// Whether the old file system was used since.
        used_since: bool,
    },
    /// A part of the writes that bring the old file system back was done.
    TornRollback {
        /// Whether the old file system was used since.
        used_since: bool,
    },
}

impl std::fmt::Display for Interruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, used_since) = match self {
            Self::Conversion => {
                return f.write_str(
                    "a conversion to Btrfs was interrupted after its last important write: `papilio \
                     convert` completes it",
                );
            }
            Self::TornConversion { used_since } => ("a conversion to Btrfs", used_since),
            Self::TornRollback { used_since } => ("the way back to the old file system", used_since),
        };
        write!(f, "{what} was interrupted in the middle of its last write, at 64 KiB: ")?;
        f.write_str(match (self, used_since) {
            (_, true) => {
                "the old file system was used since, so only `papilio convert -r` mends it; then run e2fsck \
                 or xfs_repair"
            }
            (Self::TornConversion { .. }, _) => {
                "`papilio convert` completes it, and `papilio convert -r` undoes it"
            }
            _ => "`papilio convert -r` completes it",
        })
    }
}

/// The file system that a device has after an interruption was dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finished {
    /// Btrfs.
    Btrfs,
    /// The old file system.
    Source,
}
