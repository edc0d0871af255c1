//! The client's side of the ioctls on quotas. The kernel's also work on the kernel's Btrfs.

use super::{MountedPath, garbled};
use crate::layout::{
    QGROUP_LIMIT_EXCLUSIVE, QGROUP_LIMIT_REFERENCED, QUOTA_DISABLE, QUOTA_ENABLE, QUOTA_ENABLE_SIMPLE,
    QgroupAssign, QgroupCreate, QgroupInherit, QgroupLimitArgs, QuotaControl, QuotaRescan,
    SUBVOL_QGROUP_INHERIT, SUBVOL_RDONLY, VolArgsV2, put_name,
};
use crate::number::Command;
use papilio_format::items::qgroup::QgroupId;
use papilio_format::items::qgroup::{QgroupInfo, QgroupLimit, QgroupLimitFlags, QgroupStatus};
use papilio_format::{ItemType, Key, LogicalAddress, objectid};
use papilio_fs::{QgroupUsage, QuotaStatus};
use std::collections::BTreeMap;
use std::io;
use zerocopy::IntoBytes;

impl MountedPath {
    /// Turns quotas on, simple or not.
    ///
    /// # Errors
    /// EPERM without permission.
    pub fn enable_quotas(&self, simple: bool) -> io::Result<()> {
        self.control_quotas(if simple { QUOTA_ENABLE_SIMPLE } else { QUOTA_ENABLE })
    }

    /// Turns quotas off.
    ///
    /// # Errors
    /// EPERM without permission.
    pub fn disable_quotas(&self) -> io::Result<()> {
        self.control_quotas(QUOTA_DISABLE)
    }

    fn control_quotas(&self, command: u64) -> io::Result<()> {
        self.call(Command::QUOTA_CTL, &mut QuotaControl { command, status: 0 })
    }

    /// Begins to count all extents anew.
    ///
    /// # Errors
    /// ENOTCONN if quotas are off; EINPROGRESS if a rescan is under way.
    pub fn start_quota_rescan(&self) -> io::Result<()> {
        self.call(Command::QUOTA_RESCAN, &mut QuotaRescan::default())
    }

    /// Returns the address up to which a rescan has counted; `None` if none is under way.
    ///
    /// # Errors
    /// EPERM without permission.
    pub fn quota_rescan_status(&self) -> io::Result<Option<u64>> {
        let mut status = QuotaRescan::default();
        self.call(Command::QUOTA_RESCAN_STATUS, &mut status)?;
        Ok((status.flags != 0).then_some(status.progress))
    }

    /// Waits until no rescan is under way.
    ///
    /// # Errors
    /// EPERM without permission.
    pub fn wait_for_quota_rescan(&self) -> io::Result<()> {
        self.call(Command::QUOTA_RESCAN_WAIT, &mut [0u8; 0])
    }

    /// Creates or removes a qgroup.
    ///
    /// # Errors
    /// EEXIST, ENOENT, EBUSY or EINVAL, as the kernel's Btrfs.
    pub fn create_qgroup(&self, id: QgroupId, create: bool) -> io::Result<()> {
        self.call(Command::QGROUP_CREATE, &mut QgroupCreate { create: create.into(), id: id.0 })
    }

    /// Makes `parent` include `member`, or ends that. Returns whether a rescan is needed.
    ///
    /// # Errors
    /// EEXIST, ENOENT or EINVAL, as the kernel's Btrfs.
    pub fn assign_qgroup(&self, member: QgroupId, parent: QgroupId, assign: bool) -> io::Result<bool> {
        let mut arguments = QgroupAssign { assign: assign.into(), member: member.0, parent: parent.0 };
        self.result_of(Command::QGROUP_ASSIGN, &mut arguments).map(|result| result > 0)
    }

