//! Mounts of several subvolumes of one file system by one server, in each order, beside and below
//! one another.

use crate::joined::{READ_ONLY, Second, errno};
use crate::kernel::KernelMount;
use crate::world::{MOUNT, World, eventually, fail, papilio, run, succeed};
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::mount_table::MountEntry;
use papilio_oracle::Need;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Creates the subvolumes `a`, `b` and `a/deep/inner`, each with a file.
fn with_subvolumes(needs: &[Need]) -> Option<World> {
    let world = World::new(needs)?;
    world.mount(&[]);
    for subvolume in ["a", "b"] {
        succeed(["subvolume", "create", &world.at(subvolume)]);
        fs::write(world.at(subvolume).clone() + "/file", subvolume).unwrap();
    }
    fs::create_dir(world.at("a/deep")).unwrap();
    succeed(["subvolume", "create", &world.at("a/deep/inner")]);
    fs::write(world.at("a/deep/inner/file"), "inner").unwrap();
    fs::write(world.at("file"), "top").unwrap();
    world.unmount();
    Some(world)
}

/// The options of three mounts, the directory in the file system that each shows, and the content
/// of its file.
const SHOWN: [(&str, &str, &str); 3] =
    [("subvol=a/deep/inner", "/a/deep/inner", "inner"), ("subvol=b", "/b", "b"), ("subvolid=5", "/", "top")];

/// All orders of three.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

fn entry(second: &Second) -> MountEntry {
    MountEntry::of_papilio_on(&second.0).unwrap().unwrap()
}

#[test]
fn mounts_come_and_go_in_each_order() {
    let Some(world) = with_subvolumes(MOUNT) else { return };
    let mounts: Vec<_> = (0..3).map(|number| Second::new(&world, &format!("m{number}"))).collect();
    for (round, order) in ORDERS.into_iter().enumerate() {
        let mut server = None;
        for place in order {
            let (options, root, content) = SHOWN[place];
            mounts[place].mount(&world, options);
            assert_eq!(entry(&mounts[place]).root, Path::new(root));
            assert_eq!(entry(&mounts[place]).source, world.image());
            assert_eq!(fs::read_to_string(mounts[place].at("file")).unwrap(), content);
            let path = MountedPath::open(&mounts[place].0).unwrap();
            let pid = path.server().unwrap().pid;
            assert_eq!(*server.get_or_insert(pid), pid, "{order:?}");
        }
        // All show a change at once, and one file has one number.
        fs::write(mounts[0].at("new"), format!("{round}")).unwrap();
        let above = mounts[2].at("a/deep/inner/new");
        assert_eq!(fs::read_to_string(&above).unwrap(), format!("{round}"));
        assert_eq!(
            fs::metadata(above).unwrap().ino(),
            fs::metadata(mounts[0].at("new")).unwrap().ino(),
            "{order:?}"
        );
        // The order of the ends differs from that of the starts.
        let ends = ORDERS[(round + 4) % ORDERS.len()];
        for (number, place) in ends.into_iter().enumerate() {
            let process = MountedPath::open(&mounts[place].0).unwrap().server_process().unwrap().unwrap();
            mounts[place].unmount();
            for other in &ends[number + 1..] {
                let file = mounts[*other].at("file");
                assert_eq!(fs::read_to_string(file).unwrap(), SHOWN[*other].2, "{order:?}, {ends:?}");
            }
            let mut poll = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let ended = rustix::event::poll(&mut poll, Some(&now)).unwrap() > 0;
            assert_eq!(ended, number == 2, "{order:?}, {ends:?}");
        }
        // The image is closed.
        succeed(["check", world.image().to_str().unwrap()]);
    }
}

