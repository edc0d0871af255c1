//! Changes that the kernel refuses because of a file's state: a table of state and operation, with
//! the same errors on the kernel's Btrfs and on our mount.

use crate::kernel::KernelMount;
use crate::world::{MOUNT, World, fail, run, succeed, try_unmount};
use papilio_ioctl::client::MountedPath;
use papilio_oracle::Need;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, IFlags, Mode, OFlags, Timespec, Timestamps, fallocate, ioctl_getflags,
    ioctl_setflags,
};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

type Result = rustix::io::Result<()>;

/// A state of a file, and whether it is one of the file's subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Plain,
    Immutable,
    AppendOnly,
    ReadOnlySubvolume,
    /// Immutable, in a read-only subvolume.
    Both,
}

const STATES: [State; 5] =
    [State::Plain, State::Immutable, State::AppendOnly, State::ReadOnlySubvolume, State::Both];

fn open(path: &Path, flags: OFlags) -> Result {
    rustix::fs::open(path, flags, Mode::empty()).map(drop)
}

fn other(path: &Path) -> PathBuf {
    path.with_extension("other")
}

fn set_times(path: &Path, nanoseconds: i64) -> Result {
    let time = Timespec { tv_sec: 1, tv_nsec: nanoseconds as _ };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())
}

/// The operations, each on a file of its own. `PATH.other` exists beside it.
type Operation = (&'static str, fn(&Path) -> Result);

const OPERATIONS: [Operation; 20] = [
    ("open to read", |path| open(path, OFlags::RDONLY)),
    ("open to write", |path| open(path, OFlags::WRONLY)),
    ("open to read and write", |path| open(path, OFlags::RDWR)),
    ("open to append", |path| open(path, OFlags::WRONLY | OFlags::APPEND)),
    ("open to cut", |path| open(path, OFlags::WRONLY | OFlags::TRUNC)),
    ("open to read and cut", |path| open(path, OFlags::RDONLY | OFlags::TRUNC)),
    ("open to append and cut", |path| open(path, OFlags::WRONLY | OFlags::APPEND | OFlags::TRUNC)),
    ("open directly", |path| open(path, OFlags::RDWR | OFlags::DIRECT)),
    ("open or create", |path| open(path, OFlags::WRONLY | OFlags::CREATE)),
    ("truncate", |path| {
        // `truncate(2)`: of a path, not of a descriptor.
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        rustix_truncate(&path)
    }),
    ("fallocate", |path| {
        let file = rustix::fs::open(path, OFlags::WRONLY, Mode::empty())?;
        fallocate(file, FallocateFlags::empty(), 0, 8192)
    }),
    ("link", |path| rustix::fs::link(path, path.with_extension("link"))),
    ("rename", |path| rustix::fs::rename(path, path.with_extension("moved"))),
    ("rename over", |path| rustix::fs::rename(other(path), path)),
    ("unlink", |path| rustix::fs::unlink(path)),
    ("chmod", |path| rustix::fs::chmod(path, Mode::RUSR)),
    ("chown", |path| rustix::fs::chown(path, Some(rustix::fs::Uid::from_raw(7)), None)),
    ("set times", |path| set_times(path, 5)),
    ("set an attribute", |path| rustix::fs::setxattr(path, "user.a", b"1", rustix::fs::XattrFlags::empty())),
    ("remove an attribute", |path| rustix::fs::removexattr(path, "user.kept")),
];

fn rustix_truncate(path: &std::ffi::CStr) -> Result {
    // The command calls `open` and `ftruncate`; a length of zero through `open` is another case.
    // SAFETY: the path is a string that ends with NUL.
    match unsafe { libc::truncate(path.as_ptr(), 3) } {
        0 => Ok(()),
        _ => Err(Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap())),
    }
}

fn change_flags(path: &Path, change: impl Fn(IFlags) -> IFlags) {
    let file = File::open(path).unwrap();
    ioctl_setflags(&file, change(ioctl_getflags(&file).unwrap())).unwrap();
}

