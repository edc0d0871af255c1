//! The table of all ioctls: the handler of each, and what the server owes its caller.
//!
//! Owns [`IoctlEntry`] and [`find`]. A new ioctl is a number in `papilio_ioctl::number`, and a row
//! here.

use super::call::{IoctlCall, IoctlReply, Result};
use super::{defragment, devices, encoded, extents, files, jobs, owners, quotas, replace, search, send};
use super::{sharing, state, subvolumes, verity};
use papilio_ioctl::number::Command;

type Handler = fn(&IoctlCall<'_>) -> Result<IoctlReply>;

/// The data in the kernel's page cache that must reach the server before an ioctl is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// None.
    Nothing,
    /// That of the file, if the kernel opens files without asking the server. The new flags may
    /// forbid what was written before them.
    OwnIfKernelOpens,
    /// That of the file.
    Own,
    /// That of all files: for snapshots and commits; for making a subvolume read-only, after which
    /// nothing can be written back to it; and for limits, which would refuse it.
    All,
}

/// An ioctl that the server answers.
pub struct IoctlEntry {
    command: Command,
    handler: Handler,
    changes: bool,
    commits: bool,
    data: Data,
    waits: bool,
}

const fn entry(command: Command, handler: Handler) -> IoctlEntry {
    IoctlEntry { command, handler, changes: false, commits: false, data: Data::Nothing, waits: false }
}

impl IoctlEntry {
    /// It changes the file system. The kernel checks for a read-only mount before other changes,
    /// but not before a FUSE ioctl.
    const fn changes(mut self) -> Self {
        self.changes = true;
        self
    }

    /// It ends with a commit. Other ioctls that make their change durable do so in the library:
    /// snapshots, and changes of devices and block groups. The kernel's `SUBVOL_CREATE`,
    /// `DEFAULT_SUBVOL`, `QGROUP_ASSIGN`, `QGROUP_CREATE` and `QGROUP_LIMIT` leave the commit to a
    /// later `syncfs`, which a FUSE server does not hear of. Deletions of subvolumes do not commit:
    /// as in the kernel, `SYNC` commits them.
    const fn commits(mut self) -> Self {
        self.commits = true;
        self
    }

    /// This data must reach the server first.
    const fn needs(mut self, data: Data) -> Self {
        self.data = data;
        self
    }

    /// It may wait for other programs, or work for long.
    const fn waits(mut self) -> Self {
        self.waits = true;
        self
    }

    /// Whether it changes the file system.
    pub fn is_change(&self) -> bool {
        self.changes
    }

    /// Whether a commit follows it.
    pub fn is_committed(&self) -> bool {
        self.commits
    }

    /// The data that must reach the server first.
    pub fn data(&self) -> Data {
        self.data
    }

    /// Whether it may wait for other programs, or work for long.
    pub fn may_wait(&self) -> bool {
        self.waits
    }

    /// Answers it.
    pub fn answer(&self, call: &IoctlCall<'_>) -> Result<IoctlReply> {
        (self.handler)(call)
    }
}

/// Returns the entry of a command; `None` for a command that the server does not know.
pub fn find(command: u32) -> Option<&'static IoctlEntry> {
    TABLE.iter().find(|entry| entry.command == Command(command))
}

/// Returns whether a virtual machine may give a command. Others read the memory or the descriptors
/// of the caller, open devices of this machine, tell their paths, or run in the background.
pub fn serves_guests(command: u32) -> bool {
    GUESTS.contains(&Command(command))
}

static GUESTS: &[Command] = &[
    Command::GET_FLAGS,
    Command::SET_FLAGS,
    Command::GET_VERSION,
    Command::GET_ATTRIBUTES,
    Command::SET_ATTRIBUTES,
    Command::INO_LOOKUP,
    Command::TREE_SEARCH,
    Command::GET_LABEL,
    Command::SET_LABEL,
    Command::SYNC,
    Command::FS_INFO,
    Command::GET_FEATURES,
    Command::SUBVOL_CREATE,
    Command::SUBVOL_GETFLAGS,
    Command::SUBVOL_SETFLAGS,
    Command::SNAP_DESTROY,
    Command::DEFAULT_SUBVOL,
    Command::GET_SUBVOL_INFO,
    Command::GET_SUBVOL_ROOTREF,
];

