//! Opening files and changing their data.

use super::state::Server;
use crate::cached_pages::StalePages;
use crate::ioctl::Caller;
use crate::nodes::{Node, Used, stale};
use crate::transport::{ChangedPages, DataChange, NodeId, SeekTo, Write};
use papilio::format::items::inode::InodeFlags;
use papilio::{File, FileKind};
use papilio_ioctl::Errno;
use std::sync::atomic::Ordering;

/// Reply that tells the kernel to stop reporting opens and closes (`no_open`, `no_opendir`).
pub(super) const NO_NEED: Errno = Errno(libc::ENOSYS);

impl Server {
    /// Opens a regular file with `open`'s flags. Files have no handles: the node stands for the
    /// open file. Returns whether the kernel may keep what it has cached of the file.
    pub(crate) fn open(&self, node: NodeId, flags: i32) -> Result<bool, Errno> {
        if self.opens_by_kernel {
            return Err(NO_NEED);
        }
        let node = self.node(node)?;
        // The inode and the file come with the first read, which the kernel's cache may answer.
        if is_writing(flags) || node.kind != FileKind::Regular {
            let used = self.used(&node)?;
            used.file()?;
            self.check_open_for_writing(&node, &used, flags)?;
        }
        self.count_open(&node, flags)?;
        Ok(!self.must_see_read(&node, flags))
    }

    /// Refuses writes that the kernel's `inode_permission` and `may_open` refuse because of inode
    /// flags, which FUSE does not know, and what `fsverity_file_open` refuses.
    fn check_open_for_writing(&self, node: &Node, used: &Used, flags: i32) -> Result<(), Errno> {
        let kept = node.current(&self.fs())?.metadata().flags();
        // In the kernel's order, where a file has several reasons.
        if kept.contains(InodeFlags::IMMUTABLE) {
            return Err(Errno(libc::EPERM));
        }
        used.check_changeable()?;
        let appends = flags & libc::O_APPEND != 0 && flags & libc::O_TRUNC == 0;
        if kept.contains(InodeFlags::VERITY) || kept.contains(InodeFlags::APPEND) && !appends {
            return Err(Errno(libc::EPERM));
        }
        Ok(())
    }

