//! The caller's groups, umask and open files, from /proc.
//!
//! FUSE passes only a user, a group and a thread id. The server reads the rest from /proc if it has
//! permission; otherwise it knows less and allows less. The caller controls what /proc shows, so it
//! only decides on the caller's own permissions.
//!
//! A kernel that allows idmapped mounts passes the user and the group with requests that make an
//! inode only. For others the server reads those of the thread. It waits for the reply, without
//! being killed, so its ids stay the same meanwhile.

use super::call::{Caller, IoctlCall, Result, UNTOLD};
use papilio::Inode;
use papilio::format::{InodeNumber, TreeId};
use papilio_ioctl::Errno;
use papilio_ioctl::mount_table::{self, MountEntry};
use papilio_ioctl::shown_number::place_of_shown;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

/// How often a thread that is not asleep yet is looked at, and how long each time waits.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_micros(50);

impl Caller {
    /// Returns whether the request tells the caller's ids.
    pub(crate) fn is_told(&self) -> bool {
        self.uid != UNTOLD
    }

    /// Returns the caller with the ids that its thread has for files, where the request does not
    /// tell them. They stay [`UNTOLD`] for a thread that the server cannot see.
    pub(crate) fn known(self) -> Self {
        if self.is_told() || self.pid == 0 {
            return self;
        }
        let directory = PathBuf::from(format!("/proc/{}", self.pid));
        let status = match fs::read_to_string(directory.join("status")) {
            Ok(status) => status,
            // Without a descriptor it can be seen whose the directory is: the effective ids'
            // (`task_dump_owner`, `fs/proc/base.c`).
            Err(error) if [Some(libc::EMFILE), Some(libc::ENFILE)].contains(&error.raw_os_error()) => {
                let owner = fs::metadata(directory).map(|metadata| (metadata.uid(), metadata.gid()));
                return owner.map_or(self, |(uid, gid)| Self { uid, gid, ..self });
            }
            Err(_) => return self,
        };
        // Real, effective, saved, and that for files.
        let id = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().nth(3)?.parse().ok()
        };
        match (id("Uid:"), id("Gid:")) {
            (Some(uid), Some(gid)) => Self { uid, gid, ..self },
            _ => self,
        }
    }
}

/// Returns whether a thread made its ioctl through another mount than an ordinary one of this file
/// system; `None` if that cannot be found out. `number` is that of the inode, as users see it.
/// Another thread may put another file in the descriptor's place: it gains nothing if that is the
/// same inode.
pub(super) fn is_mapped(call: &IoctlCall<'_>, number: u64) -> Option<bool> {
    let thread = call.caller.pid;
    let descriptor = ioctl_descriptor(thread)?;
    let info = fs::read(format!("/proc/{thread}/fdinfo/{descriptor}")).ok()?;
    let mounts = mount_table::parse(&fs::read(format!("/proc/{thread}/mountinfo")).ok()?);
    let id = field_of(&info, "mnt_id:")?;
    let mount = mounts.into_iter().find(|mount| mount.id == id)?;
    let own = MountEntry::of_papilio_on(&call.mount.directory).ok()??;
    let same = own.device == mount.device && field_of(&info, "ino:") == Some(number);
    Some(!same || mount.is_idmapped())
}

/// Returns the descriptor of the ioctl that a thread waits in.
fn ioctl_descriptor(thread: u32) -> Option<u32> {
    for _ in 0..ATTEMPTS {
        let line = fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
        if line.trim() != "running" {
            let argument = line.split_ascii_whitespace().nth(1)?.strip_prefix("0x")?;
            return u32::from_str_radix(argument, 16).ok();
        }
        // It has sent the request and does not sleep yet.
        std::thread::sleep(PAUSE);
    }
    None
}

/// Returns a number in what /proc tells of a descriptor.
fn field_of(info: &[u8], name: &str) -> Option<u64> {
    std::str::from_utf8(info).ok()?.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// Returns all groups of the caller.
pub(super) fn groups(caller: &Caller) -> Vec<u32> {
    let mut groups = vec![caller.gid];
    if let Some(line) = status_field(caller.pid, "Groups:") {
        groups.extend(line.split_ascii_whitespace().filter_map(|group| group.parse::<u32>().ok()));
    }
    groups
}

/// Returns whether the caller is known not to administrate this machine: it lacks `CAP_SYS_ADMIN`,
/// or is in another user namespace than the server.
pub(super) fn lacks_administration(caller: &Caller) -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    let effective = status_field(caller.pid, "CapEff:");
    let effective = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
    effective.is_some_and(|effective| effective & SYS_ADMIN == 0)
        || namespace(&caller.pid.to_string())
            .is_some_and(|theirs| namespace("self").is_some_and(|ours| ours != theirs))
}

/// Returns the caller's umask.
pub(super) fn umask(call: &IoctlCall<'_>) -> u32 {
    let told = status_field(call.caller.pid, "Umask:");
    told.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(call.umask)
}

/// Returns whether a signal waits for the caller, or it is gone.
pub(super) fn has_signal(caller: &Caller) -> bool {
    if caller.pid == 0 {
        return false;
    }
    let pending =
        |name| status_field(caller.pid, name).and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    let blocked = pending("SigBlk:").unwrap_or(0);
    match (pending("SigPnd:"), pending("ShdPnd:")) {
        (Some(own), Some(shared)) => (own | shared) & !blocked != 0,
        _ => !std::path::Path::new(&format!("/proc/{}", caller.pid)).exists(),
    }
}

