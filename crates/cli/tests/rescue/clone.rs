//! `rescue_clone`: the kernel fills a file system, Papilio clones it, sound and damaged, and
//! `btrfs check` and kernel mounts judge the clone.

use crate::common::{assert_clean, fail, papilio, succeed_text, text as text_of};
use crate::world::{World, break_some, contents, shapes};
use papilio::{
    CheckOptions, CloneLoss, CloneProgress, Cloned, FileSystem, OpenOptions, RescueCloneOptions, Subvolume,
};
use papilio_oracle::{CompareOptions, HostTree, ImageSet, Need, Scratch, TreeSpec, compare, require, sys};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Shapes that differ in what a clone copies or makes.
const PRESETS: &str = "default,zstd,nodatasum,oldest,raid5";
/// Damages of each shape.
const DAMAGED: u64 = 4;

/// Opens the images of a file system.
fn open(images: &[PathBuf], options: &OpenOptions) -> papilio::Result<FileSystem> {
    let options = images[1..].iter().fold(options.clone(), |options, image| options.device(image));
    FileSystem::open_with(&images[0], &options)
}

/// Makes a clone, and returns its report and what it lacks.
fn clone_of(images: &[PathBuf], out: &Path, options: &OpenOptions) -> (Cloned, Vec<CloneLoss>, bool) {
    let source = open(images, options).expect("Papilio opens the images");
    let mut losses = Vec::new();
    let made = papilio::rescue_clone(&source, out, &RescueCloneOptions::new(), &mut |event| {
        if let CloneProgress::Lost(loss) = event {
            losses.push(loss);
        }
    });
    let (cloned, report) = made.unwrap_or_else(|error| panic!("{error}"));
    (cloned, losses, report.is_clean())
}

/// The facts about subvolumes that a clone keeps.
fn facts(fs: &FileSystem) -> Vec<Subvolume> {
    let keep = |subvolume: Subvolume| Subvolume { generation: papilio::format::Generation(0), ..subvolume };
    fs.subvolumes().unwrap().into_iter().filter(|found| found.refs > 0).map(keep).collect()
}

#[test]
fn a_clone_of_a_sound_file_system_equals_it() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let tree = TreeSpec { files: 120, bytes: 6 << 20, ..TreeSpec::default() };
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
        let (cloned, losses, clean) = clone_of(images.paths(), &out, &OpenOptions::new());
        assert!(clean && cloned.is_whole(), "{name}: {:?} {losses:#?}", cloned.mended);
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
        assert!(
            found.0 <= extents && found.1 <= bytes && found.2 == summed,
            "{name}: {found:?} {extents} {bytes}"
        );
        drop((left, right));

        let top = ["subvolid=5".to_owned()];
        let mounts = [&images, &cloned_images].map(|set| set.mount_with(&top, true).unwrap());
        let [left, right] = mounts.each_ref().map(|mounted| HostTree::new(mounted.path()));
        let report = compare(&left, &right, &CompareOptions::SAME_IMAGE);
        println!(
            "{name:14} {} entries, {} bytes, {} differences",
            report.entries, report.bytes, report.total
        );
        report.assert_equal(written.entries);
        mounts.into_iter().for_each(|mounted| mounted.unmount().unwrap());
        // The kernel writes to the clone, and it stays sound.
        let mounted = cloned_images.mount().unwrap();
        std::fs::write(mounted.path().join("new"), vec![7; 3 << 20]).unwrap();
        mounted.unmount().unwrap();
        cloned_images.btrfs_check().unwrap_or_else(|error| panic!("{name}, written to: {error}"));
    }
}

