//! Ioctls on quotas and qgroups, for administrators.
//!
//! Simple quotas are not supported, and refused. `BTRFS_IOC_QGROUP_LIMIT` does not pass through
//! FUSE, whose kernel side sees from its number that the caller only reads.
//!
//! Kernel counterparts: `btrfs_ioctl_quota_ctl`, `btrfs_ioctl_qgroup_assign`,
//! `btrfs_ioctl_qgroup_create`, `btrfs_ioctl_qgroup_limit`, `btrfs_ioctl_quota_rescan`
//! (`fs/btrfs/ioctl.c`).

use super::call::{IoctlCall, IoctlReply, Result, done, page};
use crate::errno::Errno;
use crate::ioctl::layout::{
    Page, QGROUP_LIMIT_EXCLUSIVE, QGROUP_LIMIT_REFERENCED, QUOTA_DISABLE, QUOTA_ENABLE, QgroupAssign,
    QgroupCreate, QgroupLimitArgs, QuotaControl, QuotaRescan,
};
use crate::ioctl::record::Writer;
use papilio::{QgroupId, QuotaError};

pub(super) fn control(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let arguments = call.argument::<QuotaControl>()?;
    match arguments.command {
        QUOTA_ENABLE => {
            call.fs.enable_quotas()?;
            match call.fs.start_quota_rescan() {
                Ok(()) => {}
                // Quotas were on.
                Err(error) if error.errno() == libc::EINPROGRESS => {}
                Err(error) => return Err(error.into()),
            }
        }
        QUOTA_DISABLE => call.fs.disable_quotas()?,
        _ => return Err(Errno(libc::EINVAL)),
    }
    call.reply(&arguments)
}

pub(super) fn assign(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let arguments = call.argument::<QgroupAssign>()?;
    let (member, parent) = (QgroupId(arguments.member), QgroupId(arguments.parent));
    let inconsistent = if arguments.assign != 0 {
        call.fs.assign_qgroup(member, parent)?
    } else {
        call.fs.remove_qgroup(member, parent)?
    };
    // Like the kernel's: 1 asks the caller for a rescan.
    Ok(IoctlReply { result: inconsistent.into(), ..IoctlReply::default() })
}

pub(super) fn create(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let arguments = call.argument::<QgroupCreate>()?;
    let id = QgroupId(arguments.id);
    if arguments.create != 0 { call.fs.create_qgroup(id) } else { call.fs.destroy_qgroup(id) }?;
    done(Vec::new())
}

/// Our own: sets limits.
pub(super) fn limit(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let arguments = call.argument::<QgroupLimitArgs>()?;
    let id = if arguments.id == 0 { QgroupId(call.inode.tree().0) } else { QgroupId(arguments.id) };
    for (flag, bytes, exclusive) in [
        (QGROUP_LIMIT_REFERENCED, arguments.max_referenced, false),
        (QGROUP_LIMIT_EXCLUSIVE, arguments.max_exclusive, true),
    ] {
        if arguments.flags & flag != 0 {
            call.fs.limit_qgroup(id, Some(bytes).filter(|bytes| *bytes != u64::MAX), exclusive)?;
        }
    }
    done(Vec::new())
}

pub(super) fn rescan(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    if call.argument::<QuotaRescan>()?.flags != 0 {
        return Err(Errno(libc::EINVAL));
    }
    call.fs.start_quota_rescan()?;
    done(Vec::new())
}

pub(super) fn rescan_status(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let status = call.fs.quota_status()?;
    let running = status.filter(|status| status.is_rescanning());
    call.reply(&QuotaRescan {
        flags: running.is_some().into(),
        progress: running.map_or(0, |status| status.rescanned.0),
        ..QuotaRescan::default()
    })
}

/// Helps with the rescan until it is done.
pub(super) fn rescan_wait(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    while call.fs.rescan_quotas_step()?.is_some() {}
    call.fs.sync()?;
    done(Vec::new())
}

/// Our own: the state of quotas, and a page of qgroups. The cursor is an index.
pub(super) fn list(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let asked = call.argument::<Page>()?;
    let status = call.fs.quota_status()?.ok_or(papilio::Error::from(QuotaError::Off))?;
    let groups = call.fs.qgroups()?;
    let mut writer = Writer::default();
    writer.quota_status(&status);
    page(call, asked, &groups, Writer::qgroup, writer)
}
