//! A system call as a value, so that it can be chosen at random, printed, and left out.

use fastrand::Rng;
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, OFlags, RenameFlags, XattrFlags};

/// Open files of a history.
pub const SLOTS: usize = 6;
/// Users whose permissions a call may have: user, group, further groups. The first is root.
pub const USERS: [(u32, u32, &[u32]); 3] = [(0, 0, &[]), (1000, 1000, &[1001]), (1001, 1001, &[])];

/// The flags of append-only and immutable inodes.
const PROTECTED: u32 = 0x20 | 0x10;
/// Nanoseconds that leave a time as it is (`UTIME_OMIT`).
pub const OMIT: u32 = 0x3fff_fffe;

/// A call with the user who makes it.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its place in the history that was drawn.
    pub number: usize,
    /// The process that makes it.
    pub process: usize,
    /// Index in [`USERS`].
    pub user: usize,
    pub call: Call,
    /// Whether to compare which times the call changes; it takes two ticks.
    pub timed: bool,
}

/// A system call. Paths are relative to the history's directory; a slot holds an open file.
#[derive(Clone, Debug)]
pub enum Call {
    Mkdir(String, u32),
    Rmdir(String),
    Unlink(String),
    Mknod(String, u32),
    Symlink(String, String),
    ReadLink(String),
    Link(String, String, AtFlags),
    Rename(String, String, RenameFlags),
    Open(usize, String, OFlags, u32),
    LinkOpen(usize, String),
    Close(usize),
    Read(usize, u64, usize),
    Write(usize, u64, usize, u8),
    Append(usize, usize, u8),
    Truncate(String, u64),
    SetLength(usize, u64),
    Allocate(usize, FallocateFlags, u64, u64),
    CopyRange(usize, u64, usize, u64, usize),
    Chmod(String, u32),
    Chown(String, Option<u32>, Option<u32>),
    /// Seconds and nanoseconds of access and modification; `None` is the time of the call.
    SetTimes(String, Option<(i64, u32)>, Option<(i64, u32)>),
    SetXattr(String, &'static str, usize, XattrFlags),
    GetXattr(String, &'static str),
    ListXattr(String),
    RemoveXattr(String, &'static str),
    Stat(String, AtFlags),
    StatOpen(usize),
    List(String),
    Access(String, u32),
    Sync(usize),
    GetFlags(usize),
    SetFlags(usize, u32),
    StatFs(String),
    /// A lock of an open file: `flock` with one of its operations.
    Flock(usize, FlockOperation),
    /// A lock of a process on a range: its type, start and length. 0 is all to the end.
    Lock(usize, i16, i64, i64),
    /// The lock that would be in the way of one.
    GetLock(usize, i16, i64, i64),
    /// Reads through a shared mapping, within the file.
    ReadMapped(usize, u64, usize),
    /// Writes through a shared mapping, within the file.
    WriteMapped(usize, u64, usize, u8),
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const XATTRS: [&str; 6] =
    ["user.one", "user.two", "trusted.t", "security.s", "user.", "system.posix_acl_access"];

fn name(random: &mut Rng) -> String {
    match random.u8(0..100) {
        0 => "n".repeat(255),
        1 => "n".repeat(256),
        2 => ".".to_owned(),
        _ => NAMES[random.usize(0..NAMES.len())].to_owned(),
    }
}

fn path(random: &mut Rng) -> String {
    let depth = [1, 1, 1, 2, 2, 3][random.usize(0..6)];
    let mut path: Vec<_> = (0..depth).map(|_| name(random)).collect();
    if random.u8(0..60) == 0 {
        path.push(String::new());
    }
    path.join("/")
}

/// No target leads further up than to the parent of the history's directory.
fn target(random: &mut Rng) -> String {
    match random.u8(0..12) {
        0 => format!("../{}", name(random)),
        1 => format!("./{}/{}", name(random), name(random)),
        2 => "t".repeat(random.usize(1..4096)),
        3 => String::new(),
        _ => name(random),
    }
}

fn mode(random: &mut Rng) -> u32 {
    const MODES: [u32; 10] = [0o755, 0o644, 0o777, 0o700, 0o000, 0o2775, 0o1777, 0o4755, 0o6711, 0o220];
    MODES[random.usize(0..MODES.len())]
}

fn offset(random: &mut Rng) -> u64 {
    match random.u8(0..40) {
        0 => i64::MAX as u64 - random.u64(0..5000),
        1 => 1 << random.u32(20..62),
        2..=12 => random.u64(0..80) * 4096,
        _ => random.u64(0..300_000),
    }
}

fn length(random: &mut Rng) -> usize {
    match random.u8(0..12) {
        0 => 0,
        1..=3 => random.usize(1..20) * 4096,
        4..=6 => random.usize(0..3000),
        _ => random.usize(0..70_000),
    }
}

fn time(random: &mut Rng) -> Option<(i64, u32)> {
    match random.u8(0..6) {
        0 => None,
        1 => Some((-random.i64(1..1 << 33), 999_999_999)),
        2 => Some((random.i64(0..1 << 40), random.u32(0..1_000_000_000))),
        3 => Some((0, OMIT)),
        _ => Some((random.i64(0..2_000_000_000), random.u32(0..1_000_000_000))),
    }
}

fn flags_to_open(random: &mut Rng) -> OFlags {
    let mut flags = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR][random.usize(0..4)];
    for (flag, share) in [
        (OFlags::CREATE, 2),
        (OFlags::EXCL, 5),
        (OFlags::TRUNC, 5),
        (OFlags::APPEND, 6),
        (OFlags::DIRECTORY, 15),
        (OFlags::NOFOLLOW, 10),
        (OFlags::TMPFILE, 12),
        (OFlags::SYNC, 15),
        (OFlags::NOATIME, 20),
        (OFlags::PATH, 25),
    ] {
        flags.set(flag, flags.contains(flag) || random.u8(0..share) == 0);
    }
    // Opening a fifo waits for its other end.
    flags | OFlags::NONBLOCK
}

/// FUSE refuses the other modes, which Btrfs does not have, before it looks at the file's flags.
fn mode_to_allocate(random: &mut Rng) -> FallocateFlags {
    use FallocateFlags as F;
    let modes = [
        F::empty(),
        F::KEEP_SIZE,
        F::PUNCH_HOLE | F::KEEP_SIZE,
        F::ZERO_RANGE,
        F::ZERO_RANGE | F::KEEP_SIZE,
        F::PUNCH_HOLE,
    ];
    modes[random.usize(0..modes.len())]
}

/// The flags of `FS_IOC_SETFLAGS`: sync, immutable, append, nodump, noatime, compress, no
/// compression, no copy on write, dirsync; and one that Btrfs does not have.
fn inode_flags(random: &mut Rng) -> u32 {
    const FLAGS: [u32; 10] = [0x8, 0x10, 0x20, 0x40, 0x80, 0x4, 0x400, 0x80_0000, 0x1_0000, 0x2000_0000];
    match random.u8(0..4) {
        0 => 0,
        1 => FLAGS[random.usize(0..FLAGS.len())] | FLAGS[random.usize(0..FLAGS.len())],
        _ => FLAGS[random.usize(0..FLAGS.len())],
    }
}

impl Step {
    /// Returns a random step. Inodes become append-only or immutable only if `protects` is set.
    pub fn random(random: &mut Rng, protects: bool, number: usize, processes: usize) -> Self {
        let user = [0, 0, 0, 1, 1, 2][random.usize(0..6)];
        let mut call = Call::random(random);
        let mut process = 0;
        if processes > 1 {
            process = random.usize(0..processes);
            if random.u8(0..8) == 0 {
                call = Call::shared(random);
            }
        }
        if let Call::SetFlags(_, flags) = &mut call
            && !protects
        {
            *flags &= !PROTECTED;
        }
        // With its writeback cache the kernel's FUSE keeps the times of a file to itself. It does
        // not learn that a change of flags sets one, and sets them before the server allocates, or
        // refuses to.
        let timed = random.u8(0..25) == 0
            && !matches!(call, Call::SetFlags(..) | Call::Allocate(..) | Call::WriteMapped(..));
        // Before it asks the server to allocate, the kernel's FUSE takes set-user-id from a file,
        // even if nothing will change. Root may keep it.
        let user = if matches!(call, Call::Allocate(..)) { 0 } else { user };
        Self { number, process, user, call, timed }
    }
}

impl Call {
    /// Returns whether it makes an inode append-only or immutable.
    pub fn protects(&self) -> bool {
        matches!(self, Self::SetFlags(_, flags) if flags & PROTECTED != 0)
    }

    fn random(random: &mut Rng) -> Self {
        let r = random;
        let slot = |r: &mut Rng| r.usize(0..SLOTS);
        match r.u8(0..100) {
            0..=5 => Self::Mkdir(path(r), mode(r)),
            6..=7 => Self::Rmdir(path(r)),
            8..=11 => Self::Unlink(path(r)),
            12..=13 => Self::Mknod(path(r), [0o010_644, 0o140_755, 0o100_600, 0o020_666][r.usize(0..4)]),
            14..=16 => Self::Symlink(target(r), path(r)),
            17 => Self::ReadLink(path(r)),
            18..=20 => {
                let follow = [AtFlags::empty(), AtFlags::SYMLINK_FOLLOW][r.usize(0..2)];
                Self::Link(path(r), path(r), follow)
            }
            21..=26 => {
                let flags = [
                    RenameFlags::empty(),
                    RenameFlags::empty(),
                    RenameFlags::NOREPLACE,
                    RenameFlags::EXCHANGE,
                ];
                let flags = if r.u8(0..20) == 0 { RenameFlags::WHITEOUT } else { flags[r.usize(0..4)] };
                Self::Rename(path(r), path(r), flags)
            }
            27..=38 => Self::Open(slot(r), path(r), flags_to_open(r), mode(r)),
            39 => Self::LinkOpen(slot(r), path(r)),
            40 => Self::Close(slot(r)),
            41..=45 => Self::Read(slot(r), offset(r), length(r)),
            46..=53 => Self::Write(slot(r), offset(r), length(r), r.u8(..)),
            54..=55 => Self::Append(slot(r), length(r), r.u8(..)),
            56..=57 => Self::Truncate(path(r), offset(r)),
            58..=59 => Self::SetLength(slot(r), offset(r)),
            60..=63 => Self::Allocate(slot(r), mode_to_allocate(r), offset(r), length(r) as u64),
            64..=66 => Self::CopyRange(slot(r), offset(r), slot(r), offset(r), length(r)),
            67..=71 => Self::Chmod(path(r), mode(r)),
            72..=74 => {
                let id = |r: &mut Rng| [None, Some(0), Some(1000), Some(1001)][r.usize(0..4)];
                Self::Chown(path(r), id(r), id(r))
            }
            75..=76 => Self::SetTimes(path(r), time(r), time(r)),
            77..=79 => {
                let flags =
                    [XattrFlags::empty(), XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE];
                let length = [0, 5, 300, 4000, 20_000][r.usize(0..5)];
                Self::SetXattr(path(r), XATTRS[r.usize(0..XATTRS.len())], length, flags[r.usize(0..4)])
            }
            80 => Self::GetXattr(path(r), XATTRS[r.usize(0..XATTRS.len())]),
            81 => Self::ListXattr(path(r)),
            82 => Self::RemoveXattr(path(r), XATTRS[r.usize(0..XATTRS.len())]),
            83..=86 => Self::Stat(path(r), [AtFlags::empty(), AtFlags::SYMLINK_NOFOLLOW][r.usize(0..2)]),
            87..=89 => Self::StatOpen(slot(r)),
            90..=91 => Self::List(path(r)),
            92..=93 => Self::Access(path(r), r.u32(0..8)),
            94..=95 => Self::Sync(slot(r)),
            96 => Self::GetFlags(slot(r)),
            97..=98 => Self::SetFlags(slot(r), inode_flags(r)),
            _ => Self::StatFs(path(r)),
        }
    }

    /// Returns a random call by which processes notice one another.
    fn shared(r: &mut Rng) -> Self {
        let slot = r.usize(0..SLOTS);
        let kind = [libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK][r.usize(0..3)] as i16;
        let (start, length) = (r.i64(0..20) * 1000, [0, 1, 1000, 5000][r.usize(0..4)]);
        match r.u8(0..8) {
            0..=1 => {
                use FlockOperation as F;
                let operations = [F::NonBlockingLockShared, F::NonBlockingLockExclusive, F::Unlock];
                Self::Flock(slot, operations[r.usize(0..3)])
            }
            2..=3 => Self::Lock(slot, kind, start, length),
            4 => Self::GetLock(slot, kind, start, length),
            5 => Self::ReadMapped(slot, r.u64(0..200_000), r.usize(1..40_000)),
            _ => Self::WriteMapped(slot, r.u64(0..200_000), r.usize(1..40_000), r.u8(..)),
        }
    }

    /// Returns the paths that the call names.
    pub fn paths(&self) -> Vec<&str> {
        match self {
            Self::Mkdir(path, _)
            | Self::Rmdir(path)
            | Self::Unlink(path)
            | Self::Mknod(path, _)
            | Self::Symlink(_, path)
            | Self::ReadLink(path)
            | Self::Open(_, path, ..)
            | Self::LinkOpen(_, path)
            | Self::Truncate(path, _)
            | Self::Chmod(path, _)
            | Self::Chown(path, ..)
            | Self::SetTimes(path, ..)
            | Self::SetXattr(path, ..)
            | Self::GetXattr(path, _)
            | Self::ListXattr(path)
            | Self::RemoveXattr(path, _)
            | Self::Stat(path, _)
            | Self::List(path)
            | Self::Access(path, _)
            | Self::StatFs(path) => vec![path],
            Self::Link(from, to, _) | Self::Rename(from, to, _) => vec![from, to],
            _ => Vec::new(),
        }
    }

    /// Returns the slots that the call names.
    pub fn slots(&self) -> Vec<usize> {
        match *self {
            Self::Read(slot, ..)
            | Self::Write(slot, ..)
            | Self::Append(slot, ..)
            | Self::SetLength(slot, _)
            | Self::Allocate(slot, ..)
            | Self::LinkOpen(slot, _)
            | Self::StatOpen(slot)
            | Self::Sync(slot)
            | Self::GetFlags(slot)
            | Self::Flock(slot, _)
            | Self::Lock(slot, ..)
            | Self::GetLock(slot, ..)
            | Self::ReadMapped(slot, ..)
            | Self::WriteMapped(slot, ..)
            | Self::SetFlags(slot, _) => vec![slot],
            Self::CopyRange(from, _, to, ..) => vec![from, to],
            _ => Vec::new(),
        }
    }
}
