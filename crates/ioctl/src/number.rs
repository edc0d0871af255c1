//! The command numbers of ioctls.
//!
//! Owns [`Command`] and the list of known commands. A number encodes the direction and the size of
//! its argument, which is all that FUSE knows: data beyond that cannot pass through FUSE.
//!
//! Kernel counterparts: `include/uapi/asm-generic/ioctl.h`, `include/uapi/linux/btrfs.h`,
//! `include/uapi/linux/fs.h`.

use super::layout::{
    BalanceIoctl, DefragmentRange, DevInfo, DevStats, EncodedIo, FeatureFlags, Fiemap, FileAttributes,
    FileCloneRange, FsInfo, GetSubvolInfo, GetSubvolRootref, InoLookup, InoLookupUser, InoPaths, JobStart,
    LABEL_SIZE, LogicalIno, LostWrite, MountState, OwnDedupeRange, OwnDefragment, Page, QgroupAssign,
    QgroupCreate, QgroupLimitArgs, QuotaControl, QuotaRescan, ReceivedSubvol, ReplaceStart, ScrubIoctl,
    SearchArgs, SearchArgsV2, SendArgs, ServerInfo, SnapshotById, SpaceArgs, TrimRange, VerityEnable,
    VerityMetadata, VolArgs, VolArgsV2,
};

/// A command's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Command(pub u32);

const WRITE: u32 = 1;
const READ: u32 = 2;

/// The type byte of Btrfs.
const BTRFS: u8 = 0x94;
/// The type byte of our own commands, which the kernel's list does not contain.
const PAPILIO: u8 = 0xbd;

impl Command {
    const fn new(direction: u32, kind: u8, number: u8, size: usize) -> Self {
        assert!(size < 1 << 14, "a command number has fourteen bits for the size");
        Self(direction << 30 | (size as u32) << 16 | (kind as u32) << 8 | number as u32)
    }

    /// A command whose argument the caller writes (`_IOW`).
    const fn write<T>(kind: u8, number: u8) -> Self {
        Self::new(WRITE, kind, number, size_of::<T>())
    }

    /// A command whose argument the caller reads (`_IOR`).
    const fn read<T>(kind: u8, number: u8) -> Self {
        Self::new(READ, kind, number, size_of::<T>())
    }

    /// A command whose argument goes both ways (`_IOWR`).
    const fn both<T>(kind: u8, number: u8) -> Self {
        Self::new(READ | WRITE, kind, number, size_of::<T>())
    }

    /// Returns whether this is one of our own.
    pub const fn is_own(self) -> bool {
        (self.0 >> 8) as u8 == PAPILIO
    }

    /// Returns the size of the argument in bytes.
    pub const fn size(self) -> usize {
        (self.0 >> 16 & 0x3fff) as usize
    }

    /// `FS_IOC_GETFLAGS`: the flags that `lsattr` shows. The number says eight bytes, but four are
    /// passed.
    pub const GET_FLAGS: Self = Self::read::<libc::c_long>(b'f', 1);
    /// `FS_IOC_SETFLAGS`.
    pub const SET_FLAGS: Self = Self::write::<libc::c_long>(b'f', 2);
    /// `FS_IOC_GETVERSION`.
    pub const GET_VERSION: Self = Self::read::<libc::c_long>(b'v', 1);
    /// `FS_IOC_FSGETXATTR`.
    pub const GET_ATTRIBUTES: Self = Self::read::<FileAttributes>(b'X', 31);
    /// `FS_IOC_FSSETXATTR`.
    pub const SET_ATTRIBUTES: Self = Self::write::<FileAttributes>(b'X', 32);
    /// `FS_IOC_ENABLE_VERITY`: FUSE passes salt and signature behind the argument.
    pub const ENABLE_VERITY: Self = Self::write::<VerityEnable>(b'f', 133);
    /// `FS_IOC_MEASURE_VERITY`: the number has the size of the head; the digest follows it.
    pub const MEASURE_VERITY: Self = Self::new(READ | WRITE, b'f', 134, 4);
    /// `FS_IOC_READ_VERITY_METADATA`: the bytes go to the caller's memory.
    pub const READ_VERITY: Self = Self::both::<VerityMetadata>(b'f', 135);
    /// `FITRIM`.
    pub const TRIM: Self = Self::both::<TrimRange>(b'X', 121);
    /// `FS_IOC_GETFSLABEL`.
    pub const GET_LABEL: Self = Self::new(READ, BTRFS, 49, LABEL_SIZE);
    /// `FS_IOC_SETFSLABEL`.
    pub const SET_LABEL: Self = Self::new(WRITE, BTRFS, 50, LABEL_SIZE);

