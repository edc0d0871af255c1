//! The server: implements each operation of the kernel with calls of the library.
//!
//! Owns the [`Operations`] of [`Server`]. It holds no file-system logic and only translates: nodes
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

use crate::ioctl::table::{self, Data, IoctlEntry};
use crate::ioctl::{Caller, IoctlCall, IoctlReply};
use crate::transport::{
    AttributeChange, Attributes, CopyRange, DataChange, DirectoryHandle, DirectorySink, Entry,
    FileSystemSizes, Ioctl, KeptListing, NewNode, NodeId, Operations, RefusedWrite, Rename, SeekTo, Validity,
    Write, Written, XattrSet,
};
use papilio::format::{InodeNumber, TreeId};
use papilio_ioctl::Errno;
use papilio_ioctl::number::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Operations for Server {
    fn valid_for(&self) -> Validity {
        let attributes = if self.room.is_short() { Duration::ZERO } else { self.valid_for };
        Validity { names: self.valid_for, attributes }
    }

    fn admits(&self, caller: Caller) -> bool {
        self.owner_beside_root.is_none_or(|owner| caller.uid == 0 || caller.uid == owner)
    }

    fn refuses_callers(&self) -> bool {
        self.owner_beside_root.is_some()
    }

    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        self.look_up(parent, name)
    }

    fn describe(&self, node: NodeId) -> String {
        self.words_for(node)
    }

    fn forget(&self, node: NodeId, count: u64) {
        if self.opens_by_kernel {
            // Its closes may not be heard of.
            self.promises.forget(node);
        }
        self.nodes.forget(node, count);
    }

    fn attributes(&self, node: NodeId) -> Result<Attributes, Errno> {
        self.node_attributes(node)
    }

    fn before_cached_write(&self, caller: Caller, node: NodeId) -> Result<(), RefusedWrite> {
        self.check_cached_write(caller, node)
    }

    fn lost_room(&self) -> bool {
        self.look_for_room()
    }

    fn names_after_failure(&self, node: NodeId) -> Vec<(NodeId, Vec<u8>)> {
        self.known_names(node)
    }

    fn names_after_close(&self, node: NodeId) -> Vec<(NodeId, Vec<u8>)> {
        self.names_to_forget(node)
    }

    fn names_in_deleted(&self, tree: TreeId) -> Vec<(NodeId, Vec<u8>)> {
        self.names_in(tree)
    }

    fn dirty_before_allocating(&self, length: u64) -> Vec<NodeId> {
        if self.make_room(length) { self.dirty_candidates() } else { Vec::new() }
    }

    fn dirty_before_caching(&self, node: NodeId) -> Vec<NodeId> {
        let others = self.promises.too_many().into_iter().filter(|other| *other != node);
        others.chain([node]).collect()
    }

    fn is_short_of_room(&self) -> bool {
        self.room.is_short()
    }

    fn waits_for_devices(&self) -> bool {
        self.fs().waits_for_devices()
    }

    fn may_be_written(&self) -> Vec<NodeId> {
        self.dirty_candidates()
    }

    fn set_attributes(
        &self,
        caller: Caller,
        node: NodeId,
        change: &AttributeChange,
    ) -> Result<Attributes, Errno> {
        self.change_attributes(caller, node, change)
    }

    fn read_link(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        let node = self.node(node)?;
        let target = self.used(&node)?.inode.read_link()?;
        self.note_read(&node, 0);
        Ok(target)
    }

    fn make(&self, caller: Caller, new: &NewNode<'_>) -> Result<Entry, Errno> {
        self.make_node(caller, new)
    }

    fn create(&self, caller: Caller, new: &NewNode<'_>, flags: i32) -> Result<Entry, Errno> {
        self.create_file(caller, new, flags)
    }

    fn create_unnamed(&self, caller: Caller, new: &NewNode<'_>, flags: i32) -> Result<Entry, Errno> {
        self.create_unnamed_file(caller, new, flags)
    }

    fn link(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        self.add_name(node, parent, name)
    }

    fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.names_change();
        Ok(self.used_node(parent)?.inode.remove_file(name)?)
    }

    fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.names_change();
        Ok(self.used_node(parent)?.inode.remove_dir(name)?)
    }

    fn rename(&self, caller: Caller, rename: &Rename<'_>) -> Result<(), Errno> {
        self.rename_entry(caller, rename)
    }

    fn open(&self, node: NodeId, flags: i32) -> Result<bool, Errno> {
        self.open_file(node, flags)
    }

    fn release(&self, node: NodeId, flags: i32) {
        self.close_file(node, flags);
    }

    fn pages_dropped(&self, node: NodeId, accesses: u64) {
        if let Ok(node) = self.node(node) {
            node.cached.dropped(accesses);
        }
    }

    fn may_be_dirty(&self, node: NodeId) -> bool {
        self.may_have_dirty_pages(node)
    }

    fn data_file(&self, node: NodeId, direct: bool) -> Result<Arc<papilio::File>, Errno> {
        let node = self.node(node)?;
        if !direct {
            node.cached.note_pages();
        }
        self.used(&node)?.shared_file()
    }

    fn has_read(&self, node: NodeId, flags: i32) {
        if let Ok(node) = self.node(node) {
            self.count_unseen_close();
            self.note_read(&node, flags);
        }
    }

    fn has_written(&self, caller: Caller, node: NodeId, written: &Written) -> Result<DataChange, Errno> {
        let node = self.node(node)?;
        self.after_write(caller, &node, written)
    }

    fn read(&self, node: NodeId, offset: u64, flags: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
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

    fn write(&self, caller: Caller, node: NodeId, write: &Write<'_>) -> Result<(usize, DataChange), Errno> {
        self.write_file(caller, node, write)
    }

    fn sync(&self, node: NodeId, data_only: bool) -> Result<(), Errno> {
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

    fn sync_all(&self) -> Result<(), Errno> {
        if self.mount.opened_read_only() { Ok(()) } else { Ok(self.fs().sync()?) }
    }

    fn allocate(
        &self,
        caller: Caller,
        node: NodeId,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Result<DataChange, Errno> {
        self.allocate_range(caller, node, offset, length, mode)
    }

    fn seek(&self, node: NodeId, offset: u64, to: SeekTo) -> Result<u64, Errno> {
        self.seek_file(node, offset, to)
    }

    fn copy_range(&self, caller: Caller, range: &CopyRange) -> Result<(u64, DataChange), Errno> {
        self.copy_file_range(caller, range)
    }

    fn open_directory(&self, node: NodeId) -> Result<(DirectoryHandle, KeptListing), Errno> {
        self.open_listing(node)
    }

    fn list(
        &self,
        node: NodeId,
        handle: DirectoryHandle,
        offset: u64,
        attributes: bool,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        self.list_directory(node, handle, offset, attributes, sink)
    }

    fn release_directory(&self, handle: DirectoryHandle) {
        self.listings.close(handle);
    }

    fn sizes(&self) -> Result<FileSystemSizes, Errno> {
        self.file_system_sizes()
    }

    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.get_xattr(node, name)
    }

    fn list_xattrs(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        self.xattr_names(node)
    }

    fn set_xattr(
        &self,
        caller: Caller,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
    ) -> Result<(), Errno> {
        self.put_xattr(caller, node, name, value, how)
    }

    fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.drop_xattr(node, name)
    }

    fn dirty_before(&self, node: NodeId, command: u32) -> Vec<NodeId> {
        match table::find(command).map_or(Data::Nothing, IoctlEntry::data) {
            Data::All => self.dirty_candidates(),
            Data::OwnIfKernelOpens if !self.opens_by_kernel => Vec::new(),
            Data::OwnIfKernelOpens | Data::Own if self.may_have_dirty_pages(node) => vec![node],
            _ => Vec::new(),
        }
    }

    fn waits_for_programs(&self, command: u32) -> bool {
        table::find(command).is_some_and(IoctlEntry::may_wait)
    }

    fn ioctl(&self, caller: Caller, node: NodeId, ioctl: &Ioctl<'_>) -> Result<IoctlReply, Errno> {
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
        let inode = node.current(self.fs())?;
        let umask = privileges::umask_of(caller);
        let may_be_mapped = (!caller.is_told()).then(|| self.nodes.number_of_node(&node));
        let caller = caller.known();
        let (fs, mount) = (self.fs(), &self.mount);
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

    fn node_of(&self, tree: TreeId, inode: InodeNumber) -> NodeId {
        self.nodes.id(tree, inode)
    }
}
