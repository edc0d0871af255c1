//! Ext file systems whose journal needs a replay: the new file system is as a mount would show it,
//! and the way back leads to the bytes before.

use super::fill::{bytes, everything};
use super::world::{Kind, NEEDS, SourceMount, World, copy, mend, run};
use papilio_convert::ConvertOptions;
use papilio_oracle::require;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

/// Makes a file system that was not unmounted: a copy of the device while it was mounted.
pub fn cut_off(arguments: &str, fill: impl FnOnce(&Path), change: impl FnOnce(&Path)) -> World {
    let world = World::new(arguments, 200, fill);
    {
        let mounted = SourceMount::new(&world.scratch, Kind::Ext, &world.image, false);
        change(mounted.path());
        rustix::fs::syncfs(fs::File::open(mounted.path()).unwrap()).unwrap();
        copy(&world.image, &world.original);
    }
    fs::copy(&world.original, &world.image).unwrap();
    world
}

/// Changes of many kinds: blocks of directories that become data of files are revoked.
pub fn changes(root: &Path) {
    fs::remove_dir_all(root.join("names")).unwrap();
    rustix::fs::syncfs(fs::File::open(root).unwrap()).unwrap();
    for at in 0..60 {
        fs::write(root.join(format!("new {at}")), bytes(at, 100_000)).unwrap();
    }
    for at in 0..300 {
        fs::create_dir(root.join(format!("folder {at}"))).unwrap();
    }
    rustix::fs::syncfs(fs::File::open(root).unwrap()).unwrap();
    fs::rename(root.join("sizes"), root.join("renamed")).unwrap();
    fs::remove_dir_all(root.join("fragmented")).unwrap();
    xattr::set(root.join("new 3"), "user.late", &bytes(3, 900)).unwrap();
}

/// Converts, compares with what `e2fsck` makes of the same bytes, and goes back.
fn whole_way(arguments: &str) {
    if require(NEEDS).is_none() {
        return;
    }
    both_ways(&cut_off(arguments, everything, changes));
}

/// Judges the conversion of a file system that was cut off, and its way back. Returns the seconds
/// of the conversion.
pub fn both_ways(world: &World) -> f64 {
    let mended = world.image.with_extension("mended");
    copy(&world.original, &mended);
    mend(&mended);
    assert!(world.plan().unwrap().replayed);
    let begun = Instant::now();
    world.convert();
    let seconds = begun.elapsed().as_secs_f64();
    world.check_btrfs();
    {
        let source = SourceMount::new(&world.scratch, Kind::Ext, &mended, true);
        let (btrfs, _loop) = world.mount_btrfs(true);
        super::world::compare_trees(source.path(), btrfs.path(), &[]);
        // The saved image is the source before the replay.
        let again = world.image.with_extension("again");
        copy(&btrfs.path().join("ext2_saved/image"), &again);
        compare_mended(world, &again, &mended);
    }
    world.roll_back().unwrap();
    compare_mended(world, &world.image, &mended);
    seconds
}

/// Lets `e2fsck` replay the journal of an image, which then is as `mended` is.
fn compare_mended(world: &World, image: &Path, mended: &Path) {
    mend(image);
    run("e2fsck", &["-fn", image.to_str().unwrap()]);
    let [a, b] = [image, mended].map(|path| SourceMount::new(&world.scratch, Kind::Ext, path, true));
    super::world::compare_same(a.path(), b.path());
}

#[test]
fn a_journal_with_checksums_is_replayed() {
    whole_way("-t ext4 -b 4096");
}

#[test]
fn a_journal_without_checksums_is_replayed() {
    whole_way("-t ext4 -b 4096 -O ^metadata_csum,^64bit,uninit_bg");
}

#[test]
fn a_journal_of_ext3_is_replayed() {
    whole_way("-t ext3 -b 4096 -I 256 -J size=8");
}

#[test]
fn journals_that_cannot_be_replayed_are_refused() {
    if require(NEEDS).is_none() {
        return;
    }
    let refused = |world: &World, words: &str| {
        let before = fs::read(&world.image).unwrap();
        let text = world.convert_with(&ConvertOptions::new()).unwrap_err().to_string();
        assert!(text.contains(words) && !text.contains('\n'), "{text}");
        assert!(fs::read(&world.image).unwrap() == before, "{text}: the image changed");
    };
    let world = cut_off("-t ext4 -b 4096", everything, changes);
    // A byte of the first descriptor of the journal: its checksum says so.
    let file = fs::OpenOptions::new().read(true).write(true).open(&world.image).unwrap();
    let place = |block: u32| -> u64 {
        let request = format!("bmap <8> {block}");
        let text = run("debugfs", &["-R", &request, world.image.to_str().unwrap()]);
        text.lines().find_map(|line| line.trim().parse::<u64>().ok()).unwrap() * 4096
    };
    let mut start = [0; 4];
    file.read_exact_at(&mut start, place(0) + 28).unwrap();
    let damaged = place(u32::from_be_bytes(start)) + 40;
    let mut byte = [0];
    file.read_exact_at(&mut byte, damaged).unwrap();
    file.write_all_at(&[byte[0] ^ 1], damaged).unwrap();
    refused(&world, "the journal");
    // Data of a file in the journal.
    let world = World::new("-t ext4 -b 4096", 100, |_| ());
    run("tune2fs", &["-o", "journal_data", world.image.to_str().unwrap()]);
    {
        let mounted = SourceMount::new(&world.scratch, Kind::Ext, &world.image, false);
        fs::write(mounted.path().join("b"), bytes(1, 50_000)).unwrap();
        let file = fs::File::open(mounted.path().join("b")).unwrap();
        rustix::fs::fsync(&file).unwrap();
        copy(&world.image, &world.original);
    }
    fs::copy(&world.original, &world.image).unwrap();
    refused(&world, "data=journal");
    mend(&world.image);
    world.convert();
}
