//! A server that runs out of file descriptors, or of memory.

use crate::server::{Mount, NEEDS, check, make_image};
use papilio_oracle::{Need, Scratch, require};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// Changes a limit of a running process.
fn limit(process: u32, resource: &str) {
    let status = Command::new("prlimit").args(["--pid", &process.to_string(), resource]).status().unwrap();
    assert!(status.success(), "prlimit {resource}");
}

/// Reads, writes, lists, locks, copies, and asks for what the server reads from /proc.
fn work(root: &Path, round: u32) {
    let directory = root.join(format!("d{round}"));
    fs::create_dir(&directory).unwrap();
    let content: Vec<u8> = (0..200_000).map(|n| (n * round) as u8).collect();
    for n in 0..200 {
        fs::write(directory.join(format!("f{n}")), &content[..1000 * (n % 9)]).unwrap();
    }
    let mut kept = Vec::new();
    for n in 0..200 {
        let mut file = File::options().append(true).open(directory.join(format!("f{n}"))).unwrap();
        file.write_all(b"more").unwrap();
        kept.push(file);
    }
    kept[7].sync_all().unwrap();
    fs::write(directory.join("large"), &content).unwrap();
    fs::copy(directory.join("large"), directory.join("copy")).unwrap();
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 202);
    xattr::set(directory.join("copy"), "user.name", b"value").unwrap();
    drop(kept);
    for n in 0..200 {
        assert_eq!(fs::metadata(directory.join(format!("f{n}"))).unwrap().len(), 1000 * (n % 9) + 4);
    }
    assert!(fs::read(directory.join("copy")).unwrap() == content);
}

#[test]
fn server_without_descriptors_serves() {
    let Some(_) = require(&[NEEDS, &[Need::Command("prlimit"), Need::Command("chattr")]].concat()) else {
        return;
    };
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let mount = Mount::new(&scratch, &image, "");
    work(mount.path(), 1);
    // No further descriptor can be opened; those that are open stay.
    limit(mount.server(), "--nofile=3:4096");
    work(mount.path(), 2);
    // An ioctl that reads the caller's umask or descriptors answers with an error or does without.
    let subvolume = mount.path().join("subvolume");
    let made = papilio_oracle::sys::create_subvolume(&subvolume);
    made.unwrap();
    let snapshot = papilio_oracle::sys::create_snapshot(&subvolume, &mount.path().join("snapshot"), true);
    let errno = snapshot.unwrap_err().raw_os_error();
    assert!([Some(libc::EMFILE), Some(libc::EOPNOTSUPP)].contains(&errno), "{errno:?}");
    limit(mount.server(), "--nofile=1024:4096");
    papilio_oracle::sys::create_snapshot(&subvolume, &mount.path().join("snapshot"), true).unwrap();
    work(mount.path(), 3);
    mount.unmount();
    check(&image);
}

/// A server without memory ends as after a crash: fsynced data is in the image.
#[test]
fn server_without_memory_ends_like_a_crash() {
    let Some(_) = require(&[NEEDS, &[Need::Command("prlimit")]].concat()) else { return };
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let mount = Mount::new(&scratch, &image, "");
    work(mount.path(), 1);
    let mut kept = File::create(mount.path().join("kept")).unwrap();
    kept.write_all(&[3; 300_000]).unwrap();
    kept.sync_all().unwrap();
    drop(kept);
    // The server keeps the memory that it has, and gets no more.
    limit(mount.server(), "--data=65536:65536");
    let mut failure = None;
    for number in 0..2000 {
        let path = mount.path().join(format!("more{number}"));
        let written = fs::write(&path, vec![number as u8; 60_000]).and_then(|()| fs::metadata(&path));
        if let Err(error) = written {
            failure = error.raw_os_error();
            break;
        }
    }
    assert!(
        [Some(libc::ENOTCONN), Some(libc::ECONNABORTED), Some(libc::ECANCELED), Some(libc::EIO)]
            .contains(&failure),
        "{failure:?}"
    );
    let status = mount.ended();
    assert!(!status.success(), "{status}");
    check(&image);
    let mount = Mount::new(&scratch, &image, "");
    assert!(fs::read(mount.path().join("kept")).unwrap() == [3; 300_000]);
    mount.unmount();
    check(&image);
}
