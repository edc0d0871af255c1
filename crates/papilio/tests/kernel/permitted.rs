//! The rights of users are those that the kernel grants: seeded directories with files of random
//! owners, modes and access control lists, and operations of random users.
//!
//! The kernel carries out each operation on a mount. Papilio checks it, and carries it out on a
//! copy of the image. Results, and then owners, modes and names, must be equal.
//! `PAPILIO_PERMISSION_CASES` sets the number of operations.

use crate::images::{open, writable};
use papilio::{
    Caller, FileSystem, Inode, NewKind, Permissions, RenameMode, SetAttributes, SetTime, Timespec,
};
use papilio_oracle::sys::as_user;
use papilio_oracle::{FileSystemSpec, Need, Scratch, require};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timestamps, Uid};
use std::fs::File;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

const NONE: u32 = u32::MAX;
const USERS: [u32; 4] = [0, 1001, 1002, 1003];
const GROUPS: [u32; 4] = [0, 2001, 2002, 2003];
/// Time in the past, as a user gives it.
const GIVEN: i64 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Read,
    Write,
    Execute,
    Search,
    Unlink,
    RemoveDir,
    Move(&'static str),
    Replace,
    Create(u32),
    MakeDir(u32),
    Device,
    Fifo,
    Symlink,
    Chmod(u32),
    Chown(u32),
    Chgrp(u32),
    Touch,
    SetTimes,
}

#[derive(Debug)]
struct Case {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    operation: Operation,
}

impl Case {
    fn random(random: &mut fastrand::Rng) -> Self {
        use Operation as O;
        let new_mode = [0o640, 0o755, 0o2755, 0o2644, 0o4711][random.usize(..5)];
        let operations = [
            O::Read,
            O::Write,
            O::Execute,
            O::Search,
            O::Unlink,
            O::RemoveDir,
            O::Move("file"),
            O::Move("folder"),
            O::Replace,
            O::Create(new_mode),
            O::MakeDir(new_mode & 0o2777),
            O::Device,
            O::Fifo,
            O::Symlink,
            O::Chmod([0o600, 0o2755, 0o2644, 0o6777, 0o1777][random.usize(..5)]),
            O::Chown(random.choice(USERS).unwrap()),
            O::Chgrp(random.choice(GROUPS).unwrap()),
            O::Touch,
            O::SetTimes,
        ];
        // Root is in few cases, because it may do almost everything.
        let uid = if random.u32(..8) == 0 { 0 } else { USERS[random.usize(1..4)] };
        let groups = (0..random.u32(..3)).map(|_| random.choice(GROUPS).unwrap()).collect();
        Self {
            uid,
            gid: random.choice(GROUPS).unwrap(),
            groups,
            operation: random.choice(operations).unwrap(),
        }
    }
}

/// An access control list as the system calls take it: `(tag, permissions, id)` of each entry.
fn random_list(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    let mut add = |tag: u16, permissions: u16, id: u32| {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    };
    add(1, random.u16(..8), NONE);
    for user in USERS.into_iter().filter(|_| random.bool()).collect::<Vec<_>>() {
        add(2, random.u16(..8), user);
    }
    add(4, random.u16(..8), NONE);
    for group in GROUPS.into_iter().filter(|_| random.bool()).collect::<Vec<_>>() {
        add(8, random.u16(..8), group);
    }
    add(0x10, random.u16(..8), NONE);
    add(0x20, random.u16(..8), NONE);
    bytes
}

/// Gives a file or directory a random owner, mode and list.
fn protect(path: &Path, is_directory: bool, random: &mut fastrand::Rng) {
    chown(path, Some(random.choice(USERS).unwrap()), Some(random.choice(GROUPS).unwrap())).unwrap();
    // Most directories let somebody in, or few operations would succeed.
    let open = if is_directory && random.u32(..4) != 0 { 0o333 } else { 0 };
    let special = if random.bool() { random.u32(..8) << 9 } else { 0 };
    let mode = random.u32(..0o1000) | open | special;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    if random.u32(..3) == 0 {
        xattr::set(path, "system.posix_acl_access", &random_list(random)).unwrap();
    }
    if is_directory && random.u32(..4) == 0 {
        xattr::set(path, "system.posix_acl_default", &random_list(random)).unwrap();
    }
}

