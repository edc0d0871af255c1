//! Limits: full file systems, bad mount points, and operations that FUSE lacks.

use crate::server::{Mount, NEEDS, check, make_image};
use papilio::{FileSystem, OpenOptions};
use papilio_fuse::{MountError, MountOptions, Session};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::fs;
use std::io::Write;
use std::path::Path;

#[test]
fn statfs_matches_the_kernel() {
    let Some(_) = require(&[NEEDS, Need::KERNEL_MOUNT].concat()) else { return };
    let scratch = Scratch::new(2 << 30).unwrap();
    let image = make_image(&scratch, 1 << 30);
    let set = ImageSet::open(&scratch, vec![image.clone()]);
    let kernel = set.mount().unwrap();
    fs::write(kernel.path().join("f"), vec![7; 50 << 20]).unwrap();
    kernel.sync().unwrap();
    let theirs = rustix::fs::statvfs(kernel.path()).unwrap();
    kernel.unmount().unwrap();
    let mount = Mount::new(&scratch, &image, "noatime");
    let ours = rustix::fs::statvfs(mount.path()).unwrap();
    mount.unmount();
    assert_eq!(ours.f_blocks, theirs.f_blocks);
    assert_eq!(ours.f_bsize, theirs.f_bsize);
    // The reserve depends on what the kernel has in memory, so allow a difference of a few MiB.
    let near = |ours: u64, theirs: u64| ours.abs_diff(theirs) * 4096 < 16 << 20;
    assert!(near(ours.f_bfree, theirs.f_bfree), "{} {}", ours.f_bfree, theirs.f_bfree);
    assert!(near(ours.f_bavail, theirs.f_bavail), "{} {}", ours.f_bavail, theirs.f_bavail);
}

#[test]
fn full_file_system_recovers_after_deletions() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(512 << 20).unwrap();
    let image = make_image(&scratch, 128 << 20);
    let mount = Mount::new(&scratch, &image, "");
    let piece = vec![0x5a; 1 << 20];
    let mut written = 0;
    let failure = loop {
        let path = mount.path().join(format!("f{written}"));
        let result = fs::File::create(&path)
            .and_then(|mut file| file.write_all(&piece).and_then(|()| file.sync_all()));
        match result {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 200, "wrote more than the file system holds");
    };
    assert_eq!(failure.raw_os_error(), Some(libc::ENOSPC));
    assert!(written > 20, "{written}");
    for number in 0..written {
        assert!(fs::read(mount.path().join(format!("f{number}"))).unwrap() == piece, "f{number}");
        fs::remove_file(mount.path().join(format!("f{number}"))).unwrap();
    }
    fs::File::open(mount.path()).unwrap().sync_all().unwrap();
    fs::write(mount.path().join("again"), &piece).unwrap();
    fs::File::open(mount.path().join("again")).unwrap().sync_all().unwrap();
    mount.unmount();
    check(&image);
}

#[test]
fn clones_are_refused() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let mount = Mount::new(&scratch, &image, "");
    fs::write(mount.path().join("f"), b"f").unwrap();
    let (from, to) = (fs::File::open(mount.path().join("f")), fs::File::create(mount.path().join("g")));
    let cloned = rustix::fs::ioctl_ficlone(to.unwrap(), from.unwrap());
    assert_eq!(cloned.err().map(|error| error.raw_os_error()), Some(libc::EOPNOTSUPP));
    mount.unmount();
}

#[test]
fn read_only_mount_leaves_the_image_unchanged() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let mount = Mount::new(&scratch, &image, "");
    fs::write(mount.path().join("f"), b"f").unwrap();
    mount.unmount();
    let before = fs::read(&image).unwrap();
    let mount = Mount::new(&scratch, &image, "ro,strictatime");
    assert_eq!(fs::read(mount.path().join("f")).unwrap(), b"f");
    fs::File::open(mount.path().join("f")).unwrap().sync_all().unwrap();
    fs::File::open(mount.path()).unwrap().sync_all().unwrap();
    let refused = fs::write(mount.path().join("f"), b"g").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    mount.unmount();
    assert!(fs::read(&image).unwrap() == before);
}

fn mount(image: &Path, directory: &Path) -> Result<Session, MountError> {
    let fs = FileSystem::open_with(image, &OpenOptions::new()).unwrap();
    Session::mount(fs, image, directory, &MountOptions::default())
}

#[test]
fn bad_mount_points_are_refused() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let missing = mount(&image, &scratch.path().join("missing")).unwrap_err();
    assert!(matches!(missing, MountError::Missing(_)), "{missing}");
    let file = mount(&image, &image).unwrap_err();
    assert!(matches!(file, MountError::NotADirectory(_)), "{file}");
    // A mount whose server was killed.
    let dead = Mount::new(&scratch, &image, "ro");
    let point = dead.path().to_owned();
    dead.kill_only();
    let busy = mount(&image, &point).unwrap_err();
    assert!(matches!(busy, MountError::DeadMount(_)), "{busy}");
    assert_eq!(busy.to_string().lines().count(), 1);
    papilio_oracle::scratch::unmount(&point).unwrap();
    // Each failure has released the image.
    FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap().close().unwrap();
}
