//! Calls the server's operation for each request and encodes the reply.
//!
//! Owns [`Dispatcher`], which answers in the buffers of the request, a [`Message`]: reads go to
//! where the kernel takes the data from, and writes come from where the kernel put it. A panic in
//! an operation becomes EIO. A transport has two duties. Before the answer, [`Dispatcher::lane`]
//! names the files that the kernel must write back first. After it, [`Dispatcher::answer`] returns
//! the stale data that the kernel must drop, before it gets the reply or afterwards.

use crate::assistant::{Kernel, Stale};
use crate::cpu_latency::CpuLatency;
use crate::io_errors::{IoErrors, described};
use crate::ioctl::{Caller, Changed};
use crate::protocol::layout::{FallocateIn, IoctlIn, SetAttrIn, opcode, open_flags, valid};
use crate::protocol::reply::{Answer, Listing};
use crate::protocol::request::{Body, DecodeError, Head, Request, SetHow};
use crate::request_counts::{RequestCounts, operation_name};
use crate::server::Server;
use crate::transport::{
    ChangedPages, CopyRange, DataAccess, DataChange, KeptListing, NodeId, RefusedWrite, StoredPrefix, Write,
};
use papilio_ioctl::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Length of the longest copy that a reply of 32 bits can express, in whole pages.
const LONGEST_COPY: u64 = 0xffff_f000;

/// A request in its buffers, and the space for its reply.
pub(crate) trait Message {
    /// Returns the request's head, and a buffer that starts with its payload. The body of the reply
    /// goes to the start of the same buffer.
    fn open(&mut self) -> (Result<Head, DecodeError>, &mut [u8]);

    /// Completes the reply with `error`, which is 0 or an errno, and `bytes` bytes of body.
    fn reply(&mut self, error: i32, bytes: usize);
}

/// Stale data after a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Aftermath {
    /// Dropped before the kernel gets the reply.
    pub(crate) before_reply: Vec<Stale>,
    /// Dropped some time after the kernel got the reply. Everything after a write from the kernel's
    /// cache is here, except the names of a file that failed: the kernel holds the pages of such a
    /// write until the reply, and the thread that has them dropped may be waiting for these pages.
    pub(crate) after_reply: Vec<Stale>,
    /// A thread of its own drops `before_reply`: the assistant may be waiting for this reply.
    pub(crate) apart: bool,
}

/// A read or a write of data, decoded. It holds nothing of its message, so it can be in flight
/// without a thread, or be handed to another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataRequest {
    node: NodeId,
    caller: Caller,
    access: DataAccess,
}

impl DataRequest {
    /// Returns what a request for data asks; `None` for another request.
    fn of(request: &Request<'_>) -> Option<Self> {
        let Request { node, caller, body } = *request;
        match body {
            Body::Data(access) => Some(Self { node, caller, access }),
            _ => None,
        }
    }

    /// Returns the file offset in bytes.
    pub(crate) fn offset(&self) -> u64 {
        match self.access {
            DataAccess::Read { offset, .. } => offset,
            DataAccess::Write(write) => write.offset,
        }
    }

    /// Returns the bytes at the start of the message's buffer that are read or written.
    pub(crate) fn length(&self) -> usize {
        match self.access {
            DataAccess::Read { length, .. } => length,
            DataAccess::Write(write) => write.length,
        }
    }

    /// Returns whether it is a write.
    pub(crate) fn is_write(&self) -> bool {
        matches!(self.access, DataAccess::Write(_))
    }

    /// Returns whether the data passes the kernel's cache, or `None` if a thread must answer the
    /// request: a write from the kernel's cache goes to the library's, and no device waits for it.
    fn passes_cache(&self) -> Option<bool> {
        match self.access {
            DataAccess::Read { length, flags, .. } => (length > 0).then_some(flags & libc::O_DIRECT != 0),
            DataAccess::Write(write) => (write.length > 0 && write.direct).then_some(true),
        }
    }
}

/// The thread that should answer a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// The thread that received it.
    Here,
    /// A worker, because the request may be slow and would delay the ones behind it.
    Aside,
    /// A new thread, because the request may wait for other requests, after the kernel has written
    /// back these files.
    Alone(Vec<NodeId>),
    /// The assistant, after the kernel has written back these files.
    AfterWriteBack(Vec<NodeId>),
}

