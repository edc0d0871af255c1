//! Hostile send streams, and receiving them.
//!
//! [`HostileStream`] is a list of commands, changed at random, whose checksums are repaired, so
//! that the changes reach the interpreter. [`Receiver`] has a prepared file system. A [`Batch`] of
//! streams is received on a copy of it that shares what is unchanged.

mod mutate;
mod receiver;
mod stream;

pub use receiver::{Batch, ReceiveSummary, Receiver};
pub use stream::{Damage, HostileStream, RawCommand};
