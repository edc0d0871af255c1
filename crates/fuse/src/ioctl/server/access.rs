//! Who may do what with a file: for ioctls, which the kernel passes on without asking.
//!
//! Owns the test of permissions by mode and access control list. Kernel counterparts: `generic_permission`,
//! `acl_permission_check` (`fs/namei.c`), `posix_acl_permission` (`fs/posix_acl.c`), `btrfs_may_delete`,
//! `btrfs_may_create` (`fs/btrfs/ioctl.c`).

use super::call::{IoctlCall, Result};
use super::caller;
use crate::errno::Errno;
use papilio::{Inode, InodeFlags};

pub(super) const EXECUTE: u32 = 1;
pub(super) const WRITE: u32 = 2;
pub(super) const READ: u32 = 4;

const STICKY: u32 = 0o1000;
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

impl IoctlCall<'_> {
    /// Whether the caller has these rights, of [`READ`], [`WRITE`] and [`EXECUTE`], to an inode.
    pub(super) fn must_have(&self, inode: &Inode, rights: u32) -> Result<()> {
        let metadata = inode.metadata();
        if rights & WRITE != 0 && metadata.flags().contains(InodeFlags::IMMUTABLE) {
            return Err(Errno(libc::EPERM));
        }
        // Root may search any directory, and run no file here.
        if self.caller.uid == 0 || self.rights(inode)? & rights == rights {
            return Ok(());
        }
        Err(Errno(libc::EACCES))
    }

    fn rights(&self, inode: &Inode) -> Result<u32> {
        let metadata = inode.metadata();
        let mode = metadata.permissions();
        if metadata.uid() == self.caller.uid {
            return Ok(mode >> 6 & 7);
        }
        let groups = caller::groups(&self.caller);
        if let Some(list) = inode.xattr(ACCESS_LIST).map_err(Errno::from)? {
            return Ok(rights_by_list(&list, metadata.gid(), self.caller.uid, &groups));
        }
        if groups.contains(&metadata.gid()) { Ok(mode >> 3 & 7) } else { Ok(mode & 7) }
    }

    /// Whether the caller owns an inode, or is an administrator.
    pub(super) fn must_own(&self, inode: &Inode) -> Result<()> {
        if inode.metadata().uid() == self.caller.uid || self.is_administrator() {
            return Ok(());
        }
        Err(Errno(libc::EPERM))
    }

    /// Whether the caller may make entries in a directory.
    pub(super) fn may_create_in(&self, directory: &Inode) -> Result<()> {
        self.must_have(directory, WRITE | EXECUTE)
    }

    /// Whether the caller may take the entry that names `victim` out of a directory.
    pub(super) fn may_delete_from(&self, directory: &Inode, victim: &Inode) -> Result<()> {
        self.must_have(directory, WRITE | EXECUTE)?;
        let protected = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        let flags = directory.metadata().flags() & InodeFlags::APPEND;
        let uid = self.caller.uid;
        let sticky = directory.metadata().permissions() & STICKY != 0
            && ![0, victim.metadata().uid(), directory.metadata().uid()].contains(&uid);
        if !flags.is_empty() || victim.metadata().flags().intersects(protected) || sticky {
            return Err(Errno(libc::EPERM));
        }
        Ok(())
    }
}

/// What a list gives to whom is not the owner. A list that makes no sense gives nothing.
fn rights_by_list(list: &[u8], owning_group: u32, uid: u32, groups: &[u32]) -> u32 {
    let entries = list.get(4..).unwrap_or_default().chunks_exact(8).map(|entry| {
        let number = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        (number(0), u32::from(number(2)) & 7, id)
    });
    let of_tag = |wanted: u16| entries.clone().filter(move |(tag, ..)| *tag == wanted);
    let mask = of_tag(0x10).next().map_or(7, |(_, rights, _)| rights);
    if let Some((_, rights, _)) = of_tag(0x02).find(|(_, _, id)| *id == uid) {
        return rights & mask;
    }
    let own = of_tag(0x04).filter(|_| groups.contains(&owning_group));
    let named = of_tag(0x08).filter(|(_, _, id)| groups.contains(id));
    // The kernel asks whether one entry gives all that is wanted; the caller asks for the sum of at most two
    // rights that go together, so that entries are not added up here either: the greatest counts.
    if let Some(rights) =
        own.chain(named).map(|(_, rights, _)| rights).max_by_key(|rights| rights.count_ones())
    {
        return rights & mask;
    }
    of_tag(0x20).next().map_or(0, |(_, rights, _)| rights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_give_what_the_kernel_reads_in_them() {
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, rights, id) in [
            (1u16, 7u16, u32::MAX),
            (2, 6, 10),
            (4, 4, u32::MAX),
            (8, 7, 20),
            (16, 5, u32::MAX),
            (32, 1, u32::MAX),
        ] {
            list.extend(tag.to_le_bytes());
            list.extend(rights.to_le_bytes());
            list.extend(id.to_le_bytes());
        }
        assert_eq!(rights_by_list(&list, 30, 10, &[30]), 4);
        assert_eq!(rights_by_list(&list, 30, 11, &[30]), 4);
        assert_eq!(rights_by_list(&list, 30, 11, &[20]), 5);
        assert_eq!(rights_by_list(&list, 30, 11, &[30, 20]), 5);
        assert_eq!(rights_by_list(&list, 30, 11, &[40]), 1);
        assert_eq!(rights_by_list(&list[..3], 30, 11, &[40]), 0);
    }
}
