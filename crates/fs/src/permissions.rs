//! The rights of a user to an inode, for front ends whose users the kernel does not check.
//!
//! The methods answer by the metadata as of when the [`Inode`] was made, and change nothing. A
//! front end that changes names holds other changes back between the check and the change.
//!
//! The flags that make an inode immutable or append-only count here only as far as they are part
//! of a permission. The changes themselves refuse the rest.
//!
//! Kernel counterparts: `inode_permission`, `may_create`, `may_delete`, `vfs_rename`, `vfs_mknod`,
//! `mode_strip_sgid` (`fs/namei.c`, `fs/inode.c`), `setattr_prepare`, `may_setattr` (`fs/attr.c`).

use crate::inode::Inode;
use papilio_engine::errors::{PathError, Result};
use papilio_engine::namespace::acl::{self, Acl};
use papilio_engine::namespace::create::{NewInode, NewKind};
use papilio_engine::namespace::permission::{Caller, Permissions, Protection};
use papilio_engine::namespace::setattr::{SetAttributes, SetTime};
use papilio_format::items::inode::{FileKind, InodeFlags};

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const GROUP_EXECUTE: u32 = 0o0010;
/// Adding and removing entries of a directory.
const CHANGE_ENTRIES: Permissions = Permissions::WRITE.union(Permissions::EXECUTE);

impl Inode {
    /// Returns whether the mode and the access control list grant a caller all of the `wanted`
    /// permissions.
    ///
    /// # Errors
    /// A tree block that cannot be read, or an access control list that is invalid.
    pub fn grants(&self, caller: &Caller, wanted: Permissions) -> Result<bool> {
        let protection = Protection {
            is_directory: self.file_type() == FileKind::Directory,
            mode: self.metadata().permissions(),
            uid: self.metadata().uid(),
            gid: self.metadata().gid(),
        };
        protection.grants(caller, wanted, || {
            // The kernel gives symbolic links no lists.
            if self.file_type() == FileKind::Symlink {
                return Ok(None);
            }
            self.xattr(acl::ACCESS)?.map_or(Ok(None), |value| Acl::parse(&value))
        })
    }

    /// Refuses a caller without all of the `wanted` permissions.
    ///
    /// # Errors
    /// [`PathError::AccessDenied`]; [`PathError::NotPermitted`] for writing to an immutable inode;
    /// those of [`Inode::grants`].
    pub fn check_permissions(&self, caller: &Caller, wanted: Permissions) -> Result<()> {
        if wanted.contains(Permissions::WRITE) && self.metadata().flags().contains(InodeFlags::IMMUTABLE) {
            return Err(self.path_error(PathError::NotPermitted));
        }
        self.refuse_unless(self.grants(caller, wanted)?, PathError::AccessDenied)
    }

