//! `rescue_clone`: the kernel fills a file system, Papilio clones it, sound and damaged, and
//! `btrfs check` and kernel mounts judge the clone.

use crate::images::open;
use crate::matrix::tree_spec;
use papilio::{
    CheckOptions, CloneLoss, CloneProgress, Cloned, FileSystem, OpenOptions, RescueCloneOptions, Subvolume,
};
use papilio_oracle::{CompareOptions, HostTree, ImageSet, Need, Scratch, compare, require, sys};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Shapes that differ in what a clone copies or makes.
const PRESETS: &str = "default,blake2,zlib,zstd,lzo,nodatasum,no-inline,node-4k,mixed,oldest,simple-quota,raid5";
/// Images that are damaged at random.
const DAMAGED: u64 = 12;

/// Makes a clone, and returns its report and what it lacks.
fn clone_of(images: &[PathBuf], out: &Path, options: &OpenOptions) -> (Cloned, Vec<CloneLoss>) {
    let source = open(images, options).expect("Papilio opens the images");
    let mut losses = Vec::new();
    let made = papilio::rescue_clone(&source, out, &RescueCloneOptions::new(), &mut |event| {
        if let CloneProgress::Lost(loss) = event {
            losses.push(loss);
        }
    });
    let (cloned, report) = made.unwrap_or_else(|error| panic!("{error}"));
    assert!(report.is_clean(), "{:#?} {losses:#?}", report.findings);
    (cloned, losses)
}

/// The facts about subvolumes that a clone keeps.
fn facts(fs: &FileSystem) -> Vec<Subvolume> {
    let keep = |subvolume: Subvolume| Subvolume { generation: papilio::Generation(0), ..subvolume };
    fs.subvolumes().unwrap().into_iter().filter(|found| found.refs > 0).map(keep).collect()
}

#[test]
fn a_clone_of_a_sound_file_system_equals_it() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let tree = tree_spec();
    let wanted = std::env::var("PAPILIO_CLONE_PRESETS").unwrap_or_else(|_| PRESETS.to_owned());
    for name in wanted.split(',') {
        let spec = papilio_oracle::preset(name).unwrap_or_else(|| panic!("no preset '{name}'"));
        let scratch = Scratch::new(tree.bytes * 4 + (64 << 20)).unwrap();
        let images = spec.sized_for(tree.bytes).make(&scratch).unwrap();
        let mounted = images.mount().unwrap();
        let written = tree.populate(mounted.path()).unwrap();
        let default = mounted.path().join("the default");
        sys::create_subvolume(&default).unwrap();
        sys::set_default_subvolume(mounted.path(), sys::subvolume_id(&default).unwrap()).unwrap();
        mounted.unmount().unwrap();

        let out = scratch.unique("clone");
        let (cloned, losses) = clone_of(images.paths(), &out, &OpenOptions::new());
        assert!(cloned.is_whole(), "{name}: {:?} {losses:#?}", cloned.mended);
        let cloned_images = ImageSet::open(&scratch, vec![out.clone()]);
        cloned_images.btrfs_check().unwrap_or_else(|error| panic!("{name}: {error}"));

        let (left, right) = (open(images.paths(), &OpenOptions::new()), FileSystem::open(&out));
        let (left, right) = (left.unwrap(), right.unwrap());
        assert_eq!(facts(&left), facts(&right), "{name}");
        assert_eq!(left.default_subvolume().unwrap(), right.default_subvolume().unwrap(), "{name}");
        let data = |fs: &FileSystem| {
            let report = fs.check(&CheckOptions::new().data_csum(true)).unwrap();
            assert!(report.is_clean(), "{name}: {:#?}", report.findings);
            (report.statistics.data_extents, report.statistics.data_bytes, report.statistics.csum_bytes)
        };
        let (extents, bytes, summed) = data(&left);
        let found = data(&right);
        // The cache of free space of old file systems is data, too.
        assert!(found.0 <= extents && found.1 <= bytes && found.2 == summed, "{name}: {found:?} {extents} {bytes}");
        drop((left, right));

        let top = ["subvolid=5".to_owned()];
        let mounts = [&images, &cloned_images].map(|set| set.mount_with(&top, true).unwrap());
        let [left, right] = mounts.each_ref().map(|mounted| HostTree::new(mounted.path()));
        let report = compare(&left, &right, &CompareOptions::SAME_IMAGE);
        println!("{name:14} {} entries, {} bytes, {} differences", report.entries, report.bytes, report.total);
        report.assert_equal(written.entries);
        mounts.into_iter().for_each(|mounted| mounted.unmount().unwrap());
        // The kernel writes to the clone, and it stays sound.
        let mounted = cloned_images.mount().unwrap();
        std::fs::write(mounted.path().join("new"), vec![7; 3 << 20]).unwrap();
        mounted.unmount().unwrap();
        cloned_images.btrfs_check().unwrap_or_else(|error| panic!("{name}, written to: {error}"));
    }
}

