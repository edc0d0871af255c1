//! Subvolumes and snapshots within one mount.

use crate::script::lstat;
use crate::server::{Mount, NEEDS, check, make_image};
use papilio::{FileSystem, OpenOptions};
use papilio_oracle::{Scratch, require};
use std::collections::HashSet;
use std::fs;
use std::path::Path;

fn number(path: &Path) -> u64 {
    lstat(path).unwrap().st_ino
}

fn errno(result: std::io::Result<impl Sized>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn inode_numbers_are_unique_and_stable_across_subvolumes() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let image_fs = FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap();
    image_fs.create_subvolume("/sub").unwrap();
    image_fs.create_file("/sub/f").unwrap().write_all_at(b"content", 0).unwrap();
    image_fs.create_subvolume("/sub/inner").unwrap();
    image_fs.snapshot("/sub", "/snapshot", false).unwrap();
    image_fs.snapshot("/sub", "/read-only", true).unwrap();
    image_fs.close().unwrap();

    let mount = Mount::new(&scratch, &image, "subvolid=5");
    let root = mount.path();
    let all = ["", "sub", "sub/f", "sub/inner", "snapshot", "snapshot/f", "snapshot/inner", "read-only/f"];
    let numbers: Vec<u64> = all.iter().map(|name| number(&root.join(name))).collect();
    assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), all.len(), "{numbers:x?}");
    assert_eq!(numbers[0], 256, "the root has the kernel's number");
    for (directory, name) in [("", "sub"), ("sub", "f"), ("sub", "inner"), ("snapshot", "inner")] {
        use std::os::unix::fs::DirEntryExt;
        let entries = fs::read_dir(root.join(directory)).unwrap().map(Result::unwrap);
        let listed = entries.into_iter().find(|entry| entry.file_name() == name).unwrap().ino();
        assert_eq!(listed, number(&root.join(directory).join(name)), "{directory}/{name}");
    }
    // A snapshot shows a subvolume as an empty directory that accepts no entries.
    assert_eq!(fs::read_dir(root.join("snapshot/inner")).unwrap().count(), 0);
    assert!(errno(fs::write(root.join("snapshot/inner/x"), b"")).is_some());

    assert_eq!(errno(fs::hard_link(root.join("sub/f"), root.join("f"))), Some(libc::EXDEV));
    assert_eq!(errno(fs::rename(root.join("sub/f"), root.join("snapshot/g"))), Some(libc::EXDEV));
    assert_eq!(errno(fs::write(root.join("read-only/x"), b"")), Some(libc::EROFS));
    assert_eq!(errno(fs::write(root.join("read-only/f"), b"")), Some(libc::EROFS));
    assert_eq!(errno(fs::File::options().write(true).open(root.join("read-only/f"))), Some(libc::EROFS));
    assert_eq!(errno(fs::remove_file(root.join("read-only/f"))), Some(libc::EROFS));
    assert_eq!(fs::read(root.join("read-only/f")).unwrap(), b"content");
    // The copy shares data across subvolumes, as `cp` does.
    fs::copy(root.join("sub/f"), root.join("copy")).unwrap();
    assert_eq!(fs::read(root.join("copy")).unwrap(), b"content");
    fs::write(root.join("snapshot/f"), b"changed").unwrap();
    assert_eq!(fs::read(root.join("sub/f")).unwrap(), b"content");
    // `rmdir` removes an empty subvolume and refuses others.
    assert_eq!(errno(fs::remove_dir(root.join("sub"))), Some(libc::ENOTEMPTY));
    fs::remove_dir(root.join("sub/inner")).unwrap();
    fs::rename(root.join("sub"), root.join("moved")).unwrap();
    assert_eq!(fs::read(root.join("moved/f")).unwrap(), b"content");
    assert_eq!(number(&root.join("moved/f")), numbers[2], "a rename keeps the number");
    mount.unmount();
    check(&image);

    let again = Mount::new(&scratch, &image, "subvolid=5");
    assert_eq!(number(&again.path().join("moved/f")), numbers[2], "a new mount keeps the number");
    assert_eq!(number(&again.path().join("snapshot/f")), numbers[5]);
    again.unmount();
    let inner = Mount::new(&scratch, &image, "subvol=moved");
    assert_eq!(fs::read(inner.path().join("f")).unwrap(), b"content");
    assert_eq!(
        number(&inner.path().join("f")),
        numbers[2] & 0xff_ffff_ffff,
        "a mounted subvolume shows its own numbers"
    );
    inner.unmount();
}