    /// Returns the parameters of an inode that a caller creates in this directory. It belongs to
    /// the caller. It loses the set-group-id bit if it would run as a group that the caller is not
    /// in.
    ///
    /// # Errors
    /// [`PathError::AccessDenied`]; [`PathError::NotPermitted`] for device files, which only root
    /// creates; those of [`Inode::check_permissions`].
    pub fn check_create<'a>(&self, caller: &Caller, kind: NewKind<'a>, mode: u32) -> Result<NewInode<'a>> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        self.check_permissions(caller, CHANGE_ENTRIES)?;
        let is_device = matches!(kind, NewKind::CharacterDevice { .. } | NewKind::BlockDevice { .. });
        self.refuse_unless(!is_device || caller.is_root(), PathError::NotPermitted)?;
        if kind == NewKind::Directory {
            // Its set-group-id bit comes from this directory only.
            let mode = mode & !(SET_USER_ID | SET_GROUP_ID);
            return Ok(NewInode::new(kind, mode).owner(caller.uid(), caller.gid()));
        }
        let inherits_group = self.metadata().permissions() & SET_GROUP_ID != 0;
        let runs_as_group = mode & (SET_GROUP_ID | GROUP_EXECUTE) == SET_GROUP_ID | GROUP_EXECUTE;
        let keeps = self.may_set_group_id(caller, self.metadata().gid());
        let mode = if inherits_group && runs_as_group && !keeps { mode & !SET_GROUP_ID } else { mode };
        Ok(NewInode::new(kind, mode).owner(caller.uid(), caller.gid()))
    }

    /// Refuses a caller that may not remove the entry of `victim` from this directory.
    ///
    /// # Errors
    /// [`PathError::AccessDenied`]; [`PathError::NotPermitted`] for an append-only directory, an
    /// immutable or append-only `victim`, and by the sticky bit; those of
    /// [`Inode::check_permissions`].
    pub fn check_remove(&self, caller: &Caller, victim: &Inode) -> Result<()> {
        self.must_be(FileKind::Directory, PathError::NotADirectory)?;
        self.check_permissions(caller, CHANGE_ENTRIES)?;
        let protected = self.metadata().flags().contains(InodeFlags::APPEND)
            || victim.metadata().flags().intersects(InodeFlags::APPEND | InodeFlags::IMMUTABLE);
        let owns_one = self.is_owned_by(caller) || victim.is_owned_by(caller);
        let sticky = self.metadata().permissions() & STICKY != 0 && !owns_one;
        self.refuse_unless(!protected && !sticky, PathError::NotPermitted)
    }

    /// Refuses a caller that may not move `victim` from this directory to `target`, where it
    /// replaces `existing`.
    ///
    /// # Errors
    /// Those of [`Inode::check_remove`].
    pub fn check_rename(
        &self,
        caller: &Caller,
        victim: &Inode,
        target: &Inode,
        existing: Option<&Inode>,
    ) -> Result<()> {
        self.check_remove(caller, victim)?;
        match existing {
            Some(existing) => target.check_remove(caller, existing)?,
            None => target.check_permissions(caller, CHANGE_ENTRIES)?,
        }
        // A directory's parent is part of its content.
        let moves = self.place() != target.place();
        if moves && victim.file_type() == FileKind::Directory {
            victim.check_permissions(caller, Permissions::WRITE)?;
        }
        Ok(())
    }

    /// Refuses changes that a caller may not make, and returns the others as they are to be made:
    /// the set-group-id bit needs a caller in the group.
    ///
    /// # Errors
    /// [`PathError::NotPermitted`] for owners, modes and given times of inodes of others;
    /// [`PathError::AccessDenied`] for present times without permission to write; those of
    /// [`Inode::grants`].
    pub fn check_set_attributes(&self, caller: &Caller, set: &SetAttributes) -> Result<SetAttributes> {
        if caller.is_root() {
            return Ok(*set);
        }
        let (metadata, owns) = (self.metadata(), self.is_owned_by(caller));
        let may_own = set.uid.is_none_or(|uid| owns && uid == metadata.uid());
        let may_group = set.gid.is_none_or(|gid| owns && (gid == metadata.gid() || caller.is_in_group(gid)));
        let is_given = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        let needs_owner = set.mode.is_some() || is_given(set.atime) || is_given(set.mtime);
        self.refuse_unless(may_own && may_group && (owns || !needs_owner), PathError::NotPermitted)?;
        let is_touch = set.atime.is_some() || set.mtime.is_some();
        if is_touch && !owns {
            self.check_permissions(caller, Permissions::WRITE)?;
        }
        let mut set = *set;
        if let Some(mode) = &mut set.mode
            && !self.may_set_group_id(caller, set.gid.unwrap_or(metadata.gid()))
        {
            *mode &= !SET_GROUP_ID;
        }
        if set.mode.is_none() && (set.uid.is_some() || set.gid.is_some()) {
            set.mode = self.mode_after_chown(caller);
        }
        Ok(set)
    }

    /// Returns the mode of a file that a caller gives another owner or group, if that differs from
    /// the mode that [`Inode::set_attributes`] leaves. A set-group-id bit without permission to
    /// execute goes, too, if the caller is not in the group.
    fn mode_after_chown(&self, caller: &Caller) -> Option<u32> {
        let mode = self.metadata().permissions();
        let loses = self.file_type() != FileKind::Directory
            && mode & (SET_GROUP_ID | GROUP_EXECUTE) == SET_GROUP_ID
            && !self.may_set_group_id(caller, self.metadata().gid());
        loses.then_some(mode & !(SET_USER_ID | SET_GROUP_ID))
    }

    /// Takes the privileges of this file away after a caller other than root has changed its data:
    /// set-user-id, set-group-id, and capabilities.
    ///
    /// # Errors
    /// A read-only file system; errors of changing the tree.
    pub fn drop_privileges(&self, caller: &Caller) -> Result<()> {
        let mode = self.metadata().permissions();
        if caller.is_root() {
            return Ok(());
        }
        let mut kept = mode & !SET_USER_ID;
        if mode & GROUP_EXECUTE != 0 || !self.may_set_group_id(caller, self.metadata().gid()) {
            kept &= !SET_GROUP_ID;
        }
        if kept != mode || self.xattr(b"security.capability")?.is_some() {
            self.kill_privileges(kept)?;
        }
        Ok(())
    }

    fn is_owned_by(&self, caller: &Caller) -> bool {
        caller.is_root() || caller.uid() == self.metadata().uid()
    }

    fn may_set_group_id(&self, caller: &Caller, gid: u32) -> bool {
        caller.is_root() || caller.is_in_group(gid)
    }

    fn refuse_unless(&self, allowed: bool, reason: PathError) -> Result<()> {
        if allowed { Ok(()) } else { Err(self.path_error(reason)) }
    }
}
