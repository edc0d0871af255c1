//! The answers to the calls that the kernel tells of.
//!
//! Owns [`answer`]. A call is carried out in the place of its caller as far as its file: the path
//! is looked up from the caller's root or directory. The rights are those of the supervisor, so a
//! caller with another user id is left to the kernel.

use super::told::Told;
use crate::caller::Caller;
use crate::own_mounts::is_own;
use crate::{calls, identity, mount_table, system};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// The answer to a call.
#[derive(Debug)]
pub(super) enum Answer {
    /// The kernel carries it out.
    Continue,
    /// It has this result.
    Result(io::Result<i32>),
    /// It opens this file.
    Descriptor { file: OwnedFd, close_on_exec: bool },
}

/// The file of a call: a directory to begin at, a path, and the flags of `fstatat`.
struct Target {
    directory: i64,
    path: CString,
    flags: i32,
}

impl Target {
    fn of_descriptor(descriptor: u64) -> Self {
        let directory = i64::from(descriptor as i32);
        Self { directory, path: CString::default(), flags: libc::AT_EMPTY_PATH }
    }

    fn of_path(caller: &Caller, directory: i32, path: u64, flags: i32) -> Option<Self> {
        Some(Self { directory: directory.into(), path: caller.read_path(path).ok()?, flags })
    }

    /// Opens the file without rights to its content.
    fn open(&self, caller: &Caller) -> io::Result<OwnedFd> {
        let follow = if self.flags & libc::AT_SYMLINK_NOFOLLOW != 0 { libc::O_NOFOLLOW } else { 0 };
        let path = self.path.to_bytes();
        if path.is_empty() {
            if self.flags & libc::AT_EMPTY_PATH == 0 {
                return Err(io::Error::from_raw_os_error(libc::ENOENT));
            }
            return self.open_directory(caller);
        }
        if path[0] != b'/' {
            let directory = self.open_directory(caller)?;
            return system::open_at(directory.as_raw_fd(), &self.path, libc::O_PATH | follow);
        }
        let path = in_proc(path, caller.id());
        let root = caller.open_in_proc("root", libc::O_DIRECTORY)?;
        let same = |path: &CStr| system::status_at(libc::AT_FDCWD, path, 0);
        let (theirs, ours) = (system::status(root.as_raw_fd())?, same(c"/")?);
        if (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino) {
            return system::open_at(libc::AT_FDCWD, &path, libc::O_PATH | follow);
        }
        open_in_root(&root, &path, libc::O_PATH | follow)
    }

