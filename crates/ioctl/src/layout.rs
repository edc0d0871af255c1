//! The arguments of ioctls, byte for byte.
//!
//! Owns the structs of the kernel's ioctls and of our own, in the machine's byte order.
//!
//! **Invariants**
//! - No struct has padding, so none leaks the server's memory.
//! - Each struct has the size that its command number encodes.
//!
//! Kernel counterparts: `include/uapi/linux/btrfs.h`, `include/uapi/linux/fs.h`.

use papilio_engine::jobs::balance::BalanceReport;
use papilio_engine::jobs::scrub::ScrubReport;
use papilio_format::items::balance::BalanceItem;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Size of a label in bytes, including its NUL.
pub const LABEL_SIZE: usize = 256;

/// Declares structs that convert to and from bytes, and checks their sizes.
macro_rules! layout {
    ($($(#[$meta:meta])* pub struct $name:ident = $size:literal {
        $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        const _: () = assert!(size_of::<$name>() == $size);

        impl Default for $name {
            fn default() -> Self {
                Self::new_zeroed()
            }
        }
    )*};
}

layout! {
    /// `struct btrfs_ioctl_vol_args`.
    pub struct VolArgs = 4096 {
        /// A file descriptor of the caller.
        fd: i64,
        /// A name with a terminating NUL.
        name: [u8; 4088],
    }

    /// `struct btrfs_ioctl_vol_args_v2`.
    pub struct VolArgsV2 = 4096 {
        /// A file descriptor of the caller.
        fd: i64,
        /// Obsolete.
        transid: u64,
        /// `SUBVOL_*`.
        flags: u64,
        /// The size of the list of inherited qgroups in bytes, and a pointer to it.
        quota: [u64; 4],
        /// A name with a terminating NUL; or a subvolume's id in the first eight bytes.
        name: [u8; 4040],
    }

    /// `struct btrfs_ioctl_ino_lookup_args`.
    pub struct InoLookup = 4096 {
        /// The subvolume's id, or 0 for the subvolume of the queried file.
        tree: u64,
        /// The inode number.
        inode: u64,
        /// The inode's path from the subvolume's root, with a slash at the end.
        name: [u8; 4080],
    }

    /// `struct btrfs_ioctl_ino_lookup_user_args`.
    pub struct InoLookupUser = 4096 {
        /// The inode number of the directory that contains the subvolume.
        directory: u64,
        /// The subvolume's id.
        tree: u64,
        /// The subvolume's name.
        name: [u8; 256],
        /// The directory's path from the queried one.
        path: [u8; 3824],
    }

    /// `struct btrfs_ioctl_space_args`, without the list that follows it.
    pub struct SpaceArgs = 16 {
        /// Number of elements in the list.
        slots: u64,
        /// Number of spaces.
        total: u64,
    }

    /// `struct btrfs_ioctl_space_info`, an element of that list.
    pub struct SpaceInfo = 24 {
        /// Type and profile, or [`SPACE_GLOBAL_RESERVE`].
        flags: u64,
        /// Capacity in bytes.
        total: u64,
        /// Used bytes.
        used: u64,
    }

    /// `struct btrfs_ioctl_space_args` with room for all types and profiles.
    pub struct SpaceList = 1552 {
        /// Number of elements in the list.
        slots: u64,
        /// Number of spaces.
        total: u64,
        /// The spaces.
        list: [SpaceInfo; 64],
    }

    /// `struct btrfs_ioctl_search_key`.
    pub struct SearchKey = 104 {
        /// The tree, or 0 for the subvolume of the queried file.
        tree: u64,
        /// Object id of the first key.
        min_objectid: u64,
        /// Object id of the last key.
        max_objectid: u64,
        /// Offset of the first key.
        min_offset: u64,
        /// Offset of the last key.
        max_offset: u64,
        /// The oldest generation of a leaf.
        min_generation: u64,
        /// The newest generation of a leaf.
        max_generation: u64,
        /// Item type of the first key.
        min_type: u32,
        /// Item type of the last key.
        max_type: u32,
        /// Number of wanted items; on output of found ones.
        items: u32,
        /// Unused.
        unused: u32,
        /// Unused.
        reserved: [u64; 4],
    }

    /// `struct btrfs_ioctl_search_args`.
    pub struct SearchArgs = 4096 {
        /// The wanted items.
        key: SearchKey,
        /// The found items, each after a [`SearchHeader`].
        bytes: [u8; 3992],
    }

    /// `struct btrfs_ioctl_search_args_v2`, without the buffer that follows it.
    pub struct SearchArgsV2 = 112 {
        /// The wanted items.
        key: SearchKey,
        /// Size of the buffer in bytes; on output the size that an item needs.
        size: u64,
    }

    /// `struct btrfs_ioctl_search_header`.
    pub struct SearchHeader = 32 {
        /// Generation of the leaf.
        generation: u64,
        /// Object id of the key.
        objectid: u64,
        /// Offset of the key.
        offset: u64,
        /// Item type of the key.
        kind: u32,
        /// Number of bytes that follow.
        length: u32,
    }

    /// `struct btrfs_ioctl_get_dev_stats`.
    pub struct DevStats = 1032 {
        /// The device's id.
        devid: u64,
        /// Number of wanted counters; on output of known ones.
        items: u64,
        /// [`DEV_STATS_RESET`] or 0.
        flags: u64,
        /// The counters.
        values: [u64; 5],
        /// Unused.
        unused: [u64; 121],
    }

    /// `struct btrfs_ioctl_logical_ino_args`.
    pub struct LogicalIno = 56 {
        /// The logical address.
        logical: u64,
        /// Size of the container in bytes.
        size: u64,
        /// Zeros.
        reserved: [u64; 3],
        /// Flags of the second version.
        flags: u64,
        /// Address of the container.
        inodes: u64,
    }

    /// `struct file_dedupe_range` with one target.
    pub struct DedupeRange = 56 {
        /// Offset in the source in bytes.
        source: u64,
        /// Bytes.
        length: u64,
        /// Targets.
        count: u16,
        /// Zeros.
        reserved: [u16; 3],
        /// The caller's descriptor of the target.
        target: i64,
        /// Offset in the target in bytes.
        target_offset: u64,
        /// Shared bytes.
        deduped: u64,
        /// 0, 1 if the bytes differ, or a negative errno.
        status: i32,
        /// Zero.
        reserved2: u32,
    }

    /// `struct btrfs_ioctl_ino_path_args`.
    pub struct InoPaths = 56 {
        /// The inode number.
        inode: u64,
        /// Size of the container in bytes.
        size: u64,
        /// Unused.
        reserved: [u64; 4],
        /// Address of the container.
        paths: u64,
    }

    /// `struct btrfs_ioctl_send_args`.
    pub struct SendArgs = 72 {
        /// The caller's descriptor for the stream.
        fd: i64,
        /// Number of clone sources.
        source_count: u64,
        /// Address of their ids.
        sources: u64,
        /// The parent's id, or 0.
        parent: u64,
        /// `BTRFS_SEND_FLAG_*`.
        flags: u64,
        /// The stream's version, if a flag says so.
        version: u32,
        /// Unused.
        reserved: [u8; 28],
    }

    /// `struct btrfs_ioctl_received_subvol_args`.
    pub struct ReceivedSubvol = 200 {
        /// The subvolume's UUID at the sender.
        uuid: [u8; 16],
        /// The sender's generation.
        sent: u64,
        /// On output the generation of the change.
        received: u64,
        /// The time when it was sent.
        send_time: IoctlTimespec,
        /// On output the time of the change.
        receive_time: IoctlTimespec,
        /// Unused.
        flags: u64,
        /// Unused.
        reserved: [u64; 16],
    }

    /// `struct btrfs_ioctl_encoded_io_args`.
    pub struct EncodedIo = 128 {
        /// Address of the list of buffers.
        buffers: u64,
        /// Number of buffers.
        buffer_count: u64,
        /// Byte of the file.
        offset: u64,
        /// Zeros.
        flags: u64,
        /// Bytes of the file.
        length: u64,
        /// Bytes of the whole extent, without compression.
        unencoded_length: u64,
        /// Bytes of the extent before those of the file.
        unencoded_offset: u64,
        /// `BTRFS_ENCODED_IO_COMPRESSION_*`.
        compression: u32,
        /// `BTRFS_ENCODED_IO_ENCRYPTION_*`.
        encryption: u32,
        /// Zeros.
        reserved: [u8; 64],
    }

    /// `struct file_clone_range`.
    pub struct FileCloneRange = 32 {
        /// The source's descriptor.
        source: i64,
        /// Byte of the source.
        from: u64,
        /// Bytes.
        length: u64,
        /// Byte of the file.
        to: u64,
    }

    /// `struct btrfs_ioctl_dev_info_args`.
    pub struct DevInfo = 4096 {
        /// The device's id.
        devid: u64,
        /// The device's UUID; unless zero, it must match.
        uuid: [u8; 16],
        /// Number of allocated bytes.
        bytes_used: u64,
        /// The device's size in the file system in bytes.
        total_bytes: u64,
        /// The file system's UUID.
        fsid: [u8; 16],
        /// Zeros.
        unused: [u64; 377],
        /// The device's path with a terminating NUL.
        path: [u8; 1024],
    }

    /// `struct btrfs_ioctl_fs_info_args`.
    pub struct FsInfo = 1024 {
        /// The greatest device id.
        max_id: u64,
        /// Number of devices.
        devices: u64,
        /// The file system's UUID.
        fsid: [u8; 16],
        /// Size of a tree block in bytes.
        node_size: u32,
        /// Size of a sector in bytes.
        sector_size: u32,
        /// Alignment of reflinks in bytes.
        clone_alignment: u32,
        /// Checksum type.
        csum_type: u16,
        /// Size of a checksum in bytes.
        csum_size: u16,
        /// Fields after the first six: requested on input, filled in on output (`FS_INFO_*`).
        flags: u64,
        /// Generation of the last commit.
        generation: u64,
        /// The UUID in tree blocks.
        metadata_uuid: [u8; 16],
        /// Zeros.
        reserved: [[u8; 16]; 59],
    }

    /// `struct btrfs_ioctl_quota_ctl_args`.
    pub struct QuotaControl = 16 {
        /// `QUOTA_ENABLE`, `QUOTA_ENABLE_SIMPLE` or `QUOTA_DISABLE`.
        command: u64,
        /// Unused.
        status: u64,
    }

    /// `struct btrfs_ioctl_quota_rescan_args`.
    pub struct QuotaRescan = 64 {
        /// On output 1 if a rescan is under way.
        flags: u64,
        /// The address up to which it has counted.
        progress: u64,
        /// Zeros.
        reserved: [u64; 6],
    }

    /// `struct btrfs_ioctl_qgroup_assign_args`.
    pub struct QgroupAssign = 24 {
        /// 1 to assign, 0 to remove.
        assign: u64,
        /// The member.
        member: u64,
        /// The group.
        parent: u64,
    }

    /// `struct btrfs_ioctl_qgroup_create_args`.
    pub struct QgroupCreate = 16 {
        /// 1 to create, 0 to remove.
        create: u64,
        /// The id.
        id: u64,
    }

    /// `struct btrfs_qgroup_inherit`, before the ids of its qgroups.
    pub struct QgroupInherit = 72 {
        /// Must be 0: limits of the new qgroup are not supported.
        flags: u64,
        /// The number of ids that follow.
        groups: u64,
        /// Obsolete.
        referenced_copies: u64,
        /// Obsolete.
        exclusive_copies: u64,
        /// Limits of the new qgroup.
        limits: [u64; 5],
    }

    /// `struct btrfs_ioctl_qgroup_limit_args`.
    pub struct QgroupLimitArgs = 48 {
        /// The id; 0 for the subvolume of the file.
        id: u64,
        /// `QGROUP_LIMIT_*`: the limits to change.
        flags: u64,
        /// Most bytes referenced; `u64::MAX` for no limit.
        max_referenced: u64,
        /// Most bytes referenced exclusively; `u64::MAX` for no limit.
        max_exclusive: u64,
        /// Unused.
        reserved_referenced: u64,
        /// Unused.
        reserved_exclusive: u64,
    }

    /// `struct btrfs_ioctl_feature_flags`.
    pub struct FeatureFlags = 24 {
        /// Features that an implementation may ignore.
        compat: u64,
        /// Features that an implementation may ignore if it only reads.
        compat_ro: u64,
        /// Features that an implementation must know.
        incompat: u64,
    }

    /// `struct btrfs_ioctl_timespec`.
    pub struct IoctlTimespec = 16 {
        /// Seconds since 1970.
        seconds: u64,
        /// Nanoseconds after that.
        nanoseconds: u32,
        /// Zeros.
        padding: u32,
    }

    /// `struct btrfs_ioctl_get_subvol_info_args`.
    pub struct GetSubvolInfo = 504 {
        /// The subvolume's id.
        tree: u64,
        /// The subvolume's name with a terminating NUL.
        name: [u8; 256],
        /// The id of the containing subvolume, or 0.
        parent: u64,
        /// The inode number of the containing directory, or 0.
        directory: u64,
        /// Generation of the last change to the tree.
        generation: u64,
        /// Flags as on disk.
        flags: u64,
        /// The subvolume's UUID.
        uuid: [u8; 16],
        /// The UUID of the snapshot's source.
        parent_uuid: [u8; 16],
        /// The UUID of the subvolume that this one was received from.
        received_uuid: [u8; 16],
        /// Generation of the last change to an inode.
        changed: u64,
        /// Generation of the creation.
        created: u64,
        /// Generation at which it was sent.
        sent: u64,
        /// Generation at which it was received.
        received: u64,
        /// Time of the last change.
        change_time: IoctlTimespec,
        /// Time of the creation.
        creation_time: IoctlTimespec,
        /// Time at which it was sent.
        send_time: IoctlTimespec,
        /// Time at which it was received.
        receive_time: IoctlTimespec,
        /// Zeros.
        reserved: [u64; 8],
    }

    /// A subvolume inside another one, in `struct btrfs_ioctl_get_subvol_rootref_args`.
    pub struct Rootref = 16 {
        /// The subvolume's id.
        tree: u64,
        /// The inode number of the containing directory.
        directory: u64,
    }

    /// `struct btrfs_ioctl_get_subvol_rootref_args`.
    pub struct GetSubvolRootref = 4096 {
        /// The smallest wanted id; on output the next one, if there are more.
        min_tree: u64,
        /// The subvolumes found.
        rootrefs: [Rootref; 255],
        /// Number of subvolumes found.
        count: u8,
        /// Zeros.
        align: [u8; 7],
    }

    /// `struct fsxattr`.
    pub struct FileAttributes = 28 {
        /// `FS_XFLAG_*`.
        flags: u32,
        /// Unused.
        extent_size: u32,
        /// Unused.
        extents: u32,
        /// Unused.
        project: u32,
        /// Unused.
        cow_extent_size: u32,
        /// Zeros.
        padding: [u8; 8],
    }

    /// `struct fsverity_enable_arg`.
    pub struct VerityEnable = 128 {
        /// 1.
        version: u32,
        /// The number of the hash algorithm.
        hash_algorithm: u32,
        /// The size of data and tree blocks in bytes.
        block_size: u32,
        /// The size of the salt in bytes.
        salt_size: u32,
        /// The salt in the caller's memory.
        salt: u64,
        /// The size of the signature in bytes.
        signature_size: u32,
        /// Zero.
        reserved: u32,
        /// The signature in the caller's memory.
        signature: u64,
        /// Zeros.
        more_reserved: [u64; 11],
    }

    /// `struct fsverity_digest` with room for the longest digest.
    pub struct VerityDigest = 68 {
        /// The number of the hash algorithm.
        hash_algorithm: u16,
        /// The room for the digest in bytes; on output its size.
        size: u16,
        /// The digest.
        digest: [u8; 64],
    }

    /// `struct fsverity_read_metadata_arg`.
    pub struct VerityMetadata = 40 {
        /// `FS_VERITY_METADATA_TYPE_*`: 1 the Merkle tree, 2 the descriptor, 3 the signature.
        kind: u64,
        /// The first byte.
        offset: u64,
        /// The room for bytes.
        length: u64,
        /// The room in the caller's memory.
        buffer: u64,
        /// Zero.
        reserved: u64,
    }

    /// `struct fstrim_range`.
    pub struct TrimRange = 24 {
        /// Start of the range in bytes.
        start: u64,
        /// Length of the range in bytes; on output the number of trimmed bytes.
        length: u64,
        /// Shorter free ranges are not trimmed.
        min_length: u64,
    }

    /// Our own: the server of a mount.
    pub struct ServerInfo = 4120 {
        /// [`SERVER_INFO_VERSION`].
        version: u32,
        /// The server's process id in its PID namespace.
        pid: u32,
        /// Inode number of that namespace.
        pid_namespace: u64,
        /// Length of `source` in bytes.
        source_length: u64,
        /// The mounted source.
        source: [u8; 4096],
    }

    /// Our own: the state of a mount.
    pub struct MountState = 2024 {
        /// [`SERVER_INFO_VERSION`].
        version: u32,
        /// [`STATE_WRITABLE`], [`STATE_READ_ONLY`].
        flags: u32,
        /// Id of the subvolume whose root is the mount's.
        root: u64,
        /// Id of the default subvolume.
        default_subvolume: u64,
        /// Why the file system takes no more changes, with a terminating NUL; empty if it does. Of
        /// one that is open for reading, why the last attempt to change that failed.
        failure: [u8; 1000],
        /// Options about owners and permissions, with a terminating NUL.
        ownership: [u8; 1000],
    }

    /// Our own: a file that lost a write of the kernel's cache.
    pub struct LostWrite = 1024 {
        /// Why, an errno; 0 if there is no such file.
        error: u32,
        /// Length of `path` in bytes; 0 if the caller may not see it.
        path_length: u32,
        /// The inode number that users see.
        inode: u64,
        /// The path from the top level; of a longer one, its end.
        path: [u8; 1008],
    }

    /// Our own: arguments of a snapshot by the source's id.
    pub struct SnapshotById = 272 {
        /// The source subvolume's id.
        tree: u64,
        /// `SUBVOL_RDONLY` or 0.
        flags: u64,
        /// The snapshot's name with a terminating NUL.
        name: [u8; 256],
    }

    /// `struct fiemap_extent`.
    pub struct FiemapRecord = 56 {
        /// File offset of the first byte.
        start: u64,
        /// Address of the first byte.
        address: u64,
        /// Length in bytes.
        length: u64,
        /// Unused.
        reserved: [u64; 2],
        /// `FIEMAP_EXTENT_*`.
        flags: u32,
        /// Unused.
        unused: [u32; 3],
    }

    /// `struct fiemap`, with its extents.
    pub struct Fiemap = 4064 {
        /// File offset of the range.
        start: u64,
        /// Length of the range in bytes.
        length: u64,
        /// `FIEMAP_FLAG_*`.
        flags: u32,
        /// Number of extents that were found.
        mapped: u32,
        /// Number of extents that fit.
        count: u32,
        /// Unused.
        reserved: u32,
        /// The extents.
        extents: [FiemapRecord; 72],
    }

    /// Our own: a range of another file that the file of the call shares where the bytes are equal.
    pub struct OwnDedupeRange = 48 {
        /// The ranges.
        range: FileCloneRange,
        /// Output: the bytes that are shared.
        deduped: u64,
        /// Output: 1 if the bytes differ.
        differs: u32,
        /// Unused.
        unused: u32,
    }

    /// Our own: the defragmentation of a file that keeps shared data shared, and its limits.
    pub struct OwnDefragment = 256 {
        /// The first byte.
        start: u64,
        /// Bytes; `u64::MAX` for all.
        length: u64,
        /// [`DEFRAGMENT_COMPRESS`], [`DEFRAGMENT_LEVEL`], [`DEFRAGMENT_PLAIN`].
        flags: u64,
        /// Extents of so many bytes stay as they are.
        threshold: u64,
        /// As in [`DefragmentRange`].
        compression: u64,
        /// Stops before more bytes are written.
        max_bytes: u64,
        /// Stops before more extents are replaced.
        max_extents: u64,
        /// Begins no batch after so many milliseconds.
        max_time: u64,
        /// Output: extents that are gone.
        replaced: u64,
        /// Output: extents that took their place.
        made: u64,
        /// Output: bytes that were written.
        bytes: u64,
        /// Output: bytes of old extents that nothing used.
        freed: u64,
        /// Output: bytes that extents need less.
        saved: u64,
        /// Output: bytes that extents need more.
        grown: u64,
        /// Output: neighbours that stay apart.
        apart: u64,
        /// Output: 1 if a limit ended it.
        stopped: u64,
        /// Output: extents that stay, by the index of the reason in `StayReason::PLAIN`.
        stay: [u64; 15],
        /// Output: extents that stay because of damage.
        damaged: u64,
    }

    /// Our own: a page of a list that exceeds one ioctl.
    pub struct Page = 16376 {
        /// Start of the page; on output the start of the next one.
        cursor: u64,
        /// 1 if there is a next page, otherwise 0.
        more: u32,
        /// Number of used bytes in `bytes`.
        used: u32,
        /// The records.
        bytes: [u8; PAGE_BYTES],
    }
}

layout! {
    /// `struct btrfs_ioctl_balance_args`.
    pub struct BalanceIoctl = 1024 {
        /// `BTRFS_BALANCE_*`, as in the item on disk.
        flags: u64,
        /// [`BALANCE_RUNNING`] or 0.
        state: u64,
        /// The filters for data, metadata and system block groups, as in the item on disk.
        filters: [u8; 408],
        /// Block groups to relocate.
        expected: u64,
        /// Block groups that were looked at.
        considered: u64,
        /// Block groups that were relocated.
        completed: u64,
        /// Unused.
        unused: [u64; 72],
    }

    /// `struct btrfs_ioctl_scrub_args`.
    pub struct ScrubIoctl = 1024 {
        /// The device.
        devid: u64,
        /// First byte of the device; our server ignores it.
        start: u64,
        /// Last byte of the device; our server ignores it.
        end: u64,
        /// [`SCRUB_READ_ONLY`].
        flags: u64,
        /// `struct btrfs_scrub_progress`.
        progress: [u64; 15],
        /// Unused.
        unused: [u64; 109],
    }

    /// `struct btrfs_ioctl_defrag_range_args`.
    pub struct DefragmentRange = 48 {
        /// The first byte.
        start: u64,
        /// Bytes; `u64::MAX` for all.
        length: u64,
        /// `DEFRAGMENT_*`.
        flags: u64,
        /// Extents of so many bytes stay as they are; 0 for 256 KiB.
        threshold: u32,
        /// The algorithm; with [`DEFRAGMENT_LEVEL`] its low byte, and the level the next one.
        compression: u32,
        /// Unused.
        unused: [u32; 4],
    }

    /// `struct btrfs_ioctl_dev_replace_args` with `start`, whose names end with a NUL.
    pub struct ReplaceStart = 2600 {
        /// `REPLACE_*`.
        command: u64,
        /// `REPLACE_RESULT_*`.
        result: u64,
        /// The device; 0 if it is named.
        devid: u64,
        /// 1 to avoid reads of the device.
        avoids_source: u64,
        /// Its path.
        source: [u8; 1025],
        /// The path of the new device.
        target: [u8; 1025],
        /// Padding.
        padding: [u8; 6],
        /// 1 to overwrite a file system on the new device, as far as our own ioctl is concerned.
        force: u64,
        /// Unused.
        unused: [u64; 63],
    }

    /// `struct btrfs_ioctl_dev_replace_args` with `status`.
    pub struct ReplaceStatus = 2600 {
        /// `REPLACE_*`.
        command: u64,
        /// `REPLACE_RESULT_*`.
        result: u64,
        /// As in the item on disk.
        state: u64,
        /// Thousandths.
        progress: u64,
        /// Seconds since 1970.
        started: u64,
        /// Seconds since 1970.
        stopped: u64,
        /// Sectors that could not be written.
        write_errors: u64,
        /// Sectors without a readable copy.
        uncorrectable_read_errors: u64,
        /// Unused.
        padding: [u64; 253],
        /// The device, in a field that the kernel leaves 0.
        devid: u64,
        /// Unused.
        unused: [u64; 63],
    }

    /// The argument of [`Command::START_JOB`](super::number::Command::START_JOB).
    pub struct JobStart = 512 {
        /// The index of a [`JobKind`](crate::job::JobKind).
        kind: u32,
        /// [`JOB_READ_ONLY`], [`JOB_DECODE`].
        flags: u32,
        /// The device; 0 for a scrub of all.
        devid: u64,
        /// The new size in bytes, or the logical address where a scrub begins.
        size: u64,
        /// The bytes that a scrub may read in a second; 0 for no limit.
        limit: u64,
        /// `struct btrfs_balance_item`, with the flag to resume if the stored one is meant.
        balance: [u8; 448],
        /// The number of the [`IoPriority`](crate::io_priority::IoPriority) of a scrub; 0 for that
        /// of the server.
        io_priority: u64,
        /// Unused.
        unused: [u64; 3],
    }
}

impl BalanceIoctl {
    /// Returns the arguments for the balance in an item.
    pub fn of(item: &BalanceItem) -> Self {
        let bytes = item.to_bytes();
        let mut arguments = Self { flags: item.flags.bits(), ..Self::default() };
        arguments.filters.copy_from_slice(&bytes[8..416]);
        arguments
    }

    /// Returns the balance as an item.
    pub fn item(&self) -> BalanceItem {
        let mut bytes = [0; 448];
        bytes[..8].copy_from_slice(&self.flags.to_le_bytes());
        bytes[8..416].copy_from_slice(&self.filters);
        BalanceItem::parse(&bytes).expect("any 448 bytes are an item")
    }

    /// Sets the progress.
    pub fn set_progress(&mut self, report: &BalanceReport) {
        self.expected = report.expected.into();
        self.considered = report.considered.into();
        self.completed = report.completed.into();
    }
}

impl ScrubIoctl {
    /// Sets the progress to that of this device.
    pub fn set_progress(&mut self, report: &ScrubReport) {
        let found = report.devices.iter().find(|device| device.devid.0 == self.devid);
        let counts = found.map(|device| device.counts).unwrap_or_default();
        self.progress = [
            counts.data_extents_scrubbed,
            counts.tree_extents_scrubbed,
            counts.data_bytes_scrubbed,
            counts.tree_bytes_scrubbed,
            counts.read_errors,
            counts.csum_errors,
            counts.verify_errors,
            counts.no_csum,
            0,
            counts.super_errors,
            0,
            counts.uncorrectable_errors,
            counts.corrected_errors,
            0,
            0,
        ];
    }
}

/// `BTRFS_DEFRAG_RANGE_COMPRESS`.
pub const DEFRAGMENT_COMPRESS: u64 = 1 << 0;
/// `BTRFS_DEFRAG_RANGE_START_IO`.
pub const DEFRAGMENT_FLUSH: u64 = 1 << 1;
/// `BTRFS_DEFRAG_RANGE_COMPRESS_LEVEL`.
pub const DEFRAGMENT_LEVEL: u64 = 1 << 2;
/// `BTRFS_DEFRAG_RANGE_NOCOMPRESS`.
pub const DEFRAGMENT_PLAIN: u64 = 1 << 3;
/// Papilio's own: extents that are shared are copied, as the kernel does. Without it, a mount of
/// ours moves them for all files and snapshots, unless they are to be stored in another way.
pub const DEFRAGMENT_UNSHARE: u64 = 1 << 63;
/// `BTRFS_IOCTL_DEV_REPLACE_CMD_START`.
pub const REPLACE_START: u64 = 0;
/// `BTRFS_IOCTL_DEV_REPLACE_CMD_STATUS`.
pub const REPLACE_STATUS: u64 = 1;
/// `BTRFS_IOCTL_DEV_REPLACE_CMD_CANCEL`.
pub const REPLACE_CANCEL: u64 = 2;
/// `BTRFS_IOCTL_DEV_REPLACE_RESULT_NOT_STARTED`.
pub const REPLACE_RESULT_NOT_STARTED: u64 = 1;
/// `BTRFS_IOCTL_DEV_REPLACE_RESULT_ALREADY_STARTED`.
pub const REPLACE_RESULT_ALREADY_STARTED: u64 = 2;
/// `BTRFS_IOCTL_DEV_REPLACE_RESULT_SCRUB_INPROGRESS`.
pub const REPLACE_RESULT_SCRUB_RUNS: u64 = 3;
/// `BTRFS_BALANCE_STATE_RUNNING`.
pub const BALANCE_RUNNING: u64 = 1 << 0;
/// `BTRFS_BALANCE_CTL_PAUSE`.
pub const BALANCE_PAUSE: u32 = 1;
/// `BTRFS_BALANCE_CTL_CANCEL`.
pub const BALANCE_CANCEL: u32 = 2;
/// `BTRFS_SCRUB_READONLY`.
pub const SCRUB_READ_ONLY: u64 = 1 << 0;
/// `BTRFS_DEVICE_SPEC_BY_ID`.
pub const DEVICE_BY_ID: u64 = 1 << 3;
/// A scrub only counts errors.
pub const JOB_READ_ONLY: u32 = 1 << 0;
/// A scrub decodes compressed extents.
pub const JOB_DECODE: u32 = 1 << 1;

/// Size of a page's records in bytes.
pub const PAGE_BYTES: usize = 16360;

/// `BTRFS_QUOTA_CTL_ENABLE`.
pub const QUOTA_ENABLE: u64 = 1;
/// `BTRFS_QUOTA_CTL_DISABLE`.
pub const QUOTA_DISABLE: u64 = 2;
/// `BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA`.
pub const QUOTA_ENABLE_SIMPLE: u64 = 4;
/// `BTRFS_QGROUP_LIMIT_MAX_RFER`.
pub const QGROUP_LIMIT_REFERENCED: u64 = 1 << 0;
/// `BTRFS_QGROUP_LIMIT_MAX_EXCL`.
pub const QGROUP_LIMIT_EXCLUSIVE: u64 = 1 << 1;

/// The version of our own ioctls.
pub const SERVER_INFO_VERSION: u32 = 1;

/// The file system is open for writing.
pub const STATE_WRITABLE: u32 = 1 << 0;
/// The mount was made read-only while it was in use.
pub const STATE_READ_ONLY: u32 = 1 << 1;

/// `BTRFS_SPACE_INFO_GLOBAL_RSV`.
pub const SPACE_GLOBAL_RESERVE: u64 = 1 << 49;
/// `BTRFS_DEV_STATS_RESET`.
pub const DEV_STATS_RESET: u64 = 1 << 0;

/// `BTRFS_SUBVOL_RDONLY`.
pub const SUBVOL_RDONLY: u64 = 1 << 1;
/// `BTRFS_SUBVOL_QGROUP_INHERIT`.
pub const SUBVOL_QGROUP_INHERIT: u64 = 1 << 2;
/// `BTRFS_SUBVOL_SPEC_BY_ID`.
pub const SUBVOL_SPEC_BY_ID: u64 = 1 << 4;

/// `BTRFS_FS_INFO_FLAG_CSUM_INFO`.
pub const FS_INFO_CSUM: u64 = 1 << 0;
/// `BTRFS_FS_INFO_FLAG_GENERATION`.
pub const FS_INFO_GENERATION: u64 = 1 << 1;
/// `BTRFS_FS_INFO_FLAG_METADATA_UUID`.
pub const FS_INFO_METADATA_UUID: u64 = 1 << 2;

/// Stores a text with a terminating NUL, cut to what fits.
pub fn put_text(field: &mut [u8], text: &str) {
    let Some(space) = field.len().checked_sub(1) else { return };
    let mut length = text.len().min(space);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
    field[length..].fill(0);
}

/// Returns the bytes before the first NUL; `None` if there is none.
pub fn until_nul(name: &[u8]) -> Option<&[u8]> {
    name.iter().position(|&byte| byte == 0).map(|end| &name[..end])
}

/// Stores a name in a field with a terminating NUL; returns `false` if it does not fit.
#[must_use]
pub fn put_name(field: &mut [u8], name: &[u8]) -> bool {
    let fits = name.len() < field.len() && !name.contains(&0);
    if fits {
        field.fill(0);
        field[..name.len()].copy_from_slice(name);
    }
    fits
}
