//! One receive: from the first command of each subvolume to the last.
//!
//! Owns [`Run`]. A subvolume is in one of these states:
//!
//! ```text
//! no subvolume --subvol, snapshot--> applying --end, subvol, snapshot--> no subvolume (complete)
//!      |  \--- it is incomplete, resume---> skipping --the noted command--> applying
//!       \----- it is complete, resume-----> passing over --end--> no subvolume
//! ```
//!
//! **Invariant:** the position counts a command when it was applied, not before. A command that
//! failed is applied again on a resume. Each command either changes nothing when it fails, or has
//! the same result when it is repeated, such as a write.

use super::interpreter::{Interpreter, check_name, path_of};
use super::options::{Receive, ReceiveObserver, ReceivedSubvolume};
use super::position::{ResumeToken, outline_of};
use super::stream::StreamReader;
use super::target::{ExistingSubvolume, ReceiveTarget, SentSubvolume};
use papilio_engine::errors::{Error, Result};
use papilio_engine::subvolume::Received;
use papilio_format::Generation;
use papilio_format::items::inode::Timespec;
use papilio_format::send_stream::Command;

/// The state of a run.
pub(super) struct Run<'a> {
    options: &'a Receive,
    target: &'a mut dyn ReceiveTarget,
    received: &'a mut Vec<ReceivedSubvolume>,
    current: Option<Current>,
}

/// The subvolume that the stream is about.
struct Current {
    interpreter: Interpreter,
    state: State,
    position: ResumeToken,
    /// A command failed and was left out.
    failed: bool,
}

