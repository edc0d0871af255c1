//! Ioctls on quotas and qgroups, for administrators.
//!
//! The number of `BTRFS_IOC_QGROUP_LIMIT` says that the caller only reads, so FUSE does not pass
//! its argument: the server takes it from the caller's memory.
//!
//! Kernel counterparts: `btrfs_ioctl_quota_ctl`, `btrfs_ioctl_qgroup_assign`,
//! `btrfs_ioctl_qgroup_create`, `btrfs_ioctl_qgroup_limit`, `btrfs_ioctl_quota_rescan`
//! (`fs/btrfs/ioctl.c`).

use super::call::{IoctlCall, IoctlReply, Result, done, page};
use super::caller_memory::BlockedCaller;
use papilio::{QgroupId, QuotaError};
use papilio_ioctl::Errno;
use papilio_ioctl::layout::{
    Page, QGROUP_LIMIT_EXCLUSIVE, QGROUP_LIMIT_REFERENCED, QUOTA_DISABLE, QUOTA_ENABLE, QUOTA_ENABLE_SIMPLE,
    QgroupAssign, QgroupCreate, QgroupInherit, QgroupLimitArgs, QuotaControl, QuotaRescan,
    SUBVOL_QGROUP_INHERIT, VolArgsV2,
};
use papilio_ioctl::record::Writer;
use zerocopy::{FromBytes, IntoBytes};

/// Size of the longest list of inherited qgroups in bytes: a page.
const INHERIT_MAX: u64 = 4096;

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
                Err(papilio::Error::Quota(QuotaError::Simple)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        QUOTA_ENABLE_SIMPLE => call.fs.enable_simple_quotas()?,
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
    set_limits(call, &call.argument::<QgroupLimitArgs>()?)
}

/// The kernel's: sets limits.
pub(super) fn limit_in_memory(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let mut arguments = QgroupLimitArgs::default();
    BlockedCaller::of(call)?.memory()?.read(call.address, arguments.as_mut_bytes())?;
    set_limits(call, &arguments)
}

fn set_limits(call: &IoctlCall<'_>, arguments: &QgroupLimitArgs) -> Result<IoctlReply> {
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

/// Returns the qgroups that a new subvolume joins, from the `struct btrfs_qgroup_inherit` in the
/// caller's memory that the arguments point to.
///
/// # Errors
/// EINVAL for a list that the kernel refuses; EOPNOTSUPP for limits; ENOTTY if the server may not
/// read the caller's memory.
pub(super) fn inherited(call: &IoctlCall<'_>, arguments: &VolArgsV2) -> Result<Vec<QgroupId>> {
    if arguments.flags & SUBVOL_QGROUP_INHERIT == 0 {
        return Ok(Vec::new());
    }
    let [size, pointer, ..] = arguments.quota;
    let head_size = size_of::<QgroupInherit>() as u64;
    if !(head_size..=INHERIT_MAX).contains(&size) {
        return Err(Errno(libc::EINVAL));
    }
    let mut bytes = vec![0; size as usize];
    BlockedCaller::of(call)?.memory()?.read(pointer, &mut bytes)?;
    let (head, groups) = QgroupInherit::read_from_prefix(&bytes).map_err(|_| Errno(libc::EINVAL))?;
    if head.flags != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    // Copied counts are of the past: the kernel refuses them, too.
    let whole = head.groups.checked_mul(8).and_then(|bytes| bytes.checked_add(head_size)) == Some(size);
    if !whole || head.referenced_copies != 0 || head.exclusive_copies != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let ids = groups.chunks_exact(8).map(|id| u64::from_ne_bytes(id.try_into().expect("eight bytes")));
    Ok(ids.map(QgroupId).collect())
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