/// Every regular file with its content.
fn files(fs: &FileSystem) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let regular = |entry: &papilio::WalkEntry| {
        entry.inode.metadata().file_type() == papilio::FileKind::Regular && entry.inode.metadata().size() < 8 << 20
    };
    let entries = fs.walk("/").unwrap().map(|entry| entry.expect("a clean file system is walked"));
    entries.filter(regular).map(|entry| (entry.path.clone(), fs.read(&entry.path).ok())).collect()
}

#[test]
fn a_clone_of_a_damaged_file_system_is_clean_and_lists_what_it_lacks() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let tree = tree_spec();
    let scratch = Scratch::new(tree.bytes * 6 + (64 << 20)).unwrap();
    let mut spec = papilio_oracle::preset("zstd").unwrap().sized_for(tree.bytes);
    spec.metadata_profile = Some("single".to_owned());
    let images = spec.make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    tree.populate(mounted.path()).unwrap();
    mounted.unmount().unwrap();
    let [image] = images.paths() else { panic!("one image") };
    let fs = FileSystem::open(image).unwrap();
    let original: std::collections::BTreeMap<_, _> = files(&fs).into_iter().collect();
    let used: Vec<u64> = used_places(&fs);
    drop(fs);
    let (mut whole, mut total) = (0, 0);
    for seed in 0..DAMAGED {
        let damaged = scratch.unique("damaged");
        std::fs::copy(image, &damaged).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&damaged).unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..1 << random.u32(0..6) {
            let place = used[random.usize(..used.len())] + random.u64(..4096);
            file.write_all_at(&[random.u8(..)], place).unwrap();
        }
        let out = scratch.unique("clone");
        let options = OpenOptions::new().ignore_bad_roots(true).scan(true);
        let (cloned, losses) = clone_of(std::slice::from_ref(&damaged), &out, &options);
        ImageSet::open(&scratch, vec![out.clone()]).btrfs_check().unwrap_or_else(|error| {
            panic!("seed {seed}: {error} {losses:#?} {:#?}", cloned.mended);
        });
        let listed: BTreeSet<_> = losses.iter().map(|loss| loss.path.clone()).collect();
        let fs = FileSystem::open(&out).unwrap();
        let found = files(&fs);
        let right = |(path, content): &&(Vec<u8>, Option<Vec<u8>>)| original.get(path) == Some(content);
        let equal = found.iter().filter(right).count();
        for (path, _) in found.iter().filter(|entry| !right(entry)) {
            let known = listed.contains(path) || !original.contains_key(path) || !cloned.mended.is_empty();
            assert!(known, "seed {seed}: {} is wrong and not listed", path.escape_ascii());
        }
        assert!(equal == original.len() || !cloned.is_whole(), "seed {seed}: files are missing unsaid");
        (whole, total) = (whole + equal, total + original.len());
        std::fs::remove_file(damaged).unwrap();
        std::fs::remove_file(out).unwrap();
    }
    println!("{whole} of {total} files are right in {DAMAGED} clones");
    assert!(whole * 10 > total * 8, "{whole} of {total}");
}

/// Returns the places of all tree blocks and of some data on the only device.
fn used_places(fs: &FileSystem) -> Vec<u64> {
    let mut places = Vec::new();
    for root in fs.tree_roots().unwrap() {
        for block in fs.tree_blocks(root).into_iter().flatten().flatten() {
            places.extend(fs.places_of(block.address()).into_iter().map(|place| place.0));
        }
    }
    places
}
