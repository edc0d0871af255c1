//! Permission checks for ioctls, which the kernel passes on unchecked.
//!
//! Checks modes and access control lists.
//!
//! Kernel counterparts: `generic_permission`, `acl_permission_check` (`fs/namei.c`),
//! `posix_acl_permission` (`fs/posix_acl.c`), `btrfs_may_delete`, `btrfs_may_create`
//! (`fs/btrfs/ioctl.c`).

use super::call::{IoctlCall, Result, UNTOLD};
use super::caller;
use papilio::{Inode, InodeFlags};
use papilio_ioctl::Errno;

pub(super) const EXECUTE: u32 = 1;
pub(super) const WRITE: u32 = 2;
pub(super) const READ: u32 = 4;

const STICKY: u32 = 0o1000;
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

impl IoctlCall<'_> {
    /// Refuses callers that are not administrators.
    pub(super) fn must_be_administrator(&self) -> Result<()> {
        if self.is_administrator() { Ok(()) } else { Err(Errno(libc::EPERM)) }
    }

    /// Returns whether the caller is the server's own user, or root with the capability
    /// `CAP_SYS_ADMIN`. Root in a container may lack that, or have it there only.
    pub(super) fn is_administrator(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        match self.caller.uid {
            0 => !caller::lacks_administration(&self.caller),
            uid => uid == own,
        }
    }

    /// Refuses a caller that lacks one of these rights ([`READ`], [`WRITE`] and [`EXECUTE`]) to an
    /// inode.
    pub(super) fn must_have(&self, inode: &Inode, rights: u32) -> Result<()> {
        let metadata = inode.metadata();
        if rights & WRITE != 0 && metadata.flags().contains(InodeFlags::IMMUTABLE) {
            return Err(Errno(libc::EPERM));
        }
        // Root may search any directory, and no ioctl executes a file.
        if self.caller.uid == 0 || self.rights(inode, rights)? & rights == rights {
            return Ok(());
        }
        Err(Errno(libc::EACCES))
    }

    /// Returns the caller's rights to an inode, as far as they decide on the `wanted` ones.
    fn rights(&self, inode: &Inode, wanted: u32) -> Result<u32> {
        let metadata = inode.metadata();
        let ownership = &self.mount.ownership;
        let mode = ownership.shown_permissions(metadata.file_type(), metadata.permissions());
        let group = ownership.shown_group(metadata.gid());
        if self.is_stranger() {
            // Only rights that everybody has.
            let lists = !ownership.hides_lists() && inode.xattr(ACCESS_LIST).map_err(Errno::from)?.is_some();
            return Ok(if lists { 0 } else { mode >> 6 & mode >> 3 & mode & 7 });
        }
        if self.owner_of(inode) == self.caller.uid {
            return Ok(mode >> 6 & 7);
        }
        let groups = caller::groups(&self.caller);
        if !ownership.hides_lists()
            && let Some(list) = inode.xattr(ACCESS_LIST).map_err(Errno::from)?
        {
            let list = ownership.shown_list(list);
            return Ok(rights_by_list(&list, group, self.caller.uid, &groups, wanted));
        }
        if groups.contains(&group) { Ok(mode >> 3 & 7) } else { Ok(mode & 7) }
    }

    /// Returns the owner that the mount shows.
    fn owner_of(&self, inode: &Inode) -> u32 {
        self.mount.ownership.shown_user(inode.metadata().uid())
    }

    /// Returns whether the caller's ids say nothing about the owners in this file system: they are
    /// not known, or the call comes through an idmapped mount.
    fn is_stranger(&self) -> bool {
        self.caller.uid == UNTOLD || self.is_mapped() != Some(false)
    }

    /// Refuses calls through an idmapped mount, which would store the wrong owner: FUSE tells the
    /// right one for inodes only that the kernel makes.
    pub(super) fn must_not_be_mapped(&self) -> Result<()> {
        match self.is_mapped() {
            Some(false) => Ok(()),
            // The server may be short of descriptors.
            None if self.is_administrator() => Ok(()),
            _ => Err(Errno(libc::EOPNOTSUPP)),
        }
    }

    /// Returns whether the call comes through an idmapped mount; `None` if that is not known.
    fn is_mapped(&self) -> Option<bool> {
        self.may_be_mapped.map_or(Some(false), |number| caller::is_mapped(self, number))
    }

    /// Refuses a caller that neither owns an inode nor is an administrator.
    pub(super) fn must_own(&self, inode: &Inode) -> Result<()> {
        let owns = || self.owner_of(inode) == self.caller.uid && !self.is_stranger();
        if owns() || self.is_administrator() {
            return Ok(());
        }
        Err(Errno(libc::EPERM))
    }

    /// Refuses a caller that may not create entries in a directory.
    pub(super) fn may_create_in(&self, directory: &Inode) -> Result<()> {
        self.must_have(directory, WRITE | EXECUTE)
    }

    /// Refuses a caller that may not remove the entry of `victim` from a directory.
    pub(super) fn may_delete_from(&self, directory: &Inode, victim: &Inode) -> Result<()> {
        self.must_have(directory, WRITE | EXECUTE)?;
        let protected = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        let flags = directory.metadata().flags() & InodeFlags::APPEND;
        let uid = self.caller.uid;
        let sticky = directory.metadata().permissions() & STICKY != 0
            && uid != 0
            && (![self.owner_of(victim), self.owner_of(directory)].contains(&uid) || self.is_stranger());
        if !flags.is_empty() || victim.metadata().flags().intersects(protected) || sticky {
            return Err(Errno(libc::EPERM));
        }
        Ok(())
    }
}

