//! Idmapped mounts: the same steps through a mount with other owners (`mount_setattr`) of Papilio
//! and of the kernel's Btrfs, with every result compared. FUSE allows them since Linux 6.12.

use crate::compared::both;
use crate::script::{Script, done};
use crate::server::{Mount, NEEDS, check, make_image};
use papilio_oracle::{Need, Scratch, require};
use rustix::fs::{Mode, OFlags, RenameFlags, XattrFlags};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The id that the mount shows for id 0 of the file system.
const FIRST: u32 = 100_000;
const COUNT: u32 = 65_536;

const SUBVOL_CREATE: u64 = 0x5000_940e;
const SUBVOL_GETFLAGS: u64 = 0x8008_9419;
const SUBVOL_SETFLAGS: u64 = 0x4008_941a;
const GETFLAGS: u64 = 0x8008_6601;
const SETFLAGS: u64 = 0x4008_6602;
const READ_ONLY: u64 = 2;

/// A process in a user namespace with the map.
struct Namespace(Child);

impl Namespace {
    fn new() -> Self {
        let own = Self(Command::new("unshare").args(["-U", "sleep", "600"]).spawn().unwrap());
        let process = own.0.id();
        let read = |name: &str| std::fs::read_link(format!("/proc/{name}/ns/user")).ok();
        let begun = Instant::now();
        while read(&process.to_string()) == read("self") {
            assert!(begun.elapsed() < Duration::from_secs(10), "unshare makes no namespace");
            std::thread::sleep(Duration::from_millis(5));
        }
        for map in ["uid_map", "gid_map"] {
            std::fs::write(format!("/proc/{process}/{map}"), format!("0 {FIRST} {COUNT}")).unwrap();
        }
        own
    }