/// Performs all operations in all states on the mount at `root`.
fn table(root: &Path) -> Vec<(State, &'static str, Option<Errno>)> {
    let mut table = Vec::new();
    for state in STATES {
        let name = format!("{state:?}");
        MountedPath::open(root).unwrap().create_subvolume(name.as_bytes()).unwrap();
        let directory = root.join(&name);
        let path = |number: usize| directory.join(format!("{number}"));
        for number in 0..OPERATIONS.len() {
            let path = path(number);
            fs::write(&path, vec![1; 10_000]).unwrap();
            fs::write(other(&path), "other").unwrap();
            rustix::fs::setxattr(&path, "user.kept", b"1", rustix::fs::XattrFlags::empty()).unwrap();
            match state {
                State::Immutable | State::Both => change_flags(&path, |flags| flags | IFlags::IMMUTABLE),
                State::AppendOnly => change_flags(&path, |flags| flags | IFlags::APPEND),
                State::Plain | State::ReadOnlySubvolume => {}
            }
        }
        let subvolume = MountedPath::open(&directory).unwrap();
        if matches!(state, State::ReadOnlySubvolume | State::Both) {
            subvolume.set_subvolume_read_only(true).unwrap();
        }
        for (number, (operation, perform)) in OPERATIONS.into_iter().enumerate() {
            table.push((state, operation, perform(&path(number)).err()));
        }
    }
    table
}

#[test]
fn refusals_are_those_of_the_kernel() {
    let needs = [Need::KERNEL_MOUNT, &[Need::Fuse, Need::Command("mkfs.btrfs")]].concat();
    let Some(world) = World::new(&needs) else { return };
    let image = world.beside("kernel.img");
    File::create(&image).unwrap().set_len(512 << 20).unwrap();
    run("mkfs.btrfs", &["-q", image.to_str().unwrap()]);
    let theirs = {
        let _kernel = KernelMount::new(&image, &world.directory(), "rw");
        table(&world.directory())
    };
    assert!(theirs.iter().any(|(_, _, error)| *error == Some(Errno::ROFS)));
    assert!(theirs.iter().any(|(_, _, error)| *error == Some(Errno::PERM)));
    world.mount(&[]);
    let ours = table(&world.directory());
    world.unmount();
    let differ: Vec<_> = ours.iter().zip(&theirs).filter(|(ours, theirs)| ours != theirs).collect();
    assert!(differ.is_empty(), "ours beside the kernel's: {differ:?}");
}

/// Makes a file that can be swapped to.
fn make_swap_file(path: &Path) {
    const SIZE: usize = 1 << 20;
    let file = File::create(path).unwrap();
    ioctl_setflags(&file, ioctl_getflags(&file).unwrap() | IFlags::NOCOW).unwrap();
    let mut bytes = vec![0; SIZE];
    // `union swap_header` of linux/swap.h: version 1, and the number of the last page.
    bytes[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    bytes[1028..1032].copy_from_slice(&(SIZE as u32 / 4096 - 1).to_ne_bytes());
    bytes[4086..4096].copy_from_slice(b"SWAPSPACE2");
    file.write_all_at(&bytes, 0).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    file.sync_all().unwrap();
}

/// Calls `swapon` or `swapoff`.
fn swap(path: &Path, on: bool) -> Result {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the path is a string that ends with NUL.
    match unsafe { if on { libc::swapon(path.as_ptr(), 0) } else { libc::swapoff(path.as_ptr()) } } {
        0 => Ok(()),
        _ => Err(Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap())),
    }
}

