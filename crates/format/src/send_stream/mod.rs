//! The stream of `btrfs send`: bytes to commands and back.
//!
//! `kind` has the numbers of protocols, commands and attributes, `header` the headers of the stream
//! and of a command, `attribute` the attributes of a command, `command` the commands, and `fault`
//! the errors. A reader hands in one whole command at a time; nothing here reads or buffers a
//! stream.
//!
//! **Invariant:** parsing what a command was serialised to gives the command back.
//!
//! Sources: `fs/btrfs/send.h` and `fs/btrfs/send.c` for protocols 1 and 2; "Btrfs send stream
//! format" of the Btrfs documentation.

mod attribute;
mod command;
mod fault;
mod header;
mod kind;
#[cfg(test)]
mod tests;

pub use command::{Command, EncodedWrite};
pub use fault::{SendStreamError, SendStreamFault};
pub use header::CommandHeader;
pub use kind::{
    Attribute, COMMAND_HEADER_SIZE, CommandKind, MAGIC, Protocol, STREAM_HEADER_SIZE, WRITE_SIZE,
};
