//! Mounts that show other owners and permissions than the image has.

use crate::server::{Mount, NEEDS, check, make_image};
use papilio_oracle::requirement::find_command;
use papilio_oracle::{Need, Scratch, require};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;
use std::process::Command;

const SIZE: u64 = 256 << 20;

/// Returns owner, group and permissions of an inode in the image.
fn stored(image: &Path, path: &str) -> (u32, u32, u32) {
    let fs = papilio::FileSystem::open(image).unwrap();
    let metadata = fs.symlink_metadata(path).unwrap();
    (metadata.uid(), metadata.gid(), metadata.permissions())
}

/// Returns owner, group and permissions that a mount shows.
fn shown(path: impl AsRef<Path>) -> (u32, u32, u32) {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.uid(), metadata.gid(), metadata.permissions().mode() & 0o7777)
}

fn errno(result: io::Result<()>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

/// Creates an image with files of user 33 and group 34.
fn foreign_image(scratch: &Scratch) -> std::path::PathBuf {
    let image = make_image(scratch, SIZE);
    let mount = Mount::new(scratch, &image, "");
    let root = mount.path();
    fs::create_dir(root.join("d")).unwrap();
    fs::write(root.join("d/f"), "content").unwrap();
    symlink("f", root.join("d/l")).unwrap();
    for (name, mode) in [("d/f", 0o600), ("d", 0o700)] {
        chown(root.join(name), Some(33), Some(34)).unwrap();
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    lchown(root.join("d/l"), Some(33), Some(34)).unwrap();
    mount.unmount();
    image
}

/// Runs a shell script as a user; returns whether it succeeds.
fn as_user(user: u32, directory: &Path, script: &str) -> bool {
    let id = user.to_string();
    Command::new(find_command("setpriv").unwrap())
        .args(["--reuid", &id, "--regid", &id, "--clear-groups", "sh", "-ec", script])
        .current_dir("/")
        .env("DIR", directory)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap()
        .success()
}

#[test]
fn one_user_gets_all_files() {
    let Some(_) = require(&[NEEDS, &[Need::Command("setpriv")]].concat()) else { return };
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = foreign_image(&scratch);
    let mount = Mount::new(&scratch, &image, "allow_other,uid=12345,gid=12345");
    let root = mount.path();
    assert_eq!(shown(root.join("d")), (12345, 12345, 0o700));
    assert_eq!(shown(root.join("d/l")).0, 12345);
    // The user works in the directories of user 33.
    assert!(as_user(12345, root, "cat $DIR/d/f; echo new >$DIR/d/new; mkdir $DIR/d/e; chmod 640 $DIR/d/f"));
    assert!(as_user(12345, root, "ln -s x $DIR/d/link; mv $DIR/d/new $DIR/d/e/moved; rm $DIR/d/l"));
    assert!(as_user(12345, root, "chown 12345:12345 $DIR/d/f"));
    assert!(!as_user(777, root, "cat $DIR/d/f"));
    assert_eq!(errno(chown(root.join("d/f"), Some(1), None)), Some(libc::EPERM));
    assert_eq!(shown(root.join("d/e/moved")), (12345, 12345, 0o644));
    mount.unmount();
    check(&image);
    assert_eq!(stored(&image, "/d/f"), (33, 34, 0o640));
    assert_eq!(stored(&image, "/d/e"), (33, 34, 0o755));
    assert_eq!(stored(&image, "/d/e/moved"), (33, 34, 0o644));
    assert_eq!(stored(&image, "/d/link"), (33, 34, 0o777));
}

#[test]
fn ids_are_mapped_both_ways() {
    let Some(_) = require(&[NEEDS, &[Need::Command("setpriv")]].concat()) else { return };
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = foreign_image(&scratch);
    let map = "allow_other,idmap=u:0:5000:10 u:33:12345:1,idmap=g:0:5000:100";
    let mount = Mount::new(&scratch, &image, map);
    let root = mount.path();
    assert_eq!(shown(root), (5000, 5000, 0o755));
    assert_eq!(shown(root.join("d/f")), (12345, 5034, 0o600));
    chown(root.join("d/f"), Some(5003), Some(5004)).unwrap();
    assert_eq!(errno(chown(root.join("d/f"), Some(0), None)), Some(libc::EOVERFLOW));
    // Root of the host has no counterpart in the image, so nothing can belong to it.
    assert_eq!(errno(fs::write(root.join("d/of-root"), "")), Some(libc::EOVERFLOW));
    assert!(as_user(5000, root, "echo new >$DIR/new; mkdir $DIR/sub"));
    assert_eq!(shown(root.join("new")), (5000, 5000, 0o644));
    mount.unmount();
    check(&image);
    assert_eq!(stored(&image, "/d/f"), (3, 4, 0o600));
    assert_eq!(stored(&image, "/new"), (0, 0, 0o644));
    assert_eq!(stored(&image, "/sub"), (0, 0, 0o755));
}

#[test]
fn access_lists_are_mapped() {
    let tools = [Need::Command("setfacl"), Need::Command("getfacl")];
    let Some(_) = require(&[NEEDS, &tools].concat()) else { return };
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = make_image(&scratch, SIZE);
    let run = |program: &str, arguments: &[&str], path: &Path| {
        let output = Command::new(program).args(arguments).arg(path).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let mount = Mount::new(&scratch, &image, "");
    fs::write(mount.path().join("f"), "").unwrap();
    assert!(run("setfacl", &["-m", "u:7:rw,g:8:r"], &mount.path().join("f")).0);
    mount.unmount();
    let mount = Mount::new(&scratch, &image, "idmap=0:1000:100");
    let file = mount.path().join("f");
    let (_, list) = run("getfacl", &["-n"], &file);
    assert!(list.contains("user:1007:rw-") && list.contains("group:1008:r--"), "{list}");
    assert!(run("setfacl", &["-m", "u:1009:r"], &file).0);
    assert!(!run("setfacl", &["-m", "u:9:r"], &file).0, "9 is not in the map");
    mount.unmount();
    check(&image);
    let mount = Mount::new(&scratch, &image, "");
    let (_, list) = run("getfacl", &["-n"], &mount.path().join("f"));
    for entry in ["user:7:rw-", "user:9:r--", "group:8:r--"] {
        assert!(list.contains(entry), "{entry}: {list}");
    }
    mount.unmount();
    // Masks decide on permissions instead of lists.
    let mount = Mount::new(&scratch, &image, "umask=027");
    let file = mount.path().join("f");
    let (_, list) = run("getfacl", &["-n"], &file);
    assert!(!list.contains("user:7"), "{list}");
    assert!(!run("setfacl", &["-m", "u:5:r"], &file).0);
    mount.unmount();
}

#[test]
fn masks_replace_permissions() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = foreign_image(&scratch);
    let mount = Mount::new(&scratch, &image, "umask=022,fmask=133");
    let root = mount.path();
    assert_eq!(shown(root.join("d")), (33, 34, 0o755));
    assert_eq!(shown(root.join("d/f")), (33, 34, 0o644));
    // Permissions are stored, although others are shown.
    fs::set_permissions(root.join("d/f"), fs::Permissions::from_mode(0o4711)).unwrap();
    assert_eq!(shown(root.join("d/f")), (33, 34, 0o644));
    mount.unmount();
    check(&image);
    assert_eq!(stored(&image, "/d"), (33, 34, 0o700));
    assert_eq!(stored(&image, "/d/f"), (33, 34, 0o4711));
}

#[test]
fn only_root_and_the_owner_are_admitted() {
    let Some(_) = require(&[NEEDS, &[Need::Command("setpriv")]].concat()) else { return };
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = make_image(&scratch, SIZE);
    let mount = Mount::new(&scratch, &image, "allow_root");
    let root = mount.path();
    fs::write(root.join("f"), "content").unwrap();
    fs::set_permissions(root.join("f"), fs::Permissions::from_mode(0o666)).unwrap();
    for _ in 0..2 {
        // The kernel has cached names and attributes for root by now.
        assert_eq!(fs::read(root.join("f")).unwrap(), b"content");
        fs::metadata(root).unwrap();
        for attempt in ["cat $DIR/f", "ls $DIR", "stat $DIR", "stat $DIR/f", "echo x >$DIR/f", "cd $DIR"] {
            assert!(!as_user(12345, root, attempt), "{attempt}");
        }
    }
    mount.unmount();
    let mount = Mount::new(&scratch, &image, "allow_other");
    assert!(as_user(12345, mount.path(), "cat $DIR/f"));
    mount.unmount();
}
