//! `LayerError`: why a layer cannot be opened.
//!
//! Each error names the layer and what was found there. Reads and writes of an open layer return
//! `std::io::Error`, as those of every device.

use std::io;
use std::path::PathBuf;

/// A layer cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// A header that contradicts its format.
    #[error("{device}: {format}: {reason}")]
    Damaged {
        /// The device that has the header.
        device: String,
        /// The format's name.
        format: &'static str,
        /// The fault.
        reason: String,
    },
    /// A valid layer of a kind that this crate does not open.
    #[error("{device}: {format} with {feature} is not supported")]
    Unsupported {
        /// The device that has the header.
        device: String,
        /// The format's name.
        format: &'static str,
        /// The algorithm or feature.
        feature: String,
    },
    /// No key slot opens with the passphrase or key file.
    #[error("{device}: no LUKS key slot opens with this {source_name}")]
    WrongKey {
        /// The encrypted device.
        device: String,
        /// "passphrase" or "key file".
        source_name: &'static str,
    },
    /// An encrypted device, and no way to ask for a passphrase.
    #[error(
        "{0}: it is encrypted with LUKS: give a key with --key-file FILE, --key-fd N, \
         --key-command COMMAND or PAPILIO_KEY_FILE, or run this in a terminal"
    )]
    NoKey(String),
    /// The key file or terminal cannot be read.
    #[error("{}: cannot read the key: {source}", path.display())]
    KeySource {
        /// The file.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// The command that prints the key fails.
    #[error("the key command `{command}`: {source}")]
    KeyCommand {
        /// The command.
        command: String,
        /// The host's error, or the command's status.
        source: io::Error,
    },
    /// Too few members.
    #[error("{array}: {present} of {wanted} members are present, which are too few{left_out}")]
    MembersMissing {
        /// The array or volume group.
        array: String,
        /// Members that can be used.
        present: usize,
        /// Members that the array has.
        wanted: usize,
        /// Members that were left out, with the reason of each.
        left_out: String,
    },
    /// Two devices with the same place in an array.
    #[error(
        "{array}: {first} and {second} both are member {role}; keep one of them, or name one with --member"
    )]
    Twins {
        /// The array.
        array: String,
        /// A device.
        first: String,
        /// The other.
        second: String,
        /// The place that both claim.
        role: String,
    },
    /// A layer that lies on itself.
    #[error("{device}: layers in a circle: {layer} is below itself")]
    Circle {
        /// The device whose header closes the circle.
        device: String,
        /// The layer.
        layer: String,
    },
    /// Writing to a layer that can only be read.
    #[error("{layer} can only be read: {reason}")]
    ReadOnly {
        /// The layer.
        layer: String,
        /// The reason.
        reason: String,
    },
    /// No Btrfs file system on top, or no such volume.
    #[error("{0}")]
    NotFound(String),
    /// A device below cannot be read.
    #[error("{device}: {source}")]
    Io {
        /// The device.
        device: String,
        /// The host's error.
        source: io::Error,
    },
}

impl LayerError {
    pub(crate) fn damaged(device: &str, format: &'static str, reason: impl Into<String>) -> Self {
        Self::Damaged { device: device.to_owned(), format, reason: reason.into() }
    }

    pub(crate) fn unsupported(device: &str, format: &'static str, feature: impl Into<String>) -> Self {
        Self::Unsupported { device: device.to_owned(), format, feature: feature.into() }
    }

    pub(crate) fn io(device: &str) -> impl FnOnce(io::Error) -> Self {
        let device = device.to_owned();
        |source| Self::Io { device, source }
    }
}

/// The result of opening a layer.
pub type Result<T, E = LayerError> = std::result::Result<T, E>;