#[test]
fn mount_of_a_subvolume_behaves_like_the_kernels() {
    let needs = [Need::KERNEL_MOUNT, &[Need::Fuse, Need::Command("btrfs")]].concat();
    let Some(world) = with_subvolumes(&needs) else { return };
    let inside = |path: &str| format!("{}:{path}", world.image().display());
    succeed(["subvolume", "snapshot", &inside("/a"), &inside("/b/copy")]);
    let shown = |directory: &Path| {
        let root = MountEntry::of(directory).unwrap().unwrap().root;
        let listing = run("find", &[directory.to_str().unwrap(), "-printf", "%P %y %s %m %n\n"]);
        let mut lines: Vec<_> = listing.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        let number = fs::metadata(directory).unwrap().ino();
        let sizes = rustix::fs::statvfs(directory).unwrap();
        let above = fs::metadata(directory.join("..")).unwrap().ino();
        let outside = fs::metadata(directory.parent().unwrap()).unwrap().ino();
        (root, lines, number, sizes.f_blocks, above == outside)
    };
    for options in ["subvol=b", "subvol=a", "subvol=a/deep/inner", "subvolid=5"] {
        let kernel = {
            let _kernel = KernelMount::new(&world.image(), &world.directory(), &format!("ro,{options}"));
            shown(&world.directory())
        };
        world.mount(&["-o", &format!("ro,{options}")]);
        assert_eq!(shown(&world.directory()), kernel, "{options}");
        // Joined mounts show the same, but for the numbers of inodes.
        for other in ["subvol=b", "subvolid=5", "subvol=a/deep"] {
            let second = Second::new(&world, &format!("beside-{options}-{other}").replace('/', "-"));
            if other == "subvol=a/deep" {
                second.fails(&world, &format!("ro,{other}"), "no such subvolume: a/deep");
                continue;
            }
            second.mount(&world, &format!("ro,{other}"));
            let joined = shown(&second.0);
            second.unmount();
            if options == other {
                assert_eq!(joined, kernel, "{options}, {other}");
            }
        }
        world.unmount();
    }
    world.assert_clean();
}

#[test]
fn read_only_and_writable_siblings() {
    let Some(world) = with_subvolumes(&[MOUNT, &[Need::Command("btrfs")]].concat()) else { return };
    let (a, b, top) = (Second::new(&world, "a"), Second::new(&world, "b"), Second::new(&world, "top"));
    a.mount(&world, "subvol=a");
    b.mount(&world, "subvol=b,ro,noexec");
    assert_eq!(errno(fs::write(b.at("x"), "")), READ_ONLY);
    fs::write(a.at("x"), "x").unwrap();
    // The kernel looks at the flags of the mount that a path leads through.
    top.mount(&world, "subvolid=5");
    fs::write(top.at("b/x"), "through the top").unwrap();
    assert_eq!(fs::read_to_string(b.at("x")).unwrap(), "through the top");
    // `remount,ro` concerns all mounts.
    let remount = |second: &Second, options: &str| {
        let image = world.image();
        papilio([Path::new("mount"), "-o".as_ref(), options.as_ref(), &image, &second.0])
    };
    assert!(remount(&a, "remount,ro").status.success());
    assert_eq!(errno(fs::write(top.at("y"), "")), READ_ONLY);
    fail(1, "is read-only", ["subvolume", "create", top.at("new").to_str().unwrap()]);
    assert!(remount(&a, "remount,rw").status.success());
    fs::write(a.at("y"), "y").unwrap();
    succeed(["subvolume", "create", a.at("new").to_str().unwrap()]);
    // A snapshot that is taken through one mount holds what another has written.
    fs::write(a.at("before"), "the snapshot").unwrap();
    succeed(["subvolume", "snapshot", top.at("a").to_str().unwrap(), top.at("snap").to_str().unwrap()]);
    assert_eq!(fs::read_to_string(top.at("snap/before")).unwrap(), "the snapshot");
    let listed = succeed(["subvolume", "list", b.0.to_str().unwrap()]);
    for path in ["path a\n", "path a/deep/inner\n", "path a/new\n", "path snap\n"] {
        assert!(listed.contains(path), "{listed}");
    }
    for second in [&top, &a, &b] {
        second.unmount();
    }
    // A server that was started read-only takes a writable mount, too.
    b.mount(&world, "subvol=b,ro");
    a.mount(&world, "subvol=a");
    assert_eq!(errno(fs::write(b.at("x"), "")), READ_ONLY);
    fs::write(a.at("z"), "z").unwrap();
    a.unmount();
    b.unmount();
    world.assert_clean();
}