/// The kernel refuses changes of a swap file in use. No file of a FUSE mount can be one, so our
/// mount has nothing to refuse.
#[test]
fn a_swap_file_in_use_is_refused_or_cannot_be() {
    let needs = [Need::KERNEL_MOUNT, &[Need::Fuse, Need::Command("mkfs.btrfs")]].concat();
    let Some(world) = World::new(&needs) else { return };
    let image = world.beside("kernel.img");
    File::create(&image).unwrap().set_len(512 << 20).unwrap();
    run("mkfs.btrfs", &["-q", image.to_str().unwrap()]);
    let path = |number: usize| world.directory().join(format!("swap{number}"));
    {
        let _kernel = KernelMount::new(&image, &world.directory(), "rw");
        for (number, (operation, perform)) in OPERATIONS.into_iter().enumerate() {
            let path = path(number);
            make_swap_file(&path);
            fs::write(other(&path), "other").unwrap();
            swap(&path, true).unwrap();
            let refused = perform(&path).err();
            let written = File::options().write(true).open(&path).unwrap().write_all_at(b"x", 0);
            swap(&path, false).unwrap();
            let expected = match operation {
                "truncate" | "fallocate" => Some(Errno::TXTBSY),
                _ if operation.contains("cut") => Some(Errno::TXTBSY),
                "rename" | "rename over" | "unlink" => Some(Errno::PERM),
                "remove an attribute" => Some(Errno::NODATA),
                _ => None,
            };
            assert_eq!(refused, expected, "{operation}");
            assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::ETXTBSY), "{operation}");
        }
    }
    for (round, options) in ["opens=server", "nowriteback_cache", "opens=kernel"].into_iter().enumerate() {
        world.mount(&["-o", options]);
        for (number, (operation, perform)) in OPERATIONS.into_iter().enumerate() {
            let path = path(100 * round + number);
            make_swap_file(&path);
            fs::write(other(&path), "other").unwrap();
            assert_eq!(swap(&path, true), Err(Errno::INVAL), "{options}");
            let expected = (operation == "remove an attribute").then_some(Errno::NODATA);
            assert_eq!(perform(&path).err(), expected, "{options}: {operation}");
        }
        world.unmount();
        succeed(["check", world.image().to_str().unwrap()]);
    }
}

/// A file with fs-verity, made by a kernel that has it: no data can change, and it is not opened
/// for writing. Names and attributes can change.
#[test]
fn a_file_with_verity_is_not_opened_for_writing() {
    let Some(world) = World::new(MOUNT) else { return };
    let carried = include_bytes!("../../../../tests/fixtures/verity.img.zst");
    zstd::stream::copy_decode(&carried[..], File::create(world.image()).unwrap()).unwrap();
    for options in ["opens=server", "nowriteback_cache", "opens=kernel"] {
        world.mount(&["-o", options]);
        let path = world.directory().join("snap/empty");
        fs::write(other(&path), "other").unwrap();
        for (operation, perform) in OPERATIONS {
            let expected = match operation {
                // With `opens=kernel`, the kernel opens files without asking; a write is refused.
                "open to write"
                | "open to read and write"
                | "open to append"
                | "open directly"
                | "open or create"
                    if options == "opens=kernel" =>
                {
                    None
                }
                _ if operation.starts_with("open to read") && !operation.contains(" and ") => None,
                "truncate" | "fallocate" => Some(Errno::PERM),
                _ if operation.starts_with("open") => Some(Errno::PERM),
                "remove an attribute" => Some(Errno::NODATA),
                "rename over" | "unlink" => continue,
                _ => None,
            };
            assert_eq!(perform(&path).err(), expected, "{options}: {operation}");
            if operation == "rename" {
                fs::rename(path.with_extension("moved"), &path).unwrap();
            }
        }
        fs::remove_file(path.with_extension("link")).unwrap();
        fs::remove_file(other(&path)).unwrap();
        rustix::fs::removexattr(&path, "user.a").unwrap();
        if options == "opens=kernel" {
            use std::io::Write as _;
            let mut file = File::options().append(true).open(&path).unwrap();
            let refused = file.write_all(b"x").and_then(|()| file.sync_all()).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(Errno::PERM.raw_os_error()));
        }
        let refused = options == "opens=kernel";
        // A write that was refused after it was cached was reported to its program.
        let unmounted = try_unmount(&world.directory());
        assert!(unmounted.status.success() || refused, "{options}: {unmounted:?}");
        if world.entry().is_some() {
            world.unmount();
        }
        let source = world.beside("source");
        fs::write(&source, "data").unwrap();
        fail(1, "ot permitted", ["cp", source.to_str().unwrap(), &inside(&world, "/snap/empty")]);
        succeed(["check", world.image().to_str().unwrap()]);
    }
}

fn inside(world: &World, path: &str) -> String {
    format!("{}:{path}", world.image().display())
}
