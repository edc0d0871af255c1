//! A mount serves scripts and other programs: `mount -a` twice, other users, the use of space right
//! after writes, ioctls by the inode numbers that stat shows.

use crate::world::{MOUNT, World, binary, eventually, fail, papilio, run, succeed, try_unmount, unmount};
use papilio::format::{InodeNumber, ItemType, Key, TreeId};
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::mount_table::MountEntry;
use papilio_oracle::Need;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Counts the mounts of Papilio on a directory.
fn mounts_on(directory: &Path) -> usize {
    let all = MountEntry::all().unwrap();
    all.iter().filter(|mount| mount.is_papilio() && mount.point == directory).count()
}

#[test]
fn what_is_mounted_already_is_left_as_it_is() {
    let Some(world) = World::new(MOUNT) else { return };
    succeed(["subvolume", "create", &format!("{}:/sub", world.image().display())]);
    let (image, directory, second) = (world.image(), world.directory(), world.beside("second"));
    fs::create_dir(&second).unwrap();
    for _ in 0..2 {
        world.mount(&["-o", "subvolid=5"]);
        succeed([Path::new("mount"), "-o".as_ref(), "subvol=sub".as_ref(), &image, &second]);
    }
    assert_eq!((mounts_on(&directory), mounts_on(&second)), (1, 1));
    // Another subvolume, or the other access, is another mount.
    fail(1, "busy", [Path::new("mount"), "-o".as_ref(), "subvol=sub".as_ref(), &image, &directory]);
    fail(1, "busy", [Path::new("mount"), "-r".as_ref(), &image, &directory]);
    unmount(&second);
    world.unmount();
}

/// A server lives on after its mount was detached while in use, or in another namespace. A further
/// mount joins it.
#[test]
fn a_mount_joins_a_server_that_no_mount_shows() {
    let Some(world) = World::new(&[MOUNT, &[Need::Command("unshare")]].concat()) else { return };
    world.mount(&[]);
    fs::write(world.at("kept"), "before").unwrap();
    let server = world.server();
    let open = fs::File::open(world.at("kept")).unwrap();
    succeed([Path::new("umount"), "--lazy".as_ref(), &world.directory()]);
    assert!(world.entry().is_none());
    world.mount(&[]);
    assert_eq!(world.server(), server);
    assert_eq!(world.entry().unwrap().source, world.image());
    drop(open);
    fs::write(world.at("kept"), "after").unwrap();
    world.unmount();
    assert_eq!(succeed(["cat", &format!("{}:/kept", world.image().display())]), "after");

    let script = "umount -a -t fuse.papilio,btrfs; \"$1\" mount \"$2\" \"$3\" && echo ready && read end; umount \"$3\"";
    let mut elsewhere = Command::new("unshare")
        .args(["--mount", "--propagation", "slave", "sh", "-c", script, "sh"])
        .args([binary().into(), world.image(), world.directory()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(elsewhere.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    assert!(world.entry().is_none());
    world.mount(&[]);
    assert_eq!(fs::read_to_string(world.at("kept")).unwrap(), "after");
    fs::write(world.at("kept"), "joined").unwrap();
    // The server goes on in the other namespace, and the command says so.
    let unmounted = try_unmount(&world.directory());
    let said = String::from_utf8_lossy(&unmounted.stderr);
    assert!(unmounted.status.success() && said.contains("in another namespace"), "{said}");
    assert!(world.entry().is_none());
    drop(elsewhere.stdin.take());
    elsewhere.wait().unwrap();
    eventually("the server ends", || {
        papilio(["cat", &format!("{}:/kept", world.image().display())]).stdout == b"joined"
    });
}

#[test]
fn other_users_use_a_mount_by_root_as_permissions_allow() {
    let Some(world) = World::new(&[MOUNT, &[Need::Command("setpriv")]].concat()) else { return };
    let as_nobody = |script: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]);
        command.current_dir(world.directory()).output().unwrap()
    };
    // The folder of the test belongs to root alone.
    use std::os::unix::fs::PermissionsExt;
    let parent = world.directory().parent().unwrap().to_owned();
    fs::set_permissions(&parent, fs::Permissions::from_mode(0o755)).unwrap();
    world.mount(&[]);
    fs::write(world.at("public"), "public\n").unwrap();
    fs::write(world.at("private"), "private\n").unwrap();
    fs::set_permissions(world.at("private"), fs::Permissions::from_mode(0o600)).unwrap();
    let read = as_nobody("cat public");
    assert_eq!(read.stdout, b"public\n", "{}", String::from_utf8_lossy(&read.stderr));
    for refused in ["cat private", "touch new", "echo x >> public", "rm -f public"] {
        assert!(!as_nobody(refused).status.success(), "{refused}");
    }
    world.unmount();
    world.mount(&["-o", "allow_root"]);
    assert!(!as_nobody("cat public").status.success());
    world.unmount();
}

