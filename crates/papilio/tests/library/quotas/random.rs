//! Random operations: the numbers are exact at every checkpoint.

use super::judge::{NEEDS, assert_exact, numbers_of, ours, shown};
use super::world::World;
use crate::images::{btrfs, writable};
use papilio::{FileSystem, MkfsOptions};
use papilio_oracle::{ImageSet, Scratch, clean_subvolumes, require};

/// Operations of one seed; `PAPILIO_QUOTA_OPERATIONS` sets another number.
fn operations() -> u64 {
    std::env::var("PAPILIO_QUOTA_OPERATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(4000)
}

/// The first seed; `PAPILIO_QUOTA_SEED` sets another one.
fn first_seed() -> u64 {
    std::env::var("PAPILIO_QUOTA_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[test]
fn numbers_equal_the_kernels_rescan_after_random_operations() {
    let scratch = Scratch::new(4 << 30).unwrap();
    super::warnings::print();
    let (operations, first) = (operations(), first_seed());
    for (seed, node_size) in [(first, 4096), (first + 1, 16384)] {
        let image = scratch.image("random", 2 << 30).unwrap();
        papilio::mkfs(&image, &MkfsOptions::new().node_size(node_size).force(true)).unwrap();
        let mut world = World::new(seed);
        let fs = FileSystem::open_with(&image, &writable()).unwrap();
        world.steps(&fs, 100);
        fs.clean_subvolumes().unwrap();
        fs.enable_quotas().unwrap();
        fs.rescan_quotas(|_| ()).unwrap();
        fs.close().unwrap();
        let checkpoints = 4;
        for checkpoint in 0..checkpoints {
            let when = format!("seed {seed}, checkpoint {checkpoint}");
            assert_exact(&scratch, &image, &when);
            let fs = FileSystem::open_with(&image, &writable()).unwrap();
            world.steps(&fs, operations / 2 / checkpoints);
            fs.clean_subvolumes().unwrap();
            fs.close().unwrap();
        }
        assert_exact(&scratch, &image, &format!("seed {seed}, the end"));
        std::fs::remove_file(image).unwrap();
    }
}

#[test]
fn numbers_of_the_kernel_are_continued_and_handed_back() {
    if require(NEEDS).is_none() {
        return;
    }
    let scratch = Scratch::new(2 << 30).unwrap();
    let image = scratch.image("handed", 1 << 30).unwrap();
    papilio::mkfs(&image, &MkfsOptions::new().node_size(4096).force(true)).unwrap();
    let images = ImageSet::open(&scratch, vec![image.clone()]);
    {
        let mounted = images.mount().unwrap();
        let root = mounted.path().to_str().unwrap().to_owned();
        btrfs(&["quota", "enable", &root]);
        btrfs(&["subvolume", "create", &format!("{root}/kernel")]);
        for number in 0..300 {
            std::fs::write(format!("{root}/kernel/file{number}"), vec![number as u8; 5000]).unwrap();
        }
        btrfs(&["subvolume", "snapshot", &format!("{root}/kernel"), &format!("{root}/copy")]);
        btrfs(&["quota", "rescan", "-w", &root]);
        mounted.sync().unwrap();
        let kernel = shown(mounted.path());
        mounted.unmount().unwrap();
        assert_eq!(ours(&image), kernel);
    }
    let fs = FileSystem::open_with(&image, &writable()).unwrap();
    for number in (0..300).step_by(7) {
        fs.remove_file(format!("/copy/file{number}")).unwrap();
        fs.open_file(format!("/kernel/file{number}")).unwrap().write_all_at(&[9; 8192], 0).unwrap();
    }
    fs.snapshot("/copy", "/third", true).unwrap();
    fs.sync().unwrap();
    let numbers = numbers_of(&fs);
    fs.close().unwrap();
    assert_eq!(ours(&image), numbers);
    assert_exact(&scratch, &image, "continued");
    // The kernel takes the numbers as they are, and counts on.
    let mounted = images.mount().unwrap();
    let root = mounted.path().to_str().unwrap().to_owned();
    assert_eq!(shown(mounted.path()), numbers);
    std::fs::remove_file(format!("{root}/kernel/file0")).unwrap();
    btrfs(&["subvolume", "delete", "-c", &format!("{root}/copy")]);
    clean_subvolumes(root.as_ref()).unwrap();
    mounted.unmount().unwrap();
    assert_exact(&scratch, &image, "handed back");
}