enum State {
    Applying,
    /// Commands up to this position were applied earlier.
    Skipping(ResumeToken),
    /// The subvolume is complete.
    PassingOver,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        options: &'a Receive,
        target: &'a mut dyn ReceiveTarget,
        received: &'a mut Vec<ReceivedSubvolume>,
    ) -> Self {
        Self { options, target, received, current: None }
    }

    /// Applies all commands of the input.
    pub(super) fn apply_all(
        &mut self,
        reader: &mut StreamReader<'_>,
        observer: &mut dyn ReceiveObserver,
    ) -> Result<()> {
        let mut errors = 0;
        while let Some(command) = reader.next_command()? {
            observer.progress(reader.offset());
            let rest = reader.take_rest();
            match self.apply(&command, reader.checksum(), rest, observer) {
                Ok(()) => {}
                Err(source) => {
                    let (command, path) = (command.kind(), path_of(&command).to_vec());
                    let error = Error::Receive { command, path, source: Box::new(source) };
                    errors += 1;
                    let ends = self.options.max_errors > 0 && errors >= self.options.max_errors;
                    let Some(current) = self.current.as_mut().filter(|_| !ends) else { return Err(error) };
                    current.failed = true;
                    observer.failed(&error);
                }
            }
            if command == Command::End && self.options.stop_at_end {
                break;
            }
        }
        Ok(())
    }

    fn apply(
        &mut self,
        command: &Command,
        checksum: u32,
        rest: Option<ResumeToken>,
        observer: &mut dyn ReceiveObserver,
    ) -> Result<()> {
        match command {
            Command::Subvol { path, uuid, ctransid } => {
                let sent = SentSubvolume { uuid: *uuid, ctransid: Generation(*ctransid) };
                self.begin(path, sent, None, (checksum, rest), observer)
            }
            Command::Snapshot { path, uuid, ctransid, clone_uuid, clone_ctransid } => {
                let sent = SentSubvolume { uuid: *uuid, ctransid: Generation(*ctransid) };
                let parent = SentSubvolume { uuid: *clone_uuid, ctransid: Generation(*clone_ctransid) };
                self.begin(path, sent, Some(parent), (checksum, rest), observer)
            }
            Command::End => self.finish(),
            other => self.go_on(other, checksum),
        }
    }

    /// Applies a command about the current subvolume, unless it was applied earlier.
    fn go_on(&mut self, command: &Command, checksum: u32) -> Result<()> {
        let Some(current) = &mut self.current else {
            return Err(Error::Invalid("the stream has no subvolume for this command yet".into()));
        };
        let after = current.position.after(checksum, outline_of(command, checksum));
        match current.state {
            State::Applying => current.interpreter.apply(self.target, command)?,
            State::PassingOver => {}
            State::Skipping(until) if after.is_same(&until) => {
                let last = self.received.last_mut().expect("a subvolume was begun");
                self.target.resume(&last.name)?;
                last.resumable = false;
                current.state = State::Applying;
            }
            State::Skipping(until) if after.commands >= until.commands => return Err(other_stream()),
            State::Skipping(_) => {}
        }
        current.position = after;
        Ok(())
    }

    fn begin(
        &mut self,
        name: &[u8],
        sent: SentSubvolume,
        parent: Option<SentSubvolume>,
        (checksum, rest): (u32, Option<ResumeToken>),
        observer: &mut dyn ReceiveObserver,
    ) -> Result<()> {
        // With -e, senders leave out the end between subvolumes.
        if self.current.is_some() {
            self.finish()?;
        }
        check_name(name)?;
        observer.begins(name, parent.is_some());
        let mut position = ResumeToken::start(sent, checksum, checksum);
        let existing = match self.options.resume {
            true => self.target.existing(name)?,
            false => ExistingSubvolume::Missing,
        };
        let mut entry =
            ReceivedSubvolume { name: name.to_vec(), complete: false, token: None, resumable: false };
        let state = match (existing, rest) {
            (ExistingSubvolume::Complete(found), None) if found == sent => {
                entry.complete = true;
                State::PassingOver
            }
            (ExistingSubvolume::Incomplete(note), Some(rest)) => {
                let noted = ResumeToken::parse(&note).filter(|noted| noted.is_same(&rest));
                noted.filter(|noted| noted.subvolume == sent).ok_or_else(other_rest)?;
                self.target.resume(name)?;
                position = rest;
                State::Applying
            }
            (_, Some(_)) => return Err(other_rest()),
            (ExistingSubvolume::Incomplete(note), None) => {
                let noted = ResumeToken::parse(&note).filter(|noted| noted.subvolume == sent);
                let noted = noted.ok_or_else(other_stream)?;
                entry.resumable = true;
                if noted.commands == 0 {
                    if !noted.is_same(&position) {
                        return Err(other_stream());
                    }
                    self.target.resume(name)?;
                    entry.resumable = false;
                    State::Applying
                } else {
                    State::Skipping(noted)
                }
            }
            // Where it exists, this fails and says so.
            _ => {
                self.target.begin(name, parent)?;
                State::Applying
            }
        };
        self.received.push(entry);
        let interpreter = Interpreter { uuid: sent.uuid, decompress: self.options.decompress };
        self.current = Some(Current { interpreter, state, position, failed: false });
        Ok(())
    }

    /// Marks the subvolume as received and makes it read-only.
    fn finish(&mut self) -> Result<()> {
        let Some(current) = &self.current else {
            return Err(Error::Invalid("the stream has no subvolume to end".into()));
        };
        match current.state {
            State::Skipping(_) => return Err(other_stream()),
            State::Applying if !current.failed => {
                let SentSubvolume { uuid, ctransid } = current.position.subvolume;
                self.target.finish(&Received { uuid, sent: ctransid, send_time: Timespec::default() })?;
                self.received.last_mut().expect("a subvolume was begun").complete = true;
            }
            _ => {}
        }
        self.current = None;
        Ok(())
    }

    /// Notes the position in a subvolume that is incomplete, unless commands of it were left out.
    pub(super) fn suspend(&mut self) -> Result<()> {
        let Some(current) = self.current.take() else { return Ok(()) };
        if current.failed || !matches!(current.state, State::Applying) {
            return Ok(());
        }
        self.target.suspend(&current.position.to_note())?;
        let last = self.received.last_mut().expect("a subvolume was begun");
        last.resumable = true;
        last.token = current.position.outline.map(|_| current.position);
        Ok(())
    }
}

fn other_rest() -> Error {
    let text = "the rest of a stream does not continue this subvolume: send with the token of its last \
                interruption";
    Error::Invalid(text.into())
}

fn other_stream() -> Error {
    let text = "the incomplete subvolume is not from this stream: delete it, and receive it anew";
    Error::Invalid(text.into())
}
