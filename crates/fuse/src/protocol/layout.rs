//! The bytes of requests, replies and notifications.
//!
//! Owns the structures that the kernel shares with a FUSE server, the numbers of operations, and
//! flags. Integers have the machine's byte order.
//!
//! Kernel counterpart: `include/uapi/linux/fuse.h`; the structures of rings are described in
//! Documentation/filesystems/fuse/fuse-io-uring.rst.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Commands of a submission to `/dev/fuse`.
pub(crate) mod command {
    /// Hands the kernel an entry for requests.
    pub const REGISTER: u32 = 1;
    /// Hands the kernel the reply in an entry, and the entry for the next request.
    pub const COMMIT_AND_FETCH: u32 = 2;
}

/// The major version of the protocol.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version whose structures this file describes.
pub(crate) const MINOR: u32 = 45;

/// Numbers of operations; those that are not listed, and FLUSH, get ENOSYS.
pub(crate) mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;

    /// One more than the largest number.
    pub const END: u32 = 54;
}

/// Flags for the valid fields of [`SetAttrIn`].
pub(crate) mod valid {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const HANDLE: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_PRIVILEGES: u32 = 1 << 11;
}

/// Flags for what the kernel may do with an open file.
pub(crate) mod open_flags {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Features that kernel and server agree on.
pub(crate) mod feature {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Codes of notifications.
pub(crate) mod notification {
    pub const INVALIDATE_INODE: i32 = 2;
    pub const INVALIDATE_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
}

/// Flags of `statx` for the attributes that a reply holds: the ordinary ones and the birth time.
pub(crate) const STATX_MASK: u32 = 0xfff;
/// Flag of `fsync`: data only.
pub(crate) const FSYNC_DATA_ONLY: u32 = 1 << 0;
/// Flag of a question for attributes: an open file asks.
pub(crate) const GETATTR_BY_HANDLE: u32 = 1 << 0;
/// Flags of an ioctl: the caller's program, or its file's, has pointers of 32 bits.
pub(crate) const IOCTL_SHORT_POINTERS: u32 = 1 << 0 | 1 << 3 | 1 << 5;
/// Flag of a read: a caller waits for it, whose locks it names. Reads into the page cache lack it.
pub(crate) const READ_FOR_CALLER: u32 = 1 << 1;
/// Flag of a write: the data comes from the page cache.
pub(crate) const WRITE_FROM_CACHE: u32 = 1 << 0;
/// Flag of a write: clear set-user-id and set-group-id bits.
pub(crate) const WRITE_KILLS_PRIVILEGES: u32 = 1 << 2;

/// Declares structures shared with the kernel, each with its size there.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident: $size:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
            pub(crate) struct $name {
                $(pub $field: $type,)*
            }

            const _: () = assert!(size_of::<$name>() == $size);
        )*
    };
}

