//! Receiving: applies send streams to a file system.
//!
//! Owns [`Receive`], the options and the run, and [`StreamReader`]. [`target`] applies the commands
//! to one subvolume, with the public operations only.
//!
//! **Invariants**
//! - No command reaches a file outside the subvolume that it belongs to: paths are walked name by
//!   name, no symbolic link is followed, and no other subvolume is entered.
//! - A subvolume gets its received UUID and becomes read-only when its last command was applied.
//!   Until then it is writable, so it does not look complete.
//!
//! **Locks:** those of the public methods.
//!
//! Counterpart: btrfs-progs' `cmds/receive.c`.

mod parent;
mod stream;
mod target;

pub use stream::StreamReader;

use crate::errors::{Error, PathError, Result};
use crate::fs::{AsPath, FileSystem};
use crate::subvolume::Received;
use papilio_format::items::inode::Timespec;
use papilio_format::send_stream::Command;
use papilio_format::{Generation, Uuid};
use parent::find_parent;
use std::io::Read;
use target::Target;

/// Receives streams as `btrfs receive` does.
#[derive(Clone, Debug)]
pub struct Receive {
    stop_at_end: bool,
    max_errors: u64,
}

/// A subvolume of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedSubvolume {
    /// Its name in the directory that receives.
    pub name: Vec<u8>,
    /// Whether it is complete: it is read-only and has its received UUID.
    pub complete: bool,
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
        Self { stop_at_end: false, max_errors: 1 }
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
        let mut reader = StreamReader::new(input);
        let mut run = Run { fs, directory: path.as_path_bytes().to_vec(), current: None };
        let mut errors = 0;
        while let Some(command) = reader.next_command()? {
            observer.progress(reader.offset());
            if let Err(error) = run.apply(&command, received, observer) {
                let source = Box::new(error);
                let error = Error::Receive {
                    command: command.kind(),
                    path: target::path_of(&command).to_vec(),
                    source,
                };
                errors += 1;
                if let Some(current) = &mut run.current {
                    current.failed = true;
                }
                if self.max_errors > 0 && errors >= self.max_errors || run.current.is_none() {
                    return Err(error);
                }
                observer.failed(&error);
            }
            if command == Command::End && self.stop_at_end {
                break;
            }
        }
        Ok(())
    }
}

/// The subvolume that the stream is about.
struct Current {
    target: Target,
    name: Vec<u8>,
    received: Received,
    failed: bool,
}

struct Run<'a> {
    fs: &'a FileSystem,
    directory: Vec<u8>,
    current: Option<Current>,
}

impl Run<'_> {
    fn apply(
        &mut self,
        command: &Command,
        received: &mut Vec<ReceivedSubvolume>,
        observer: &mut dyn ReceiveObserver,
    ) -> Result<()> {
        let (path, uuid, ctransid, parent) = match command {
            Command::Subvol { path, uuid, ctransid } => (path, uuid, ctransid, None),
            Command::Snapshot { path, uuid, ctransid, clone_uuid, clone_ctransid } => {
                (path, uuid, ctransid, Some((*clone_uuid, Generation(*clone_ctransid))))
            }
            Command::End => return self.finish(received),
            other => {
                let Some(current) = &mut self.current else {
                    return Err(Error::Invalid("the stream has no subvolume for this command yet".into()));
                };
                return current.target.apply(self.fs, other);
            }
        };
        if self.current.is_some() {
            return Err(Error::Invalid("the subvolume before it has no end command".into()));
        }
        check_name(path)?;
        let directory = self.fs.inode(&self.directory)?;
        observer.begins(path, parent.is_some());
        let root = match parent {
            None => {
                let new = crate::namespace::create::NewInode::new(
                    crate::namespace::create::NewKind::Directory,
                    0o755,
                );
                directory.create_subvolume(path, &new)?
            }
            Some((uuid, ctransid)) => {
                let parent = find_parent(self.fs, uuid, ctransid)?;
                directory.create_snapshot(parent.id, path, false)?
            }
        };
        received.push(ReceivedSubvolume { name: path.clone(), complete: false });
        let sent = Generation(*ctransid);
        let mark = Received { uuid: *uuid, sent, send_time: Timespec::default() };
        let target = Target::new(root, *uuid);
        // A snapshot inherits the mark of its source, with which it would look complete.
        let none = Received { uuid: Uuid::nil(), sent: Generation(0), send_time: Timespec::default() };
        let current = Current { target, name: path.clone(), received: mark, failed: false };
        if parent.is_some() {
            self.fs.set_received(self.path_of(&current.name), &none)?;
        }
        self.current = Some(current);
        Ok(())
    }

    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        [&self.directory[..], b"/", name].concat()
    }

    /// Marks the subvolume as received and makes it read-only.
    fn finish(&mut self, received: &mut [ReceivedSubvolume]) -> Result<()> {
        let Some(current) = self.current.take() else {
            return Err(Error::Invalid("the stream has no subvolume to end".into()));
        };
        if current.failed {
            return Ok(());
        }
        let tree = current.target.tree();
        drop(current.target);
        self.fs.set_received(self.path_of(&current.name), &current.received)?;
        self.fs.set_subvolume_read_only_by_id(tree, true)?;
        if let Some(last) = received.last_mut() {
            last.complete = true;
        }
        Ok(())
    }
}

/// Accepts one name, as senders give subvolumes.
fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.contains(&b'/') || name == b"." || name == b".." {
        return Err(Error::path(name, PathError::InvalidName));
    }
    Ok(())
}
