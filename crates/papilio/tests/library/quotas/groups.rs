//! Groups of subvolumes, and what happens to them as subvolumes come and go.

use super::judge::{NEEDS, assert_exact, numbers_of};
use crate::images::{btrfs, writable};
use papilio::{CheckOptions, FileSystem, MkfsOptions, NewInode, NewKind, QgroupId, QuotaError};
use papilio_oracle::{ImageSet, Scratch, require};
use std::path::Path;

/// A group of level 1.
fn group(number: u64) -> QgroupId {
    QgroupId::new(1, number).unwrap()
}

/// A file system with quotas and a subvolume `/a` with some files.
fn make(image: &Path) -> FileSystem {
    papilio::mkfs(image, &MkfsOptions::new().node_size(4096).force(true)).unwrap();
    let fs = FileSystem::open_with(image, &writable()).unwrap();
    fs.enable_quotas().unwrap();
    fs.rescan_quotas(|_| ()).unwrap();
    fs.create_subvolume("/a").unwrap();
    for number in 0..200 {
        fs.create_file(format!("/a/file{number}")).unwrap().write_all_at(&[7; 6000], 0).unwrap();
    }
    fs.sync().unwrap();
    fs
}

/// The error of an operation on quotas.
fn refused<T: std::fmt::Debug>(result: papilio::Result<T>) -> QuotaError {
    match result.unwrap_err() {
        papilio::Error::Quota(reason) => reason,
        other => panic!("{other}"),
    }
}

#[test]
fn groups_follow_their_members() {
    super::warnings::print();
    let scratch = Scratch::new(2 << 30).unwrap();
    let image = scratch.image("groups", 512 << 20).unwrap();
    let fs = make(&image);
    let a = QgroupId(fs.inode("/a").unwrap().tree().0);
    for number in 1..4 {
        fs.create_qgroup(group(number)).unwrap();
    }
    let top = QgroupId::new(2, 1).unwrap();
    fs.create_qgroup(top).unwrap();
    assert!(!fs.assign_qgroup(a, group(1)).unwrap(), "a group of one needs no rescan");
    assert!(!fs.assign_qgroup(group(1), top).unwrap());
    // In the group of its source from the start.
    let root = fs.root().unwrap();
    root.create_snapshot_in(fs.inode("/a").unwrap().tree(), b"in", false, &[group(1)]).unwrap();
    let new = NewInode::new(NewKind::Directory, 0o755);
    root.create_subvolume_in(b"empty", &new, &[group(1), group(2)]).unwrap();
    fs.create_file("/empty/file").unwrap().write_all_at(&[1; 100_000], 0).unwrap();
    drop(root);
    for number in (0..200).step_by(3) {
        fs.remove_file(format!("/in/file{number}")).unwrap();
    }
    fs.sync().unwrap();
    assert!(!fs.quota_status().unwrap().unwrap().is_inconsistent());
    let numbers = numbers_of(&fs);
    assert_eq!(numbers["2/1"], numbers["1/1"]);
    fs.close().unwrap();
    assert_exact(&scratch, &image, "hierarchy");
    let fs = FileSystem::open_with(&image, &writable()).unwrap();
    // Shares data with a member of the group, which then is not the only one to reference it.
    assert!(!fs.remove_qgroup(group(1), top).unwrap());
    assert!(fs.assign_qgroup(QgroupId(fs.inode("/in").unwrap().tree().0), group(2)).unwrap());
    fs.rescan_quotas(|_| ()).unwrap();
    fs.delete_subvolume("/in").unwrap();
    fs.clean_subvolumes().unwrap();
    fs.close().unwrap();
    assert_exact(&scratch, &image, "a member is gone");
}

#[test]
fn snapshot_outside_of_its_sources_group_needs_a_rescan() {
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = scratch.image("outside", 512 << 20).unwrap();
    let fs = make(&image);
    let a = QgroupId(fs.inode("/a").unwrap().tree().0);
    fs.create_subvolume("/b").unwrap();
    fs.create_qgroup(group(1)).unwrap();
    fs.assign_qgroup(a, group(1)).unwrap();
    fs.snapshot("/a", "/first", true).unwrap();
    assert!(!fs.quota_status().unwrap().unwrap().is_inconsistent(), "the group has one member");
    fs.assign_qgroup(QgroupId(fs.inode("/b").unwrap().tree().0), group(1)).unwrap();
    fs.create_file("/b/file").unwrap().write_all_at(&[1; 100_000], 0).unwrap();
    fs.sync().unwrap();
    fs.snapshot("/a", "/second", true).unwrap();
    assert!(fs.quota_status().unwrap().unwrap().is_inconsistent());
    fs.close().unwrap();
    let report = papilio::check(&image, &Default::default(), &CheckOptions::new()).unwrap();
    assert!(report.is_clean() && report.notes.iter().any(|note| note.code == "quotas-inconsistent"));
    let fs = FileSystem::open_with(&image, &writable()).unwrap();
    fs.rescan_quotas(|_| ()).unwrap();
    fs.close().unwrap();
    assert_exact(&scratch, &image, "rescanned");
}