structures! {
    /// The start of every request.
    InHeader: 40 {
        length: u32,
        opcode: u32,
        unique: u64,
        node: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        extension_length: u16,
        padding: u16,
    }
    /// The first request, with the kernel's offer.
    InitIn: 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        flags_high: u32,
        unused: [u32; 11],
    }
    InitOut: 64 {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_granularity_nanoseconds: u32,
        max_pages: u16,
        map_alignment: u16,
        flags_high: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }
    ForgetIn: 8 {
        lookups: u64,
    }
    /// Followed by `count` times [`ForgetOne`].
    BatchForgetIn: 8 {
        count: u32,
        padding: u32,
    }
    ForgetOne: 16 {
        node: u64,
        lookups: u64,
    }
    InvalidateInode: 24 {
        node: u64,
        offset: i64,
        length: i64,
    }
    /// Followed by the name and a NUL.
    InvalidateEntry: 16 {
        directory: u64,
        name_length: u32,
        flags: u32,
    }
    /// Followed by the bytes.
    StoreOut: 24 {
        node: u64,
        offset: u64,
        size: u32,
        padding: u32,
    }
    /// The start of every reply.
    OutHeader: 16 {
        length: u32,
        error: i32,
        unique: u64,
    }
    /// The part beside the headers, in both directions.
    EntryInOut: 32 {
        flags: u64,
        commit: u64,
        payload: u32,
        padding: u32,
        reserved: u64,
    }
    /// The first of an entry's two buffers. `in_out` holds an [`InHeader`] or an [`OutHeader`], and
    /// `operation` the first argument of a request. Further arguments are in the second buffer, the
    /// payload, as is the whole body of a reply.
    RequestHeader: 288 {
        in_out: [u8; 128],
        operation: [u8; 128],
        entry: EntryInOut,
    }
    /// The command's own bytes of a submission.
    CommandRequest: 24 {
        flags: u64,
        commit: u64,
        queue: u16,
        padding: [u8; 6],
    }
    SetAttrIn: 88 {
        valid: u32,
        padding: u32,
        handle: u64,
        size: u64,
        lock_owner: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atime_nanoseconds: u32,
        mtime_nanoseconds: u32,
        ctime_nanoseconds: u32,
        mode: u32,
        unused: u32,
        uid: u32,
        gid: u32,
        unused_too: u32,
    }
    GetattrIn: 16 {
        flags: u32,
        padding: u32,
        handle: u64,
    }
    MknodIn: 16 {
        mode: u32,
        device: u32,
        umask: u32,
        padding: u32,
    }
    MkdirIn: 8 {
        mode: u32,
        umask: u32,
    }
    RenameIn: 8 {
        directory: u64,
    }
    Rename2In: 16 {
        directory: u64,
        flags: u32,
        padding: u32,
    }
    LinkIn: 8 {
        node: u64,
    }
    OpenIn: 8 {
        flags: i32,
        open_flags: u32,
    }
    CreateIn: 16 {
        flags: i32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    }
    /// For reads and listings.
    ReadIn: 40 {
        handle: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: i32,
        padding: u32,
    }
    WriteIn: 40 {
        handle: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: i32,
        padding: u32,
    }
    ReleaseIn: 24 {
        handle: u64,
        flags: i32,
        release_flags: u32,
        lock_owner: u64,
    }
    FsyncIn: 16 {
        handle: u64,
        flags: u32,
        padding: u32,
    }
    SetXattrIn: 8 {
        size: u32,
        flags: i32,
    }
    /// Also for listing names.
    GetXattrIn: 8 {
        size: u32,
        padding: u32,
    }
    IoctlIn: 32 {
        handle: u64,
        flags: u32,
        command: u32,
        argument: u64,
        in_size: u32,
        out_size: u32,
    }
    FallocateIn: 32 {
        handle: u64,
        offset: u64,
        length: u64,
        mode: i32,
        padding: u32,
    }
    LseekIn: 24 {
        handle: u64,
        offset: i64,
        whence: i32,
        padding: u32,
    }
    CopyFileRangeIn: 56 {
        source_handle: u64,
        source_offset: u64,
        target: u64,
        target_handle: u64,
        target_offset: u64,
        length: u64,
        flags: u64,
    }
    Attr: 88 {
        number: u64,
        size: u64,
        blocks: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atime_nanoseconds: u32,
        mtime_nanoseconds: u32,
        ctime_nanoseconds: u32,
        mode: u32,
        links: u32,
        uid: u32,
        gid: u32,
        device: u32,
        block_size: u32,
        flags: u32,
    }
    EntryOut: 128 {
        node: u64,
        generation: u64,
        entry_valid: u64,
        attributes_valid: u64,
        entry_valid_nanoseconds: u32,
        attributes_valid_nanoseconds: u32,
        attributes: Attr,
    }
    AttrOut: 104 {
        valid: u64,
        valid_nanoseconds: u32,
        padding: u32,
        attributes: Attr,
    }
    StatxIn: 24 {
        getattr_flags: u32,
        reserved: u32,
        handle: u64,
        flags: u32,
        mask: u32,
    }
    StatxTime: 16 {
        seconds: i64,
        nanoseconds: u32,
        reserved: i32,
    }
    Statx: 256 {
        mask: u32,
        block_size: u32,
        attributes: u64,
        links: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        spare: u16,
        number: u64,
        size: u64,
        blocks: u64,
        attributes_mask: u64,
        atime: StatxTime,
        btime: StatxTime,
        ctime: StatxTime,
        mtime: StatxTime,
        device: [u32; 2],
        file_system: [u32; 2],
        spares: [u64; 14],
    }
    StatxOut: 288 {
        valid: u64,
        valid_nanoseconds: u32,
        flags: u32,
        spare: [u64; 2],
        attributes: Statx,
    }
    OpenOut: 16 {
        handle: u64,
        flags: u32,
        backing: u32,
    }
    /// Also for copies.
    WriteOut: 8 {
        size: u32,
        padding: u32,
    }
    StatfsOut: 80 {
        blocks: u64,
        free: u64,
        available: u64,
        files: u64,
        free_files: u64,
        block_size: u32,
        name_max: u32,
        fragment_size: u32,
        padding: u32,
        spare: [u32; 6],
    }
    GetXattrOut: 8 {
        size: u32,
        padding: u32,
    }
    IoctlOut: 16 {
        result: i32,
        flags: u32,
        in_parts: u32,
        out_parts: u32,
    }
    CopyOut64: 8 {
        bytes: u64,
    }
    LseekOut: 8 {
        offset: i64,
    }
    /// Followed by the name and by zeros up to a multiple of eight bytes.
    Dirent: 24 {
        number: u64,
        next: u64,
        name_length: u32,
        kind: u32,
    }
}