/// The way to a subvolume's mount does not lead through the directories above the subvolume.
#[test]
fn user_without_access_to_the_parent_uses_the_subvolume() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    fs::create_dir(world.at("private")).unwrap();
    succeed(["subvolume", "create", &world.at("private/shared")]);
    fs::write(world.at("private/shared/file"), "for all").unwrap();
    for (path, mode) in [("private", 0o700), ("private/shared", 0o777), ("private/shared/file", 0o644)] {
        fs::set_permissions(world.at(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    world.unmount();
    // The folder of the test belongs to root alone.
    let folder = world.beside("");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let (first, second) = (Second::new(&world, "first"), Second::new(&world, "second"));
    first.mount(&world, "subvol=private/shared,allow_other");
    second.mount(&world, "subvolid=5");
    let as_nobody =
        |program: &str, path: &Path| Command::new(program).arg(path).uid(65534).gid(65534).output().unwrap();
    assert_eq!(as_nobody("cat", &first.at("file")).stdout, b"for all");
    assert!(as_nobody("touch", &first.at("by-nobody")).status.success());
    assert_eq!(fs::metadata(second.at("private/shared/by-nobody")).unwrap().uid(), 65534);
    let refused = as_nobody("cat", &second.at("private/shared/file"));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Permission denied"), "{refused:?}");
    first.unmount();
    second.unmount();
}

#[test]
fn lazy_ends_and_killed_servers_of_siblings() {
    let Some(world) = with_subvolumes(&[MOUNT, &[Need::Command("btrfs")]].concat()) else { return };
    let (a, b) = (Second::new(&world, "a"), Second::new(&world, "b"));
    // A file that is open in a detached mount keeps the server.
    a.mount(&world, "subvol=a");
    b.mount(&world, "subvol=b");
    let open = fs::File::create(b.at("open")).unwrap();
    fail(1, ": in use", [Path::new("umount"), &b.0]);
    a.unmount();
    succeed([Path::new("umount"), "--lazy".as_ref(), &b.0]);
    assert!(!papilio(["check", world.image().to_str().unwrap()]).status.success());
    rustix::io::write(&open, b"late").unwrap();
    drop(open);
    let image = world.image();
    eventually("the server ends after its last user", || {
        papilio(["check", image.to_str().unwrap()]).status.success()
    });
    assert_eq!(succeed(["cat", &format!("{}:/b/open", image.display())]), "late");
    // All mounts of a killed server fail, and each can be unmounted.
    a.mount(&world, "subvol=a");
    b.mount(&world, "subvol=b");
    let synced = fs::File::create(a.at("synced")).unwrap();
    rustix::io::write(&synced, b"kept").unwrap();
    synced.sync_all().unwrap();
    drop(synced);
    let process = MountedPath::open(&b.0).unwrap().server_process().unwrap().unwrap();
    rustix::process::pidfd_send_signal(&process, rustix::process::Signal::KILL).unwrap();
    let mut ends = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut ends, None).unwrap();
    for second in [&a, &b] {
        assert!(fs::read_dir(&second.0).is_err());
    }
    a.unmount();
    b.unmount();
    world.assert_clean();
    b.mount(&world, "subvol=a");
    assert_eq!(fs::read_to_string(b.at("synced")).unwrap(), "kept");
    // Both mounts end with the subvolume that they show, and the server with them.
    a.mount(&world, "subvolid=5");
    succeed(["subvolume", "delete", a.at("a/deep/inner").to_str().unwrap()]);
    succeed(["subvolume", "delete", a.at("b").to_str().unwrap()]);
    assert!(!a.at("b").exists());
    a.unmount();
    b.unmount();
    world.assert_clean();
}

/// A mount on a directory in one of the mounts hides nothing from another.
#[test]
fn covered_directory_is_reached() {
    let Some(world) = with_subvolumes(MOUNT) else { return };
    let (top, cover, a) =
        (Second::new(&world, "top"), Second::new(&world, "cover"), Second::new(&world, "a"));
    top.mount(&world, "subvolid=5");
    cover.mount(&world, "subvol=b");
    run("mount", &["--bind", cover.0.to_str().unwrap(), top.at("a").to_str().unwrap()]);
    a.mount(&world, "subvol=a");
    assert_eq!(fs::read_to_string(a.at("file")).unwrap(), "a");
    run("umount", &[top.at("a").to_str().unwrap()]);
    for second in [&top, &cover, &a] {
        second.unmount();
    }
    // The default subvolume is shown without options, also by a mount that joins.
    top.mount(&world, "");
    succeed(["subvolume", "set-default", top.at("a").to_str().unwrap()]);
    a.mount(&world, "");
    assert_eq!(entry(&a).root, Path::new("/a"));
    top.unmount();
    a.unmount();
    a.mount(&world, "");
    top.mount(&world, "subvolid=5");
    assert_eq!((entry(&a).root.as_path(), entry(&top).root.as_path()), (Path::new("/a"), Path::new("/")));
    assert_eq!(fs::metadata(&a.0).unwrap().ino(), 256);
    top.unmount();
    a.unmount();
}
