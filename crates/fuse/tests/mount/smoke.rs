//! The life of a mount: start, use and end.

use crate::server::{Mount, NEEDS, check, make_image};
use papilio_oracle::{Need, Scratch, require};
use std::fs;
use std::process::Command;

#[test]
fn files_survive_unmounting() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = make_image(&scratch, 512 << 20);
    let mount = Mount::new(&scratch, &image, "");
    let root = mount.path();
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let wanted = format!("{} {} fuse.papilio ", image.display(), root.display());
    assert!(table.contains(&wanted), "{wanted} not in the table of mounts");
    fs::create_dir(root.join("d")).unwrap();
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(|n| n.to_le_bytes()).collect();
    fs::write(root.join("d/f"), &content).unwrap();
    assert!(fs::read(root.join("d/f")).unwrap() == content);
    assert_eq!(fs::read_dir(root.join("d")).unwrap().count(), 1);
    mount.unmount();
    check(&image);
    let again = Mount::new(&scratch, &image, "");
    assert!(fs::read(again.path().join("d/f")).unwrap() == content);
    again.unmount();
}

#[test]
fn fsynced_files_survive_a_killed_server() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = make_image(&scratch, 512 << 20);
    let mount = Mount::new(&scratch, &image, "");
    for round in 0..5_u8 {
        let content = vec![round; 100_000 * (usize::from(round) + 1)];
        let path = mount.path().join(format!("file{round}"));
        fs::write(&path, &content).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
    }
    fs::create_dir(mount.path().join("d")).unwrap();
    fs::rename(mount.path().join("file0"), mount.path().join("d/moved")).unwrap();
    fs::remove_file(mount.path().join("file1")).unwrap();
    fs::File::open(mount.path()).unwrap().sync_all().unwrap();
    mount.kill();
    check(&image);
    let again = Mount::new(&scratch, &image, "");
    for (round, name) in [(0_u8, "d/moved"), (2, "file2"), (3, "file3"), (4, "file4")] {
        let found = fs::read(again.path().join(name)).unwrap();
        assert!(found == vec![round; 100_000 * (usize::from(round) + 1)], "{name}");
    }
    assert_eq!(fs::read_dir(again.path()).unwrap().count(), 4, "file0 and file1 are gone");
    again.unmount();
}

#[test]
fn users_mount_through_fusermount3() {
    let Some(_) = require(&[NEEDS, &[Need::Command("fusermount3")]].concat()) else { return };
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let mount = Mount::by_helper(&scratch, &image, "");
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let wanted = format!("{} {} fuse.papilio ", image.display(), mount.path().display());
    assert!(table.contains(&wanted), "{wanted} not in the table of mounts");
    fs::write(mount.path().join("f"), b"content").unwrap();
    let ended = Command::new("fusermount3").arg("-u").arg(mount.path()).status().unwrap();
    assert!(ended.success());
    mount.unmount();
    check(&image);
    let again = Mount::by_helper(&scratch, &image, "ro,fsname=a\\,b");
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(table.contains(&format!("a,b {} fuse.papilio ro", again.path().display())), "{table}");
    assert_eq!(fs::read(again.path().join("f")).unwrap(), b"content");
    again.unmount();
}