/// Returns the rights that a list grants to users other than the owner, as far as they decide on
/// the `wanted` ones. A malformed list grants nothing.
fn rights_by_list(list: &[u8], owning_group: u32, uid: u32, groups: &[u32], wanted: u32) -> u32 {
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
    let mut of_groups = own.chain(named).map(|(_, rights, _)| rights).peekable();
    if of_groups.peek().is_some() {
        // One entry must grant all wanted rights: those of several entries do not add up.
        return of_groups.find(|rights| rights & wanted == wanted).unwrap_or(0) & mask;
    }
    of_tag(0x20).next().map_or(0, |(_, rights, _)| rights)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_grant_what_the_kernel_grants() {
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
        let rights = |uid, groups: &[u32], wanted| rights_by_list(&list, 30, uid, groups, wanted);
        assert_eq!(rights(10, &[30], READ), 4);
        assert_eq!(rights(11, &[30], READ), 4);
        assert_eq!(rights(11, &[20], READ), 5);
        assert_eq!(rights(11, &[30, 20], READ | EXECUTE), 5);
        assert_eq!(rights(11, &[30], READ | EXECUTE), 0);
        assert_eq!(rights(11, &[40], EXECUTE), 1);
        assert_eq!(rights_by_list(&list[..3], 30, 11, &[40], EXECUTE), 0);
    }

    #[test]
    fn any_group_entry_can_grant_the_wanted_rights() {
        let entries = [(4u16, READ | EXECUTE), (8, WRITE | EXECUTE)];
        for entries in [entries, [entries[1], entries[0]]] {
            let mut list = 2u32.to_le_bytes().to_vec();
            for (tag, rights) in entries {
                list.extend(tag.to_le_bytes());
                list.extend((rights as u16).to_le_bytes());
                list.extend(20u32.to_le_bytes());
            }
            for wanted in [READ | EXECUTE, WRITE | EXECUTE] {
                assert_eq!(rights_by_list(&list, 30, 11, &[30, 20], wanted), wanted);
            }
            assert_eq!(rights_by_list(&list, 30, 11, &[30, 20], READ | WRITE), 0);
        }
    }
}
