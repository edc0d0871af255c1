//! Limits: writers are refused before a change begins, and the kernel agrees with the numbers.

use super::judge::{assert_exact, numbers_of};
use crate::images::writable;
use papilio::{ErrorKind, FileSystem, MkfsOptions, QgroupId, QuotaError, XattrSet};
use papilio_oracle::Scratch;

/// Whether an error is that of an exceeded limit.
fn exceeded(error: &papilio::Error) -> bool {
    let of_limit = matches!(error.kind(), ErrorKind::Quota(QuotaError::Exceeded { .. }));
    assert!(!of_limit || error.errno() == 122, "{error}");
    of_limit
}

#[test]
fn limits_are_kept_to_the_byte() {
    const LIMIT: u64 = 8 << 20;
    let scratch = Scratch::new(2 << 30).unwrap();
    for cached in [0, 16 << 20] {
        let image = scratch.image("limits", 512 << 20).unwrap();
        papilio::mkfs(&image, &MkfsOptions::new().force(true)).unwrap();
        let fs = FileSystem::open_with(&image, &writable().cache_bytes(cached)).unwrap();
        fs.enable_quotas().unwrap();
        fs.rescan_quotas(|_| ()).unwrap();
        fs.create_subvolume("/a").unwrap();
        let id = QgroupId(fs.inode("/a").unwrap().tree().0);
        fs.limit_qgroup(id, Some(LIMIT), false).unwrap();
        let file = fs.create_file("/a/file").unwrap();
        let mut written = 0;
        let refused = loop {
            match file.write_all_at(&[3; 100_000], written) {
                Ok(()) => written += 100_000,
                Err(error) => break error,
            }
            assert!(written < 2 * LIMIT, "nothing was refused");
        };
        assert!(exceeded(&refused), "{refused}");
        assert!(written > LIMIT - (1 << 20), "refused after {written} bytes");
        fs.sync().unwrap();
        let key = id.to_string();
        assert!(numbers_of(&fs)[&key].0 <= LIMIT, "{:?}", numbers_of(&fs));
        // The refused write left the sectors that the limit allows.
        let size = file.size().unwrap();
        assert!((written..written + 100_000).contains(&size), "{size} after {written} bytes");
        assert!(file.read_all().unwrap() == vec![3; size as usize]);
        // Overwriting needs no more space than there was, as the numbers are exact after a commit.
        fs.create_file("/file").unwrap().write_all_at(&[1; 1 << 20], 0).unwrap();
        // Space that is freed can be used at once.
        file.set_len(4 << 20).unwrap();
        file.write_all_at(&[5; 1 << 20], 4 << 20).unwrap();
        fs.remove_file("/a/file").unwrap();
        drop(file);
        // Another limit: on bytes that no other subvolume references.
        fs.limit_qgroup(id, None, false).unwrap();
        fs.limit_qgroup(id, Some(1 << 20), true).unwrap();
        let error = fs.write("/a/large", vec![1; 2 << 20]).unwrap_err();
        assert!(exceeded(&error), "{error}");
        // Of it, too, the first part is stored.
        assert!((1..1 << 20).contains(&fs.metadata("/a/large").unwrap().size()));
        fs.remove_file("/a/large").unwrap();
        fs.write("/a/small", vec![1; 200 << 10]).unwrap();
        fs.limit_qgroup(id, Some(1), true).unwrap();
        assert!(exceeded(&fs.create_dir("/a/dir").unwrap_err()));
        let file = fs.open_file("/a/small").unwrap();
        assert!(exceeded(&file.allocate(0, 1 << 20, false).unwrap_err()));
        let inode = fs.inode("/a/small").unwrap();
        assert!(exceeded(&inode.set_xattr(b"user.x", b"y", XattrSet::Any).unwrap_err()));
        fs.remove_file("/a/small").unwrap();
        drop((file, inode));
        fs.limit_qgroup(id, None, true).unwrap();
        fs.create_dir("/a/dir").unwrap();
        fs.close().unwrap();
        assert_exact(&scratch, &image, "limits");
        std::fs::remove_file(image).unwrap();
    }
}

#[test]
fn group_limits_all_its_members() {
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = scratch.image("group", 512 << 20).unwrap();
    papilio::mkfs(&image, &MkfsOptions::new().force(true)).unwrap();
    let fs = FileSystem::open_with(&image, &writable()).unwrap();
    fs.enable_quotas().unwrap();
    fs.rescan_quotas(|_| ()).unwrap();
    let group = QgroupId::new(1, 1).unwrap();
    fs.create_qgroup(group).unwrap();
    fs.limit_qgroup(group, Some(4 << 20), false).unwrap();
    for name in ["/a", "/b"] {
        fs.create_subvolume(name).unwrap();
        fs.assign_qgroup(QgroupId(fs.inode(name).unwrap().tree().0), group).unwrap();
    }
    fs.write("/a/file", vec![1; 3 << 20]).unwrap();
    let error = fs.write("/b/file", vec![1; 3 << 20]).unwrap_err();
    assert!(exceeded(&error), "{error}");
    assert!(error.to_string().contains("1/1"), "{error}");
    fs.write("/b/file", vec![1; 512 << 10]).unwrap();
    fs.close().unwrap();
    assert_exact(&scratch, &image, "a group's limit");
}
