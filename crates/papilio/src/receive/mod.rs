//! Receiving: applies send streams to a target.
//!
//! Owns [`Receive`], the options, and [`StreamReader`]. [`run`] leads each subvolume from its first
//! command to its last, [`interpreter`] applies a command to a [`ReceiveTarget`], and [`image`] is
//! the target inside of a file system. Front ends have targets of their own, such as a directory of
//! the host.
//!
//! **Invariants**
//! - No command reaches a file outside the subvolume that it belongs to.
//! - A subvolume gets its received UUID and becomes read-only when its last command was applied.
//!   Until then it is writable, so it does not look complete.
//!
//! **Locks:** those of the public methods.
//!
//! Counterpart: btrfs-progs' `cmds/receive.c`.

mod decode;
mod image;
mod interpreter;
mod parent;
mod position;
mod run;
mod stream;
mod target;

pub use stream::StreamReader;
pub use target::{CloneRange, ExistingSubvolume, ReceiveTarget, SentSubvolume};

use crate::errors::{Error, Result};
use crate::fs::{AsPath, FileSystem};
use image::ImageTarget;
use run::Run;
use std::io::Read;

/// Receives streams as `btrfs receive` does.
#[derive(Clone, Debug)]
pub struct Receive {
    stop_at_end: bool,
    max_errors: u64,
    decompress: bool,
    resume: bool,
}

/// A subvolume of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedSubvolume {
    /// Its name in the directory that receives.
    pub name: Vec<u8>,
    /// Whether it is complete: it is read-only and has its received UUID.
    pub complete: bool,
    /// Whether it is incomplete, and [`Receive::resume`] can go on with it.
    pub resumable: bool,
}

/// Watches a receive.
pub trait ReceiveObserver {
    /// A subvolume begins; it is a snapshot of another one if `snapshot` is set.
    fn begins(&mut self, name: &[u8], snapshot: bool);
    /// The stream was read up to this byte.
    fn progress(&mut self, bytes: u64);
    /// A command failed, and the run goes on.
    fn failed(&mut self, error: &Error);
}

impl Default for Receive {
    fn default() -> Self {
        Self::new()
    }
}

impl Receive {
    /// Receives all streams of the input; the first error ends the run.
    pub const fn new() -> Self {
        Self { stop_at_end: false, max_errors: 1, decompress: false, resume: false }
    }

    /// Ends after the first stream, also if the input goes on.
    pub fn stop_at_end(mut self, stop: bool) -> Self {
        self.stop_at_end = stop;
        self
    }

    /// Ends after this many commands that failed; 0 means never. A subvolume with a failed command
    /// does not become complete.
    pub fn max_errors(mut self, errors: u64) -> Self {
        self.max_errors = errors;
        self
    }

    /// Writes the bytes of compressed extents, in place of the extents as they lie.
    pub fn force_decompress(mut self, decompress: bool) -> Self {
        self.decompress = decompress;
        self
    }

    /// Goes on with a subvolume that an earlier run left incomplete, given the same stream from its
    /// start. Commands that were applied then are only read and compared, and subvolumes that are
    /// complete are passed over. A run leaves an incomplete subvolume resumable if its stream ended
    /// early, or a command failed and ended the run. One that was killed does not.
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// Applies the streams of `input` to the directory at `path`. `received` gets each subvolume
    /// that a stream begins, also if the run fails.
    ///
    /// # Errors
    /// An invalid stream; a command that cannot be applied; a parent that is missing or changed; as
    /// the operations.
    pub fn receive(
        &self,
        fs: &FileSystem,
        path: impl AsPath,
        input: &mut dyn Read,
        received: &mut Vec<ReceivedSubvolume>,
        observer: &mut dyn ReceiveObserver,
    ) -> Result<()> {
        let mut target = ImageTarget::new(fs, fs.inode(path)?);
        self.receive_into(&mut target, input, received, observer)
    }

    /// As [`Receive::receive`], for any target.
    ///
    /// # Errors
    /// As [`Receive::receive`].
    pub fn receive_into(
        &self,
        target: &mut dyn ReceiveTarget,
        input: &mut dyn Read,
        received: &mut Vec<ReceivedSubvolume>,
        observer: &mut dyn ReceiveObserver,
    ) -> Result<()> {
        let mut run = Run::new(self, target, received);
        let result = run.apply_all(&mut StreamReader::new(input), observer);
        match (result, run.suspend()) {
            // The first error is the cause.
            (Err(error), _) | (Ok(()), Err(error)) => Err(error),
            (Ok(()), Ok(())) => Ok(()),
        }
    }
}
