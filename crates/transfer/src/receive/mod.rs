//! Receiving: applies send streams to a target.
//!
//! [`options`] has the options, and [`stream`] reads commands. [`run`] leads each subvolume from
//! its first command to its last, [`interpreter`] applies a command to a [`ReceiveTarget`], and
//! [`image`] is the target inside of a file system, [`host`] a directory of the host. Front ends
//! may have targets of their own.
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
#[cfg(target_os = "linux")]
mod host;
mod image;
mod interpreter;
mod options;
mod parent;
mod position;
mod run;
mod stream;
mod target;

#[cfg(target_os = "linux")]
pub use host::HostDirectory;
pub use options::{Receive, ReceiveObserver, ReceivedSubvolume};
pub use position::ResumeToken;
pub use stream::StreamReader;
pub use target::{CloneRange, ExistingSubvolume, ReceiveTarget, SentSubvolume};

pub(crate) use decode::decode;
pub(crate) use interpreter::Interpreter;
pub(crate) use position::{outline_of, outline_of_encoded, outline_of_write};
pub(crate) use stream::part_header;

use image::ImageTarget;
use papilio_engine::errors::Result;
use papilio_fs::{AsPath, FileSystem};
use run::Run;
use std::io::Read;

impl Receive {
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

    /// As [`Receive::receive`], for any target, such as a [`HostDirectory`].
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
        let result = run.apply_all(&mut StreamReader::new(input).take_rests(self.resume), observer);
        match (result, run.suspend()) {
            // The first error is the cause.
            (Err(error), _) | (Ok(()), Err(error)) => Err(error),
            (Ok(()), Ok(())) => Ok(()),
        }
    }
}
