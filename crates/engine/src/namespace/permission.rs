//! The permissions of a user: mode bits and access control lists.
//!
//! Owns [`Caller`] and [`Permissions`]. A mount leaves these checks to the kernel. A front end
//! whose users the kernel does not know, such as a server, makes them here.
//!
//! Kernel counterparts: `generic_permission`, `acl_permission_check` (`fs/namei.c`),
//! `posix_acl_permission` (`fs/posix_acl.c`).

use crate::namespace::acl::Acl;
use bitflags::bitflags;

/// The user for whom something is done. User 0 has all capabilities, and no other user has any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Caller {
    /// A user with its group and its supplementary groups.
    pub fn new(uid: u32, gid: u32, groups: Vec<u32>) -> Self {
        Self { uid, gid, groups }
    }

    /// Root, which may do everything that flags of inodes do not forbid.
    pub fn root() -> Self {
        Self::new(0, 0, Vec::new())
    }

    /// Returns the user's id.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns the id of the group that the user's new files get.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// Returns whether the user is root.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Returns whether the user is in a group.
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

bitflags! {
    /// Kinds of use of an inode. The bits are those of a mode's last digit.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Permissions: u16 {
        /// Reading a file; listing a directory.
        const READ = 0o4;
        /// Writing a file; adding and removing the entries of a directory.
        const WRITE = 0o2;
        /// Executing a file; looking names up in a directory.
        const EXECUTE = 0o1;
    }
}

/// The attributes of an inode that decide on permissions.
#[derive(Clone, Copy, Debug)]
pub struct Protection {
    /// Whether the inode is a directory.
    pub is_directory: bool,
    /// File type and permissions (`st_mode`).
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl Protection {
    /// Returns whether a caller has all of the `wanted` permissions. `list` reads the access
    /// control list, if there is one. It is called only where the list decides.
    ///
    /// # Errors
    /// Those of `list`.
    pub fn grants<E>(
        &self,
        caller: &Caller,
        wanted: Permissions,
        list: impl FnOnce() -> Result<Option<Acl>, E>,
    ) -> Result<bool, E> {
        let class = |shift: u32| Permissions::from_bits_truncate((self.mode >> shift) as u16 & 0o7);
        if caller.is_root() {
            // Nobody executes a file without any execute permission.
            let executable = self.is_directory || self.mode & 0o111 != 0;
            return Ok(executable || !wanted.contains(Permissions::EXECUTE));
        }
        if caller.uid == self.uid {
            return Ok(class(6).contains(wanted));
        }
        // The group bits are the mask of a list: without any, named entries grant nothing, and the
        // kernel does not look at them.
        if !class(3).is_empty()
            && let Some(list) = list()?
        {
            return Ok(list.grants(caller.uid, |gid| caller.is_in_group(gid), self.gid, wanted.bits()));
        }
        let class = if caller.is_in_group(self.gid) { class(3) } else { class(0) };
        Ok(class.contains(wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Permissions = Permissions::READ;
    const WRITE: Permissions = Permissions::WRITE;

    fn grants(mode: u32, caller: &Caller, wanted: Permissions) -> bool {
        let protection = Protection { is_directory: false, mode, uid: 1, gid: 2 };
        protection.grants(caller, wanted, || Ok::<_, ()>(None)).unwrap()
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let (owner, member, other) =
            (Caller::new(1, 9, vec![]), Caller::new(8, 9, vec![2]), Caller::new(8, 9, vec![]));
        assert!(!grants(0o077, &owner, READ) && grants(0o077, &member, READ));
        assert!(!grants(0o707, &member, READ) && grants(0o707, &other, READ | WRITE));
        assert!(!grants(0o774, &other, READ | WRITE));
    }

    #[test]
    fn root_executes_only_executables() {
        let root = Caller::root();
        assert!(grants(0, &root, READ | WRITE) && !grants(0, &root, Permissions::EXECUTE));
        assert!(grants(0o010, &root, Permissions::all()));
    }
}