    fn open(&self) -> OwnedFd {
        std::fs::File::open(format!("/proc/{}/ns/user", self.0.id())).unwrap().into()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A bind mount that shows other owners. Dropping it unmounts.
struct Mapped(PathBuf);

impl Mapped {
    fn new(of: &Path, on: PathBuf, namespace: &Namespace) -> io::Result<Self> {
        #[repr(C)]
        struct Attributes {
            set: u64,
            clear: u64,
            propagation: u64,
            namespace: u64,
        }
        const IDMAP: u64 = 0x0010_0000;
        let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap();
        let made = |number: i64| if number < 0 { Err(io::Error::last_os_error()) } else { Ok(number) };
        let namespace = namespace.open();
        let attributes =
            Attributes { set: IDMAP, clear: 0, propagation: 0, namespace: namespace.as_raw_fd() as u64 };
        let (of, target) = (path(of), path(&on));
        let empty = c"".as_ptr();
        // SAFETY: the strings and the structure live as long as the calls, which do not keep them.
        let tree = unsafe {
            let flags = 1 | libc::O_CLOEXEC; // OPEN_TREE_CLONE
            let number = made(libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, of.as_ptr(), flags))? as i32;
            let tree = OwnedFd::from_raw_fd(number);
            let size = size_of::<Attributes>();
            let (at, what) = (libc::AT_EMPTY_PATH, &raw const attributes);
            made(libc::syscall(libc::SYS_mount_setattr, number, empty, at, what, size))?;
            tree
        };
        std::fs::create_dir(&on)?;
        // SAFETY: as before.
        unsafe {
            let (from, to) = (tree.as_raw_fd(), libc::AT_FDCWD);
            let from_tree = 4; // MOVE_MOUNT_F_EMPTY_PATH
            made(libc::syscall(libc::SYS_move_mount, from, empty, to, target.as_ptr(), from_tree))?;
        }
        Ok(Self(on))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = papilio_oracle::scratch::unmount(&self.0);
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Makes an ioctl with a number as argument, and returns what it leaves there.
fn ioctl(path: &Path, command: u64, mut number: u64) -> io::Result<u64> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    // SAFETY: these ioctls read and write eight bytes at most, or 4096 of a zeroed buffer.
    let result = unsafe {
        if command == SUBVOL_CREATE {
            let mut arguments = [0_u8; 4096];
            arguments[8..12].copy_from_slice(b"made");
            libc::ioctl(file.as_raw_fd(), command, arguments.as_mut_ptr())
        } else {
            libc::ioctl(file.as_raw_fd(), command, &raw mut number)
        }
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(number) }
}

/// Records the result of an ioctl.
fn call(s: &mut Script, name: &str, command: u64, number: u64) {
    s.step(format!("ioctl {command:x} {number} {name}"), |root| {
        Ok(ioctl(&root.join(name), command, number)?.to_string())
    });
}

/// An access control list with entries for a user and a group.
fn list(user: u32, group: u32) -> Vec<u8> {
    let none = u32::MAX;
    let entries =
        [(1_u16, 7_u16, none), (2, 6, user), (4, 5, none), (8, 4, group), (16, 7, none), (32, 0, none)];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Steps of the users whose ids the mount shows, of root, and of others.
fn steps(s: &mut Script) {
    s.stat("");
    s.stat("home/old");
    for (uid, gid) in [(FIRST, FIRST), (FIRST + 1000, FIRST + 1000), (1000, 1000), (0, 0)] {
        s.user(uid, gid, &[FIRST + 77], |s| {
            let name = |what: &str| format!("home/{what}-{uid}");
            s.mkdir(&name("d"), 0o2775);
            s.stat(&name("d"));
            s.write(&name("f"), b"text");
            s.stat(&name("f"));
            s.symlink("f", &name("l"));
            s.stat(&name("l"));
            s.mknod(&name("p"), rustix::fs::FileType::Fifo, 0o640, 0);
            s.stat(&name("p"));
            drop(s.open("home", OFlags::TMPFILE | OFlags::RDWR, 0o600));
            s.rename(&name("l"), &name("m"), RenameFlags::WHITEOUT);
            s.stat(&name("l"));
            s.link(&name("f"), &name("n"));
            s.chown(&name("f"), Some(FIRST + 1000), None);
            s.chown(&name("f"), None, Some(FIRST + 77));
            s.chown(&name("f"), Some(5), Some(5));
            s.chmod(&name("f"), 0o6755);
            s.stat(&name("f"));
            s.write(&name("f"), b"more text");
            s.stat(&name("f"));
            s.setxattr(
                &name("d"),
                "system.posix_acl_default",
                &list(FIRST + 3, FIRST + 4),
                XattrFlags::empty(),
            );
            s.setxattr(
                &name("d"),
                "system.posix_acl_access",
                &list(FIRST + 3, FIRST + 4),
                XattrFlags::empty(),
            );
            s.setxattr(&name("d"), "system.posix_acl_access", &list(3, 4), XattrFlags::empty());
            s.getxattr(&name("d"), "system.posix_acl_default");
            s.write(&format!("home/d-{uid}/inside"), b"x");
            s.stat(&format!("home/d-{uid}/inside"));
            s.getxattr(&format!("home/d-{uid}/inside"), "system.posix_acl_access");
            s.setxattr(&name("f"), "user.a", b"value", XattrFlags::empty());
            s.chmod("home/old", 0o640);
            call(s, "home/old", GETFLAGS, 0);
            call(s, "home/old", SETFLAGS, 0x80); // no access times
            call(s, "home/old", SETFLAGS, 0x10); // immutable
            call(s, "home/old", GETFLAGS, 0);
            call(s, "home/old", SETFLAGS, 0);
            call(s, "sub", SUBVOL_GETFLAGS, 0);
            s.read("home/old");
            s.step("utimes", |root| {
                let now = rustix::fs::Timestamps {
                    last_access: rustix::fs::Timespec { tv_sec: 5, tv_nsec: 0 },
                    last_modification: rustix::fs::Timespec { tv_sec: 6, tv_nsec: 0 },
                };
                let flags = rustix::fs::AtFlags::empty();
                done(rustix::fs::utimensat(rustix::fs::CWD, root.join("home/old"), &now, flags))
            });
            s.truncate(&name("n"), 3);
            s.unlink(&name("n"));
        });
    }
    s.list("home");
    call(s, "", SUBVOL_GETFLAGS, 0);
}

/// Fills a file system by its plain mount, then takes the steps on an idmapped one.
fn on_mapped(s: &mut Script) {
    let namespace = Namespace::new();
    let root = s.path("");
    s.mkdir("home", 0o777);
    s.write("home/old", b"old");
    s.chown("home/old", Some(0), Some(0));
    s.chown("home", Some(1000), Some(1000));
    s.mkdir("sub", 0o755);
    let on = root.with_file_name(format!("{}-mapped", root.file_name().unwrap().display()));
    let mapped = Mapped::new(&root, on, &namespace).unwrap();
    let mut there = Script::new(&mapped.0);
    steps(&mut there);
    s.append(there);
    s.stat("home/old");
    s.list("home");
}

fn needs() -> Vec<Need> {
    [NEEDS, &[Need::Root, Need::Command("unshare")]].concat()
}

/// Returns whether this kernel's FUSE has idmapped mounts.
fn kernel_has_them() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

#[test]
fn an_idmapped_mount_is_as_the_kernels() {
    if require(&needs()).is_none() || !kernel_has_them() {
        return;
    }
    both("noatime,allow_other,default_permissions", on_mapped);
}

/// Ioctls take the caller's ids from its process. Those of Btrfs that compare or store owners are
/// refused through an idmapped mount, except to an administrator.
#[test]
fn ioctls_know_their_callers() {
    if require(&needs()).is_none() || !kernel_has_them() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = make_image(&scratch, 1 << 30);
    let mount = Mount::new(&scratch, &image, "allow_other,user_subvol_rm_allowed");
    for (name, owner) in [("of-1000", 1000), ("of-0", 0), ("of-101000", FIRST + 1000)] {
        std::fs::create_dir(mount.path().join(name)).unwrap();
        chown(mount.path().join(name), Some(owner), Some(owner)).unwrap();
    }
    let namespace = Namespace::new();
    let mapped = Mapped::new(mount.path(), scratch.unique("mapped"), &namespace).unwrap();
    let tried = |root: &Path, uid: u32, name: &str, command: u64, number: u64| {
        std::thread::scope(|scope| {
            let by_user = scope.spawn(|| {
                crate::script::become_user(uid, uid, &[]);
                ioctl(&root.join(name), command, number)
            });
            by_user.join().unwrap().map_err(|error| error.raw_os_error().unwrap())
        })
    };
    let plain = mount.path();
    // On the plain mount, owners do what they may and strangers do not.
    assert_eq!(tried(plain, 1000, "of-0", SUBVOL_CREATE, 0), Err(libc::EACCES));
    assert_eq!(tried(plain, 1000, "of-1000", SUBVOL_CREATE, 0), Ok(0));
    let owner = |path: PathBuf| std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(path).unwrap());
    assert_eq!(owner(plain.join("of-1000/made")), 1000);
    assert_eq!(tried(plain, 1001, "of-1000/made", SUBVOL_SETFLAGS, READ_ONLY), Err(libc::EPERM));
    assert_eq!(tried(plain, 1000, "of-1000/made", SUBVOL_SETFLAGS, READ_ONLY), Ok(READ_ONLY));
    assert_eq!(tried(plain, 1000, "of-1000/made", SUBVOL_SETFLAGS, 0), Ok(0));
    // Through the map, user 1000 of the file system is another one, and owns nothing.
    for uid in [1000, FIRST + 1000] {
        let result = tried(&mapped.0, uid, "of-1000/made", SUBVOL_SETFLAGS, READ_ONLY);
        assert_eq!(result, Err(libc::EPERM), "{uid}");
        for name in ["of-1000", "of-101000", "of-0"] {
            let result = tried(&mapped.0, uid, name, SUBVOL_CREATE, 0);
            assert_eq!(result, Err(libc::EACCES), "{uid} {name}");
        }
    }
    assert_eq!(tried(&mapped.0, 0, "of-0", SUBVOL_CREATE, 0), Err(libc::EOPNOTSUPP));
    assert_eq!(tried(&mapped.0, 0, "of-1000/made", SUBVOL_SETFLAGS, READ_ONLY), Ok(READ_ONLY));
    assert_eq!(tried(plain, 0, "of-0", SUBVOL_CREATE, 0), Ok(0));
    drop(mapped);
    mount.unmount();
    check(&image);
}
