//! Implements fuser's calls with the server's operations.

use super::agreement::{Agreed, agree};
use super::assistant::{Assistant, Kernel};
use super::convert::{attributes, caller, errno, file_type, nothing, set_time, time};
use crate::errno::Errno;
use crate::ioctl::{Changed as IoctlChanged, IoctlReply};
use crate::options::MountOptions;
use crate::transport::{
    AttributeChange, Changed, CopyRange, DirectoryHandle, DirectorySink, Entry, ListedEntry, NewNode,
    NewNodeKind, NodeId, Operations, Rename, SeekTo, Write, XattrSet,
};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use papilio::RenameMode;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

/// Files have no handles: the node stands for the open file.
const NO_HANDLE: FileHandle = FileHandle(0);

/// fuser's file system: calls operations and sends their results.
pub(crate) struct FuserTransport<O> {
    operations: Arc<O>,
    options: MountOptions,
    assistant: Assistant,
    agreed: Arc<Agreed>,
}

thread_local! {
    /// The buffer for replies to reads, reused by each thread.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl<O: Operations> FuserTransport<O> {
    pub(crate) fn new(
        operations: Arc<O>,
        options: MountOptions,
        assistant: Assistant,
        agreed: Arc<Agreed>,
    ) -> Self {
        Self { operations, options, assistant, agreed }
    }

    /// Runs an operation; a panic becomes EIO.
    fn ask<R>(&self, operation: impl FnOnce(&O) -> Result<R, Errno>) -> Result<R, Errno> {
        ask(self.operations.as_ref(), operation)
    }

    fn entry(&self, result: Result<Entry, Errno>, reply: ReplyEntry) {
        let valid = self.operations.valid_for();
        match result {
            Ok(entry) => {
                let attributes = attributes(&entry.attributes, entry.node.0);
                reply.entry(&valid, &attributes, Generation(entry.generation));
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    /// Returns what the kernel may do with an opened file.
    fn opened(&self, flags: i32) -> FopenFlags {
        // Data only changes through the kernel, so its cache stays valid.
        let keep = FopenFlags::FOPEN_KEEP_CACHE;
        if self.agreed.parallel_direct.load(Ordering::Acquire) && flags & libc::O_DIRECT != 0 {
            return keep | FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        }
        keep
    }

    fn make(&self, request: &Request, new: &NewNode<'_>, reply: ReplyEntry) {
        self.entry(self.ask(|operations| operations.make(caller(request), new)), reply);
    }

    /// Has the kernel drop changed attributes, and then runs `reply`.
    fn changed(&self, node: NodeId, changed: Changed, reply: impl FnOnce() + Send + 'static) {
        if !changed.attributes {
            return reply();
        }
        self.assistant.run(move |kernel| {
            kernel.forget_attributes(node);
            reply();
        });
    }
}

fn ask<O, R>(operations: &O, operation: impl FnOnce(&O) -> Result<R, Errno>) -> Result<R, Errno> {
    catch_unwind(AssertUnwindSafe(|| operation(operations))).unwrap_or_else(|_| {
        tracing::error!("an operation panicked; the request gets EIO");
        Err(Errno(libc::EIO))
    })
}

fn empty(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

/// Replies with a value, or only its length if the caller asks for that.
fn sized(result: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(error)),
    }
}

fn node(number: INodeNo) -> NodeId {
    NodeId(number.0)
}

impl<O: Operations> Filesystem for FuserTransport<O> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        agree(config, &self.options, &self.agreed);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let result = self.ask(|operations| operations.lookup(node(parent), name.as_bytes()));
        if result == Err(Errno(libc::ENOENT)) {
            // The kernel caches the absence and does not ask again.
            return reply.entry(&self.operations.valid_for(), &nothing(), Generation(0));
        }
        self.entry(result, reply);
    }

    fn forget(&self, _request: &Request, number: INodeNo, count: u64) {
        let _ = self.ask(|operations| {
            operations.forget(node(number), count);
            Ok(())
        });
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.ask(|operations| operations.attributes(node(number))) {
            Ok(found) => reply.attr(&self.operations.valid_for(), &attributes(&found, found.number)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = AttributeChange {
            permissions: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: ctime.map(time),
            by_handle: handle.is_some(),
        };
        match self.ask(|operations| operations.set_attributes(caller(request), node(number), &change)) {
            Ok(now) => reply.attr(&self.operations.valid_for(), &attributes(&now, now.number)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        match self.ask(|operations| operations.read_link(node(number))) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = NewNodeKind::of_mknod(mode, device) else {
            return reply.error(fuser::Errno::EINVAL);
        };
        let (parent, name) = (node(parent), name.as_bytes());
        self.make(request, &NewNode { parent, name, kind, permissions: mode & 0o7777, umask }, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (parent, name, kind) = (node(parent), name.as_bytes(), NewNodeKind::Directory);
        self.make(request, &NewNode { parent, name, kind, permissions: mode & 0o7777, umask }, reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.ask(|operations| operations.unlink(node(parent), name.as_bytes())), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.ask(|operations| operations.rmdir(node(parent), name.as_bytes())), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (parent, name) = (node(parent), name.as_bytes());
        let kind = NewNodeKind::Symlink(target.as_os_str().as_bytes());
        self.make(request, &NewNode { parent, name, kind, permissions: 0o777, umask: 0 }, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let whiteout = flags.contains(RenameFlags::RENAME_WHITEOUT);
        let rest = flags - RenameFlags::RENAME_WHITEOUT;
        let mode = match rest {
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            rest if rest.is_empty() => RenameMode::Replace,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let (parent, name) = (node(parent), name.as_bytes());
        let (new_parent, new_name) = (node(new_parent), new_name.as_bytes());
        let rename = Rename { parent, name, new_parent, new_name, mode, whiteout };
        empty(self.ask(|operations| operations.rename(caller(request), &rename)), reply);
    }

    fn link(&self, _request: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let result = self.ask(|operations| operations.link(node(number), node(parent), name.as_bytes()));
        self.entry(result, reply);
    }

    fn open(&self, _request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.ask(|operations| operations.open(node(number), flags.0)) {
            Ok(()) => reply.opened(NO_HANDLE, self.opened(flags.0)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (parent, name, kind) = (node(parent), name.as_bytes(), NewNodeKind::Regular);
        let new = NewNode { parent, name, kind, permissions: mode & 0o7777, umask };
        match self.ask(|operations| operations.create(caller(request), &new, flags)) {
            Ok(entry) => reply.created(
                &self.operations.valid_for(),
                &attributes(&entry.attributes, entry.node.0),
                Generation(entry.generation),
                NO_HANDLE,
                self.opened(flags),
            ),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let target = &mut buffer[..size];
            match self.ask(|operations| operations.read(node(number), offset, flags.0, target)) {
                Ok(read) => reply.data(&buffer[..read]),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kills_privileges = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let written = data.len() as u32;
        let write = Write { offset, data, kills_privileges };
        match self.ask(|operations| operations.write(caller(request), node(number), &write)) {
            Ok(changed) => self.changed(node(number), changed, move || reply.written(written)),
            Err(error) => reply.error(errno(error)),
        }
    }

    /// Does nothing: the kernel writes back its cache before it calls this on close.
    fn flush(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let released = self.ask(|operations| {
            operations.release(node(number), flags.0);
            Ok(())
        });
        empty(released, reply);
    }

    fn fsync(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        empty(self.ask(|operations| operations.sync(node(number), data_only)), reply);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        empty(self.ask(|operations| operations.sync(node(number), data_only)), reply);
    }

    fn opendir(&self, _request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.ask(|operations| operations.open_directory(node(number))) {
            Ok(handle) => {
                // Names change through the kernel or with an invalidation, so the kernel may cache
                // listings.
                let keep = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR;
                let flags = if self.operations.may_keep_listings() { keep } else { FopenFlags::empty() };
                reply.opened(FileHandle(handle.0), flags);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let handle = DirectoryHandle(handle.0);
        let mut sink = Names(&mut reply);
        match self.ask(|operations| operations.list(node(number), handle, offset, false, &mut sink)) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let handle = DirectoryHandle(handle.0);
        let valid = self.operations.valid_for();
        let mut sink = Nodes { reply: &mut reply, valid };
        match self.ask(|operations| operations.list(node(number), handle, offset, true, &mut sink)) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.operations.release_directory(DirectoryHandle(handle.0));
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        match self.ask(|operations| operations.sizes()) {
            // Btrfs has no limit on inodes, which zeros express.
            Ok(sizes) => reply.statfs(
                sizes.blocks,
                sizes.free,
                sizes.available,
                0,
                0,
                sizes.block_size,
                sizes.name_max,
                sizes.block_size,
            ),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let how = match flags {
            0 => XattrSet::Any,
            libc::XATTR_CREATE => XattrSet::Create,
            libc::XATTR_REPLACE => XattrSet::Replace,
            // With both flags the call always fails, with EEXIST or ENODATA.
            3 => match self.ask(|operations| operations.xattr(node(number), name.as_bytes())) {
                Ok(_) => return reply.error(fuser::Errno::EEXIST),
                Err(error) => return reply.error(errno(error)),
            },
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let name = name.as_bytes();
        empty(
            self.ask(|operations| operations.set_xattr(caller(request), node(number), name, value, how)),
            reply,
        );
    }

    fn getxattr(&self, _request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        sized(self.ask(|operations| operations.xattr(node(number), name.as_bytes())), size, reply);
    }

    fn listxattr(&self, _request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        sized(self.ask(|operations| operations.list_xattrs(node(number))), size, reply);
    }

    fn removexattr(&self, _request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.ask(|operations| operations.remove_xattr(node(number), name.as_bytes())), reply);
    }

    fn ioctl(
        &self,
        request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        input: &[u8],
        output_size: u32,
        reply: ReplyIoctl,
    ) {
        let (caller, node, output_size) = (caller(request), node(number), output_size as usize);
        let dirty = self.operations.dirty_before(command);
        if !dirty.is_empty() {
            let (operations, input) = (Arc::clone(&self.operations), input.to_vec());
            return self.assistant.run(move |kernel| {
                dirty.iter().for_each(|node| kernel.write_back(*node));
                let answer = ask(operations.as_ref(), |operations| {
                    operations.ioctl(caller, node, command, &input, output_size)
                });
                answer_ioctl(kernel, operations.as_ref(), answer, reply);
            });
        }
        let answer = self.ask(|operations| operations.ioctl(caller, node, command, input, output_size));
        if answer.as_ref().is_ok_and(|answer| !answer.changed.is_empty()) {
            let operations = Arc::clone(&self.operations);
            return self
                .assistant
                .run(move |kernel| answer_ioctl(kernel, operations.as_ref(), answer, reply));
        }
        match answer {
            Ok(answer) => reply.ioctl(answer.result, &answer.output),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let node = node(number);
        match self.ask(|operations| operations.allocate(caller(request), node, offset, length, mode)) {
            Ok(changed) => self.changed(node, changed, move || reply.ok()),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn lseek(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let to = match whence {
            libc::SEEK_DATA => SeekTo::Data,
            libc::SEEK_HOLE => SeekTo::Hole,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(fuser::Errno::ENXIO) };
        let node = node(number);
        let seek = move |operations: &O| match ask(operations, |operations| operations.seek(node, offset, to))
        {
            Ok(found) => reply.offset(found as i64),
            Err(error) => reply.error(errno(error)),
        };
        // The kernel's dirty pages are data too, and `lseek` does not write them back.
        if !self.operations.may_be_dirty(node) {
            return seek(&self.operations);
        }
        let operations = Arc::clone(&self.operations);
        self.assistant.run(move |kernel| {
            kernel.write_back(node);
            seek(&operations);
        });
    }

    fn copy_file_range(
        &self,
        request: &Request,
        source: INodeNo,
        _source_handle: FileHandle,
        source_offset: u64,
        target: INodeNo,
        _target_handle: FileHandle,
        target_offset: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (source, target) = (node(source), node(target));
        let range = CopyRange { source, source_offset, target, target_offset, length };
        match self.ask(|operations| operations.copy_range(caller(request), &range)) {
            Ok((copied, changed)) => self.changed(target, changed, move || reply.written(copied as u32)),
            Err(error) => reply.error(errno(error)),
        }
    }
}

/// Invalidates the kernel's caches after an ioctl, and then replies.
fn answer_ioctl<O: Operations>(
    kernel: &Kernel,
    operations: &O,
    answer: Result<IoctlReply, Errno>,
    reply: ReplyIoctl,
) {
    match answer {
        Ok(answer) => {
            forget_changed(kernel, operations, &answer.changed);
            reply.ioctl(answer.result, &answer.output);
        }
        Err(error) => reply.error(errno(error)),
    }
}

fn forget_changed<O: Operations>(kernel: &Kernel, operations: &O, changed: &[IoctlChanged]) {
    for change in changed {
        match change {
            IoctlChanged::Entry { directory: (tree, inode), name } => {
                kernel.forget_entry(operations.node_of(*tree, *inode), name);
            }
            IoctlChanged::Inode(tree, inode) => kernel.forget_attributes(operations.node_of(*tree, *inode)),
        }
    }
}

/// A listing of names only.
struct Names<'a>(&'a mut ReplyDirectory);

impl DirectorySink for Names<'_> {
    fn add(&mut self, entry: &ListedEntry<'_>) -> bool {
        let name = OsStr::from_bytes(entry.name);
        !self.0.add(INodeNo(entry.number), entry.next, file_type(entry.kind), name)
    }
}

/// A listing with attributes.
struct Nodes<'a> {
    reply: &'a mut ReplyDirectoryPlus,
    valid: std::time::Duration,
}

impl DirectorySink for Nodes<'_> {
    fn add(&mut self, entry: &ListedEntry<'_>) -> bool {
        let Some(known) = &entry.entry else { return false };
        let attributes = attributes(&known.attributes, entry.number);
        let (name, generation) = (OsStr::from_bytes(entry.name), Generation(known.generation));
        !self.reply.add(INodeNo(known.node.0), entry.next, name, &self.valid, &attributes, generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_becomes_eio() {
        let panics = |_: &()| -> Result<(), Errno> { std::panic::resume_unwind(Box::new("on purpose")) };
        assert_eq!(ask(&(), panics), Err(Errno(libc::EIO)));
        assert_eq!(ask(&(), |_| Ok(7)), Ok(7));
    }
}
