//! Simple quotas: Papilio and the kernel continue the numbers of one another.
//!
//! The kernel never counts simple quotas anew. So the numbers of a file system that only the kernel
//! wrote show that Papilio counts as it does, and Papilio's count then judges both.

use super::judge::{NEEDS, Numbers, numbers_of, ours, shown};
use super::world::World;
use crate::images::{btrfs, writable};
use papilio::{
    BalanceFilter, BalanceOptions, CheckOptions, FileSystem, MkfsOptions, OpenOptions, QgroupId, QuotaError,
};
use papilio_oracle::{ImageSet, Scratch, clean_subvolumes, require, sys};
use std::path::Path;

/// Operations of one turn; `PAPILIO_QUOTA_OPERATIONS` sets the number of all turns.
fn operations() -> u64 {
    std::env::var("PAPILIO_QUOTA_OPERATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(3000) / 3
}

fn make(image: &Path) -> FileSystem {
    papilio::mkfs(image, &MkfsOptions::new().node_size(4096).force(true)).unwrap();
    FileSystem::open_with(image, &writable()).unwrap()
}

/// Counts the extents of an image, and compares with what is stored. Returns the numbers.
fn exact(image: &Path, when: &str) -> Numbers {
    let fs = FileSystem::open_with(image, &OpenOptions::new()).unwrap();
    let counted = fs.count_qgroups().unwrap();
    let counted: Numbers = counted
        .into_iter()
        .map(|(id, referenced, exclusive)| (id.to_string(), (referenced, exclusive)))
        .collect();
    drop(fs);
    let stored = ours(image);
    let wrong: Vec<String> = stored
        .iter()
        .filter(|(id, numbers)| counted.get(*id) != Some(numbers))
        .map(|(id, numbers)| format!("{id}: stored {numbers:?}, counted {:?}", counted.get(id)))
        .collect();
    assert!(wrong.is_empty() && stored.len() == counted.len(), "{when}: {wrong:#?}");
    stored
}

fn assert_clean(image: &Path, when: &str) {
    let report = papilio::check(image, &OpenOptions::new(), &CheckOptions::new().data_csum(true)).unwrap();
    assert!(report.is_clean(), "{when}: {:#?}", report.findings);
}

/// Changes a mounted file system: files, a snapshot, a reflink and removals.
fn kernel_turn(root: &str, turn: usize) {
    let at = |path: &str| format!("{root}/{path}");
    btrfs(&["subvolume", "create", &at(&format!("kernel{turn}"))]);
    for number in 0..150 {
        let file = at(&format!("kernel{turn}/file{number}"));
        std::fs::write(file, vec![number as u8; 3000 + number * 97]).unwrap();
    }
    btrfs(&["subvolume", "snapshot", &at(&format!("kernel{turn}")), &at(&format!("copy{turn}"))]);
    for number in (0..150).step_by(3) {
        std::fs::remove_file(at(&format!("kernel{turn}/file{number}"))).unwrap();
        std::fs::write(at(&format!("copy{turn}/file{number}")), vec![3; 9000]).unwrap();
    }
    btrfs(&["filesystem", "sync", root]);
    if turn > 0 {
        btrfs(&["subvolume", "delete", "-c", &at(&format!("kernel{}", turn - 1))]);
        clean_subvolumes(root.as_ref()).unwrap();
    }
}

#[test]
fn simple_numbers_are_those_of_the_kernel_and_both_continue_them() {
    if require(NEEDS).is_none() {
        return;
    }
    super::warnings::print();
    let scratch = Scratch::new(2 << 30).unwrap();
    let image = scratch.image("simple", 2 << 30).unwrap();
    let images = ImageSet::open(&scratch, vec![image.clone()]);
    // Only the kernel writes: the count of Papilio has to be its numbers.
    make(&image).close().unwrap();
    {
        let mounted = images.mount().unwrap();
        std::fs::write(mounted.path().join("before"), vec![1; 100_000]).unwrap();
        mounted.sync().unwrap();
        sys::enable_quota(mounted.path(), true).unwrap();
        let root = mounted.path().to_str().unwrap().to_owned();
        (0..3).for_each(|turn| kernel_turn(&root, turn));
        mounted.sync().unwrap();
        let kernel = shown(mounted.path());
        mounted.unmount().unwrap();
        assert!(kernel.values().filter(|numbers| numbers.0 > 100_000).count() > 2, "{kernel:?}");
        assert_eq!(exact(&image, "only the kernel wrote"), kernel);
    }
    // Turns of both.
    let mut world = World::new(11);
    for turn in 3..6 {
        let fs = FileSystem::open_with(&image, &writable()).unwrap();
        world.steps(&fs, operations());
        for number in (1..150).step_by(4) {
            fs.remove_file(format!("/copy{}/file{number}", turn - 1)).unwrap();
        }
        fs.delete_subvolume(format!("/copy{}", turn - 2)).unwrap();
        fs.clean_subvolumes().unwrap();
        fs.close().unwrap();
        let when = format!("turn {turn}, Papilio");
        let numbers = exact(&image, &when);
        assert_clean(&image, &when);
        let mounted = images.mount().unwrap();
        assert_eq!(shown(mounted.path()), numbers, "{when}");
        kernel_turn(mounted.path().to_str().unwrap(), turn);
        mounted.sync().unwrap();
        let kernel = shown(mounted.path());
        mounted.unmount().unwrap();
        assert_eq!(exact(&image, &format!("turn {turn}, the kernel")), kernel);
    }
    // Extents move, and stay charged.
    let before = ours(&image);
    let fs = FileSystem::open_with(&image, &writable()).unwrap();
    let all = || Some(BalanceFilter::default());
    let options = BalanceOptions { data: all(), metadata: all(), system: None, force: true };
    fs.balance(&options, |_| true).unwrap();
    fs.close().unwrap();
    assert_eq!(exact(&image, "after a balance"), before);
    let mounted = images.mount().unwrap();
    kernel_turn(mounted.path().to_str().unwrap(), 6);
    mounted.sync().unwrap();
    let kernel = shown(mounted.path());
    mounted.unmount().unwrap();
    assert_eq!(exact(&image, "the kernel, after a balance"), kernel);
    assert_clean(&image, "the end");
}

#[test]
fn simple_quotas_are_turned_on_limited_inherited_and_turned_off() {
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = scratch.image("limits", 1 << 30).unwrap();
    let fs = make(&image);
    fs.create_subvolume("/old").unwrap();
    fs.write("/old/uncounted", vec![1; 1 << 20]).unwrap();
    fs.enable_simple_quotas().unwrap();
    let status = fs.quota_status().unwrap().unwrap();
    assert!(!status.is_inconsistent() && status.flags.contains(papilio::QgroupStatusFlags::SIMPLE_MODE));
    let of = |fs: &FileSystem, path: &str| {
        let id = fs.inode(path).unwrap().tree().0;
        fs.sync().unwrap();
        numbers_of(fs)[&QgroupId(id).to_string()]
    };
    assert_eq!(of(&fs, "/old").0, 0);
    for refused in [fs.start_quota_rescan(), fs.rescan_quotas(|_| ())] {
        assert!(matches!(refused, Err(papilio::Error::Quota(QuotaError::Simple))), "{refused:?}");
    }
    // Old extents stay free of charge, and their removal is no refund.
    fs.write("/old/new", vec![2; 1 << 20]).unwrap();
    assert!(of(&fs, "/old").0 >= 1 << 20);
    fs.remove_file("/old/uncounted").unwrap();
    assert!(of(&fs, "/old").0 >= 1 << 20);
    // A subvolume joins the groups of the one around it.
    let (group, tree) = (QgroupId::new(1, 7).unwrap(), fs.inode("/old").unwrap().tree());
    fs.create_qgroup(group).unwrap();
    assert!(!fs.assign_qgroup(QgroupId(tree.0), group).unwrap());
    fs.create_subvolume("/old/inner").unwrap();
    fs.snapshot("/old", "/outside", false).unwrap();
    fs.write("/old/inner/file", vec![3; 500_000]).unwrap();
    fs.sync().unwrap();
    let numbers = numbers_of(&fs);
    assert_eq!(numbers["1/7"].0, of(&fs, "/old").0 + of(&fs, "/old/inner").0);
    // A snapshot is charged for its root alone.
    assert_eq!(of(&fs, "/outside").0, 4096);
    // Limits.
    fs.limit_qgroup(group, Some(2 << 20), false).unwrap();
    let file = fs.create_file("/old/inner/large").unwrap();
    let result = file.write_all_at(&vec![4; 1 << 20], 0);
    assert!(matches!(result, Err(papilio::Error::Quota(QuotaError::Exceeded { .. }))), "{result:?}");
    drop(file);
    fs.remove_file("/old/new").unwrap();
    // The snapshot still shares the data, so that its bytes stay charged.
    assert!(of(&fs, "/old").0 >= 1 << 20);
    fs.remove_file("/outside/new").unwrap();
    assert!(of(&fs, "/old").0 < 1 << 20);
    fs.write("/old/inner/large", vec![4; 1 << 20]).unwrap();
    fs.close().unwrap();
    assert_clean(&image, "limits");
    let inner = a_deleted_subvolume_stays_charged(&image);
    if require(NEEDS).is_none() {
        return;
    }
    let images = ImageSet::open(&scratch, vec![image.clone()]);
    the_last_that_shares_extents_is_deleted(&image, &images, inner);
}

/// A deleted subvolume stays charged while others share its extents. Returns its qgroup.
fn a_deleted_subvolume_stays_charged(image: &Path) -> QgroupId {
    let fs = FileSystem::open_with(image, &writable()).unwrap();
    fs.snapshot("/old/inner", "/kept", true).unwrap();
    let inner = QgroupId(fs.inode("/old/inner").unwrap().tree().0);
    fs.delete_subvolume("/old/inner").unwrap();
    fs.clean_subvolumes().unwrap();
    fs.sync().unwrap();
    assert!(numbers_of(&fs)[&inner.to_string()].0 > 1 << 20);
    assert!(fs.clear_stale_qgroups().unwrap().is_empty());
    for group in [QgroupId(fs.inode("/kept").unwrap().tree().0), inner] {
        let error = fs.destroy_qgroup(group).unwrap_err();
        assert!(matches!(error, papilio::Error::Quota(QuotaError::Busy(found)) if found == group), "{error}");
    }
    fs.close().unwrap();
    exact(image, "kept");
    // On a copy: the last one that shares them goes.
    let copy = image.with_extension("copy");
    std::fs::copy(image, &copy).unwrap();
    let fs = FileSystem::open_with(&copy, &writable()).unwrap();
    fs.delete_subvolume("/kept").unwrap();
    fs.clean_subvolumes().unwrap();
    fs.sync().unwrap();
    assert!(numbers_of(&fs).get(&inner.to_string()).is_none_or(|numbers| numbers.0 == 0));
    fs.clear_stale_qgroups().unwrap();
    assert!(!numbers_of(&fs).contains_key(&inner.to_string()));
    fs.close().unwrap();
    exact(&copy, "dropped");
    std::fs::remove_file(copy).unwrap();
    inner
}

/// The kernel deletes the last subvolume that shares extents with a deleted one.
fn the_last_that_shares_extents_is_deleted(image: &Path, images: &ImageSet, inner: QgroupId) {
    let numbers = ours(image);
    // The kernel drops the last subvolume that shares them, and with it the charge.
    let mounted = images.mount().unwrap();
    let root = mounted.path().to_str().unwrap().to_owned();
    assert_eq!(shown(mounted.path()), numbers);
    btrfs(&["subvolume", "delete", "-c", &format!("{root}/kept")]);
    clean_subvolumes(root.as_ref()).unwrap();
    mounted.sync().unwrap();
    let after = shown(mounted.path());
    mounted.unmount().unwrap();
    assert!(after.get(&inner.to_string()).is_none_or(|numbers| numbers.0 == 0), "{after:?}");
    assert_eq!(exact(image, "dropped by the kernel"), after);
    let fs = FileSystem::open_with(image, &writable()).unwrap();
    fs.clear_stale_qgroups().unwrap();
    assert!(!numbers_of(&fs).contains_key(&inner.to_string()));
    fs.disable_quotas().unwrap();
    fs.write("/old/free", vec![5; 1 << 20]).unwrap();
    fs.close().unwrap();
    assert_clean(image, "off");
    images.mount().unwrap().unmount().unwrap();
}
