//! Each request as an operation of ours, and its reply.
//!
//! Owns [`Server`], which answers in an entry's own buffers: data is read to where the kernel takes it from, and
//! written from where the kernel put it. An operation that panics is answered with EIO. What has to be done besides
//! is for the caller: [`Server::first`] names the files whose data the kernel is to write before, and
//! [`Server::answer`] what it is to forget before it has the reply.

use super::entry::Entry;
use super::protocol::{RequestHeader, open_flags};
use super::reply::{Answer, Listing};
use super::request::{Body, Request, SetHow};
use crate::errno::Errno;
use crate::ioctl::Changed as IoctlChanged;
use crate::transport::{Changed, NodeId, Operations};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Something in the kernel's caches that is no longer true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stale {
    Attributes(NodeId),
    Entry { directory: NodeId, name: Vec<u8> },
}

/// Who should answer a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// The thread that got it.
    Here,
    /// Another one: it may take long, and what waits behind it should not.
    Aside,
    /// The one that asks the kernel for help, after these files' data was written.
    AfterWriteBack(Vec<NodeId>),
}

/// Operations, and how their answers are given.
pub(super) struct Server<O> {
    operations: Arc<O>,
    /// Whether files opened for direct I/O are written by several at once.
    parallel_direct: bool,
}

impl<O: Operations> Server<O> {
    pub(super) fn new(operations: Arc<O>, parallel_direct: bool) -> Self {
        Self { operations, parallel_direct }
    }

    /// Who should answer what is in an entry.
    pub(super) fn lane(&self, entry: &mut Entry) -> Lane {
        let (header, payload) = entry.request();
        let Ok(request) = Request::decode(&header, payload) else { return Lane::Here };
        // Who answers will find out again what is wrong.
        caught(|| Ok(self.lane_of(&request))).unwrap_or(Lane::Here)
    }

    fn lane_of(&self, request: &Request<'_>) -> Lane {
        match request.body {
            // What the kernel has not written yet is data too, and it does not write it for this by itself.
            Body::Seek { .. } if self.operations.may_be_dirty(request.node) => {
                Lane::AfterWriteBack(vec![request.node])
            }
            Body::Ioctl { command, .. } => match self.operations.dirty_before(command) {
                none if none.is_empty() => Lane::Aside,
                dirty => Lane::AfterWriteBack(dirty),
            },
            Body::Sync { .. } | Body::Allocate { .. } | Body::CopyRange(_) => Lane::Aside,
            Body::SetAttributes(change) if change.size.is_some() => Lane::Aside,
            _ => Lane::Here,
        }
    }

    /// Answers what is in an entry; the reply is in it then. Returns what the kernel must forget before it gets
    /// the reply.
    pub(super) fn answer(&self, entry: &mut Entry) -> Vec<Stale> {
        let mut stale = Vec::new();
        let (header, payload) = entry.request();
        let answered = caught(|| self.answer_in(&header, payload, &mut stale));
        match answered {
            Ok(bytes) => entry.reply(0, bytes),
            Err(error) => entry.reply(error.code(), 0),
        }
        stale
    }

    fn answer_in(
        &self,
        header: &RequestHeader,
        payload: &mut [u8],
        stale: &mut Vec<Stale>,
    ) -> Result<usize, Errno> {
        let request = Request::decode(header, payload).map_err(|error| {
            tracing::debug!("a request: {error}");
            error.errno()
        })?;
        let answer = match request.body {
            // These answer into the payload, which nothing of the request is in.
            Body::Read { offset, size, flags } => {
                let node = request.node;
                let room = payload.get_mut(..size).ok_or(Errno(libc::EIO))?;
                Answer::InPlace(self.operations.read(node, offset, flags, room)?)
            }
            Body::List { handle, offset, size, attributes } => {
                let node = request.node;
                let room = payload.get_mut(..size).ok_or(Errno(libc::EIO))?;
                let valid = attributes.then(|| self.operations.valid_for());
                let mut listing = Listing::new(room, valid);
                self.operations.list(node, handle, offset, attributes, &mut listing)?;
                Answer::InPlace(listing.used())
            }
            _ => self.run(&self.operations, &request, stale)?,
        };
        answer.encode(self.operations.valid_for(), payload)
    }