    /// `BTRFS_IOC_SNAP_CREATE`.
    pub const SNAP_CREATE: Self = Self::write::<VolArgs>(BTRFS, 1);
    /// `BTRFS_IOC_DEFRAG`, whose argument is 0 or `struct btrfs_ioctl_vol_args`, which is ignored.
    pub const DEFRAG: Self = Self::write::<VolArgs>(BTRFS, 2);
    /// `BTRFS_IOC_DEFRAG_RANGE`.
    pub const DEFRAG_RANGE: Self = Self::write::<DefragmentRange>(BTRFS, 16);
    /// `BTRFS_IOC_RESIZE`.
    pub const RESIZE: Self = Self::write::<VolArgs>(BTRFS, 3);
    /// `BTRFS_IOC_SCAN_DEV`, of the control device.
    pub const SCAN_DEV: Self = Self::write::<VolArgs>(BTRFS, 4);
    /// `BTRFS_IOC_FORGET_DEV`, of the control device.
    pub const FORGET_DEV: Self = Self::write::<VolArgs>(BTRFS, 5);
    /// `BTRFS_IOC_DEVICES_READY`, of the control device.
    pub const DEVICES_READY: Self = Self::read::<VolArgs>(BTRFS, 39);
    /// `BTRFS_IOC_SYNC`.
    pub const SYNC: Self = Self::new(0, BTRFS, 8, 0);
    /// `BTRFS_IOC_ADD_DEV`.
    pub const ADD_DEV: Self = Self::write::<VolArgs>(BTRFS, 10);
    /// `BTRFS_IOC_RM_DEV`.
    pub const RM_DEV: Self = Self::write::<VolArgs>(BTRFS, 11);
    /// `BTRFS_IOC_SCRUB`.
    pub const SCRUB: Self = Self::both::<ScrubIoctl>(BTRFS, 27);
    /// `BTRFS_IOC_SCRUB_CANCEL`.
    pub const SCRUB_CANCEL: Self = Self::new(0, BTRFS, 28, 0);
    /// `BTRFS_IOC_SCRUB_PROGRESS`.
    pub const SCRUB_PROGRESS: Self = Self::both::<ScrubIoctl>(BTRFS, 29);
    /// `BTRFS_IOC_BALANCE_V2`.
    pub const BALANCE_V2: Self = Self::both::<BalanceIoctl>(BTRFS, 32);
    /// `BTRFS_IOC_BALANCE_CTL`.
    pub const BALANCE_CTL: Self = Self::write::<u32>(BTRFS, 33);
    /// `BTRFS_IOC_BALANCE_PROGRESS`.
    pub const BALANCE_PROGRESS: Self = Self::read::<BalanceIoctl>(BTRFS, 34);
    /// `BTRFS_IOC_DEV_REPLACE`.
    pub const DEV_REPLACE: Self = Self::both::<ReplaceStart>(BTRFS, 53);
    /// `BTRFS_IOC_RM_DEV_V2`.
    pub const RM_DEV_V2: Self = Self::write::<VolArgsV2>(BTRFS, 58);
    /// `BTRFS_IOC_SUBVOL_CREATE`.
    pub const SUBVOL_CREATE: Self = Self::write::<VolArgs>(BTRFS, 14);
    /// `BTRFS_IOC_SNAP_DESTROY`.
    pub const SNAP_DESTROY: Self = Self::write::<VolArgs>(BTRFS, 15);
    /// `BTRFS_IOC_TREE_SEARCH`.
    pub const TREE_SEARCH: Self = Self::both::<SearchArgs>(BTRFS, 17);
    /// `BTRFS_IOC_TREE_SEARCH_V2`.
    pub const TREE_SEARCH_V2: Self = Self::both::<SearchArgsV2>(BTRFS, 17);
    /// `BTRFS_IOC_INO_LOOKUP`.
    pub const INO_LOOKUP: Self = Self::both::<InoLookup>(BTRFS, 18);
    /// `BTRFS_IOC_DEFAULT_SUBVOL`.
    pub const DEFAULT_SUBVOL: Self = Self::write::<u64>(BTRFS, 19);
    /// `BTRFS_IOC_SPACE_INFO`: the list follows the argument in the caller's memory.
    pub const SPACE_INFO: Self = Self::both::<SpaceArgs>(BTRFS, 20);
    /// `BTRFS_IOC_WAIT_SYNC`.
    pub const WAIT_SYNC: Self = Self::write::<u64>(BTRFS, 22);
    /// `BTRFS_IOC_SNAP_CREATE_V2`.
    pub const SNAP_CREATE_V2: Self = Self::write::<VolArgsV2>(BTRFS, 23);
    /// `BTRFS_IOC_START_SYNC`.
    pub const START_SYNC: Self = Self::read::<u64>(BTRFS, 24);
    /// `BTRFS_IOC_SUBVOL_CREATE_V2`.
    pub const SUBVOL_CREATE_V2: Self = Self::write::<VolArgsV2>(BTRFS, 24);
    /// `BTRFS_IOC_SUBVOL_GETFLAGS`.
    pub const SUBVOL_GETFLAGS: Self = Self::read::<u64>(BTRFS, 25);
    /// `BTRFS_IOC_SUBVOL_SETFLAGS`.
    pub const SUBVOL_SETFLAGS: Self = Self::write::<u64>(BTRFS, 26);
    /// `BTRFS_IOC_QUOTA_CTL`.
    pub const QUOTA_CTL: Self = Self::both::<QuotaControl>(BTRFS, 40);
    /// `BTRFS_IOC_QGROUP_ASSIGN`.
    pub const QGROUP_ASSIGN: Self = Self::write::<QgroupAssign>(BTRFS, 41);
    /// `BTRFS_IOC_QGROUP_CREATE`.
    pub const QGROUP_CREATE: Self = Self::write::<QgroupCreate>(BTRFS, 42);
    /// `BTRFS_IOC_QGROUP_LIMIT`. Its number says that the caller only reads, so that FUSE does not
    /// pass the argument. [`Command::LIMIT_QGROUP`] is our own and needs no access to the caller.
    pub const QGROUP_LIMIT: Self = Self::read::<QgroupLimitArgs>(BTRFS, 43);
    /// `BTRFS_IOC_QUOTA_RESCAN`.
    pub const QUOTA_RESCAN: Self = Self::write::<QuotaRescan>(BTRFS, 44);
    /// `BTRFS_IOC_QUOTA_RESCAN_STATUS`.
    pub const QUOTA_RESCAN_STATUS: Self = Self::read::<QuotaRescan>(BTRFS, 45);
    /// `BTRFS_IOC_QUOTA_RESCAN_WAIT`.
    pub const QUOTA_RESCAN_WAIT: Self = Self::new(0, BTRFS, 46, 0);
    /// `BTRFS_IOC_DEV_INFO`.
    pub const DEV_INFO: Self = Self::both::<DevInfo>(BTRFS, 30);
    /// `BTRFS_IOC_FS_INFO`.
    pub const FS_INFO: Self = Self::read::<FsInfo>(BTRFS, 31);
    /// `BTRFS_IOC_INO_PATHS`.
    pub const INO_PATHS: Self = Self::both::<InoPaths>(BTRFS, 35);
    /// `BTRFS_IOC_LOGICAL_INO`.
    pub const LOGICAL_INO: Self = Self::both::<LogicalIno>(BTRFS, 36);
    /// `BTRFS_IOC_SET_RECEIVED_SUBVOL`.
    pub const SET_RECEIVED_SUBVOL: Self = Self::both::<ReceivedSubvol>(BTRFS, 37);
    /// `BTRFS_IOC_SEND`.
    pub const SEND: Self = Self::write::<SendArgs>(BTRFS, 38);
    /// `BTRFS_IOC_ENCODED_READ`.
    pub const ENCODED_READ: Self = Self::read::<EncodedIo>(BTRFS, 64);
    /// `BTRFS_IOC_ENCODED_WRITE`.
    pub const ENCODED_WRITE: Self = Self::write::<EncodedIo>(BTRFS, 64);
    /// `FICLONERANGE`, which FUSE does not pass; for mounts of other file systems.
    pub const CLONE_RANGE: Self = Self::write::<FileCloneRange>(BTRFS, 13);
    /// `BTRFS_IOC_GET_DEV_STATS`.
    pub const GET_DEV_STATS: Self = Self::both::<DevStats>(BTRFS, 52);
    /// `BTRFS_IOC_LOGICAL_INO_V2`.
    pub const LOGICAL_INO_V2: Self = Self::both::<LogicalIno>(BTRFS, 59);
    /// `BTRFS_IOC_GET_FEATURES`.
    pub const GET_FEATURES: Self = Self::read::<FeatureFlags>(BTRFS, 57);
    /// `BTRFS_IOC_GET_SUBVOL_INFO`.
    pub const GET_SUBVOL_INFO: Self = Self::read::<GetSubvolInfo>(BTRFS, 60);
    /// `BTRFS_IOC_GET_SUBVOL_ROOTREF`.
    pub const GET_SUBVOL_ROOTREF: Self = Self::both::<GetSubvolRootref>(BTRFS, 61);
    /// `BTRFS_IOC_INO_LOOKUP_USER`.
    pub const INO_LOOKUP_USER: Self = Self::both::<InoLookupUser>(BTRFS, 62);
    /// `BTRFS_IOC_SNAP_DESTROY_V2`.
    pub const SNAP_DESTROY_V2: Self = Self::write::<VolArgsV2>(BTRFS, 63);

