//! The errors of a conversion.
//!
//! Owns [`ConvertError`]. Every variant that concerns the source says that nothing was lost: until
//! the last step, only space is written that the source has free.

use crate::interruption::Interruption;
use papilio_engine::errors::Error;

/// The result of almost every function in this crate.
pub type Result<T, E = ConvertError> = std::result::Result<T, E>;

/// An error of a conversion or a way back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The device has no file system that can be converted.
    #[error("{device}: no ext2, ext3, ext4 or XFS file system: {reason}")]
    NoSource {
        /// The device.
        device: String,
        /// The content found instead.
        reason: String,
    },
    /// The source has to be checked or mounted once before it can be converted.
    #[error("{device}: {reason}; nothing was changed")]
    Dirty {
        /// The device.
        device: String,
        /// The unfinished part, and the remedy.
        reason: String,
    },
    /// The source has a property that cannot be converted.
    #[error("{device}: {reason}; nothing was changed")]
    Unsupported {
        /// The device.
        device: String,
        /// The property.
        reason: String,
    },
    /// The source is damaged.
    #[error("{device}: {place}: {reason}; run {tool} on it first; nothing was changed")]
    Damaged {
        /// The device.
        device: String,
        /// The structure.
        place: String,
        /// The fault.
        reason: String,
        /// The program that repairs such a file system.
        tool: &'static str,
    },
    /// The source has too little free space.
    #[error("{device}: no room: {reason}; nothing was changed")]
    NoRoom {
        /// The device.
        device: String,
        /// The room needed, and the room found.
        reason: String,
    },
    /// The way back is not possible.
    #[error("{device}: cannot roll back: {reason}")]
    Rollback {
        /// The device.
        device: String,
        /// The reason.
        reason: String,
    },
    /// The last write of a conversion or of a way back was interrupted.
    #[error("{device}: {state}; nothing was changed")]
    Interrupted {
        /// The device.
        device: String,
        /// Its state, with the remedy.
        state: Interruption,
    },
    /// The options contradict each other or the source.
    #[error("{0}")]
    Invalid(String),
    /// The device failed.
    #[error("{device}: {operation} at {offset}: {source}")]
    Device {
        /// The device.
        device: String,
        /// The operation: `read`, `write` or `flush`.
        operation: &'static str,
        /// Byte offset on the device.
        offset: u64,
        /// The system's error.
        r#source: std::io::Error,
    },
    /// The new file system could not be written or read.
    #[error(transparent)]
    Engine(#[from] Error),
}