    /// Refuses a change of data from `offset` on that the kernel refuses at `open`, where files are
    /// opened without the server. Pages `from_cache` may begin with data that the file has.
    pub(super) fn check_change_unopened(
        &self,
        node: &Node,
        offset: u64,
        from_cache: Option<&[u8]>,
    ) -> Result<(), Errno> {
        if !self.opens_by_kernel {
            return Ok(());
        }
        let inode = node.current(&self.fs())?;
        // A file that was opened before its subvolume became read-only looks like any other.
        inode.check_changeable().map_err(stale)?;
        let (flags, size) = (inode.metadata().flags(), inode.metadata().size());
        let refused = flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::VERITY)
            || flags.contains(InodeFlags::APPEND)
                && offset < size
                && !self.begins_with_content(node, offset, from_cache.unwrap_or_default(), size)?;
        if refused { Err(Errno(libc::EPERM)) } else { Ok(()) }
    }

    /// Returns whether `data` for `offset` equals the content of the file, up to the file's size.
    fn begins_with_content(&self, node: &Node, offset: u64, data: &[u8], size: u64) -> Result<bool, Errno> {
        let old = usize::try_from(size - offset).unwrap_or(usize::MAX).min(data.len());
        let mut content = vec![0; old];
        let read = self.used(node)?.file()?.read_at(&mut content, offset).map_err(stale)?;
        Ok(old > 0 && read == old && content == data[..old])
    }

    /// Notes that a file was opened by a request that the server answers.
    pub(super) fn count_open(&self, node: &Node, flags: i32) -> Result<(), Errno> {
        if self.opens_by_kernel {
            // Its close may not be heard of.
            self.closes.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.nodes.opened(node);
        // Now, not with the first write: the subvolume may have become read-only by then.
        if is_writing(flags)
            && let Err(error) = self.used(node).and_then(|used| Ok(used.file()?.begin_writing()?))
        {
            self.nodes.closed(node);
            return Err(error);
        }
        if is_writing(flags) && node.writers.fetch_add(1, Ordering::AcqRel) == 0 {
            // Failures of earlier writers are no concern of this one.
            node.failed.store(0, Ordering::Release);
        }
        Ok(())
    }

    /// Counts a close that the server will not hear of: the file was read.
    pub(super) fn count_unseen_close(&self) {
        if self.opens_by_kernel {
            self.closes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Closes a file that [`Server::open`] or [`Server::create`] opened with the same
    /// flags.
    pub(crate) fn release(&self, node: NodeId, flags: i32) {
        self.closes.fetch_add(1, Ordering::Relaxed);
        if self.opens_by_kernel {
            // A file that was created before the kernel knew.
            return;
        }
        let Ok(node) = self.node(node) else { return };
        if is_writing(flags) && node.writers.fetch_sub(1, Ordering::AcqRel) == 1 {
            // The kernel has written everything back before.
            self.promises.forget(node.id);
            self.lost.was_told(&node);
        }
        self.nodes.closed(&node);
    }

    /// Returns whether the kernel may hold unwritten data of the file. The transport has the kernel
    /// write it back before [`Server::seek`].
    pub(crate) fn may_be_dirty(&self, node: NodeId) -> bool {
        self.node(node).is_ok_and(|node| self.is_written(&node))
    }

    /// Returns whether a process may have a file open for writing.
    pub(super) fn is_written(&self, node: &Node) -> bool {
        match self.opens_by_kernel {
            true => !self.mount.opened_read_only() && node.kind == FileKind::Regular,
            false => node.writers.load(Ordering::Acquire) > 0,
        }
    }

    /// Returns the files that programs may be writing: the kernel may hold unwritten data of them.
    pub(crate) fn may_be_written(&self) -> Vec<NodeId> {
        match (self.mount.opened_read_only(), self.opens_by_kernel) {
            (true, _) => Vec::new(),
            // Any file that the kernel knows may be open for writing.
            (_, true) => self.nodes.select(|node| node.kind == FileKind::Regular),
            (_, false) => self.nodes.select(|node| node.writers.load(Ordering::Acquire) > 0),
        }
    }

    /// Writes all of the data.
    pub(crate) fn write(
        &self,
        caller: Caller,
        node: NodeId,
        write: Write,
        data: &[u8],
    ) -> Result<(usize, DataChange), Errno> {
        let node = self.node(node)?;
        if !write.direct {
            node.cached.note_pages();
        }
        let used = self.used(&node)?;
        let file = used.file()?;
        // The kernel reports a refusal at `fsync` and `close`. A later writer is not concerned.
        self.check_change_unopened(&node, write.offset, write.from_cache.then_some(data))?;
        let length = match write.from_cache {
            true => self.write_from_cache(&node, &used, write.offset, data).map(|()| data.len())?,
            false if write.direct && self.sends_parts_at_once() => write_whole(file, data, write.offset)?,
            false => file.write_at(data, write.offset).map_err(stale)?,
        };
        Ok((length, self.after_write(caller, &node, Write { length, ..write })?))
    }

    /// Returns whether the kernel may send the parts of a direct write at once: it does where the
    /// file was not opened with `FOPEN_DIRECT_IO`.
    fn sends_parts_at_once(&self) -> bool {
        self.writeback_cache || self.opens_by_kernel
    }

    /// Notes a write that has ended, and returns what else it changed.
    pub(super) fn after_write(
        &self,
        caller: Caller,
        node: &Node,
        written: Write,
    ) -> Result<DataChange, Errno> {
        self.changed(node);
        // The kernel drops its pages before a direct write, and may read old ones until it is done.
        // It holds the pages of other writes locked, and knows their data.
        let pages = if written.direct { node.cached.stale() } else { None };
        let pages = pages.map(|pages| match pages {
            StalePages::Written => ChangedPages::Range(written.offset, written.length as u64),
            StalePages::All(accesses) => ChangedPages::All(accesses),
        });
        let attributes = written.kills_privileges && self.kill_privileges(caller, node)?;
        Ok(DataChange { attributes, pages, room: self.room_shrank(written.length) })
    }

    /// Allocates a range, punches a hole or zeroes it, depending on `fallocate`'s mode.
    pub(crate) fn allocate(
        &self,
        caller: Caller,
        node: NodeId,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Result<DataChange, Errno> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        let node = self.node(node)?;
        let used = self.used(&node)?;
        let file = used.file()?;
        self.check_change_unopened(&node, offset, None)?;
        let flags = node.current(&self.fs())?.metadata().flags();
        if flags.contains(InodeFlags::IMMUTABLE) || flags.contains(InodeFlags::APPEND) && mode & !KEEP != 0 {
            return Err(Errno(libc::EPERM));
        }
        match mode {
            0 | KEEP => file.allocate(offset, length, mode == KEEP),
            PUNCH => file.punch_hole(offset, length),
            ZERO | ZERO_KEEP => file.zero_range(offset, length, mode == ZERO_KEEP),
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        }
        .map_err(stale)?;
        self.changed(&node);
        self.after_change(caller, &node)
    }

    /// Looks at room, and clears privileges after a change to data, for requests that do not say
    /// whether the caller may keep them.
    pub(super) fn after_change(&self, caller: Caller, node: &Node) -> Result<DataChange, Errno> {
        let attributes = self.kill_privileges_by(caller, node)?;
        Ok(DataChange { attributes, room: self.lost_room(), ..DataChange::default() })
    }

    /// Returns the offset of the next data or hole.
    pub(crate) fn seek(&self, node: NodeId, offset: u64, to: SeekTo) -> Result<u64, Errno> {
        let used = self.used_node(node)?;
        let file = used.file()?;
        match to {
            SeekTo::Data => file.seek_data(offset).map_err(stale)?.ok_or(Errno(libc::ENXIO)),
            SeekTo::Hole => file.seek_hole(offset).map_err(stale),
        }
    }
}

/// Writes all of `data`. The kernel takes a short answer to a part of a direct write for EIO,
/// where it has sent several at once; so the answer is the error that ended it.
fn write_whole(file: &File, data: &[u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < data.len() {
        match file.write_at(&data[done..], offset + done as u64).map_err(stale)? {
            0 => break,
            wrote => done += wrote,
        }
    }
    Ok(done)
}

fn is_writing(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}