    /// Our own: returns the server's process and the mounted source.
    pub const SERVER_INFO: Self = Self::read::<ServerInfo>(PAPILIO, 1);
    /// Our own: takes a snapshot of the subvolume with a given id. The caller's file descriptor,
    /// which `BTRFS_IOC_SNAP_CREATE_V2` passes, has no meaning in the server's process.
    pub const SNAPSHOT_BY_ID: Self = Self::write::<SnapshotById>(PAPILIO, 2);
    /// Our own: returns a page of the list of subvolumes.
    pub const SUBVOLUMES: Self = Self::both::<Page>(PAPILIO, 3);
    /// Our own: returns a page of the usage of space.
    pub const USAGE: Self = Self::both::<Page>(PAPILIO, 4);
    /// Our own: returns the state of the mount.
    pub const MOUNT_STATE: Self = Self::read::<MountState>(PAPILIO, 5);
    /// Our own: refuses changes from now on, or allows them again (a 64-bit 1 or 0).
    pub const SET_READ_ONLY: Self = Self::write::<u64>(PAPILIO, 6);
    /// Our own: starts a job and returns.
    pub const START_JOB: Self = Self::write::<JobStart>(PAPILIO, 7);
    /// Our own: returns the job that runs, or the last one, as a page.
    pub const JOB_STATUS: Self = Self::both::<Page>(PAPILIO, 8);
    /// Our own: asks a job (two 32-bit numbers: its kind, and 1 or 2) to pause or to stop.
    pub const CONTROL_JOB: Self = Self::write::<[u32; 2]>(PAPILIO, 9);
    /// Our own: adds a device, as `BTRFS_IOC_ADD_DEV` does, but only if it is empty, or the `fd` of
    /// the argument is 1.
    pub const ADD_DEVICE: Self = Self::write::<VolArgs>(PAPILIO, 10);
    /// Our own: starts the replacement of a device and returns.
    pub const START_REPLACE: Self = Self::write::<ReplaceStart>(PAPILIO, 11);
    /// Our own: returns a page of the extents of a file, and which of them are shared.
    pub const EXTENTS: Self = Self::both::<Page>(PAPILIO, 12);
    /// Our own: bounds the bytes that the running scrub and later ones read in a second; 0 for no
    /// limit.
    pub const LIMIT_SCRUB: Self = Self::write::<u64>(PAPILIO, 13);
    /// Our own: returns a file that lost a write of the kernel's cache, once.
    pub const TAKE_LOST_WRITE: Self = Self::read::<LostWrite>(PAPILIO, 14);
    /// Our own: `FICLONERANGE`, which FUSE does not pass.
    pub const OWN_CLONE_RANGE: Self = Self::write::<FileCloneRange>(PAPILIO, 15);
    /// Our own: `FIDEDUPERANGE` for one target, which is the file of the call.
    pub const OWN_DEDUPE_RANGE: Self = Self::both::<OwnDedupeRange>(PAPILIO, 16);
    /// Our own: `FS_IOC_FIEMAP` with a fixed number of extents.
    pub const OWN_FIEMAP: Self = Self::both::<Fiemap>(PAPILIO, 17);
    /// Our own: defragments a file without unsharing it, with limits, and reports.
    pub const OWN_DEFRAGMENT: Self = Self::both::<OwnDefragment>(PAPILIO, 18);
    /// `FS_IOC_FIEMAP`, which FUSE does not pass; for mounts of the kernel's Btrfs.
    pub const FIEMAP: Self = Self::new(READ | WRITE, b'f', 11, 32);
    /// `FIDEDUPERANGE`, which FUSE does not pass; for mounts of the kernel's Btrfs.
    pub const DEDUPE_RANGE: Self = Self::new(READ | WRITE, BTRFS, 54, 24);
    /// Our own: returns the state of quotas and a page of the qgroups.
    pub const QGROUPS: Self = Self::both::<Page>(PAPILIO, 32);
    /// Our own: sets limits of a qgroup, as `BTRFS_IOC_QGROUP_LIMIT` does.
    pub const LIMIT_QGROUP: Self = Self::write::<QgroupLimitArgs>(PAPILIO, 33);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{SearchHeader, SearchKey, SpaceInfo};
    use std::io::Write;
    use std::process::{Command as Process, Stdio};