static TABLE: &[IoctlEntry] = &[
    entry(Command::GET_FLAGS, files::get_flags),
    entry(Command::SET_FLAGS, files::set_flags).changes().needs(Data::OwnIfKernelOpens),
    entry(Command::GET_VERSION, files::get_version),
    entry(Command::GET_ATTRIBUTES, files::get_attributes),
    entry(Command::SET_ATTRIBUTES, files::set_attributes).changes().needs(Data::OwnIfKernelOpens),
    entry(Command::ENABLE_VERITY, verity::enable).changes().needs(Data::Own).waits(),
    entry(Command::MEASURE_VERITY, verity::measure),
    entry(Command::READ_VERITY, verity::read_metadata),
    entry(Command::INO_LOOKUP, files::ino_lookup),
    entry(Command::INO_LOOKUP_USER, files::ino_lookup_user),
    entry(Command::TREE_SEARCH, search::tree_search),
    entry(Command::TREE_SEARCH_V2, search::tree_search_v2),
    entry(Command::LOGICAL_INO, |call| owners::logical_ino(call, false)),
    entry(Command::LOGICAL_INO_V2, |call| owners::logical_ino(call, true)),
    entry(Command::INO_PATHS, owners::ino_paths),
    entry(Command::DEFRAG, defragment::handle).changes().needs(Data::All).waits(),
    entry(Command::DEFRAG_RANGE, defragment::handle).changes().needs(Data::All).waits(),
    entry(Command::ENCODED_READ, encoded::read).needs(Data::Own),
    entry(Command::ENCODED_WRITE, encoded::write).changes().needs(Data::Own),
    entry(Command::EXTENTS, extents::list),
    entry(Command::OWN_CLONE_RANGE, sharing::clone_range).changes().needs(Data::Own).waits(),
    entry(Command::OWN_DEDUPE_RANGE, sharing::dedupe_range).changes().needs(Data::Own).waits(),
    entry(Command::OWN_DEFRAGMENT, defragment::handle_shared).changes().needs(Data::All).waits(),
    entry(Command::OWN_FIEMAP, sharing::fiemap).needs(Data::Own),
    entry(Command::TRIM, devices::trim).changes(),
    entry(Command::GET_LABEL, devices::get_label),
    entry(Command::SET_LABEL, devices::set_label).changes().commits(),
    entry(Command::RESIZE, devices::resize).changes().waits(),
    entry(Command::ADD_DEV, |call| jobs::add_device(call, true)).changes().waits(),
    entry(Command::ADD_DEVICE, |call| jobs::add_device(call, false)).changes().waits(),
    entry(Command::RM_DEV, jobs::remove_device).changes().waits(),
    entry(Command::RM_DEV_V2, jobs::remove_device_v2).changes().waits(),
    entry(Command::DEV_REPLACE, replace::handle).waits(),
    entry(Command::START_REPLACE, replace::handle),
    entry(Command::BALANCE_V2, jobs::balance).changes().waits(),
    entry(Command::BALANCE_CTL, jobs::balance_control),
    entry(Command::BALANCE_PROGRESS, jobs::balance_progress),
    entry(Command::SCRUB, jobs::scrub).waits(),
    entry(Command::SCRUB_PROGRESS, jobs::scrub_progress),
    entry(Command::SCRUB_CANCEL, jobs::scrub_cancel),
    entry(Command::START_JOB, jobs::start_own),
    entry(Command::JOB_STATUS, jobs::status),
    entry(Command::CONTROL_JOB, jobs::control).waits(),
    entry(Command::LIMIT_SCRUB, jobs::limit_scrub),
    entry(Command::SYNC, devices::sync).needs(Data::All),
    entry(Command::START_SYNC, devices::start_sync).needs(Data::All),
    entry(Command::WAIT_SYNC, devices::wait_sync),
    entry(Command::SPACE_INFO, devices::space_info),
    entry(Command::GET_DEV_STATS, devices::dev_stats),
    entry(Command::DEV_INFO, devices::dev_info),
    entry(Command::FS_INFO, devices::fs_info),
    entry(Command::GET_FEATURES, devices::get_features),
    entry(Command::USAGE, devices::usage),
    entry(Command::SUBVOL_CREATE, subvolumes::create).changes().commits(),
    entry(Command::SUBVOL_CREATE_V2, subvolumes::create_v2).changes().commits(),
    entry(Command::SNAP_CREATE, subvolumes::snapshot).changes().needs(Data::All),
    entry(Command::SNAP_CREATE_V2, subvolumes::snapshot_v2).changes().needs(Data::All),
    entry(Command::SNAPSHOT_BY_ID, subvolumes::snapshot_by_id).changes().needs(Data::All),
    entry(Command::SNAP_DESTROY, subvolumes::delete).changes(),
    entry(Command::SNAP_DESTROY_V2, subvolumes::delete_v2).changes(),
    entry(Command::SUBVOL_GETFLAGS, subvolumes::get_flags),
    entry(Command::SUBVOL_SETFLAGS, subvolumes::set_flags).changes().commits().needs(Data::All),
    entry(Command::DEFAULT_SUBVOL, subvolumes::set_default).changes().commits(),
    entry(Command::GET_SUBVOL_INFO, subvolumes::info),
    entry(Command::GET_SUBVOL_ROOTREF, subvolumes::rootrefs),
    entry(Command::SET_RECEIVED_SUBVOL, subvolumes::set_received).changes().commits(),
    entry(Command::SEND, send::send).waits(),
    entry(Command::SUBVOLUMES, subvolumes::list),
    entry(Command::SERVER_INFO, state::server_info),
    entry(Command::MOUNT_STATE, state::get),
    entry(Command::SET_READ_ONLY, state::set_read_only).waits(),
    entry(Command::QUOTA_CTL, quotas::control).changes().commits().needs(Data::All),
    entry(Command::QGROUP_ASSIGN, quotas::assign).changes().commits().needs(Data::All),
    entry(Command::QGROUP_CREATE, quotas::create).changes().commits(),
    entry(Command::LIMIT_QGROUP, quotas::limit).changes().commits().needs(Data::All),
    entry(Command::QGROUP_LIMIT, quotas::limit_in_memory).changes().commits().needs(Data::All),
    entry(Command::QUOTA_RESCAN, quotas::rescan).changes().commits(),
    entry(Command::QUOTA_RESCAN_STATUS, quotas::rescan_status),
    entry(Command::QUOTA_RESCAN_WAIT, quotas::rescan_wait).changes().waits(),
    entry(Command::QGROUPS, quotas::list),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_command_has_one_entry() {
        let commands: HashSet<u32> = TABLE.iter().map(|entry| entry.command.0).collect();
        assert_eq!(commands.len(), TABLE.len());
    }

    #[test]
    fn guests_give_known_commands() {
        assert!(GUESTS.iter().all(|command| find(command.0).is_some()));
        assert!(!serves_guests(Command::SEND.0) && !serves_guests(Command::ADD_DEV.0));
    }

    #[test]
    fn a_commit_follows_changes_only() {
        let wrong = TABLE.iter().filter(|entry| entry.commits && !entry.changes);
        assert_eq!(wrong.map(|entry| entry.command).collect::<Vec<_>>(), []);
    }
}
