//! The attributes that `stat` and `statfs` show, and changes to them.

use super::state::Server;
use crate::ioctl::Caller;
use crate::nodes::{Node, stale};
use crate::transport::{AttributeChange, Attributes, Entry, FileSystemSizes, NodeId};
use papilio::format::items::inode::InodeFlags;
use papilio::{ErrorKind, Inode, Metadata, PathError, SetAttributes, SetTime};
use papilio_ioctl::Errno;

/// Length of the longest entry name in bytes.
const NAME_MAX: u32 = 255;

impl Server {
    pub(super) fn attributes_of(&self, number: u64, metadata: &Metadata) -> Attributes {
        let (sector, ownership) = (self.sector_size(), self.ownership());
        Attributes {
            number,
            size: metadata.size(),
            blocks: metadata.allocated_bytes().div_ceil(sector.into()).saturating_mul((sector / 512).into()),
            atime: metadata.atime(),
            mtime: metadata.mtime(),
            ctime: metadata.ctime(),
            btime: metadata.btime(),
            kind: metadata.file_type(),
            permissions: ownership.shown_permissions(metadata.file_type(), metadata.permissions()),
            links: metadata.nlink(),
            uid: ownership.shown_user(metadata.uid()),
            gid: ownership.shown_group(metadata.gid()),
            device: metadata.rdev(),
            block_size: sector,
        }
    }

    /// Returns the look-up reply for a node.
    pub(super) fn entry_of(&self, node: &Node, inode: &Inode) -> Entry {
        let number = self.nodes.number_of_node(node);
        let generation = inode.metadata().generation().get();
        Entry { node: node.id, generation, attributes: self.attributes_of(number, inode.metadata()) }
    }

    /// Returns the attributes that `stat` shows.
    pub(crate) fn attributes(&self, node: NodeId) -> Result<Attributes, Errno> {
        let node = self.node(node)?;
        let inode = node.current(&self.fs())?;
        Ok(self.attributes_of(self.nodes.number_of_node(&node), inode.metadata()))
    }

    /// Changes attributes and the size.
    pub(crate) fn set_attributes(
        &self,
        caller: Caller,
        node: NodeId,
        change: &AttributeChange,
    ) -> Result<Attributes, Errno> {
        let node = self.node(node)?;
        if node.is_stub() {
            // The kernel changes a copy in memory that the next look-up does not find.
            return self.attributes(node.id);
        }
        let AttributeChange { permissions: mode, uid, gid, atime, mtime, ctime, size, .. } = *change;
        let ownership = self.ownership();
        let uid = uid.map_or(Ok(None), |id| ownership.stored_user(id))?;
        let gid = gid.map_or(Ok(None), |id| ownership.stored_group(id))?;
        let mut set = SetAttributes { mode, uid, gid, atime, mtime, ctime };
        if let Some(size) = size {
            let before = node.current(&self.fs())?;
            // `truncate` needs the right to write, and an open file may be cut unless data is only
            // appended to it (`vfs_truncate`, `do_ftruncate` in `fs/open.c`).
            let flags = before.metadata().flags();
            if flags.contains(InodeFlags::APPEND)
                || flags.contains(InodeFlags::IMMUTABLE) && !change.by_handle
            {
                return Err(Errno(libc::EPERM));
            }
            self.used(&node)?.file()?.set_len(size).map_err(stale)?;
            self.lost.was_cut(&node, size);
            match change.kills_privileges {
                true => self.kill_privileges(caller, &node)?,
                false => self.kill_privileges_by(caller, &node)?,
            };
            let before = before.metadata();
            if before.size() == size && size > 0 && !change.by_handle && set.mtime.is_none() {
                // `truncate` to the current size changes nothing, so times stay, although
                // preallocated space past the end was freed. With size 0 it is probably `open` with
                // O_TRUNC, which looks the same in the request.
                set.mtime = Some(SetTime::At(before.mtime()));
                set.ctime = set.ctime.or(Some(before.ctime()));
            }
        }
        let nothing = SetAttributes { ctime: None, ..set } == SetAttributes::default();
        if nothing && size.is_none() && !change.kills_privileges {
            self.chown_to_same(caller, &node, &set)?;
        } else if set != SetAttributes::default() {
            self.store_attributes(&node, &set)?;
        }
        self.changed(&node);
        let inode = node.current(&self.fs())?;
        Ok(self.attributes_of(self.nodes.number_of_node(&node), inode.metadata()))
    }

    fn store_attributes(&self, node: &Node, set: &SetAttributes) -> Result<(), Errno> {
        let used = self.used(node)?;
        match (used.inode.set_attributes(set), *set) {
            // The kernel stores the times of writes to a file that was opened before its subvolume
            // became read-only. A failure would be that of the next `fsync` or `close`.
            (
                Err(error),
                SetAttributes {
                    mode: None,
                    uid: None,
                    gid: None,
                    atime: None,
                    mtime: Some(SetTime::At(mtime)),
                    ctime: Some(ctime),
                },
            ) if error.kind() == ErrorKind::Path(PathError::ReadOnly) && self.is_written(node) => {
                used.inode.store_write_times(mtime, ctime).map_err(stale)
            }
            (result, _) => result.map_err(|error| self.refusal(node, error)),
        }
    }

    /// Converts an error of a change of attributes. The kernel looks at the inode's flags before it
    /// asks the file system about the subvolume.
    pub(super) fn refusal(&self, node: &Node, error: papilio::Error) -> Errno {
        let is_immutable = || {
            let inode = node.current(&self.fs());
            inode.is_ok_and(|inode| inode.metadata().flags().contains(InodeFlags::IMMUTABLE))
        };
        match error.kind() {
            ErrorKind::Path(PathError::ReadOnly) if is_immutable() => Errno(libc::EPERM),
            _ => stale(error),
        }
    }

    /// Returns the file system's sizes.
    pub(crate) fn sizes(&self) -> Result<FileSystemSizes, Errno> {
        // A sync(2) does not reach the server, so removals would show with the next commit only. A
        // mount that takes no changes has nothing to commit.
        let _ = self.fs().commit_removals();
        let sizes = self.fs().statfs()?;
        let block_size = self.sector_size();
        let blocks = |bytes: u64| bytes / u64::from(block_size);
        Ok(FileSystemSizes {
            block_size,
            blocks: blocks(sizes.total),
            free: blocks(sizes.free),
            available: blocks(sizes.available),
            name_max: NAME_MAX,
        })
    }

    pub(super) fn sector_size(&self) -> u32 {
        self.sector_size
    }
}
