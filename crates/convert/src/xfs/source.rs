//! XFS as the source of a conversion.
//!
//! Owns the [`Source`] of [`XfsFs`]. The root directory gets a number below all others; the other
//! inodes keep theirs.

use super::inode::{Format, XfsInode, flag};
use super::reader::XfsFs;
use crate::block_set::BlockSet;
use crate::error::Result;
use crate::losses::Losses;
use crate::shared::SharedExtents;
use crate::source::{Claim, Extent, InodeFacts, Profile, Source, SourceEntry, Xattr, flags_of};
use papilio_device::Device;
use papilio_format::items::inode::{FileKind, InodeFlags};
use std::sync::Arc;

/// Flags, and those of Btrfs that mean the same.
const FLAGS: [(u16, InodeFlags); 5] = [
    (flag::SYNC, InodeFlags::SYNC),
    (flag::IMMUTABLE, InodeFlags::IMMUTABLE),
    (flag::APPEND, InodeFlags::APPEND),
    (flag::NODUMP, InodeFlags::NODUMP),
    (flag::NOATIME, InodeFlags::NOATIME),
];

impl Source for XfsFs {
    type Inode = XfsInode;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn used_blocks(&self) -> Result<BlockSet> {
        Self::used_blocks(self)
    }

    fn structure_blocks(&self) -> Result<BlockSet> {
        Self::structure_blocks(self)
    }

    fn shared(&self) -> &SharedExtents {
        &self.shared
    }

    fn shown(&self, inode: u64) -> u64 {
        Self::shown(self, inode)
    }

    fn is_nameless(&self, inode: u64) -> bool {
        self.superblock.nameless.contains(&inode)
    }

    fn note_losses(&self, losses: &mut Losses) {
        losses.quotas += self.superblock.quotas;
    }

    fn inode(&self, number: u64) -> Result<XfsInode> {
        self.read_inode(Self::shown(self, number))
    }

    fn for_each_inode(&self, first: u64, act: &mut dyn FnMut(XfsInode) -> Result<bool>) -> Result<()> {
        self.for_each_xfs_inode(first, act)
    }

    fn facts(&self, inode: &XfsInode) -> InodeFacts {
        let is_device = matches!(inode.kind, FileKind::BlockDevice | FileKind::CharacterDevice);
        InodeFacts {
            number: inode.number,
            kind: inode.kind,
            mode: inode.mode.into(),
            uid: inode.uid,
            gid: inode.gid,
            size: inode.size,
            links: inode.links,
            device: if is_device { inode.device_number() } else { (0, 0) },
            flags: flags_of(&FLAGS, |flag| inode.has(flag)),
            atime: inode.atime,
            ctime: inode.ctime,
            mtime: inode.mtime,
            otime: inode.otime,
            is_inline: inode.data.format == Format::Local,
            may_share: inode.kind == FileKind::Regular && inode.may_share(),
            is_internal: false,
        }
    }

    fn check_inode(&self, inode: &XfsInode, losses: &mut Losses) -> Result<()> {
        if inode.has(flag::REALTIME) {
            return Err(self.unsupported(format!("inode {} has its data in a real-time section", inode.own)));
        }
        let (mut content, mut maps) = (0, 0);
        for fork in [Some(&inode.data), inode.attributes.as_ref()].into_iter().flatten() {
            let add = &mut |extent: Extent| {
                content += extent.length;
                Ok(())
            };
            self.for_each_in_fork(inode, fork, add, &mut |_| {
                maps += 1;
                Ok(())
            })?;
        }
        if content + maps != inode.blocks {
            let reason = format!("it has {} blocks, and {} by its count", content + maps, inode.blocks);
            return Err(self.damaged(format!("inode {}", inode.own), reason));
        }
        losses.projects += u64::from(inode.project != 0 || inode.has(flag::PROJINHERIT));
        losses.hints += u64::from(inode.has_hints());
        losses.casefold += u64::from(self.superblock.has_casefold && inode.kind == FileKind::Directory);
        Ok(())
    }

    fn for_each_entry(
        &self,
        directory: &XfsInode,
        act: &mut dyn FnMut(SourceEntry<'_>) -> Result<()>,
    ) -> Result<u64> {
        self.for_each_xfs_entry(directory, act)
    }

    fn for_each_extent(
        &self,
        inode: &XfsInode,
        act: &mut dyn FnMut(Extent) -> Result<()>,
        inner: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        self.for_each_in_fork(inode, &inode.data, act, inner)
    }

    fn for_each_xattr_block(&self, inode: &XfsInode, act: &mut dyn FnMut(Claim) -> Result<()>) -> Result<()> {
        let Some(fork) = &inode.attributes else { return Ok(()) };
        let act = std::cell::RefCell::new(act);
        self.for_each_in_fork(
            inode,
            fork,
            &mut |extent| act.borrow_mut()(Claim { blocks: extent.blocks(), is_shared: false }),
            &mut |block| act.borrow_mut()(Claim { blocks: block..block + 1, is_shared: false }),
        )
    }

    fn inline_content(&self, inode: &XfsInode) -> Result<Vec<u8>> {
        let reason = "the content of a file is in its inode, which no kernel writes";
        Err(self.damaged(format!("inode {}", inode.own), reason))
    }

    fn target(&self, inode: &XfsInode) -> Result<Vec<u8>> {
        self.read_target(inode)
    }

    fn xattrs(&self, inode: &XfsInode) -> Result<Vec<Xattr>> {
        self.read_xattrs(inode)
    }
}
