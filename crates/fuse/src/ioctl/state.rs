//! The state of a mount: its subvolume, its owners, and whether it takes changes.

use super::call::{IoctlCall, IoctlReply, Result, done};
use papilio_ioctl::Errno;
use papilio_ioctl::layout::{
    MountState, SERVER_INFO_VERSION, STATE_READ_ONLY, STATE_WRITABLE, ServerInfo, put_text,
};
use std::os::unix::ffi::OsStrExt;

/// Our own: returns the server's version, process and source.
pub(super) fn server_info(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let mut info =
        ServerInfo { version: SERVER_INFO_VERSION, pid: std::process::id(), ..ServerInfo::default() };
    info.pid_namespace = papilio_ioctl::host::pid_namespace();
    let source = call.mount.source.as_os_str().as_bytes();
    let length = source.len().min(info.source.len());
    info.source[..length].copy_from_slice(&source[..length]);
    info.source_length = length as u64;
    call.reply(&info)
}

/// Our own: returns the state.
pub(super) fn get(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let mut flags = 0;
    if !call.mount.opened_read_only() {
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
    let failure = call.fs.failure().or_else(|| Some(call.mount.refusal()));
    put_text(&mut state.failure, &failure.unwrap_or_default());
    put_text(&mut state.ownership, &call.mount.ownership.to_string());
    call.reply(&state)
}

/// Our own: refuses changes from now on, or allows them again. Earlier changes are durable when the
/// reply arrives.
pub(super) fn set_read_only(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let read_only = call.argument::<u64>()? != 0;
    if call.mount.opened_read_only() {
        // Opening it for writing is the server's part (`switch.rs`).
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