/// Fills a subvolume, and takes snapshots while it changes: ten of it, one of a snapshot that
/// changes itself, and one with nothing in common any more.
fn fill_with_snapshots(top: &Path) {
    let live = top.join("live");
    sys::create_subvolume(&live).unwrap();
    let path = |at: &Path, number: usize| at.join(format!("d{}/f{number}", number % 7));
    (0..7).for_each(|number| fs::create_dir(live.join(format!("d{number}"))).unwrap());
    let write = |at: &Path, number: usize, length: usize, byte: u8| {
        fs::write(path(at, number), vec![byte; length]).unwrap();
    };
    (0..3000).for_each(|number| write(&live, number, [20, 700, 9000][number % 3], number as u8));
    let mut random = fastrand::Rng::with_seed(3);
    for round in 0..10 {
        sys::create_snapshot(&live, &top.join(format!("s{round}")), round % 2 == 0).unwrap();
        for _ in 0..6 {
            let number = random.usize(..3000);
            match random.u8(..4) {
                0 => drop(fs::remove_file(path(&live, number))),
                1 => write(&live, number, 30_000, round),
                2 => drop(fs::copy(path(&live, number), live.join(format!("copy{round}-{number}")))),
                _ => drop(fs::rename(path(&live, number), live.join(format!("moved{round}-{number}")))),
            }
        }
    }
    let branch = top.join("branch");
    sys::create_snapshot(&top.join("s3"), &branch, false).unwrap();
    (0..20).for_each(|number| write(&branch, number * 100, 5000, 99));
    let other = top.join("other");
    sys::create_snapshot(&live, &other, false).unwrap();
    (0..7).for_each(|number| fs::remove_dir_all(other.join(format!("d{number}"))).unwrap());
}

#[test]
fn snapshots_share_tree_blocks_in_the_clone() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    for name in ["default", "oldest"] {
        let images = papilio_oracle::preset(name).unwrap().sized_for(256 << 20).make(&scratch).unwrap();
        let mounted = images.mount().unwrap();
        fill_with_snapshots(mounted.path());
        mounted.unmount().unwrap();
        let out = scratch.unique("clone");
        let (cloned, losses, clean) = clone_of(images.paths(), &out, &OpenOptions::new());
        assert!(clean && cloned.is_whole(), "{name}: {:?} {losses:#?}", cloned.mended);
        let copies = ImageSet::open(&scratch, vec![out.clone()]);
        copies.btrfs_check().unwrap_or_else(|error| panic!("{name}: {error}"));
        let (left, right) = (open(images.paths(), &OpenOptions::new()), FileSystem::open(&out));
        let (left, right) = (left.unwrap(), right.unwrap());
        assert_eq!(facts(&left), facts(&right), "{name}");
        let bytes = [&left, &right]
            .map(|fs| fs.check(&CheckOptions::new().data_csum(true)).unwrap().statistics.metadata_bytes);
        println!("{name}: {bytes:?} bytes of metadata");
        // Without sharing each of the 13 subvolumes would have some 2 MB.
        assert!(bytes[1] < bytes[0] + bytes[0] / 2, "{name}: {bytes:?} bytes of metadata");
        drop((left, right));
        let top = ["subvolid=5".to_owned()];
        let mounts = [&images, &copies].map(|set| set.mount_with(&top, true).unwrap());
        let [left, right] = mounts.each_ref().map(|mounted| HostTree::new(mounted.path()));
        let report = compare(&left, &right, &CompareOptions::SAME_IMAGE);
        report.assert_equal(report.entries);
        assert!(report.entries > 30_000, "{name}: {} entries", report.entries);
        mounts.into_iter().for_each(|mounted| mounted.unmount().unwrap());
        // The kernel drops some of them, and the rest stays sound.
        let options = [&top[0], "commit=1"].map(str::to_owned);
        let mounted = copies.mount_with(&options, false).unwrap();
        for gone in ["s9", "s0", "live", "s5", "branch", "s1"] {
            sys::delete_subvolume(&mounted.path().join(gone)).unwrap();
        }
        let mut sync = std::process::Command::new("btrfs");
        let synced = sync.args(["subvolume", "sync"]).arg(mounted.path()).output().unwrap();
        assert!(synced.status.success(), "{name}: {}", text_of(&synced.stderr));
        mounted.unmount().unwrap();
        copies.btrfs_check().unwrap_or_else(|error| panic!("{name}, snapshots deleted: {error}"));
        fs::remove_file(out).unwrap();
    }
}