fn status_field(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
}

/// A descriptor of the caller in this mount, as /proc tells of it.
struct CallersDescriptor {
    process: PathBuf,
    number: u32,
    /// The content of its file in `fdinfo`.
    info: Vec<u8>,
    mount: MountEntry,
}

/// Converts an error of reading the caller's /proc.
fn unseen(error: std::io::Error) -> Errno {
    match error.kind() {
        std::io::ErrorKind::NotFound => Errno(libc::EBADF),
        _ => Errno(libc::EOPNOTSUPP),
    }
}

impl CallersDescriptor {
    /// Looks at a descriptor, which must be in this mount.
    ///
    /// # Errors
    /// EBADF if the descriptor is not open, EXDEV for another file system, EOPNOTSUPP if the server
    /// may not read the caller's /proc.
    fn find(call: &IoctlCall<'_>, fd: i64) -> Result<Self> {
        let process = PathBuf::from(format!("/proc/{}", call.caller.pid));
        let number = u32::try_from(fd).map_err(|_| Errno(libc::EBADF))?;
        let info = fs::read(process.join(format!("fdinfo/{number}"))).map_err(unseen)?;
        let id = field_of(&info, "mnt_id:");
        let mounts = mount_table::parse(&fs::read(process.join("mountinfo")).map_err(unseen)?);
        let mount = mounts.into_iter().find(|mount| Some(mount.id) == id).ok_or(Errno(libc::EOPNOTSUPP))?;
        let own = MountEntry::of_papilio_on(&call.mount.directory).map_err(unseen)?;
        if own.is_none_or(|own| own.device != mount.device) {
            return Err(Errno(libc::EXDEV));
        }
        Ok(Self { process, number, info, mount })
    }

    /// Returns the inode at the path that /proc shows.
    fn inode_by_path(&self, call: &IoctlCall<'_>) -> Result<Inode> {
        let path = fs::read_link(self.process.join(format!("fd/{}", self.number))).map_err(unseen)?;
        let below = path.strip_prefix(&self.mount.point).map_err(|_| Errno(libc::EOPNOTSUPP))?;
        // A bind mount may show only a part of the file system.
        let inside = self.mount.root.join(below);
        let names = inside.as_os_str().as_bytes().split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        let mut inode = call.mount.root(call.fs)?;
        for name in names {
            inode = inode.lookup(name)?.ok_or(Errno(libc::ENOENT))?;
        }
        Ok(inode)
    }
}

/// Returns the inode behind one of the caller's file descriptors, which must be in this mount.
/// Finds the descriptor's mount and path in /proc.
///
/// # Errors
/// EBADF if the descriptor is not open, EXDEV for another file system, EPERM for an idmapped mount,
/// EOPNOTSUPP if the server may not read the caller's /proc.
pub(super) fn file_of(call: &IoctlCall<'_>, fd: i64) -> Result<Inode> {
    let descriptor = CallersDescriptor::find(call, fd)?;
    if descriptor.mount.is_idmapped() && !call.is_administrator() {
        return Err(Errno(libc::EPERM));
    }
    descriptor.inode_by_path(call)
}

/// Returns the inode behind one of the caller's file descriptors, which must be in this mount and
/// open for reading. The file may have lost its names. Owners do not matter for an open file, so an
/// idmapped mount is as good as any.
///
/// # Errors
/// EBADF if the descriptor is not open for reading; EXDEV and EOPNOTSUPP as [`file_of`].
pub(super) fn readable_file_of(call: &IoctlCall<'_>, fd: i64) -> Result<Inode> {
    let descriptor = CallersDescriptor::find(call, fd)?;
    if !is_readable(&descriptor.info) {
        return Err(Errno(libc::EBADF));
    }
    match field_of(&descriptor.info, "ino:").and_then(place_of_shown) {
        Some((0, own)) => Ok(call.fs.inode_at(call.fs.root()?.tree(), InodeNumber(own))?),
        Some((tree, own)) => Ok(call.fs.inode_at(TreeId(tree), InodeNumber(own))?),
        None => descriptor.inode_by_path(call),
    }
}

/// Returns whether what /proc tells of a descriptor says that it is open for reading.
fn is_readable(info: &[u8]) -> bool {
    let text = String::from_utf8_lossy(info);
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| {
        flags & libc::O_PATH == 0 && [libc::O_RDONLY, libc::O_RDWR].contains(&(flags & libc::O_ACCMODE))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_a_request_does_not_tell_are_those_of_the_thread() {
        let untold = Caller { uid: UNTOLD, gid: UNTOLD, pid: std::process::id() };
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!(untold.known(), Caller { uid, gid, ..untold });
        let told = Caller { uid: 5, gid: 6, ..untold };
        assert_eq!(told.known(), told);
        let unseen = Caller { pid: 0, ..untold };
        assert_eq!(unseen.known(), unseen);
    }

    #[test]
    fn descriptors_for_writing_are_not_readable() {
        for (flags, readable) in [("0100000", true), ("02", true), ("0100001", false), ("010000000", false)] {
            assert_eq!(is_readable(format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t30\n").as_bytes()), readable);
        }
        assert!(!is_readable(b"flags:\tx\n") && !is_readable(b""));
    }

    #[test]
    fn own_process_is_readable() {
        let caller = Caller { uid: 0, gid: 77, pid: std::process::id() };
        assert!(groups(&caller).contains(&77));
        assert!(status_field(caller.pid, "Umask:").is_some());
    }
}
