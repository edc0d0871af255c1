//! What ioctls pass, byte for byte.
//!
//! Owns the structs of the kernel's ioctls and of our own. All are in the machine's byte order, as ioctls
//! are. Invariant: no struct has padding, so that nothing of the server's memory leaks through one; each
//! has the size that its command's number says. Kernel counterparts: `include/uapi/linux/btrfs.h`,
//! `include/uapi/linux/fs.h`.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Bytes of a label with its NUL.
pub const LABEL_SIZE: usize = 256;

/// A number or a struct as bytes.
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
        /// A file descriptor of the caller's.
        fd: i64,
        /// A name, ended by a NUL.
        name: [u8; 4088],
    }

    /// `struct btrfs_ioctl_vol_args_v2`.
    pub struct VolArgsV2 = 4096 {
        /// A file descriptor of the caller's.
        fd: i64,
        /// Not used any more.
        transid: u64,
        /// `SUBVOL_*`.
        flags: u64,
        /// Which quota groups are inherited, through a pointer.
        quota: [u64; 4],
        /// A name, ended by a NUL; or a subvolume's id in its first eight bytes.
        name: [u8; 4040],
    }

    /// `struct btrfs_ioctl_ino_lookup_args`.
    pub struct InoLookup = 4096 {
        /// The subvolume, or 0 for that of the file that is asked.
        tree: u64,
        /// The inode.
        inode: u64,
        /// Its path from the subvolume's root, with a slash at its end.
        name: [u8; 4080],
    }

    /// `struct btrfs_ioctl_ino_lookup_user_args`.
    pub struct InoLookupUser = 4096 {
        /// The directory that holds the subvolume.
        directory: u64,
        /// The subvolume.
        tree: u64,
        /// Its name.
        name: [u8; 256],
        /// The path of the directory from the one that is asked.
        path: [u8; 3824],
    }

    /// `struct btrfs_ioctl_space_args`, without what follows it.
    pub struct SpaceArgs = 16 {
        /// For how many spaces there is room behind it.
        slots: u64,
        /// How many there are.
        total: u64,
    }

    /// `struct btrfs_ioctl_dev_info_args`.
    pub struct DevInfo = 4096 {
        /// Which device.
        devid: u64,
        /// Its UUID; not all zeros, it must be this one.
        uuid: [u8; 16],
        /// Bytes that are allocated.
        bytes_used: u64,
        /// Bytes that the file system has.
        total_bytes: u64,
        /// The UUID of the file system.
        fsid: [u8; 16],
        /// Zeros.
        unused: [u64; 377],
        /// Its path, ended by a NUL.
        path: [u8; 1024],
    }

    /// `struct btrfs_ioctl_fs_info_args`.
    pub struct FsInfo = 1024 {
        /// The greatest number of a device.
        max_id: u64,
        /// How many devices there are.
        devices: u64,
        /// The UUID.
        fsid: [u8; 16],
        /// Bytes of a node.
        node_size: u32,
        /// Bytes of a sector.
        sector_size: u32,
        /// What reflinks are aligned to.
        clone_alignment: u32,
        /// Which checksum.
        csum_type: u16,
        /// Bytes of a checksum.
        csum_size: u16,
        /// What of the fields behind the first six is asked for, and was filled in: `FS_INFO_*`.
        flags: u64,
        /// The last transaction.
        generation: u64,
        /// The UUID that metadata bears.
        metadata_uuid: [u8; 16],
        /// Zeros.
        reserved: [[u8; 16]; 59],
    }

    /// `struct btrfs_ioctl_feature_flags`.
    pub struct FeatureFlags = 24 {
        /// What whoever does not know it may write.
        compat: u64,
        /// What whoever does not know it may read.
        compat_ro: u64,
        /// What whoever does not know it must leave alone.
        incompat: u64,
    }

    /// `struct btrfs_ioctl_timespec`.
    pub struct IoctlTimespec = 16 {
        /// Seconds since 1970.
        seconds: u64,
        /// And nanoseconds.
        nanoseconds: u32,
        /// Zeros.
        padding: u32,
    }

    /// `struct btrfs_ioctl_get_subvol_info_args`.
    pub struct GetSubvolInfo = 504 {
        /// The subvolume.
        tree: u64,
        /// Its name, ended by a NUL.
        name: [u8; 256],
        /// The subvolume that holds it, or 0.
        parent: u64,
        /// The directory that holds it, or 0.
        directory: u64,
        /// The transaction that last changed it.
        generation: u64,
        /// As on disk.
        flags: u64,
        /// Its UUID.
        uuid: [u8; 16],
        /// That of the subvolume it is a snapshot of.
        parent_uuid: [u8; 16],
        /// That which it was received as.
        received_uuid: [u8; 16],
        /// The transaction that last changed an inode of it.
        changed: u64,
        /// That made it.
        created: u64,
        /// That it was sent in.
        sent: u64,
        /// That received it.
        received: u64,
        /// When it changed.
        change_time: IoctlTimespec,
        /// When it was made.
        creation_time: IoctlTimespec,
        /// When it was sent.
        send_time: IoctlTimespec,
        /// When it was received.
        receive_time: IoctlTimespec,
        /// Zeros.
        reserved: [u64; 8],
    }

    /// A subvolume in another, of `struct btrfs_ioctl_get_subvol_rootref_args`.
    pub struct Rootref = 16 {
        /// The subvolume.
        tree: u64,
        /// The directory that holds it.
        directory: u64,
    }

    /// `struct btrfs_ioctl_get_subvol_rootref_args`.
    pub struct GetSubvolRootref = 4096 {
        /// The least id that is asked for; where more follow, the next.
        min_tree: u64,
        /// What was found.
        rootrefs: [Rootref; 255],
        /// How many.
        count: u8,
        /// Zeros.
        align: [u8; 7],
    }

    /// `struct fsxattr`.
    pub struct FileAttributes = 28 {
        /// `FS_XFLAG_*`.
        flags: u32,
        /// Not used here.
        extent_size: u32,
        /// Not used here.
        extents: u32,
        /// Not used here.
        project: u32,
        /// Not used here.
        cow_extent_size: u32,
        /// Zeros.
        padding: [u8; 8],
    }

    /// `struct fstrim_range`.
    pub struct TrimRange = 24 {
        /// Where it starts.
        start: u64,
        /// Its length; comes back as what was trimmed.
        length: u64,
        /// Shorter runs are left alone.
        min_length: u64,
    }

    /// Our own: who serves the mount.
    pub struct ServerInfo = 4120 {
        /// [`SERVER_INFO_VERSION`].
        version: u32,
        /// The server's process, in its PID namespace.
        pid: u32,
        /// The inode of that namespace.
        pid_namespace: u64,
        /// Bytes of `source`.
        source_length: u64,
        /// What is mounted.
        source: [u8; 4096],
    }

    /// Our own: a snapshot of a subvolume by its id.
    pub struct SnapshotById = 272 {
        /// The subvolume.
        tree: u64,
        /// `SUBVOL_RDONLY` or 0.
        flags: u64,
        /// The snapshot's name, ended by a NUL.
        name: [u8; 256],
    }

    /// Our own: a page of a list that is too long for one ioctl.
    pub struct Page = 16376 {
        /// Where the page starts; comes back as where the next does.
        cursor: u64,
        /// Whether there is a next one.
        more: u32,
        /// Bytes of `bytes`.
        used: u32,
        /// What is told.
        bytes: [u8; PAGE_BYTES],
    }
}

/// Bytes of a page.
pub const PAGE_BYTES: usize = 16360;

/// The version of our own ioctls.
pub const SERVER_INFO_VERSION: u32 = 1;

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

/// What comes before the first NUL of a name; `None` where there is no NUL.
pub fn until_nul(name: &[u8]) -> Option<&[u8]> {
    name.iter().position(|&byte| byte == 0).map(|end| &name[..end])
}

/// Puts a name in a field that ends it with a NUL; `false` where it does not fit.
#[must_use]
pub fn put_name(field: &mut [u8], name: &[u8]) -> bool {
    let fits = name.len() < field.len() && !name.contains(&0);
    if fits {
        field.fill(0);
        field[..name.len()].copy_from_slice(name);
    }
    fits
}