#[test]
fn a_clone_of_a_damaged_file_system_is_clean_and_lists_what_it_lacks() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let (mut whole, mut total, mut clones, mut clean) = (0, 0, 0, 0);
    for number in 0..shapes().len() {
        let world = World::make(number, None);
        for seed in 0..DAMAGED {
            let damaged = world.device.snapshot();
            let damage = break_some(&world, &damaged, seed);
            let what = format!("{} seed {seed} {damage:?}", world.name);
            let image = scratch.unique("damaged");
            damaged.write_image(&image).unwrap();
            let out = scratch.unique("clone");
            // As the command does, with the scan only where nothing else helps.
            let options = OpenOptions::new().ignore_bad_roots(true);
            let opened = FileSystem::open_with(&image, &options).is_ok();
            let options = options.scan(!opened);
            if FileSystem::open_with(&image, &options).is_err() {
                // Nothing of the top level is left.
                fs::remove_file(image).unwrap();
                continue;
            }
            let (cloned, losses, is_clean) = clone_of(std::slice::from_ref(&image), &out, &options);
            // A repair cannot mend everything; the report says so.
            clones += 1;
            clean += usize::from(is_clean);
            if is_clean {
                ImageSet::open(&scratch, vec![out.clone()]).btrfs_check().unwrap_or_else(|error| {
                    panic!("{what}: {error} {losses:#?} {:#?}", cloned.mended);
                });
            }
            let listed: BTreeSet<_> = losses.iter().map(|loss| loss.path.clone()).collect();
            let found = contents(&FileSystem::open(&out).unwrap());
            let mut equal = 0;
            for (path, content) in &found {
                let Some(original) = world.files.get(path) else { continue };
                equal += usize::from(original == content);
                // With the scan, the state may be an older one.
                let is_said = listed.contains(path) || listed.contains(&b""[..]) || !cloned.mended.is_empty();
                let is_known = original == content || is_said;
                assert!(is_known || !opened, "{what}: {} is wrong, unsaid", path.escape_ascii());
            }
            assert!(
                equal == world.files.len() || !cloned.is_whole() || !opened,
                "{what}: files are missing, unsaid"
            );
            (whole, total) = (whole + equal, total + world.files.len());
            fs::remove_file(image).unwrap();
            fs::remove_file(out).unwrap();
        }
    }
    println!("{whole} of {total} files are right in {clones} clones, {clean} of them clean");
    assert!(clean * 2 > clones, "{clean} of {clones} are clean");
    assert!(whole * 2 > total, "{whole} of {total}");
}

#[test]
fn the_command_lists_losses_and_overwrites_only_if_told_to() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let world = World::make(0, None);
    let (image, out) = (scratch.unique("image"), scratch.unique("out"));
    world.device.write_image(&image).unwrap();
    let arguments = ["rescue".as_ref(), "clone".as_ref(), image.as_os_str(), out.as_os_str()];
    let text = succeed_text(arguments);
    assert!(text.starts_with("3 subvolumes, ") && text.ends_with("; 0 losses\n"), "{text}");
    fail(1, "it exists", arguments);
    // Both copies of nothing: a sector of data that only one place has.
    let sector = world.data[world.data.len() / 2];
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(&[0xa5; 4096], sector).unwrap();
    let output =
        papilio([&["-q", "rescue", "clone", "-f", "--json"].map(OsStr::new)[..], &arguments[2..]].concat());
    let (stdout, stderr) = (text_of(&output.stdout), text_of(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("are missing: the data does not match its checksum"), "{stderr}");
    let lines: Vec<serde_json::Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (totals, losses) = lines.split_last().unwrap();
    assert!(!losses.is_empty() && totals["losses"] == losses.len(), "{stdout}");
    assert!(losses.iter().all(|loss| loss["length"].as_u64().unwrap() > 0 && loss["path"].is_string()));
    assert_clean(&out);
    fail(1, "", ["rescue", "clone", "/nowhere", scratch.unique("other").to_str().unwrap()]);
    assert_eq!(papilio(["rescue", "clone", image.to_str().unwrap()]).status.code(), Some(2));
}
