//! Ext as the source of a conversion.
//!
//! Owns the [`Source`] of [`ExtFs`].

use super::inode::{ExtInode, ROOT_INODE, flag};
use super::reader::ExtFs;
use super::used::{group_metadata, used_blocks};
use crate::block_set::BlockSet;
use crate::error::Result;
use crate::losses::Losses;
use crate::shared::SharedExtents;
use crate::source::{Claim, Extent, InodeFacts, Profile, Source, SourceEntry, Xattr, flags_of};
use papilio_device::Device;
use papilio_format::items::inode::{FileKind, InodeFlags};
use std::ops::Range;
use std::sync::Arc;

/// No file of ext shares blocks.
static NOTHING_SHARED: SharedExtents = SharedExtents::none();
/// The longest target of a symbolic link, with the byte behind it.
const TARGET_MAX: u64 = 4096;

/// Flags, and those of Btrfs that mean the same.
const FLAGS: [(u32, InodeFlags); 6] = [
    (flag::SYNC, InodeFlags::SYNC),
    (flag::IMMUTABLE, InodeFlags::IMMUTABLE),
    (flag::APPEND, InodeFlags::APPEND),
    (flag::NODUMP, InodeFlags::NODUMP),
    (flag::NOATIME, InodeFlags::NOATIME),
    (flag::DIRSYNC, InodeFlags::DIRSYNC),
];

impl Source for ExtFs {
    type Inode = ExtInode;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn used_blocks(&self) -> Result<BlockSet> {
        used_blocks(self)
    }

    fn structure_blocks(&self) -> Result<BlockSet> {
        Ok(group_metadata(self))
    }

    fn shared(&self) -> &SharedExtents {
        &NOTHING_SHARED
    }

    fn shown(&self, inode: u64) -> u64 {
        inode
    }

    fn is_nameless(&self, inode: u64) -> bool {
        self.superblock.nameless.iter().any(|number| u64::from(*number) == inode)
    }

    fn note_losses(&self, _losses: &mut Losses) {}

    fn inode(&self, number: u64) -> Result<ExtInode> {
        self.read_inode(u32::try_from(number).unwrap_or(0))
    }

    fn for_each_inode(&self, first: u64, act: &mut dyn FnMut(ExtInode) -> Result<bool>) -> Result<()> {
        match u32::try_from(first) {
            Ok(first) => self.for_each_ext_inode(first, act),
            Err(_) => Ok(()),
        }
    }

    fn facts(&self, inode: &ExtInode) -> InodeFacts {
        let is_device = matches!(inode.kind, FileKind::BlockDevice | FileKind::CharacterDevice);
        InodeFacts {
            number: inode.number.into(),
            kind: inode.kind,
            mode: inode.mode.into(),
            uid: inode.uid,
            gid: inode.gid,
            size: inode.size,
            links: inode.links.into(),
            device: if is_device { inode.device_number() } else { (0, 0) },
            flags: flags_of(&FLAGS, |flag| inode.has(flag)),
            atime: inode.atime,
            ctime: inode.ctime,
            mtime: inode.mtime,
            otime: inode.otime,
            is_inline: inode.has(flag::INLINE_DATA),
            may_share: false,
            is_internal: inode.has(flag::EA_INODE),
        }
    }

    fn check_inode(&self, inode: &ExtInode, losses: &mut Losses) -> Result<()> {
        let number = inode.number;
        if inode.has(flag::EA_INODE) {
            let reason = "it holds the value of an extended attribute, and has a name";
            return Err(self.damaged(format!("inode {number}"), reason));
        }
        if inode.has(flag::ENCRYPT) {
            let reason = format!("inode {number} is encrypted, and Btrfs cannot keep that");
            return Err(self.unsupported(reason));
        }
        losses.projects += u64::from(inode.project != 0 || inode.has(flag::PROJINHERIT));
        losses.verity += u64::from(inode.has(flag::VERITY));
        losses.casefold += u64::from(inode.has(flag::CASEFOLD));
        Ok(())
    }

    fn for_each_entry(
        &self,
        directory: &ExtInode,
        act: &mut dyn FnMut(SourceEntry<'_>) -> Result<()>,
    ) -> Result<u64> {
        self.for_each_ext_entry(directory, &self.inline_end(directory)?, act)
    }

    fn for_each_extent(
        &self,
        inode: &ExtInode,
        act: &mut dyn FnMut(Extent) -> Result<()>,
        inner: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        match inode.has(flag::INLINE_DATA) || inode.kind == FileKind::Symlink && inode.has_short_target() {
            true => Ok(()),
            false => self.for_each_ext_extent(inode, act, inner),
        }
    }

    fn for_each_xattr_block(&self, inode: &ExtInode, act: &mut dyn FnMut(Claim) -> Result<()>) -> Result<()> {
        let block = inode.xattr_block;
        match block {
            0 => Ok(()),
            _ => act(Claim { blocks: block..block.saturating_add(1), is_shared: true }),
        }
    }

    fn inline_content(&self, inode: &ExtInode) -> Result<Vec<u8>> {
        let mut bytes = [&inode.root[..], &self.inline_end(inode)?].concat();
        if inode.size > bytes.len() as u64 {
            let reason = format!("{} bytes of inline data, and a size of {}", bytes.len(), inode.size);
            return Err(self.damaged(format!("inode {}", inode.number), reason));
        }
        bytes.truncate(inode.size as usize);
        Ok(bytes)
    }

    fn target(&self, inode: &ExtInode) -> Result<Vec<u8>> {
        if inode.has(flag::INLINE_DATA) {
            return self.inline_content(inode);
        }
        if inode.has_short_target() {
            return Ok(inode.root[..inode.size as usize].to_vec());
        }
        if inode.size > TARGET_MAX {
            let reason = format!("a target of {} bytes", inode.size);
            return Err(self.damaged(format!("inode {}", inode.number), reason));
        }
        self.read_start(inode, TARGET_MAX)
    }

    fn is_replayed(&self, blocks: &Range<u64>) -> bool {
        self.replayed.as_ref().is_some_and(|changed| changed.intersects(blocks))
    }

    fn xattrs(&self, inode: &ExtInode) -> Result<Vec<Xattr>> {
        Ok(self.read_xattrs(inode)?.attributes)
    }
}

impl ExtFs {
    /// Returns the part of inline data that is behind its inode's block map.
    fn inline_end(&self, inode: &ExtInode) -> Result<Vec<u8>> {
        match inode.has(flag::INLINE_DATA) {
            true => Ok(self.read_xattrs(inode)?.inline_data),
            false => Ok(Vec::new()),
        }
    }

    /// The number of the root directory, as a conversion counts.
    pub(crate) const ROOT: u64 = ROOT_INODE as u64;
}