    /// The commands, with the kernel headers' names.
    const NAMED: &[(&str, Command)] = &[
        ("FS_IOC_GETFLAGS", Command::GET_FLAGS),
        ("FS_IOC_SETFLAGS", Command::SET_FLAGS),
        ("FS_IOC_GETVERSION", Command::GET_VERSION),
        ("FS_IOC_FSGETXATTR", Command::GET_ATTRIBUTES),
        ("FS_IOC_FSSETXATTR", Command::SET_ATTRIBUTES),
        ("FITRIM", Command::TRIM),
        ("FS_IOC_GETFSLABEL", Command::GET_LABEL),
        ("FS_IOC_SETFSLABEL", Command::SET_LABEL),
        ("BTRFS_IOC_SNAP_CREATE", Command::SNAP_CREATE),
        ("BTRFS_IOC_RESIZE", Command::RESIZE),
        ("BTRFS_IOC_SYNC", Command::SYNC),
        ("BTRFS_IOC_ADD_DEV", Command::ADD_DEV),
        ("BTRFS_IOC_RM_DEV", Command::RM_DEV),
        ("BTRFS_IOC_DEFRAG", Command::DEFRAG),
        ("BTRFS_IOC_DEFRAG_RANGE", Command::DEFRAG_RANGE),
        ("BTRFS_IOC_RM_DEV_V2", Command::RM_DEV_V2),
        ("BTRFS_IOC_DEV_REPLACE", Command::DEV_REPLACE),
        ("BTRFS_IOC_SCRUB", Command::SCRUB),
        ("BTRFS_IOC_SCRUB_CANCEL", Command::SCRUB_CANCEL),
        ("BTRFS_IOC_SCRUB_PROGRESS", Command::SCRUB_PROGRESS),
        ("BTRFS_IOC_BALANCE_V2", Command::BALANCE_V2),
        ("BTRFS_IOC_BALANCE_CTL", Command::BALANCE_CTL),
        ("BTRFS_IOC_BALANCE_PROGRESS", Command::BALANCE_PROGRESS),
        ("BTRFS_IOC_SUBVOL_CREATE", Command::SUBVOL_CREATE),
        ("BTRFS_IOC_SNAP_DESTROY", Command::SNAP_DESTROY),
        ("BTRFS_IOC_INO_LOOKUP", Command::INO_LOOKUP),
        ("BTRFS_IOC_TREE_SEARCH", Command::TREE_SEARCH),
        ("BTRFS_IOC_TREE_SEARCH_V2", Command::TREE_SEARCH_V2),
        ("BTRFS_IOC_INO_PATHS", Command::INO_PATHS),
        ("BTRFS_IOC_LOGICAL_INO", Command::LOGICAL_INO),
        ("BTRFS_IOC_SET_RECEIVED_SUBVOL", Command::SET_RECEIVED_SUBVOL),
        ("BTRFS_IOC_SEND", Command::SEND),
        ("BTRFS_IOC_ENCODED_READ", Command::ENCODED_READ),
        ("BTRFS_IOC_ENCODED_WRITE", Command::ENCODED_WRITE),
        ("FICLONERANGE", Command::CLONE_RANGE),
        ("BTRFS_IOC_GET_DEV_STATS", Command::GET_DEV_STATS),
        ("BTRFS_IOC_LOGICAL_INO_V2", Command::LOGICAL_INO_V2),
        ("BTRFS_IOC_DEFAULT_SUBVOL", Command::DEFAULT_SUBVOL),
        ("BTRFS_IOC_SPACE_INFO", Command::SPACE_INFO),
        ("BTRFS_IOC_WAIT_SYNC", Command::WAIT_SYNC),
        ("BTRFS_IOC_SNAP_CREATE_V2", Command::SNAP_CREATE_V2),
        ("BTRFS_IOC_START_SYNC", Command::START_SYNC),
        ("BTRFS_IOC_SUBVOL_CREATE_V2", Command::SUBVOL_CREATE_V2),
        ("BTRFS_IOC_SUBVOL_GETFLAGS", Command::SUBVOL_GETFLAGS),
        ("BTRFS_IOC_SUBVOL_SETFLAGS", Command::SUBVOL_SETFLAGS),
        ("BTRFS_IOC_QUOTA_CTL", Command::QUOTA_CTL),
        ("BTRFS_IOC_QGROUP_ASSIGN", Command::QGROUP_ASSIGN),
        ("BTRFS_IOC_QGROUP_CREATE", Command::QGROUP_CREATE),
        ("BTRFS_IOC_QGROUP_LIMIT", Command::QGROUP_LIMIT),
        ("BTRFS_IOC_QUOTA_RESCAN", Command::QUOTA_RESCAN),
        ("BTRFS_IOC_QUOTA_RESCAN_STATUS", Command::QUOTA_RESCAN_STATUS),
        ("BTRFS_IOC_QUOTA_RESCAN_WAIT", Command::QUOTA_RESCAN_WAIT),
        ("BTRFS_IOC_DEV_INFO", Command::DEV_INFO),
        ("BTRFS_IOC_FS_INFO", Command::FS_INFO),
        ("BTRFS_IOC_GET_FEATURES", Command::GET_FEATURES),
        ("BTRFS_IOC_GET_SUBVOL_INFO", Command::GET_SUBVOL_INFO),
        ("BTRFS_IOC_GET_SUBVOL_ROOTREF", Command::GET_SUBVOL_ROOTREF),
        ("BTRFS_IOC_INO_LOOKUP_USER", Command::INO_LOOKUP_USER),
        ("BTRFS_IOC_SNAP_DESTROY_V2", Command::SNAP_DESTROY_V2),
    ];