    fn open_directory(&self, caller: &Caller) -> io::Result<OwnedFd> {
        match i32::try_from(self.directory) {
            Ok(libc::AT_FDCWD) => caller.open_in_proc("cwd", 0),
            Ok(fd) if fd >= 0 => caller.open_in_proc(&format!("fd/{fd}"), 0),
            _ => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }
}

/// Opens a path as a process with another root directory does.
fn open_in_root(root: &OwnedFd, path: &CStr, flags: i32) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    // SAFETY: every field may be zero.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (flags | libc::O_CLOEXEC) as u64;
    how.resolve = libc::RESOLVE_IN_ROOT;
    let (how, size) = (&raw const how, size_of::<libc::open_how>());
    let (root, path) = (root.as_raw_fd(), path.as_ptr());
    // SAFETY: the path is a string, and the structure has the size that is given.
    let fd = system::checked(unsafe { libc::syscall(libc::SYS_openat2, root, path, how, size) })?;
    // SAFETY: the call has just opened the descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Replaces `/proc/self`, which would be the supervisor.
fn in_proc(path: &[u8], caller: libc::pid_t) -> CString {
    let names: [&[u8]; 2] = [b"/proc/self", b"/proc/thread-self"];
    let rest = names
        .iter()
        .find_map(|name| path.strip_prefix(*name).filter(|rest| rest.is_empty() || rest[0] == b'/'));
    let path = match (rest, path.strip_prefix(b"/dev/fd/")) {
        (Some(rest), _) => [format!("/proc/{caller}").as_bytes(), rest].concat(),
        (None, Some(rest)) => [format!("/proc/{caller}/fd/").as_bytes(), rest].concat(),
        (None, None) => path.to_vec(),
    };
    CString::new(path).expect("the path of a call ends at its first NUL")
}

/// Answers a call. `is_valid` says whether it still waits, which must be known before the caller's
/// memory is written.
pub(super) fn answer(caller: &Caller, told: &Told, is_valid: impl Fn() -> bool) -> Answer {
    try_answer(caller, told, &is_valid).unwrap_or(Answer::Continue)
}

fn try_answer(caller: &Caller, told: &Told, is_valid: &impl Fn() -> bool) -> Option<Answer> {
    let [first, second, third, fourth, fifth, _] = told.arguments;
    let here = libc::AT_FDCWD;
    let at = |path| Target::of_path(caller, first as i32, path, fourth as i32);
    let (target, place, kind) = match libc::c_long::from(told.number) {
        libc::SYS_ioctl => {
            let answered = calls::answer(caller, i64::from(first as i32), second as u32, third)?;
            return Some(Answer::Result(answered));
        }
        libc::SYS_openat => return opened(caller, second, third as i32),
        libc::SYS_statfs => (Target::of_path(caller, here, first, 0)?, second, Wanted::FileSystem),
        libc::SYS_fstatfs => (Target::of_descriptor(first), second, Wanted::FileSystem),
        libc::SYS_newfstatat => (at(second)?, third, Wanted::Status),
        libc::SYS_fstat => (Target::of_descriptor(first), second, Wanted::Status),
        libc::SYS_statx => {
            let target = Target::of_path(caller, first as i32, second, third as i32)?;
            (target, fifth, Wanted::Extended { flags: third as i32, mask: fourth as u32 })
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_stat => (Target::of_path(caller, here, first, 0)?, second, Wanted::Status),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_lstat => {
            let target = Target::of_path(caller, here, first, libc::AT_SYMLINK_NOFOLLOW)?;
            (target, second, Wanted::Status)
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => return opened(caller, first, second as i32),
        _ => return None,
    };
    let file = target.open(caller).ok()?;
    let mut status = system::status(file.as_raw_fd()).ok()?;
    if !is_own(status.st_dev) || !has_our_user(caller) || !is_valid() {
        return None;
    }
    match kind {
        Wanted::Status => {
            identity::rewrite(&mut status);
            caller.write_plain(place, &status).ok()?;
        }
        Wanted::FileSystem => caller.write_plain(place, &file_system_of(&file).ok()?).ok()?,
        Wanted::Extended { flags, mask } => {
            let mut status = extended_status(&file, flags, mask).ok()?;
            identity::rewrite_extended(&mut status);
            caller.write_plain(place, &status).ok()?;
        }
    }
    Some(Answer::Result(Ok(0)))
}

/// The structure that a call asks for.
enum Wanted {
    Status,
    FileSystem,
    Extended { flags: i32, mask: u32 },
}

fn file_system_of(file: &OwnedFd) -> io::Result<libc::statfs> {
    // SAFETY: every field may be zero.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call.
    system::checked(unsafe { libc::syscall(libc::SYS_fstatfs, file.as_raw_fd(), &raw mut found) })?;
    if found.f_type as u32 == identity::FUSE_MAGIC {
        found.f_type = identity::BTRFS_MAGIC as _;
    }
    Ok(found)
}

fn extended_status(file: &OwnedFd, flags: i32, mask: u32) -> io::Result<libc::statx> {
    // SAFETY: every field may be zero.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let (empty, flags) = (c"".as_ptr(), flags | libc::AT_EMPTY_PATH);
    let fd = file.as_raw_fd();
    // SAFETY: the path is a string, and the structure outlives the call.
    system::checked(unsafe { libc::syscall(libc::SYS_statx, fd, empty, flags, mask, &raw mut found) })?;
    Ok(found)
}

/// Answers the opening of a table of mounts.
fn opened(caller: &Caller, path: u64, flags: i32) -> Option<Answer> {
    let path = caller.read_path(path).ok()?;
    if flags & libc::O_ACCMODE != libc::O_RDONLY || !mount_table::is_table(&path) || !has_our_user(caller) {
        return None;
    }
    let theirs = match path.to_bytes() {
        b"/proc/mounts" | b"/etc/mtab" => CString::new(format!("/proc/{}/mounts", caller.id())).ok()?,
        given => in_proc(given, caller.id()),
    };
    let table = system::read_all(&system::open_at(libc::AT_FDCWD, &theirs, libc::O_RDONLY).ok()?).ok()?;
    let file = system::file_in_memory(&mount_table::rewritten(&path, &table), true).ok()?;
    Some(Answer::Descriptor { file, close_on_exec: flags & libc::O_CLOEXEC != 0 })
}

/// Returns whether the caller's user for files is this process's.
fn has_our_user(caller: &Caller) -> bool {
    let user = |process: &str| {
        let path = CString::new(format!("/proc/{process}/status")).ok()?;
        let text = system::read_all(&system::open_at(libc::AT_FDCWD, &path, libc::O_RDONLY).ok()?).ok()?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        // Real, effective, saved, and that for files.
        line.split_ascii_whitespace().nth(3)?.parse::<u32>().ok()
    };
    let theirs = user(&caller.id().to_string());
    theirs.is_some() && theirs == user("self")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_own_directory_in_proc_is_its_own() {
        let named = |path: &[u8]| in_proc(path, 77).into_string().unwrap();
        assert_eq!(named(b"/proc/self/fd/3"), "/proc/77/fd/3");
        assert_eq!(named(b"/proc/thread-self"), "/proc/77");
        assert_eq!(named(b"/proc/selfish"), "/proc/selfish");
        assert_eq!(named(b"/dev/fd/4"), "/proc/77/fd/4");
    }

    #[test]
    fn files_of_a_caller_are_found() {
        let caller = Caller::of_thread(std::process::id() as libc::pid_t).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let inode =
            |target: &Target| system::status(target.open(&caller).unwrap().as_raw_fd()).unwrap().st_ino;
        let own = system::status(file.as_file().as_raw_fd()).unwrap().st_ino;
        let path = CString::new(file.path().to_str().unwrap()).unwrap();
        assert_eq!(inode(&Target { directory: -1, path: path.clone(), flags: 0 }), own);
        assert_eq!(inode(&Target::of_descriptor(file.as_file().as_raw_fd() as u64)), own);
        let root = system::open_at(libc::AT_FDCWD, c"/", libc::O_PATH).unwrap();
        let found = open_in_root(&root, &path, libc::O_PATH).unwrap();
        assert_eq!(system::status(found.as_raw_fd()).unwrap().st_ino, own);
        assert!(has_our_user(&caller));
        let missing = Target { directory: libc::AT_FDCWD.into(), path: CString::default(), flags: 0 };
        assert!(missing.open(&caller).is_err());
    }
}