/// The requests that can be in flight without a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuedData {
    Nothing,
    /// Reads of files that are open for direct I/O. All other requests use the host's page cache.
    DirectReads,
    /// Reads, and writes of files that are open for direct I/O.
    All,
}

/// The server, with the encoding of their results.
pub(crate) struct Dispatcher {
    server: Arc<Server>,
    /// Several threads may write a file in parallel if it is open for direct I/O.
    parallel_direct: bool,
    queued: QueuedData,
    counts: RequestCounts,
    cpu_latency: CpuLatency,
    io_errors: IoErrors,
    #[cfg(test)]
    panics: bool,
}

impl Dispatcher {
    pub(crate) fn new(server: Arc<Server>, parallel_direct: bool, cpu_latency: CpuLatency) -> Self {
        let queued = server.queued_data();
        let (counts, io_errors) = Default::default();
        Self {
            server,
            parallel_direct,
            queued,
            counts,
            cpu_latency,
            io_errors,
            #[cfg(test)]
            panics: false,
        }
    }

    /// Makes every operation panic.
    #[cfg(test)]
    pub(crate) fn panic_always(&mut self) {
        self.panics = true;
    }

    fn server(&self) -> &Server {
        #[cfg(test)]
        if self.panics {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        &self.server
    }

    /// Returns the number of requests of each kind so far.
    pub(crate) fn counts(&self) -> &RequestCounts {
        &self.counts
    }

    /// Returns the requests that can be in flight without a thread.
    pub(crate) fn queued_data(&self) -> QueuedData {
        self.queued
    }

    /// Counts a request, and returns the thread that should answer it.
    pub(crate) fn lane(&self, message: &mut impl Message) -> Lane {
        let (Ok(head), _) = message.open() else { return Lane::Here };
        let (operation, node) = (head.general.opcode, head.general.node);
        tracing::trace!(node, pid = head.general.pid, "{}", operation_name(operation));
        self.counts.count(operation);
        self.cpu_latency.note();
        // The thread meets the same error when it answers.
        caught(|| Ok(self.lane_of(&head))).unwrap_or(Lane::Here)
    }

    fn lane_of(&self, head: &Head) -> Lane {
        let node = NodeId(head.general.node);
        match head.general.opcode {
            // The kernel's dirty pages are data too, and `lseek` does not write them back.
            opcode::LSEEK if self.server().may_be_dirty(node) => Lane::AfterWriteBack(vec![node]),
            opcode::IOCTL => match head.argument::<IoctlIn>() {
                Ok(argument) if self.server().waits_for_programs(argument.command) => {
                    Lane::Alone(self.server().dirty_before(node, argument.command))
                }
                Ok(argument) => match self.server().dirty_before(node, argument.command) {
                    none if none.is_empty() => Lane::Aside,
                    dirty => Lane::AfterWriteBack(dirty),
                },
                Err(_) => Lane::Here,
            },
            opcode::FALLOCATE => match head.argument::<FallocateIn>() {
                Ok(argument) if argument.mode & libc::FALLOC_FL_PUNCH_HOLE == 0 => {
                    match self.server().dirty_before_allocating(argument.length) {
                        none if none.is_empty() => Lane::Aside,
                        dirty => Lane::AfterWriteBack(dirty),
                    }
                }
                _ => Lane::Aside,
            },
            opcode::FSYNC
            | opcode::FSYNCDIR
            | opcode::SYNCFS
            | opcode::COPY_FILE_RANGE
            | opcode::COPY_FILE_RANGE_64 => Lane::Aside,
            // The kernel asks so before it caches a write.
            opcode::GETATTR if head.asks_by_handle() == Ok(true) && self.server().is_short_of_room() => {
                Lane::AfterWriteBack(self.server().dirty_before_caching(node))
            }
            // Others behind it need not wait for the device, too.
            opcode::READ | opcode::WRITE if self.queued == QueuedData::All => Lane::Aside,
            opcode::READ if self.queued == QueuedData::DirectReads && head.reads_directly() => Lane::Aside,
            opcode::SETATTR => match head.argument::<SetAttrIn>() {
                Ok(argument) if argument.valid & valid::SIZE != 0 => Lane::Aside,
                _ => Lane::Here,
            },
            _ => Lane::Here,
        }
    }

    /// Has the kernel drop stale data.
    pub(crate) fn drop_stale(&self, stale: &[Stale], kernel: &Kernel) {
        for stale in stale {
            stale.forget(kernel);
            if let Stale::AllPages(node, accesses) = *stale {
                self.server().pages_dropped(node, accesses);
            }
        }
    }

    /// Carries out a request that has no reply; returns whether it was one.
    pub(crate) fn forget(&self, message: &mut impl Message) -> bool {
        let (Ok(head), buffer) = message.open() else { return false };
        if !matches!(head.general.opcode, opcode::FORGET | opcode::BATCH_FORGET) {
            return false;
        }
        match buffer.get(..head.payload).ok_or(()).and_then(|payload| head.forgotten(payload).map_err(|_| ()))
        {
            Ok(nodes) => {
                let _ = caught(|| {
                    nodes.for_each(|(node, lookups)| self.server().forget(node, lookups));
                    Ok(())
                });
            }
            Err(()) => tracing::error!("the kernel's list of forgotten nodes is malformed"),
        }
        true
    }

    /// Decodes a read or a write of data. Returns `None` for any other request, and where
    /// [`Dispatcher::answer`] meets an error.
    pub(crate) fn data_request(&self, message: &mut impl Message) -> Option<DataRequest> {
        let (head, buffer) = message.open();
        let head = head.ok().filter(|head| matches!(head.general.opcode, opcode::READ | opcode::WRITE))?;
        DataRequest::of(&Request::decode(&head, buffer).ok()?)
    }

    /// Returns the file of a request that can be in flight without a thread: a read, or a write
    /// that passes the kernel's cache. Returns `None` for any other, and where the answer meets an
    /// error.
    pub(crate) fn begin(&self, request: &DataRequest) -> Option<Arc<papilio::File>> {
        let direct = request.passes_cache()?;
        if self.queued == QueuedData::DirectReads && (request.is_write() || !direct) {
            return None;
        }
        caught(|| self.server().data_file(request.node, direct)).ok()
    }

    /// Ends a request that was in flight, and stores the reply in its buffers. Returns what the
    /// kernel must drop from its caches.
    pub(crate) fn end(
        &self,
        message: &mut impl Message,
        request: &DataRequest,
        result: papilio::Result<usize>,
    ) -> Aftermath {
        // Of an error that an earlier request met and overcame.
        drop(Errno::take_reason());
        let mut stale = Aftermath::default();
        let &DataRequest { node, caller, access } = request;
        let answered = caught(|| match access {
            DataAccess::Read { flags, .. } => {
                let length = result?;
                self.server().has_read(node, flags);
                Ok(length)
            }
            DataAccess::Write(write) => {
                let changed = result.map_err(crate::nodes::stale).and_then(|length| {
                    Ok((length, self.server().has_written(caller, node, Write { length, ..write })?))
                });
                let length = answer_write(self.server(), &mut stale.before_reply, node, changed)?;
                length.encode(self.server().valid_for(), message.open().1)
            }
        });
        match answered {
            Ok(bytes) => message.reply(0, bytes),
            Err(error) => self.refuse(message, error),
        }
        stale
    }

    /// Replies with an error, and logs the reason of `EIO`.
    fn refuse(&self, message: &mut impl Message, error: Errno) {
        if error == Errno(libc::EIO) {
            let (head, buffer) = message.open();
            self.io_errors.note(|| {
                let Ok(head) = head else { return "a malformed request".to_owned() };
                let request = Request::decode(&head, buffer).ok();
                let what = described(head.general.opcode, request.as_ref());
                // Another failure while it looks for the path must not fail the reply.
                let place = caught(|| Ok(self.server().describe(NodeId(head.general.node))));
                format!("{what} of {}", place.unwrap_or_default())
            });
        }
        message.reply(error.code(), 0);
    }

    /// Answers a request and stores the reply in its buffers. Returns what the kernel must drop
    /// from its caches.
    pub(crate) fn answer(&self, message: &mut impl Message) -> Aftermath {
        self.answer_decoded(message, None)
    }

    /// As [`Dispatcher::answer`]. `data` is what [`Dispatcher::data_request`] returned for this
    /// message, so that it is not decoded again.
    pub(crate) fn answer_decoded(&self, message: &mut impl Message, data: Option<&DataRequest>) -> Aftermath {
        // Of an error that an earlier request met and overcame.
        drop(Errno::take_reason());
        let mut stale = Aftermath::default();
        let (head, buffer) = message.open();
        let answered = caught(|| match data {
            Some(data) => self.answer_data(data, buffer, &mut stale),
            None => {
                let head = head.map_err(refused)?;
                if concerns_access(head.general.opcode) && !self.server().admits(head.caller()) {
                    return Err(Errno(libc::EACCES));
                }
                self.answer_in(&head, buffer, &mut stale)
            }
        });
        match answered {
            Ok(bytes) => message.reply(0, bytes),
            Err(error) => self.refuse(message, error),
        }
        stale
    }

    /// Answers a read or a write of data, whose data is at the start of the buffer.
    fn answer_data(
        &self,
        request: &DataRequest,
        buffer: &mut [u8],
        stale: &mut Aftermath,
    ) -> Result<usize, Errno> {
        let &DataRequest { node, caller, access } = request;
        let server = self.server();
        let data = buffer.get_mut(..request.length());
        let data = data.ok_or_else(|| Errno::io(&"the buffer is too small"))?;
        let write = match access {
            DataAccess::Read { offset, flags, .. } => return server.read(node, offset, flags, data),
            DataAccess::Write(write) => write,
        };
        let written = server.write(caller, node, write, data);
        if written.is_err() && write.from_cache {
            stale.before_reply.extend(entries(server.names_after_failure(node)));
            stale.apart = true;
        }
        let stale = if write.from_cache { &mut stale.after_reply } else { &mut stale.before_reply };
        answer_write(server, stale, node, written)?.encode(server.valid_for(), buffer)
    }

    fn answer_in(&self, head: &Head, buffer: &mut [u8], stale: &mut Aftermath) -> Result<usize, Errno> {
        let request = Request::decode(head, buffer).map_err(refused)?;
        if let Some(data) = DataRequest::of(&request) {
            return self.answer_data(&data, buffer, stale);
        }
        let answer = match request.body {
            // It answers into the buffer, which holds no part of its request.
            Body::List { handle, offset, size, attributes } => {
                let node = request.node;
                let buffer = buffer.get_mut(..size).ok_or_else(|| Errno::io(&"the buffer is too small"))?;
                let valid = attributes.then(|| self.server().valid_for());
                let mut listing = Listing::new(buffer, valid);
                self.server().list(node, handle, offset, attributes, &mut listing)?;
                return Ok(listing.used());
            }
            _ => self.run(self.server(), &request, stale)?,
        };
        let mut valid = self.server().valid_for();
        if request.node == NodeId::ROOT && self.server().refuses_callers() {
            // Each caller's way starts here, so the kernel asks once for each.
            if matches!(answer, Answer::Attributes(_) | Answer::ExtendedAttributes(_)) {
                valid.attributes = Duration::ZERO;
            }
        }
        answer.encode(valid, buffer)
    }

    fn run(&self, server: &Server, request: &Request<'_>, stale: &mut Aftermath) -> Result<Answer, Errno> {
        let Request { node, caller, body } = *request;
        Ok(match body {
            Body::Lookup { name } => match server.lookup(node, name) {
                // The kernel caches the absence and does not ask again.
                Err(Errno(libc::ENOENT)) => Answer::NoEntry,
                found => Answer::Entry(found?),
            },
            Body::Attributes { by_handle } => {
                if by_handle && let Err(refused) = server.before_cached_write(caller, node) {
                    return Err(note_refused(server, &mut stale.before_reply, node, &refused));
                }
                Answer::Attributes(server.attributes(node)?)
            }
            Body::ExtendedAttributes => Answer::ExtendedAttributes(server.attributes(node)?),
            Body::SetAttributes(change) => {
                let changed = server.set_attributes(caller, node, &change);
                if let (Err(_), Some(size)) = (&changed, change.size) {
                    // Some of what it should lose may be gone. Until the reply the kernel writes no
                    // page back.
                    stale.after_reply.push(Stale::Pages(node, size, 0));
                }
                Answer::Attributes(changed?)
            }
            Body::ReadLink => Answer::Bytes(server.read_link(node)?),
            Body::Make(new) => Answer::Entry(server.make(caller, &new)?),
            Body::Create { new, flags } => {
                Answer::Created(server.create(caller, &new, flags)?, self.opened(flags))
            }
            Body::CreateUnnamed { new, flags } => {
                Answer::Created(server.create_unnamed(caller, &new, flags)?, self.opened(flags))
            }
            Body::Link { node: linked, name } => Answer::Entry(server.link(linked, node, name)?),
            Body::Unlink { name } => done(server.unlink(node, name)?),
            Body::Rmdir { name } => done(server.rmdir(node, name)?),
            Body::Rename(rename) => done(server.rename(caller, &rename)?),
            Body::Open { flags } => {
                let keeps = server.open(node, flags)?;
                if flags & libc::O_ACCMODE != libc::O_RDONLY && server.is_short_of_room() {
                    // It may know them since there was room, and would cache a write unasked.
                    stale.before_reply.push(Stale::Attributes(node));
                }
                let flags = self.opened(flags);
                let flags = if keeps { flags } else { flags & !open_flags::KEEP_CACHE };
                Answer::Opened { handle: 0, flags }
            }
            Body::Release { flags } => {
                server.release(node, flags);
                stale.after_reply.extend(entries(server.names_after_close(node)));
                Answer::Done
            }
            Body::OpenDirectory => {
                // Names change through the kernel or with an invalidation, so the kernel may cache
                // listings.
                let (handle, kept) = server.open_directory(node)?;
                let flags = match kept {
                    KeptListing::Use => open_flags::KEEP_CACHE | open_flags::CACHE_DIR,
                    KeptListing::Renew => open_flags::CACHE_DIR,
                    KeptListing::Never => 0,
                };
                Answer::Opened { handle: handle.0, flags }
            }
            Body::ReleaseDirectory(handle) => {
                server.release_directory(handle);
                Answer::Done
            }
            Body::Sync { data_only } => done(server.sync(node, data_only)?),
            Body::SyncAll => done(server.sync_all()?),
            Body::Sizes => Answer::Sizes(server.sizes()?),
            _ => return run_on_content(server, request, stale),
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
fn run_on_content(server: &Server, request: &Request<'_>, stale: &mut Aftermath) -> Result<Answer, Errno> {
    let Request { node, caller, body } = *request;
    Ok(match body {
        Body::Allocate { offset, length, mode } => {
            let changed = server.allocate(caller, node, offset, length, mode);
            // A part of the range may be zeros. The kernel drops its pages of it after a success.
            let pages = Stale::Pages(node, offset, length);
            let changed = changed.inspect_err(|_| stale.before_reply.push(pages))?;
            note(server, &mut stale.before_reply, node, changed);
            Answer::Done
        }
        Body::CopyRange { range, long } => {
            // The shorter reply has 32 bits.
            let length = if long { range.length } else { range.length.min(LONGEST_COPY) };
            let copied = server.copy_range(caller, &CopyRange { length, ..range });
            let pages = Stale::Pages(range.target, range.target_offset, 0);
            let (copied, changed) = copied.inspect_err(|_| stale.before_reply.push(pages))?;
            note(server, &mut stale.before_reply, range.target, changed);
            if long { Answer::Copied(copied) } else { Answer::Written(copied as u32) }
        }
        Body::Seek { offset, to } => Answer::Offset(server.seek(node, offset, to)?),
        Body::Xattr { name, size } => sized(server.xattr(node, name)?, size)?,
        Body::ListXattrs { size } => sized(server.list_xattrs(node)?, size)?,
        Body::SetXattr { name, value, how } => match how {
            SetHow::Set(how) => done(server.set_xattr(caller, node, name, value, how)?),
            // With both flags the call always fails, with EEXIST or ENODATA.
            SetHow::Never => return Err(server.xattr(node, name).err().unwrap_or(Errno(libc::EEXIST))),
        },
        Body::RemoveXattr { name } => done(server.remove_xattr(node, name)?),
        Body::Ioctl(ioctl) => {
            let reply = server.ioctl(caller, node, &ioctl)?;
            note(
                server,
                &mut stale.before_reply,
                node,
                DataChange { room: server.lost_room(), ..DataChange::default() },
            );
            stale.before_reply.extend(reply.changed.into_iter().flat_map(|changed| match changed {
                Changed::Deleted(tree) => entries(server.names_in_deleted(tree)).collect(),
                Changed::Entry { directory: (tree, inode), name } => {
                    vec![Stale::Entry { directory: server.node_of(tree, inode), name }]
                }
                Changed::Inode(tree, inode) => {
                    vec![Stale::Attributes(server.node_of(tree, inode))]
                }
                Changed::Data { file: (tree, inode), offset, length, last } => {
                    let node = server.node_of(tree, inode);
                    let size = last.map(|last| Stale::Size(node, offset + length, last));
                    size.into_iter().chain([Stale::Pages(node, offset, length)]).collect::<Vec<_>>()
                }
            }));
            Answer::Ioctl { result: reply.result, output: reply.output }
        }
        // The callers have handled all other requests.
        _ => return Err(Errno(libc::ENOSYS)),
    })
}

/// Returns whether a request comes from a caller that needs access to the mount. Others continue
/// with open files, and the kernel sends some requests for itself.
fn concerns_access(operation: u32) -> bool {
    !matches!(
        operation,
        opcode::READ
            | opcode::WRITE
            | opcode::FLUSH
            | opcode::RELEASE
            | opcode::FSYNC
            | opcode::READDIR
            | opcode::READDIRPLUS
            | opcode::RELEASEDIR
            | opcode::FSYNCDIR
            | opcode::SYNCFS
    )
}

fn refused(error: DecodeError) -> Errno {
    tracing::debug!("refused a request: {error}");
    error.errno()
}

/// Runs an operation; a panic becomes EIO.
fn caught<R>(operation: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    catch_unwind(AssertUnwindSafe(operation)).unwrap_or_else(|_| {
        tracing::error!("an operation panicked; the request gets EIO");
        Err(Errno::io(&"the operation panicked"))
    })
}

fn done((): ()) -> Answer {
    Answer::Done
}

/// Answers a write with the number of bytes that are stored, and notes what became stale.
fn answer_write(
    server: &Server,
    stale: &mut Vec<Stale>,
    node: NodeId,
    written: Result<(usize, DataChange), Errno>,
) -> Result<Answer, Errno> {
    if written.is_err() {
        // The kernel then asks before it caches a further write, and hears the error.
        stale.push(Stale::Attributes(node));
    }
    let (length, changed) = written?;
    note(server, stale, node, changed);
    Ok(Answer::Written(length as u32))
}

/// Notes what became stale by the part of a refused write that is stored. Returns the error.
fn note_refused(server: &Server, stale: &mut Vec<Stale>, node: NodeId, refused: &RefusedWrite) -> Errno {
    if let Some(StoredPrefix { offset, length, last }) = refused.stored {
        stale.push(Stale::Size(node, offset + length, last));
        stale.push(Stale::Pages(node, offset, length));
        // The kernel has the times of the file, and hears of none. It forgets them with the file.
        stale.extend(entries(server.names_after_failure(node)));
    }
    refused.error
}

fn note(server: &Server, stale: &mut Vec<Stale>, node: NodeId, changed: DataChange) {
    match changed.pages {
        None => {}
        Some(ChangedPages::Range(offset, length)) => stale.push(Stale::Pages(node, offset, length)),
        Some(ChangedPages::All(accesses)) => stale.push(Stale::AllPages(node, accesses)),
    }
    if changed.attributes {
        stale.push(Stale::Attributes(node));
    }
    if changed.room {
        // First the attributes, so that the kernel asks before it caches more. The data that it has
        // cached must find space before space is promised to other writes.
        let files = server.may_be_written();
        stale.extend(files.iter().copied().map(Stale::Attributes));
        stale.extend(files.into_iter().map(|node| Stale::Pages(node, 0, 0)));
    }
}

fn entries(names: Vec<(NodeId, Vec<u8>)>) -> impl Iterator<Item = Stale> {
    names.into_iter().map(|(directory, name)| Stale::Entry { directory, name })
}

/// Returns a value, or only its length if the caller asks for that.
fn sized(value: Vec<u8>, size: u32) -> Result<Answer, Errno> {
    match value.len() {
        length if size == 0 => Ok(Answer::Length(length as u32)),
        length if length > size as usize => Err(Errno(libc::ERANGE)),
        _ => Ok(Answer::Bytes(value)),
    }
}
