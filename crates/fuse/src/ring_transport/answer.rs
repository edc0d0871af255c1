//! Calls the server's operation for each request and encodes the reply.
//!
//! Owns [`Server`], which answers in the entry's own buffers: reads go to where the kernel takes
//! the data from, and writes come from where the kernel put it. A panic in an operation becomes
//! EIO. The caller has two duties. Before the answer, [`Server::lane`] names the files that the
//! kernel must write back first. After it, [`Server::answer`] returns what the kernel must drop
//! from its caches before it gets the reply.

use super::entry::Entry;
use super::protocol::{RequestHeader, open_flags};
use super::reply::{Answer, Listing};
use super::request::{Body, Request, SetHow};
use crate::errno::Errno;
use crate::ioctl::Changed as IoctlChanged;
use crate::transport::{Changed, NodeId, Operations};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Stale data in the kernel's caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stale {
    Attributes(NodeId),
    Entry { directory: NodeId, name: Vec<u8> },
}

/// The thread that should answer a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// The queue's own thread.
    Here,
    /// A worker, because the request may be slow and would delay the ones behind it.
    Aside,
    /// The assistant, after the kernel has written back these files.
    AfterWriteBack(Vec<NodeId>),
}

/// The operations, with the encoding of their results.
pub(super) struct Server<O> {
    operations: Arc<O>,
    /// Several threads may write a file in parallel if it is open for direct I/O.
    parallel_direct: bool,
}

impl<O: Operations> Server<O> {
    pub(super) fn new(operations: Arc<O>, parallel_direct: bool) -> Self {
        Self { operations, parallel_direct }
    }

    /// Returns the thread that should answer the request in an entry.
    pub(super) fn lane(&self, entry: &mut Entry) -> Lane {
        let (header, payload) = entry.request();
        let Ok(request) = Request::decode(&header, payload) else { return Lane::Here };
        // The queue's thread meets the same error when it answers.
        caught(|| Ok(self.lane_of(&request))).unwrap_or(Lane::Here)
    }

    fn lane_of(&self, request: &Request<'_>) -> Lane {
        match request.body {
            // The kernel's dirty pages are data too, and `lseek` does not write them back.
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

    /// Answers the request in an entry and stores the reply there. Returns what the kernel must
    /// drop from its caches before it gets the reply.
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
            tracing::debug!("refused a request: {error}");
            error.errno()
        })?;
        let answer = match request.body {
            // These two answer into the payload, which holds no part of their requests.
            Body::Read { offset, size, flags } => {
                let node = request.node;
                let buffer = payload.get_mut(..size).ok_or(Errno(libc::EIO))?;
                Answer::InPlace(self.operations.read(node, offset, flags, buffer)?)
            }
            Body::List { handle, offset, size, attributes } => {
                let node = request.node;
                let buffer = payload.get_mut(..size).ok_or(Errno(libc::EIO))?;
                let valid = attributes.then(|| self.operations.valid_for());
                let mut listing = Listing::new(buffer, valid);
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
                // The kernel caches the absence and does not ask again.
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
                // Names change through the kernel or with an invalidation, so the kernel may cache
                // listings.
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

    /// Returns what the kernel may do with an opened file.
    fn opened(&self, flags: i32) -> u32 {
        // Data only changes through the kernel, so its cache stays valid.
        let keep = open_flags::KEEP_CACHE;
        if self.parallel_direct && flags & libc::O_DIRECT != 0 {
            return keep | open_flags::DIRECT_IO | open_flags::PARALLEL_DIRECT_WRITES;
        }
        keep
    }
}

/// Runs operations on data and extended attributes, and ioctls.
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
            // With both flags the call always fails, with EEXIST or ENODATA.
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
        // The callers have handled all other requests.
        _ => return Err(Errno(libc::ENOSYS)),
    })
}

/// Runs an operation; a panic becomes EIO.
fn caught<R>(operation: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    catch_unwind(AssertUnwindSafe(operation)).unwrap_or_else(|_| {
        tracing::error!("an operation panicked; the request gets EIO");
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

/// Returns a value, or only its length if the caller asks for that.
fn sized(value: Vec<u8>, size: u32) -> Result<Answer, Errno> {
    match value.len() {
        length if size == 0 => Ok(Answer::Length(length as u32)),
        length if length > size as usize => Err(Errno(libc::ERANGE)),
        _ => Ok(Answer::Bytes(value)),
    }
}