#[test]
fn snapshot_contains_earlier_writes_and_is_visible_at_once() {
    use papilio_ioctl::client::MountedPath;
    use std::io::{Read, Seek, SeekFrom, Write};
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let mount = Mount::new(&scratch, &image, "subvolid=5");
    let root = mount.path();
    let top = MountedPath::open(root).unwrap();
    // The kernel caches that this name does not exist.
    assert!(!root.join("sub").exists());
    top.create_subvolume(b"sub").unwrap();
    assert!(root.join("sub").is_dir());
    let mut file = fs::File::create(root.join("sub/f")).unwrap();
    for round in 0..3_u8 {
        // The file is neither closed nor synced.
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(&vec![round; 200_000]).unwrap();
        let name = format!("snapshot-{round}");
        assert!(!root.join(&name).exists());
        let sub = MountedPath::open(&root.join("sub")).unwrap();
        top.create_snapshot(&sub, name.as_bytes(), round % 2 == 1).unwrap();
        assert!(fs::read(root.join(&name).join("f")).unwrap() == vec![round; 200_000], "{name}");
    }
    assert!(fs::read(root.join("snapshot-0/f")).unwrap() == vec![0; 200_000]);
    let mut open = fs::File::open(root.join("snapshot-0/f")).unwrap();
    top.delete_subvolume(b"snapshot-0").unwrap();
    assert!(!root.join("snapshot-0").exists());
    // The file stays for its user, as in the kernel.
    let mut content = Vec::new();
    open.read_to_end(&mut content).unwrap();
    assert!(open.metadata().unwrap().len() == 200_000 && content == vec![0; 200_000]);
    drop(file);
    drop((top, open));
    mount.unmount();
    check(&image);
}

/// A file handle, as NFS servers keep it across restarts.
#[repr(C)]
struct FileHandle {
    length: u32,
    kind: i32,
    bytes: [u8; 128],
}

fn handle_of(path: &Path) -> FileHandle {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    let mut handle = FileHandle { length: 128, kind: 0, bytes: [0; 128] };
    let mut mount = 0;
    // SAFETY: the path is a C string, and the handle has the capacity that it states.
    let result = unsafe {
        let (directory, handle) = (libc::AT_FDCWD, &raw mut handle);
        libc::syscall(libc::SYS_name_to_handle_at, directory, path.as_ptr(), handle, &raw mut mount, 0)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    handle
}

fn open_handle(mount: &fs::File, handle: &FileHandle) -> std::io::Result<fs::File> {
    use std::os::fd::{AsRawFd, FromRawFd};
    // SAFETY: the kernel made the handle, and this is the only owner of the new descriptor.
    unsafe {
        let handle = std::ptr::from_ref(handle);
        match libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), handle, libc::O_RDONLY) {
            -1 => Err(std::io::Error::last_os_error()),
            descriptor => Ok(fs::File::from_raw_fd(descriptor as i32)),
        }
    }
}

#[test]
fn file_handles_survive_remounting() {
    let Some(_) = require(NEEDS) else { return };
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = make_image(&scratch, 256 << 20);
    let image_fs = FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap();
    image_fs.create_subvolume("/sub").unwrap();
    image_fs.close().unwrap();
    let mount = Mount::new(&scratch, &image, "subvolid=5");
    let files = ["f", "d/f", "sub/f"].map(|name| mount.path().join(name));
    fs::create_dir(mount.path().join("d")).unwrap();
    for file in &files {
        fs::write(file, file.as_os_str().as_encoded_bytes()).unwrap();
    }
    let gone = mount.path().join("gone");
    fs::write(&gone, b"").unwrap();
    let handles = files.clone().map(|file| handle_of(&file));
    let gone_handle = handle_of(&gone);
    fs::remove_file(&gone).unwrap();
    mount.unmount();
    let again = Mount::new(&scratch, &image, "subvolid=5");
    let root = fs::File::open(again.path()).unwrap();
    for (file, handle) in files.iter().zip(&handles) {
        let content = std::io::read_to_string(open_handle(&root, handle).unwrap()).unwrap();
        assert_eq!(content.as_bytes(), file.as_os_str().as_encoded_bytes());
    }
    assert_eq!(errno(open_handle(&root, &gone_handle)), Some(libc::ESTALE));
    drop(root);
    again.unmount();
}
