//! The faults of a send stream.
//!
//! Owns [`SendStreamError`] and [`SendStreamFault`].

use super::kind::{Attribute, CommandKind};

/// A fault and its place in the stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("send stream, byte {offset}: {fault}")]
pub struct SendStreamError {
    /// Bytes from the start of the stream.
    pub offset: u64,
    /// The fault.
    pub fault: SendStreamFault,
}

/// A fault of a send stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendStreamFault {
    /// The stream does not start with the magic.
    #[error("no send stream: the magic \"btrfs-stream\" is missing")]
    Magic,
    /// The stream has an unknown version.
    #[error("protocol {0} is not supported, only 1 and 2 are")]
    Version(u32),
    /// A command's number is unknown, or the stream's version lacks the command.
    #[error("command {command} does not exist in protocol {protocol}")]
    Command {
        /// The command's number.
        command: u16,
        /// The version of the stream.
        protocol: u32,
    },
    /// A command is longer than the version allows.
    #[error("a command has {length} bytes, at most {limit} are allowed")]
    TooLong {
        /// Bytes without the header.
        length: usize,
        /// Most bytes allowed.
        limit: usize,
    },
    /// A command's checksum is wrong.
    #[error("{command}: the checksum is {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// The command.
        command: CommandKind,
        /// The checksum in the header.
        found: u32,
        /// The checksum of the bytes.
        expected: u32,
    },
    /// An attribute's number is unknown.
    #[error("{command}: attribute {attribute} is unknown")]
    UnknownAttribute {
        /// The command.
        command: CommandKind,
        /// The attribute's number.
        attribute: u16,
    },
    /// An attribute exceeds its command.
    #[error("{command}: an attribute needs {need} bytes, {have} are left")]
    AttributeCut {
        /// The command.
        command: CommandKind,
        /// Bytes needed.
        need: usize,
        /// Bytes left in the command.
        have: usize,
    },
    /// An attribute appears twice.
    #[error("{command}: attribute {attribute} appears twice")]
    Repeated {
        /// The command.
        command: CommandKind,
        /// The attribute.
        attribute: Attribute,
    },
    /// A required attribute is missing.
    #[error("{command}: attribute {attribute} is missing")]
    Missing {
        /// The command.
        command: CommandKind,
        /// The attribute.
        attribute: Attribute,
    },
    /// An attribute has the wrong size.
    #[error("{command}: attribute {attribute} has {found} bytes, expected {expected}")]
    Size {
        /// The command.
        command: CommandKind,
        /// The attribute.
        attribute: Attribute,
        /// Bytes found.
        found: usize,
        /// Bytes expected: the exact number, or the most allowed.
        expected: usize,
    },
    /// A path or a name contains a NUL.
    #[error("{command}: attribute {attribute} contains a NUL")]
    Nul {
        /// The command.
        command: CommandKind,
        /// The attribute.
        attribute: Attribute,
    },
    /// The stream ends inside a header or a command.
    #[error("the stream ends early: {need} bytes should follow, {have} do")]
    Cut {
        /// Bytes needed.
        need: usize,
        /// Bytes found.
        have: usize,
    },
}

impl SendStreamFault {
    /// Adds the place.
    pub const fn at(self, offset: u64) -> SendStreamError {
        SendStreamError { offset, fault: self }
    }
}
