//! The server: implements each operation of the kernel with calls of the library.
//!
//! Owns the operations of [`Server`]. It holds no file-system logic and only translates: nodes
//! to inodes and the library's errors to error numbers. It also applies the rules that the kernel
//! keeps above a file system and that FUSE leaves to the server: access times, set-user-id bits,
//! and permission to open files with certain inode flags. It holds no lock of its own across a call
//! of the library.

mod access_time;
mod attributes;
mod cached_writes;
mod copy_range;
mod data;
mod directories;
mod follow;
mod labels;
mod listings;
mod lost;
mod names;
mod pending_write;
mod privileges;
mod promises;
mod room;
mod short_room;
mod state;
mod stored_prefix;
mod switch;
mod switching;
mod xattrs;

pub(crate) use state::Server;

use crate::dispatch::QueuedData;
use crate::ioctl::table::{self, Data, IoctlEntry};
use crate::ioctl::{Caller, IoctlCall, IoctlReply};
use crate::transport::{DataChange, DirectoryHandle, Ioctl, NodeId, Validity, Write};
use papilio::FileSystem;
use papilio::format::{InodeNumber, TreeId};
use papilio_ioctl::Errno;
use papilio_ioctl::number::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Server {
    /// Returns how long the kernel may cache names and attributes.
    pub(crate) fn valid_for(&self) -> Validity {
        let attributes = if self.room.is_short() { Duration::ZERO } else { self.valid_for };
        Validity { names: self.valid_for, attributes }
    }

    /// Returns whether the caller may use the mount (`allow_root`).
    pub(crate) fn admits(&self, caller: Caller) -> bool {
        self.owner_beside_root.is_none_or(|owner| caller.uid == 0 || caller.uid == owner)
    }

    /// Returns whether [`Server::admits`] refuses any caller. The kernel must then ask for the
    /// root directory's attributes each time that a caller passes through it.
    pub(crate) fn refuses_callers(&self) -> bool {
        self.owner_beside_root.is_some()
    }

    /// Subtracts `count` look-ups from a node.
    pub(crate) fn forget(&self, node: NodeId, count: u64) {
        if self.opens_by_kernel {
            // Its closes may not be heard of.
            self.promises.forget(node);
        }
        self.nodes.forget(node, count);
    }

    /// Returns the files whose data the kernel must write back before `length` bytes are allocated:
    /// none where these leave room for it.
    pub(crate) fn dirty_before_allocating(&self, length: u64) -> Vec<NodeId> {
        if self.make_room(length) { self.may_be_written() } else { Vec::new() }
    }

    /// Returns the files whose data the kernel must write back before it takes more of `node` into
    /// its cache. The default is that one.
    pub(crate) fn dirty_before_caching(&self, node: NodeId) -> Vec<NodeId> {
        let others = self.promises.too_many().into_iter().filter(|other| *other != node);
        others.chain([node]).collect()
    }

    /// Returns whether room is so short that the kernel must write back a file's data before it
    /// takes more into its cache.
    pub(crate) fn is_short_of_room(&self) -> bool {
        self.room.is_short()
    }

    /// Returns whether the kernel opens files without the server.
    pub(crate) fn opens_by_kernel(&self) -> bool {
        self.opens_by_kernel
    }

    /// Returns whether reads and writes of data wait for a device.
    pub(crate) fn waits_for_devices(&self) -> bool {
        self.fs().waits_for_devices()
    }

    /// Returns the requests that can be in flight without a thread.
    pub(crate) fn queued_data(&self) -> QueuedData {
        match self.fs().queues_reads() {
            _ if self.waits_for_devices() => QueuedData::All,
            true => QueuedData::DirectReads,
            false => QueuedData::Nothing,
        }
    }

    /// Returns the target of a symbolic link.
    pub(crate) fn read_link(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        let node = self.node(node)?;
        let target = self.used(&node)?.inode.read_link()?;
        self.note_read(&node, 0);
        Ok(target)
    }

    /// Unlinks `name`; refuses directories.
    pub(crate) fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.names_change();
        Ok(self.used_node(parent)?.inode.remove_file(name)?)
    }

    /// Removes an empty directory.
    pub(crate) fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.names_change();
        Ok(self.used_node(parent)?.inode.remove_dir(name)?)
    }

    /// Notes that the kernel has dropped all pages of a file, as [`ChangedPages::All`] asked.
    pub(crate) fn pages_dropped(&self, node: NodeId, accesses: u64) {
        if let Ok(node) = self.node(node) {
            node.cached.dropped(accesses);
        }
    }

    /// Returns the file for a read or a write that is in flight without a thread. With `direct`
    /// the data passes the kernel's cache.
    pub(crate) fn data_file(&self, node: NodeId, direct: bool) -> Result<Arc<papilio::File>, Errno> {
        let node = self.node(node)?;
        if !direct {
            node.cached.note_pages();
        }
        self.used(&node)?.shared_file()
    }

    /// Notes that a file opened with `flags` was read, for a request that was in flight.
    pub(crate) fn has_read(&self, node: NodeId, flags: i32) {
        if let Ok(node) = self.node(node) {
            self.count_unseen_close();
            self.note_read(&node, flags);
        }
    }

    /// Notes that a direct write has ended, for a request that was in flight.
    pub(crate) fn has_written(
        &self,
        caller: Caller,
        node: NodeId,
        written: Write,
    ) -> Result<DataChange, Errno> {
        let node = self.node(node)?;
        self.after_write(caller, &node, written)
    }

    /// Reads into `buffer`; returns the number of bytes, less than fits only at the end of the
    /// file.
    pub(crate) fn read(
        &self,
        node: NodeId,
        offset: u64,
        flags: i32,
        buffer: &mut [u8],
    ) -> Result<usize, Errno> {
        let node = self.node(node)?;
        if flags & libc::O_DIRECT == 0 {
            node.cached.note_pages();
        }
        if offset == 0 {
            self.count_unseen_close();
        }
        let read = self.used(&node)?.file()?.read_at(buffer, offset)?;
        self.note_read(&node, flags);
        Ok(read)
    }

    /// Makes a file or directory durable; with `data_only`, only the data and the metadata needed
    /// to read it.
    pub(crate) fn sync(&self, node: NodeId, data_only: bool) -> Result<(), Errno> {
        if self.mount.opened_read_only() {
            return Ok(());
        }
        let node = self.node(node)?;
        if node.is_stub() {
            return Ok(());
        }
        let node = self.used(&node)?;
        match node.file() {
            Ok(file) if data_only => Ok(file.sync_data()?),
            Ok(file) => Ok(file.sync_all()?),
            Err(_) => Ok(node.inode.sync_all()?),
        }
    }

    /// Makes the whole file system durable.
    pub(crate) fn sync_all(&self) -> Result<(), Errno> {
        if self.mount.opened_read_only() { Ok(()) } else { Ok(self.fs().sync()?) }
    }

    /// Closes a directory.
    pub(crate) fn release_directory(&self, handle: DirectoryHandle) {
        self.listings.close(handle);
    }

    /// Returns the files that the kernel must write back before [`Server::ioctl`]. A snapshot,
    /// for example, must contain all data written before it.
    pub(crate) fn dirty_before(&self, node: NodeId, command: u32) -> Vec<NodeId> {
        match table::find(command).map_or(Data::Nothing, IoctlEntry::data) {
            Data::All => self.may_be_written(),
            Data::OwnIfKernelOpens if !self.opens_by_kernel => Vec::new(),
            Data::OwnIfKernelOpens | Data::Own if self.may_be_dirty(node) => vec![node],
            _ => Vec::new(),
        }
    }

    /// Returns whether an ioctl may wait for a program that uses this mount. It then needs a thread
    /// of its own.
    pub(crate) fn waits_for_programs(&self, command: u32) -> bool {
        table::find(command).is_some_and(IoctlEntry::may_wait)
    }

    /// Answers an ioctl.
    pub(crate) fn ioctl(&self, caller: Caller, node: NodeId, ioctl: &Ioctl<'_>) -> Result<IoctlReply, Errno> {
        if Command(ioctl.command) == Command::TAKE_LOST_WRITE {
            return Ok(self.take_lost_write(caller));
        }
        // While it runs, the file system stays the same.
        let _running = self.waits_for_programs(ioctl.command).then(|| self.switching.begin_long());
        let node = self.node(node)?;
        if node.is_stub() && !Command(ioctl.command).is_own() {
            return Err(Errno(libc::ENOTTY));
        }
        // As `deny_write_access`. Where the kernel opens files itself, writers are not known.
        if Command(ioctl.command) == Command::ENABLE_VERITY && node.writers.load(Ordering::Acquire) > 0 {
            return Err(Errno(libc::ETXTBSY));
        }
        let inode = node.current(&self.fs())?;
        let umask = privileges::umask_of(caller);
        let may_be_mapped = (!caller.is_told()).then(|| self.nodes.number_of_node(&node));
        let caller = caller.known();
        let (served, mount) = (self.fs(), &self.mount);
        let fs: &FileSystem = &served;
        let Ioctl { command, input, address, output_size } = *ioctl;
        let inode = &inode;
        let call = IoctlCall {
            fs,
            mount,
            inode,
            command,
            input,
            address,
            output_size,
            caller,
            may_be_mapped,
            umask,
        };
        let reply = match crate::ioctl::wanted_switch(&call)? {
            Some(switch) => self.switch(switch),
            None => crate::ioctl::handle(&call),
        };
        self.changed(&node);
        if Command(command) == Command::ENCODED_WRITE && reply.is_ok() {
            // The kernel drops the attributes with the pages.
            self.after_change(caller, &node)?;
        }
        self.names_change();
        reply
    }

    /// Returns the node id of an inode that an ioctl changed.
    pub(crate) fn node_of(&self, tree: TreeId, inode: InodeNumber) -> NodeId {
        self.nodes.id(tree, inode)
    }
}
