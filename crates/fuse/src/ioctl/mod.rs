//! The server's side of ioctls.
//!
//! Owns [`handle`], which dispatches each command to its handler.
//!
//! **Invariants**
//! - Operations that the kernel reserves for administrators are reserved for root and the server's
//!   own user. Permissions of files govern the rest (`access.rs`).
//! - What the kernel has made durable when an ioctl returns is durable here, too (`state.rs`).
//!
//! Kernel counterpart: `btrfs_ioctl` (`fs/btrfs/ioctl.c`).

mod access;
mod call;
mod caller;
mod caller_memory;
mod defragment;
mod devices;
mod encoded;
mod extents;
mod files;
mod jobs;
mod owners;
mod quotas;
mod replace;
mod search;
mod send;
mod state;
mod subvolumes;

pub use call::{Caller, Changed, IoctlCall, IoctlReply, MountInfo};

use call::Result;
use papilio_ioctl::Errno;
use papilio_ioctl::layout::{SERVER_INFO_VERSION, ServerInfo};
use papilio_ioctl::number::Command;
use std::os::unix::ffi::OsStrExt;

/// Answers an ioctl.
///
/// # Errors
/// ENOTTY for an unknown command, EPERM and EACCES for missing permissions, EINVAL for invalid
/// arguments. Otherwise the library's error, as the kernel's Btrfs would return it.
pub fn handle(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let command = Command(call.command);
    if state::CHANGES.contains(&command) && call.mount.is_read_only() {
        return Err(Errno(libc::EROFS));
    }
    let reply = answer(command, call)?;
    if state::COMMITS.contains(&command) {
        call.fs.commit()?;
    }
    Ok(reply)
}

fn answer(command: Command, call: &IoctlCall<'_>) -> Result<IoctlReply> {
    match command {
        Command::GET_FLAGS => files::get_flags(call),
        Command::SET_FLAGS => files::set_flags(call),
        Command::GET_VERSION => files::get_version(call),
        Command::GET_ATTRIBUTES => files::get_attributes(call),
        Command::SET_ATTRIBUTES => files::set_attributes(call),
        Command::INO_LOOKUP => files::ino_lookup(call),
        Command::INO_LOOKUP_USER => files::ino_lookup_user(call),

        Command::TREE_SEARCH => search::tree_search(call),
        Command::TREE_SEARCH_V2 => search::tree_search_v2(call),
        Command::LOGICAL_INO => owners::logical_ino(call, false),
        Command::LOGICAL_INO_V2 => owners::logical_ino(call, true),
        Command::INO_PATHS => owners::ino_paths(call),

        Command::DEFRAG | Command::DEFRAG_RANGE => defragment::handle(call),
        Command::ENCODED_READ => encoded::read(call),
        Command::ENCODED_WRITE => encoded::write(call),
        Command::EXTENTS => extents::list(call),
        Command::TRIM => devices::trim(call),
        Command::GET_LABEL => devices::get_label(call),
        Command::SET_LABEL => devices::set_label(call),
        Command::RESIZE => devices::resize(call),
        Command::ADD_DEV => jobs::add_device(call, true),
        Command::ADD_DEVICE => jobs::add_device(call, false),
        Command::RM_DEV => jobs::remove_device(call),
        Command::RM_DEV_V2 => jobs::remove_device_v2(call),
        Command::DEV_REPLACE | Command::START_REPLACE => replace::handle(call),
        Command::BALANCE_V2 => jobs::balance(call),
        Command::BALANCE_CTL => jobs::balance_control(call),
        Command::BALANCE_PROGRESS => jobs::balance_progress(call),
        Command::SCRUB => jobs::scrub(call),
        Command::SCRUB_PROGRESS => jobs::scrub_progress(call),
        Command::SCRUB_CANCEL => jobs::scrub_cancel(call),
        Command::START_JOB => jobs::start_own(call),
        Command::JOB_STATUS => jobs::status(call),
        Command::CONTROL_JOB => jobs::control(call),
        Command::LIMIT_SCRUB => jobs::limit_scrub(call),

        Command::SYNC => devices::sync(call),
        Command::START_SYNC => devices::start_sync(call),
        Command::WAIT_SYNC => devices::wait_sync(call),
        Command::SPACE_INFO => devices::space_info(call),
        Command::GET_DEV_STATS => devices::dev_stats(call),
        Command::DEV_INFO => devices::dev_info(call),
        Command::FS_INFO => devices::fs_info(call),
        Command::GET_FEATURES => devices::get_features(call),
        Command::USAGE => devices::usage(call),

        Command::SUBVOL_CREATE => subvolumes::create(call),
        Command::SUBVOL_CREATE_V2 => subvolumes::create_v2(call),
        Command::SNAP_CREATE => subvolumes::snapshot(call),
        Command::SNAP_CREATE_V2 => subvolumes::snapshot_v2(call),
        Command::SNAPSHOT_BY_ID => subvolumes::snapshot_by_id(call),
        Command::SNAP_DESTROY => subvolumes::delete(call),
        Command::SNAP_DESTROY_V2 => subvolumes::delete_v2(call),
        Command::SUBVOL_GETFLAGS => subvolumes::get_flags(call),
        Command::SUBVOL_SETFLAGS => subvolumes::set_flags(call),
        Command::DEFAULT_SUBVOL => subvolumes::set_default(call),
        Command::GET_SUBVOL_INFO => subvolumes::info(call),
        Command::GET_SUBVOL_ROOTREF => subvolumes::rootrefs(call),
        Command::SET_RECEIVED_SUBVOL => subvolumes::set_received(call),
        Command::SEND => send::send(call),
        Command::SUBVOLUMES => subvolumes::list(call),

        Command::SERVER_INFO => server_info(call),
        Command::MOUNT_STATE => state::get(call),
        Command::SET_READ_ONLY => state::set_read_only(call),
        _ => handle_quotas(command, call),
    }
}

/// Answers an ioctl of quotas. Other commands are unknown.
fn handle_quotas(command: Command, call: &IoctlCall<'_>) -> Result<IoctlReply> {
    match command {
        Command::QUOTA_CTL => quotas::control(call),
        Command::QGROUP_ASSIGN => quotas::assign(call),
        Command::QGROUP_CREATE => quotas::create(call),
        Command::LIMIT_QGROUP => quotas::limit(call),
        Command::QGROUP_LIMIT => quotas::limit_in_memory(call),
        Command::QUOTA_RESCAN => quotas::rescan(call),
        Command::QUOTA_RESCAN_STATUS => quotas::rescan_status(call),
        Command::QUOTA_RESCAN_WAIT => quotas::rescan_wait(call),
        Command::QGROUPS => quotas::list(call),
        _ => Err(Errno(libc::ENOTTY)),
    }
}

fn server_info(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let mut info =
        ServerInfo { version: SERVER_INFO_VERSION, pid: std::process::id(), ..ServerInfo::default() };
    info.pid_namespace = papilio_ioctl::host::pid_namespace();
    let source = call.mount.source.as_os_str().as_bytes();
    let length = source.len().min(info.source.len());
    info.source[..length].copy_from_slice(&source[..length]);
    info.source_length = length as u64;
    call.reply(&info)
}
