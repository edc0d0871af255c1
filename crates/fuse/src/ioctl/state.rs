//! The state of a mount: its subvolume, its owners, and whether it takes changes.

use super::call::{IoctlCall, IoctlReply, Result, done};
use papilio_ioctl::Errno;
use papilio_ioctl::layout::{MountState, SERVER_INFO_VERSION, STATE_READ_ONLY, STATE_WRITABLE, put_text};
use papilio_ioctl::number::Command;

/// The ioctls that change the file system. The kernel checks for a read-only mount before other
/// changes, but not before a FUSE ioctl.
pub(super) const CHANGES: [Command; 30] = [
    Command::SET_FLAGS,
    Command::SET_ATTRIBUTES,
    Command::TRIM,
    Command::SET_LABEL,
    Command::RESIZE,
    Command::SUBVOL_CREATE,
    Command::SUBVOL_CREATE_V2,
    Command::SNAP_CREATE,
    Command::SNAP_CREATE_V2,
    Command::SNAPSHOT_BY_ID,
    Command::SNAP_DESTROY,
    Command::SNAP_DESTROY_V2,
    Command::SUBVOL_SETFLAGS,
    Command::DEFAULT_SUBVOL,
    Command::QUOTA_CTL,
    Command::QGROUP_ASSIGN,
    Command::QGROUP_CREATE,
    Command::LIMIT_QGROUP,
    Command::QGROUP_LIMIT,
    Command::QUOTA_RESCAN,
    Command::QUOTA_RESCAN_WAIT,
    Command::SET_RECEIVED_SUBVOL,
    Command::ENCODED_WRITE,
    Command::DEFRAG,
    Command::DEFRAG_RANGE,
    Command::ADD_DEV,
    Command::ADD_DEVICE,
    Command::RM_DEV,
    Command::RM_DEV_V2,
    Command::BALANCE_V2,
];

/// The ioctls that end with a commit. Others that make their change durable do so in the library:
/// snapshots, and changes of devices and block groups. The kernel's `SUBVOL_CREATE`,
/// `DEFAULT_SUBVOL`, `QGROUP_ASSIGN`, `QGROUP_CREATE` and `QGROUP_LIMIT` leave the commit to a
/// later `syncfs`, which a FUSE server does not hear of. Deletions of subvolumes are not here: as
/// in the kernel, `SYNC` commits them.
pub(super) const COMMITS: [Command; 12] = [
    Command::SET_LABEL,
    Command::SUBVOL_CREATE,
    Command::SUBVOL_CREATE_V2,
    Command::SUBVOL_SETFLAGS,
    Command::DEFAULT_SUBVOL,
    Command::SET_RECEIVED_SUBVOL,
    Command::QUOTA_CTL,
    Command::QGROUP_ASSIGN,
    Command::QGROUP_CREATE,
    Command::LIMIT_QGROUP,
    Command::QGROUP_LIMIT,
    Command::QUOTA_RESCAN,
];

/// Our own: returns the state.
pub(super) fn get(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let mut flags = 0;
    if !call.mount.opened_read_only {
        flags |= STATE_WRITABLE;
    }
    if call.mount.is_read_only() {
        flags |= STATE_READ_ONLY;
    }
    let mut state = MountState {
        version: SERVER_INFO_VERSION,
        flags,
        root: call.mount.root(call.fs)?.tree().0,
        default_subvolume: call.fs.default_subvolume()?.0,
        ..MountState::default()
    };
    put_text(&mut state.failure, &call.fs.failure().unwrap_or_default());
    put_text(&mut state.ownership, &call.mount.ownership.to_string());
    call.reply(&state)
}

/// Our own: refuses changes from now on, or allows them again. Earlier changes are durable when the
/// reply arrives.
pub(super) fn set_read_only(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let read_only = call.argument::<u64>()? != 0;
    if call.mount.opened_read_only {
        return if read_only { done(Vec::new()) } else { Err(Errno(libc::EROFS)) };
    }
    if read_only {
        // The kernel has written back its cache. Later requests find the mark.
        call.mount.set_read_only(true);
        if let Err(error) = call.fs.sync() {
            call.mount.set_read_only(false);
            return Err(error.into());
        }
    } else {
        if call.fs.failure().is_some() {
            return Err(Errno(libc::EROFS));
        }
        call.mount.set_read_only(false);
    }
    done(Vec::new())
}