#[test]
fn operations_on_groups_are_refused_as_the_kernel_refuses_them() {
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = scratch.image("refused", 512 << 20).unwrap();
    let fs = make(&image);
    let a = QgroupId(fs.inode("/a").unwrap().tree().0);
    fs.create_qgroup(group(1)).unwrap();
    fs.assign_qgroup(a, group(1)).unwrap();
    let missing = group(9);
    assert_eq!(refused(fs.create_qgroup(group(1))), QuotaError::Exists(group(1)));
    assert_eq!(refused(fs.create_qgroup(QgroupId(300))), QuotaError::Reserved(QgroupId(300)));
    assert_eq!(refused(fs.destroy_qgroup(group(1))), QuotaError::Busy(group(1)));
    assert_eq!(refused(fs.destroy_qgroup(a)), QuotaError::Busy(a));
    assert_eq!(refused(fs.destroy_qgroup(missing)), QuotaError::NoQgroup(missing));
    assert_eq!(refused(fs.assign_qgroup(a, missing)), QuotaError::NoQgroup(missing));
    assert_eq!(refused(fs.assign_qgroup(group(1), a)), QuotaError::WrongLevels);
    let related = QuotaError::Related { member: a, parent: group(1) };
    assert_eq!(refused(fs.assign_qgroup(a, group(1))), related);
    let unrelated = QuotaError::NotRelated { member: a, parent: missing };
    assert_eq!(refused(fs.remove_qgroup(a, missing)), unrelated);
    assert_eq!(refused(fs.limit_qgroup(missing, Some(1), false)), QuotaError::NoQgroup(missing));
    let made = fs.root().unwrap().create_snapshot_in(papilio::TreeId(a.0), b"s", true, &[missing]);
    assert_eq!(refused(made), QuotaError::NoQgroup(missing));
    assert!(fs.inode("/s").is_err(), "nothing half made");
    fs.disable_quotas().unwrap();
    assert_eq!(refused(fs.create_qgroup(group(1))), QuotaError::Off);
    assert_eq!(refused(fs.qgroups()), QuotaError::Off);
    fs.close().unwrap();
    if require(NEEDS).is_none() {
        return;
    }
    let images = ImageSet::open(&scratch, vec![image.clone()]);
    crate::images::assert_clean_for_both(&images, "quotas are off");
    let mounted = images.mount().unwrap();
    btrfs(&["quota", "enable", mounted.path().to_str().unwrap()]);
    mounted.unmount().unwrap();
}

#[test]
fn wrong_numbers_are_an_error_of_the_check() {
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = scratch.image("wrong", 512 << 20).unwrap();
    let fs = make(&image);
    let counted = fs.count_qgroups().unwrap();
    let stored: Vec<_> = fs.qgroups().unwrap().iter().map(|g| (g.id, g.referenced, g.exclusive)).collect();
    assert_eq!(counted, stored);
    fs.close().unwrap();
    let check = || papilio::check(&image, &Default::default(), &CheckOptions::new()).unwrap();
    let report = check();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    // A fault that only a writer with wrong numbers could make: it is planted in the tree block.
    plant(&image);
    let report = check();
    let kinds: Vec<_> = report.findings.iter().map(|finding| finding.kind.name()).collect();
    assert_eq!(kinds, ["qgroup-numbers"], "{:#?}", report.findings);
    assert!(!report.is_clean());
    let text = report.findings[0].to_string();
    assert!(text.contains("0/5"), "{text}");
}

/// Adds 4096 to the referenced bytes of qgroup 0/5, in all copies of the quota tree's leaf.
fn plant(image: &Path) {
    use papilio::format::items::qgroup::QgroupInfo;
    use papilio::format::{ChecksumType, ItemType, Key};
    let mut bytes = std::fs::read(image).unwrap();
    let key = Key::new(0, ItemType::QGROUP_INFO, 5);
    let node = 4096;
    let mut planted = 0;
    for start in (0..bytes.len()).step_by(node) {
        let block = &mut bytes[start..start + node];
        let owner = u64::from_le_bytes(block[88..96].try_into().unwrap());
        let items = u32::from_le_bytes(block[96..100].try_into().unwrap()) as usize;
        let sum = ChecksumType::Crc32c.compute(&block[32..]);
        if owner != 8 || block[100] != 0 || items > 100 || block[..32] != *sum.padded() {
            continue;
        }
        for slot in 0..items {
            let header = 101 + 25 * slot;
            let found = Key::new(
                u64::from_le_bytes(block[header..header + 8].try_into().unwrap()),
                ItemType(block[header + 8]),
                u64::from_le_bytes(block[header + 9..header + 17].try_into().unwrap()),
            );
            if found == key {
                let offset = u32::from_le_bytes(block[header + 17..header + 21].try_into().unwrap());
                let at = 101 + offset as usize;
                let mut info = QgroupInfo::parse(&block[at..at + QgroupInfo::SIZE]).unwrap();
                info.referenced += 4096;
                block[at..at + QgroupInfo::SIZE].copy_from_slice(&info.to_bytes());
                planted += 1;
            }
        }
        let sum = ChecksumType::Crc32c.compute(&block[32..]);
        block[..32].copy_from_slice(sum.padded());
    }
    assert!(planted > 0, "the leaf was found");
    std::fs::write(image, bytes).unwrap();
}