    /// Offsets of fields, with the kernel headers' names.
    fn offsets() -> Vec<(String, usize)> {
        use std::mem::offset_of;
        let of = |name: &str, offset| (name.to_owned(), offset);
        vec![
            of("struct btrfs_ioctl_vol_args, name", offset_of!(VolArgs, name)),
            of("struct btrfs_ioctl_balance_args, data", offset_of!(BalanceIoctl, filters)),
            of("struct btrfs_ioctl_balance_args, stat", offset_of!(BalanceIoctl, expected)),
            of("struct btrfs_ioctl_scrub_args, progress", offset_of!(ScrubIoctl, progress)),
            of("struct btrfs_ioctl_vol_args_v2, flags", offset_of!(VolArgsV2, flags)),
            of("struct btrfs_ioctl_vol_args_v2, name", offset_of!(VolArgsV2, name)),
            of("struct btrfs_ioctl_search_args, buf", offset_of!(SearchArgs, bytes)),
            of("struct btrfs_ioctl_search_args_v2, buf_size", offset_of!(SearchArgsV2, size)),
            of("struct btrfs_ioctl_search_key, min_type", offset_of!(SearchKey, min_type)),
            of("struct btrfs_ioctl_search_header, len", offset_of!(SearchHeader, length)),
            of("struct btrfs_ioctl_get_dev_stats, values", offset_of!(DevStats, values)),
            of("struct btrfs_ioctl_logical_ino_args, inodes", offset_of!(LogicalIno, inodes)),
            of("struct btrfs_ioctl_ino_path_args, fspath", offset_of!(InoPaths, paths)),
            of("struct btrfs_ioctl_send_args, version", offset_of!(SendArgs, version)),
            of("struct btrfs_ioctl_received_subvol_args, flags", offset_of!(ReceivedSubvol, flags)),
            of("struct btrfs_ioctl_space_info, used_bytes", offset_of!(SpaceInfo, used)),
            of("struct btrfs_ioctl_dev_info_args, total_bytes", offset_of!(DevInfo, total_bytes)),
            of("struct btrfs_ioctl_dev_info_args, path", offset_of!(DevInfo, path)),
            of("struct btrfs_ioctl_fs_info_args, nodesize", offset_of!(FsInfo, node_size)),
            of("struct btrfs_ioctl_fs_info_args, csum_type", offset_of!(FsInfo, csum_type)),
            of("struct btrfs_ioctl_fs_info_args, metadata_uuid", offset_of!(FsInfo, metadata_uuid)),
            of("struct btrfs_ioctl_ino_lookup_args, name", offset_of!(InoLookup, name)),
            of("struct btrfs_ioctl_ino_lookup_user_args, path", offset_of!(InoLookupUser, path)),
            of("struct btrfs_ioctl_get_subvol_info_args, uuid", offset_of!(GetSubvolInfo, uuid)),
            of("struct btrfs_ioctl_get_subvol_info_args, ctransid", offset_of!(GetSubvolInfo, changed)),
            of("struct btrfs_ioctl_get_subvol_info_args, rtime", offset_of!(GetSubvolInfo, receive_time)),
            of("struct btrfs_ioctl_get_subvol_rootref_args, num_items", offset_of!(GetSubvolRootref, count)),
            of("struct fsxattr, fsx_projid", offset_of!(FileAttributes, project)),
            of("struct fstrim_range, minlen", offset_of!(TrimRange, min_length)),
        ]
    }