#[test]
fn the_use_of_space_is_right_after_writes() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&["-o", "commit=300"]);
    fs::write(world.at("large"), vec![5; 100 << 20]).unwrap();
    fs::File::open(world.at("large")).unwrap().sync_data().unwrap();
    let root = world.directory();
    let shown = succeed(["filesystem", "df", "--json", root.to_str().unwrap()]);
    let rows: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let data = rows.as_array().unwrap().iter().find(|row| row["type"] == "Data").unwrap();
    assert_eq!(data["used"], 100 << 20, "{shown}");
    let usage = succeed(["filesystem", "usage", "--raw", root.to_str().unwrap()]);
    assert!(usage.contains(&format!("Used:{}", 100 << 20)), "{usage}");
    world.unmount();
}

#[test]
fn ioctls_take_the_inode_numbers_that_stat_shows() {
    let Some(world) = World::new(MOUNT) else { return };
    world.mount(&[]);
    succeed(["subvolume", "create", &world.at("sub")]);
    fs::create_dir(world.at("sub/d")).unwrap();
    for name in ["top", "sub/d/below"] {
        fs::write(world.at(name), vec![6; 1 << 20]).unwrap();
    }
    succeed(["filesystem", "sync", world.directory().to_str().unwrap()]);
    for (name, path) in [("top", "top"), ("sub/d/below", "d/below")] {
        let file = MountedPath::open(Path::new(&world.at(name))).unwrap();
        let shown = fs::metadata(world.at(name)).unwrap().ino();
        let key = |offset| Key::new(shown, ItemType::EXTENT_DATA, offset);
        let mut extents = 0;
        file.search_tree(TreeId(0), key(0)..=key(u64::MAX), 0, |_, key, _| {
            assert_eq!((key.objectid, key.item_type), (shown, ItemType::EXTENT_DATA));
            extents += 1;
            Ok(())
        })
        .unwrap();
        assert!(extents > 0, "{name}");
        // INO_LOOKUP returns a path with a slash at the end.
        let found = file.directory_path(TreeId(0), InodeNumber(shown)).unwrap();
        assert_eq!(found, format!("{path}/").into_bytes(), "{name}");
    }
    world.unmount();
}

/// compsize asks for extents by the inode numbers that stat shows. The kernel's mount is the judge.
#[test]
fn compsize_prints_the_same_as_on_the_kernel() {
    let needs = [MOUNT, Need::KERNEL_MOUNT, &[Need::Command("compsize"), Need::Command("mount")]].concat();
    let Some(world) = World::new(&needs) else { return };
    world.mount(&[]);
    succeed(["subvolume", "create", &world.at("sub")]);
    succeed(["property", "set", &world.at("sub"), "compression", "zstd"]);
    let text: String = (0..200_000).map(|number| format!("{number}\n")).collect();
    for name in ["top", "sub/below"] {
        fs::write(world.at(name), &text).unwrap();
    }
    succeed(["filesystem", "sync", world.directory().to_str().unwrap()]);
    let directory = world.directory();
    let sizes = |path: &str| run("compsize", &["-b", path]);
    let (all, sub) = (sizes(directory.to_str().unwrap()), sizes(&world.at("sub")));
    assert!(all.contains("zstd") && all.starts_with("Processed 2 files"), "{all}");
    world.unmount();
    run("mount", &["-o", "loop,ro", world.image().to_str().unwrap(), directory.to_str().unwrap()]);
    let (kernel_all, kernel_sub) = (sizes(directory.to_str().unwrap()), sizes(&world.at("sub")));
    run("umount", &[directory.to_str().unwrap()]);
    assert_eq!((all, sub), (kernel_all, kernel_sub));
}

#[test]
fn paths_of_an_address_are_those_of_the_host() {
    let Some(world) = World::new(MOUNT) else { return };
    let image = world.image();
    for path in ["/sub", "/other"] {
        succeed(["subvolume", "create", &format!("{}:{path}", image.display())]);
    }
    let host = world.beside("host");
    fs::write(&host, vec![8; 1 << 20]).unwrap();
    succeed(["cp", host.to_str().unwrap(), &format!("{}:/sub/file", image.display())]);
    let (from, to) = (format!("{}:/sub/file", image.display()), format!("{}:/other/clone", image.display()));
    succeed(["cp", &from, &to]);
    let dump = succeed(["inspect", "dump-tree", "-t", "256", image.to_str().unwrap()]);
    let byte = dump.split("disk byte ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    world.mount(&["-o", "subvol=sub"]);
    let resolve = || {
        let directory = world.directory();
        let found = succeed(["inspect", "logical-resolve", &byte, directory.to_str().unwrap()]);
        let mut lines: Vec<String> = found.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let hidden = "inode 257 of the subvolume /other: not mounted".to_owned();
    assert_eq!(resolve(), [world.at("file"), hidden]);
    world.unmount();
    world.mount(&["-o", "subvolid=5"]);
    assert_eq!(resolve(), [world.at("other/clone"), world.at("sub/file")]);
    world.unmount();
}