    /// Limits the bytes that a qgroup references, or references exclusively; `None` removes the
    /// limit. Without an id, the qgroup is that of the file's subvolume.
    ///
    /// # Errors
    /// ENOENT if there is none.
    pub fn limit_qgroup(&self, id: Option<QgroupId>, bytes: Option<u64>, exclusive: bool) -> io::Result<()> {
        match self.call(Command::LIMIT_QGROUP, &mut limits(id, bytes, exclusive)) {
            // A mount of the kernel's.
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                self.limit_qgroup_by_pointer(id, bytes, exclusive)
            }
            result => result,
        }
    }

    /// Like [`MountedPath::limit_qgroup`], but always uses the kernel's ioctl, as other programs
    /// do.
    ///
    /// # Errors
    /// As there; ENOTTY if Papilio's server may not read this process's memory.
    pub fn limit_qgroup_by_pointer(
        &self,
        id: Option<QgroupId>,
        bytes: Option<u64>,
        exclusive: bool,
    ) -> io::Result<()> {
        self.call(Command::QGROUP_LIMIT, &mut limits(id, bytes, exclusive))
    }

    /// Creates an empty subvolume in this directory, a member of qgroups from the start.
    ///
    /// # Errors
    /// ENOENT if a qgroup does not exist; EINVAL for one of level 0; ENOTTY if Papilio's server may
    /// not read this process's memory; the errors of `mkdir`.
    pub fn create_subvolume_in(&self, name: &[u8], qgroups: &[QgroupId]) -> io::Result<()> {
        let arguments = VolArgsV2::default();
        self.call_with_qgroups(Command::SUBVOL_CREATE_V2, arguments, name, qgroups)
    }

    /// Creates a snapshot as [`MountedPath::create_snapshot_by_descriptor`] does, a member of
    /// qgroups from the start.
    ///
    /// # Errors
    /// As there, and as for [`MountedPath::create_subvolume_in`].
    pub fn create_snapshot_in(
        &self,
        source: &Self,
        name: &[u8],
        read_only: bool,
        qgroups: &[QgroupId],
    ) -> io::Result<()> {
        let flags = if read_only { SUBVOL_RDONLY } else { 0 };
        let arguments = VolArgsV2 { fd: source.descriptor(), flags, ..VolArgsV2::default() };
        self.call_with_qgroups(Command::SNAP_CREATE_V2, arguments, name, qgroups)
    }

    fn call_with_qgroups(
        &self,
        command: Command,
        mut arguments: VolArgsV2,
        name: &[u8],
        qgroups: &[QgroupId],
    ) -> io::Result<()> {
        if !put_name(&mut arguments.name, name) {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        let head = QgroupInherit { groups: qgroups.len() as u64, ..QgroupInherit::default() };
        let mut list = head.as_bytes().to_vec();
        qgroups.iter().for_each(|id| list.extend_from_slice(&id.0.to_ne_bytes()));
        arguments.flags |= SUBVOL_QGROUP_INHERIT;
        // The kernel and the server only read what it points to.
        (arguments.quota[0], arguments.quota[1]) =
            (list.len() as u64, list.as_ptr().expose_provenance() as u64);
        let done = self.call(command, &mut arguments);
        drop(list);
        done
    }

    /// Returns the state of quotas and all qgroups, ascending.
    ///
    /// # Errors
    /// ENOTCONN if quotas are off; on the kernel's Btrfs EPERM without `CAP_SYS_ADMIN`.
    pub fn qgroups(&self) -> io::Result<(QuotaStatus, Vec<QgroupUsage>)> {
        let mut status = None;
        let mut groups = Vec::new();
        let listed = self.pages(Command::QGROUPS, |mut reader| {
            status = Some(reader.quota_status().ok_or_else(garbled)?);
            while !reader.is_empty() {
                groups.push(reader.qgroup().ok_or_else(garbled)?);
            }
            Ok(())
        });
        match listed {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => return self.searched_qgroups(),
            listed => listed?,
        }
        Ok((status.ok_or_else(garbled)?, groups))
    }

    /// Reads the quota tree of the last commit.
    fn searched_qgroups(&self) -> io::Result<(QuotaStatus, Vec<QgroupUsage>)> {
        let mut status = None;
        let mut groups: BTreeMap<QgroupId, QgroupUsage> = BTreeMap::new();
        let mut relations = Vec::new();
        let searched = self.search_tree(objectid::QUOTA_TREE, Key::MIN..=Key::MAX, 0, |_, key, item| {
            let id = QgroupId(key.offset);
            match key.item_type {
                ItemType::QGROUP_STATUS => {
                    status = Some(QgroupStatus::parse(item).map_err(|_| garbled())?.header);
                }
                ItemType::QGROUP_INFO => {
                    let info = QgroupInfo::parse(item).map_err(|_| garbled())?;
                    let group = groups.entry(id).or_insert_with(|| empty(id));
                    (group.referenced, group.exclusive) = (info.referenced, info.exclusive);
                }
                ItemType::QGROUP_LIMIT => {
                    let limit = QgroupLimit::parse(item).map_err(|_| garbled())?;
                    let set = |flag, bytes| limit.flags.contains(flag).then_some(bytes);
                    let group = groups.entry(id).or_insert_with(|| empty(id));
                    group.max_referenced = set(QgroupLimitFlags::MAX_REFERENCED, limit.max_referenced);
                    group.max_exclusive = set(QgroupLimitFlags::MAX_EXCLUSIVE, limit.max_exclusive);
                }
                // Each relation has two items, one in each direction.
                ItemType::QGROUP_RELATION if key.objectid < key.offset => {
                    relations.push((QgroupId(key.objectid), id));
                }
                _ => {}
            }
            Ok(())
        });
        match searched {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                return Err(io::Error::from_raw_os_error(libc::ENOTCONN));
            }
            searched => searched?,
        }
        let status = status.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTCONN))?;
        for (member, parent) in relations {
            groups.entry(member).or_insert_with(|| empty(member)).parents.push(parent);
            groups.entry(parent).or_insert_with(|| empty(parent)).members.push(member);
        }
        let rescanned = LogicalAddress(status.rescan);
        let status = QuotaStatus { flags: status.flags, rescanned, qgroups: groups.len() };
        Ok((status, groups.into_values().collect()))
    }
}

fn empty(id: QgroupId) -> QgroupUsage {
    let (referenced, exclusive) = (0, 0);
    let (max_referenced, max_exclusive) = (None, None);
    let (parents, members) = (Vec::new(), Vec::new());
    QgroupUsage { id, referenced, exclusive, max_referenced, max_exclusive, parents, members }
}

fn limits(id: Option<QgroupId>, bytes: Option<u64>, exclusive: bool) -> QgroupLimitArgs {
    let bytes = bytes.unwrap_or(u64::MAX);
    QgroupLimitArgs {
        id: id.map_or(0, |id| id.0),
        flags: if exclusive { QGROUP_LIMIT_EXCLUSIVE } else { QGROUP_LIMIT_REFERENCED },
        max_referenced: bytes,
        max_exclusive: bytes,
        ..QgroupLimitArgs::default()
    }
}