    #[test]
    fn numbers_and_layouts_match_kernel_headers() {
        let mut program = "#include <stdio.h>\n#include <stddef.h>\n#include <linux/fs.h>\n#include \
                           <linux/btrfs.h>\nint main(void) {\n"
            .to_owned();
        for (name, _) in NAMED {
            program += &format!("printf(\"%lu\\n\", (unsigned long){name});\n");
        }
        for (name, _) in offsets() {
            program += &format!("printf(\"%lu\\n\", (unsigned long)offsetof({name}));\n");
        }
        program += "return 0; }\n";
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("numbers");
        let cc = Process::new("cc")
            .args(["-xc", "-", "-o"])
            .arg(&binary)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .and_then(|mut cc| {
                cc.stdin.take().expect("standard input is a pipe").write_all(program.as_bytes())?;
                cc.wait_with_output()
            });
        match cc {
            Ok(cc) if cc.status.success() => {}
            other => {
                let required = std::env::var_os("PAPILIO_REQUIRE_ALL").is_some_and(|value| value == "1");
                assert!(!required, "no C compiler, or no kernel headers: {other:?}");
                eprintln!("skipped: no C compiler, or no kernel headers");
                return;
            }
        }
        let output = Process::new(&binary).output().unwrap();
        let found: Vec<u64> =
            String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
        let numbers = NAMED.iter().map(|(name, command)| (name.to_string(), u64::from(command.0)));
        let expected = numbers.chain(offsets().into_iter().map(|(name, offset)| (name, offset as u64)));
        let mut count = 0;
        for ((name, ours), theirs) in expected.zip(&found) {
            assert_eq!(ours, *theirs, "{name}");
            count += 1;
        }
        assert_eq!(count, NAMED.len() + offsets().len());
    }

    #[test]
    fn command_numbers_are_distinct() {
        let own = [
            Command::SERVER_INFO,
            Command::SNAPSHOT_BY_ID,
            Command::SUBVOLUMES,
            Command::USAGE,
            Command::MOUNT_STATE,
            Command::SET_READ_ONLY,
        ]
        .map(|c| c.0);
        let mut all: Vec<u32> = NAMED.iter().map(|(_, command)| command.0).chain(own).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), NAMED.len() + own.len());
        assert_eq!(Command(own[2]).size(), size_of::<Page>());
    }
}