fn prepare(root: &Path, cases: usize, random: &mut fastrand::Rng) {
    for number in 0..cases {
        let (from, to) = (root.join(format!("{number}")), root.join(format!("{number}-to")));
        for folder in [from.clone(), to.clone(), from.join("folder")] {
            std::fs::create_dir(folder).unwrap();
        }
        for name in ["file", "other"] {
            std::fs::write(from.join(name), "content").unwrap();
            protect(&from.join(name), false, random);
        }
        protect(&from.join("folder"), true, random);
        protect(&from, true, random);
        protect(&to, true, random);
    }
}

/// Carries an operation out on the kernel's mount, as the calling thread's user. Returns the errno,
/// 0 for success.
fn by_kernel(from: &File, to: &File, operation: Operation) -> i32 {
    use Operation as O;
    let flags = AtFlags::empty();
    let opened = |flags: OFlags, mode: u32| {
        rustix::fs::openat(from, "file", flags, Mode::from_raw_mode(mode)).map(drop)
    };
    let node = |kind, mode| rustix::fs::mknodat(from, "new", kind, Mode::from_raw_mode(mode), 0x103);
    let times = |nanoseconds, seconds| {
        let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        rustix::fs::utimensat(from, "file", &Timestamps { last_access: time, last_modification: time }, flags)
    };
    let ids = |uid: Option<u32>, gid: Option<u32>| {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        rustix::fs::chownat(from, "file", uid, gid, flags)
    };
    let result = match operation {
        O::Read => opened(OFlags::RDONLY, 0),
        O::Write => opened(OFlags::WRONLY, 0),
        O::Execute => rustix::fs::accessat(from, "file", rustix::fs::Access::EXEC_OK, AtFlags::EACCESS),
        O::Search => rustix::fs::statat(from, "file", flags).map(drop),
        O::Unlink => rustix::fs::unlinkat(from, "file", flags),
        O::RemoveDir => rustix::fs::unlinkat(from, "folder", AtFlags::REMOVEDIR),
        O::Move(name) => rustix::fs::renameat(from, name, to, "new"),
        O::Replace => rustix::fs::renameat(from, "file", from, "other"),
        O::Create(mode) => rustix::fs::openat(
            from,
            "new",
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY,
            Mode::from_raw_mode(mode),
        )
        .map(drop),
        O::MakeDir(mode) => rustix::fs::mkdirat(from, "new", Mode::from_raw_mode(mode)),
        O::Device => node(rustix::fs::FileType::CharacterDevice, 0o600),
        O::Fifo => node(rustix::fs::FileType::Fifo, 0o600),
        O::Symlink => rustix::fs::symlinkat("target", from, "new"),
        O::Chmod(mode) => rustix::fs::chmodat(from, "file", Mode::from_raw_mode(mode), flags),
        O::Chown(uid) => ids(Some(uid), None),
        O::Chgrp(gid) => ids(None, Some(gid)),
        O::Touch => times(rustix::fs::UTIME_NOW, 0),
        O::SetTimes => times(0, GIVEN),
    };
    result.map_or_else(|errno| errno.raw_os_error(), |()| 0)
}

/// Checks an operation and carries it out.
fn by_papilio(from: &Inode, to: &Inode, caller: &Caller, operation: Operation) -> papilio::Result<()> {
    use Operation as O;
    let find = |name: &[u8]| {
        from.check_permissions(caller, Permissions::EXECUTE)?;
        from.lookup(name).map(|found| found.expect("each directory has the same names"))
    };
    let create = |kind: NewKind<'_>, mode| {
        let new = from.check_create(caller, kind, mode)?.umask(0o022);
        from.create(b"new", &new).map(drop)
    };
    let set = |set: SetAttributes| {
        let file = find(b"file")?;
        file.set_attributes(&file.check_set_attributes(caller, &set)?)
    };
    let times =
        |time| set(SetAttributes { atime: Some(time), mtime: Some(time), ..SetAttributes::default() });
    match operation {
        O::Read => find(b"file")?.check_permissions(caller, Permissions::READ),
        O::Write => find(b"file")?.check_permissions(caller, Permissions::WRITE),
        O::Execute => find(b"file")?.check_permissions(caller, Permissions::EXECUTE),
        O::Search => find(b"file").map(drop),
        O::Unlink => {
            from.check_remove(caller, &find(b"file")?)?;
            from.remove_file(b"file")
        }
        O::RemoveDir => {
            from.check_remove(caller, &find(b"folder")?)?;
            from.remove_dir(b"folder")
        }
        O::Move(name) => {
            to.check_permissions(caller, Permissions::EXECUTE)?;
            from.check_rename(caller, &find(name.as_bytes())?, to, None)?;
            from.rename(name.as_bytes(), to, b"new", RenameMode::Replace)
        }
        O::Replace => {
            from.check_rename(caller, &find(b"file")?, from, Some(&find(b"other")?))?;
            from.rename(b"file", from, b"other", RenameMode::Replace)
        }
        O::Create(mode) => create(NewKind::Regular, mode),
        O::MakeDir(mode) => create(NewKind::Directory, mode),
        O::Device => create(NewKind::CharacterDevice { major: 1, minor: 3 }, 0o600),
        O::Fifo => create(NewKind::Fifo, 0o600),
        O::Symlink => create(NewKind::Symlink(b"target"), 0o777),
        O::Chmod(mode) => set(SetAttributes { mode: Some(mode), ..SetAttributes::default() }),
        O::Chown(uid) => set(SetAttributes { uid: Some(uid), ..SetAttributes::default() }),
        O::Chgrp(gid) => set(SetAttributes { gid: Some(gid), ..SetAttributes::default() }),
        O::Touch => times(SetTime::Now),
        O::SetTimes => times(SetTime::At(Timespec { seconds: GIVEN, nanoseconds: 0 })),
    }
}