    fn run(&self, operations: &O, request: &Request<'_>, stale: &mut Vec<Stale>) -> Result<Answer, Errno> {
        let Request { node, caller, body } = *request;
        Ok(match body {
            Body::Lookup { name } => match operations.lookup(node, name) {
                // Remembered, so that the kernel does not ask again.
                Err(Errno(libc::ENOENT)) => Answer::NoEntry,
                found => Answer::Entry(found?),
            },
            Body::Attributes => Answer::Attributes(operations.attributes(node)?),
            Body::SetAttributes(change) => {
                Answer::Attributes(operations.set_attributes(caller, node, &change)?)
            }
            Body::ReadLink => Answer::Bytes(operations.read_link(node)?),
            Body::Make(new) => Answer::Entry(operations.make(caller, &new)?),
            Body::Create { new, flags } => {
                Answer::Created(operations.create(caller, &new, flags)?, self.opened(flags))
            }
            Body::Link { node: linked, name } => Answer::Entry(operations.link(linked, node, name)?),
            Body::Unlink { name } => done(operations.unlink(node, name)?),
            Body::Rmdir { name } => done(operations.rmdir(node, name)?),
            Body::Rename(rename) => done(operations.rename(caller, &rename)?),
            Body::Open { flags } => {
                operations.open(node, flags)?;
                Answer::Opened { handle: 0, flags: self.opened(flags) }
            }
            Body::Release { flags } => {
                operations.release(node, flags);
                Answer::Done
            }
            Body::OpenDirectory => {
                // Names change by way of the kernel, or it is told.
                let keep = open_flags::KEEP_CACHE | open_flags::CACHE_DIR;
                let flags = if operations.may_keep_listings() { keep } else { 0 };
                Answer::Opened { handle: operations.open_directory(node)?.0, flags }
            }
            Body::ReleaseDirectory(handle) => {
                operations.release_directory(handle);
                Answer::Done
            }
            Body::Sync { data_only } => done(operations.sync(node, data_only)?),
            Body::Sizes => Answer::Sizes(operations.sizes()?),
            _ => return run_on_content(operations, request, stale),
        })
    }

    /// What the kernel may do with a file that was opened.
    fn opened(&self, flags: i32) -> u32 {
        // Nobody changes the data but through the kernel.
        let keep = open_flags::KEEP_CACHE;
        if self.parallel_direct && flags & libc::O_DIRECT != 0 {
            return keep | open_flags::DIRECT_IO | open_flags::PARALLEL_DIRECT_WRITES;
        }
        keep
    }
}

/// Operations on data and extended attributes, and ioctls.
fn run_on_content<O: Operations>(
    operations: &O,
    request: &Request<'_>,
    stale: &mut Vec<Stale>,
) -> Result<Answer, Errno> {
    let Request { node, caller, body } = *request;
    Ok(match body {
        Body::Write(write) => {
            note(stale, node, operations.write(caller, node, &write)?);
            Answer::Written(write.data.len() as u32)
        }
        Body::Allocate { offset, length, mode } => {
            note(stale, node, operations.allocate(caller, node, offset, length, mode)?);
            Answer::Done
        }
        Body::CopyRange(range) => {
            let (copied, changed) = operations.copy_range(caller, &range)?;
            note(stale, range.target, changed);
            Answer::Written(copied as u32)
        }
        Body::Seek { offset, to } => Answer::Offset(operations.seek(node, offset, to)?),
        Body::Xattr { name, size } => sized(operations.xattr(node, name)?, size)?,
        Body::ListXattrs { size } => sized(operations.list_xattrs(node)?, size)?,
        Body::SetXattr { name, value, how } => match how {
            SetHow::Set(how) => done(operations.set_xattr(caller, node, name, value, how)?),
            // Whether it is there or not, one of the two forbids it.
            SetHow::Never => return Err(operations.xattr(node, name).err().unwrap_or(Errno(libc::EEXIST))),
        },
        Body::RemoveXattr { name } => done(operations.remove_xattr(node, name)?),
        Body::Ioctl { command, input, output_size } => {
            let reply = operations.ioctl(caller, node, command, input, output_size)?;
            stale.extend(reply.changed.into_iter().map(|changed| match changed {
                IoctlChanged::Entry { directory: (tree, inode), name } => {
                    Stale::Entry { directory: operations.node_of(tree, inode), name }
                }
                IoctlChanged::Inode(tree, inode) => Stale::Attributes(operations.node_of(tree, inode)),
            }));
            Answer::Ioctl { result: reply.result, output: reply.output }
        }
        // The others are answered before it comes to this.
        _ => return Err(Errno(libc::ENOSYS)),
    })
}

/// Runs an operation; a panic is an I/O error.
fn caught<R>(operation: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    catch_unwind(AssertUnwindSafe(operation)).unwrap_or_else(|_| {
        tracing::error!("an operation panicked; it is answered with EIO");
        Err(Errno(libc::EIO))
    })
}

fn done((): ()) -> Answer {
    Answer::Done
}

fn note(stale: &mut Vec<Stale>, node: NodeId, changed: Changed) {
    if changed.attributes {
        stale.push(Stale::Attributes(node));
    }
}

/// An attribute, or how long it is where the caller only asks that.
fn sized(value: Vec<u8>, size: u32) -> Result<Answer, Errno> {
    match value.len() {
        length if size == 0 => Ok(Answer::Length(length as u32)),
        length if length > size as usize => Err(Errno(libc::ERANGE)),
        _ => Ok(Answer::Bytes(value)),
    }
}