/// Returns owner, group, mode, access control lists and whether the time was given, of all that a
/// case left.
fn left(fs: &FileSystem, number: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for folder in [format!("/{number}"), format!("/{number}-to")] {
        let directory = fs.inode(&folder).unwrap();
        let mut found = vec![(Vec::new(), directory.clone())];
        for entry in directory.read_dir().unwrap() {
            let entry = entry.unwrap();
            found.push((entry.file_name().to_vec(), entry.inode().unwrap()));
        }
        for (name, inode) in found {
            let metadata = inode.metadata();
            let lists = ["access", "default"]
                .map(|kind| inode.xattr(format!("system.posix_acl_{kind}").as_bytes()).unwrap());
            lines.push(format!(
                "{}:{} {:o} {}:{} {} {lists:?}",
                if folder.ends_with("-to") { "to" } else { "from" },
                String::from_utf8_lossy(&name),
                metadata.mode(),
                metadata.uid(),
                metadata.gid(),
                metadata.mtime().seconds == GIVEN,
            ));
        }
    }
    lines.sort();
    lines
}

#[test]
fn users_may_do_what_the_kernel_lets_them_do() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let cases = std::env::var("PAPILIO_PERMISSION_CASES").map_or(600, |text| text.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(42);
    let scratch = Scratch::new(1 << 30).unwrap();
    let images = FileSystemSpec::default().make(&scratch).unwrap();
    let mount = images.mount().unwrap();
    prepare(mount.path(), cases, &mut random);
    mount.unmount().unwrap();
    let copy = scratch.path().join("copy.img");
    std::fs::copy(&images.paths()[0], &copy).unwrap();
    let cases: Vec<Case> = (0..cases).map(|_| Case::random(&mut random)).collect();

    let mount = images.mount().unwrap();
    let by_kernel: Vec<i32> = (0..)
        .zip(&cases)
        .map(|(number, case)| {
            let folder = |name: String| File::open(mount.path().join(name)).unwrap();
            let (from, to) = (folder(format!("{number}")), folder(format!("{number}-to")));
            let act = || by_kernel(&from, &to, case.operation);
            as_user(case.uid, case.gid, &case.groups, act).unwrap()
        })
        .collect();
    mount.unmount().unwrap();

    let kernel_fs = FileSystem::open(&images.paths()[0]).unwrap();
    let fs = open(&[copy], &writable()).unwrap();
    let mut refused = 0;
    for (number, case) in cases.iter().enumerate() {
        let folder = |name: String| fs.inode(&name).unwrap();
        let (from, to) = (folder(format!("/{number}")), folder(format!("/{number}-to")));
        let before = left(&fs, number);
        let caller = Caller::new(case.uid, case.gid, case.groups.clone());
        let result = by_papilio(&from, &to, &caller, case.operation);
        let errno = result.map_or_else(|error| error.errno(), |()| 0);
        assert_eq!(errno, by_kernel[number], "{number}: {case:?} on {before:#?}");
        assert_eq!(left(&fs, number), left(&kernel_fs, number), "{number}: {case:?} on {before:#?}");
        refused += usize::from(errno != 0);
    }
    // Both happen, or the test says little.
    assert!((cases.len() / 4..cases.len() * 3 / 4).contains(&refused), "{refused} were refused");
}
