//! `papilio image archive`, `verify` and `restore` of archives and of images of partclone.

use crate::common::{
    assert_clean, check_failure, command, fail, papilio, succeed, succeed_json, succeed_text, text,
};
use crate::fixture::{copy_image, noise, run, string};
use papilio_oracle::{CompareOptions, FileSystemSpec, HostTree, ImageSet, Manifest, ManifestOptions};
use papilio_oracle::{LoopDevice, Need, Scratch, require};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file system in image files, made by `papilio mkfs`.
struct Original {
    scratch: Scratch,
    images: Vec<PathBuf>,
}

impl Original {
    fn new(devices: usize, options: &[&str]) -> Self {
        let scratch = Scratch::new(64 << 20).unwrap();
        let source = scratch.path().join("source");
        fs::create_dir_all(source.join("directory")).unwrap();
        fs::write(source.join("large"), noise(3, 3 << 20)).unwrap();
        for number in 0..50 {
            fs::write(source.join(format!("directory/{number}")), vec![number; 5000]).unwrap();
        }
        let images: Vec<_> =
            (0..devices).map(|number| scratch.path().join(format!("image{number}"))).collect();
        let size = ["--size", "256M"];
        let mut words = vec!["mkfs", "--rootdir", string(&source)];
        words.extend(size.iter().chain(options).copied());
        words.extend(images.iter().map(|image| string(image)));
        succeed(words);
        Self { scratch, images }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Runs a command with the further devices.
    fn run(&self, words: &[&str]) -> String {
        let further = self.images[1..].iter().flat_map(|image| ["--device", string(image)]);
        succeed_text(words.iter().copied().chain(further))
    }

    fn listing(&self, image: &Path) -> String {
        self.run(&["find", &format!("{}:/", image.display()), "-json"])
    }
}

#[test]
fn an_archive_is_written_verified_read_and_restored() {
    let original = Original::new(1, &[]);
    let (image, full, next) = (&original.images[0], original.path("full.pbk"), original.path("any name"));
    let created = succeed_json(["image", "archive", "--json", string(image), string(&full)]);
    assert_eq!(created["bytes"], fs::metadata(&full).unwrap().len());
    let verified = succeed_json(["image", "verify", "--json", string(&full)]);
    assert_eq!(verified["good"], true);
    assert_eq!(verified["archives"][0]["id"], created["id"]);
    let before = original.listing(image);
    assert_eq!(succeed_text(["find", &format!("{}:/", full.display()), "-json"]), before);
    assert!(succeed(["cat", &format!("{}:/large", full.display())]) == noise(3, 3 << 20));
    succeed(["check", "--check-data-csum", string(&full)]);
    fail(1, "can only be opened for reading", ["rm", &format!("{}:/large", full.display())]);

    succeed(["rm", "-r", &format!("{}:/directory", image.display())]);
    succeed(["image", "archive", "--since", string(&full), string(image), string(&next)]);
    assert!(fs::metadata(&next).unwrap().len() < fs::metadata(&full).unwrap().len() / 3);
    let after = original.listing(image);
    assert_ne!(before, after);
    assert_eq!(succeed_text(["find", &format!("{}:/", next.display()), "-json"]), after);
    succeed(["image", "verify", string(&next)]);
    for (name, options) in
        [("same", &[][..]), ("smaller", &["--size", "200M"]), ("larger", &["--size", "1G"])]
    {
        let target = original.path(name);
        let words = ["image", "restore"].iter().chain(options).copied();
        succeed(words.chain([string(&next), string(&target)]));
        assert_clean(&target);
        assert_eq!(succeed_text(["find", &format!("{}:/", target.display()), "-json"]), after);
        fail(1, "use --force", ["image", "restore", string(&next), string(&target)]);
    }
    let piped = original.path("piped");
    let mut child = command();
    child.args(["image", "restore", "-", string(&piped)]).stdin(fs::File::open(&full).unwrap());
    assert!(child.status().unwrap().success());
    assert_eq!(succeed_text(["find", &format!("{}:/", piped.display()), "-json"]), before);

    // Without its parent an incremental archive is nothing.
    let away = tempfile::tempdir_in(original.scratch.path()).unwrap();
    let alone = away.path().join("alone");
    fs::copy(&next, &alone).unwrap();
    fail(1, "neither named nor found", ["ls", &format!("{}:/", alone.display())]);
    fail(1, "neither named nor found", ["image", "verify", string(&alone)]);
    fail(1, "neither named nor found", ["image", "restore", string(&alone), string(&original.path("none"))]);
    assert!(!original.path("none").exists());
    succeed(["image", "verify", "--without-parents", string(&alone)]);
    succeed(["image", "verify", "--parent", string(&full), string(&alone)]);
    let target = original.path("named");
    succeed(["image", "restore", "--parent", string(&full), string(&alone), string(&target)]);
    assert_eq!(succeed_text(["find", &format!("{}:/", target.display()), "-json"]), after);
}

#[test]
fn all_devices_are_in_one_archive() {
    let original = Original::new(3, &["-d", "raid5", "-m", "raid1"]);
    let archive = original.path("full.pbk");
    original.run(&["image", "archive", string(&original.images[0]), string(&archive)]);
    let listing = original.listing(&original.images[0]);
    assert_eq!(succeed_text(["find", &format!("{}:/", archive.display()), "-json"]), listing);
    succeed(["check", "--check-data-csum", string(&archive)]);
    // One device alone can be named, and a missing one cannot.
    let second = format!("{}@2", archive.display());
    assert!(succeed_text(["inspect", "dump-super", &second]).contains("dev_item.devid"));
    fail(1, "the devices 1, 2, 3", ["inspect", "dump-super", &format!("{}@9", archive.display())]);
    let targets: Vec<_> = (0..3).map(|number| original.path(&format!("target{number}"))).collect();
    let words: Vec<_> = targets.iter().map(|path| string(path)).collect();
    fail(1, "3 devices, 1 were given", ["image", "restore", string(&archive), words[0]]);
    succeed(["image", "restore", string(&archive)].iter().chain(&words));
    let check = ["check", "--check-data-csum", words[0], "--device", words[1], "--device", words[2]];
    succeed(check);
}

#[test]
fn a_bad_archive_is_one_clear_error_and_leaves_no_file() {
    let original = Original::new(1, &[]);
    let (good, bad, target) = (original.path("good.pbk"), original.path("bad.pbk"), original.path("target"));
    succeed(["image", "archive", string(&original.images[0]), string(&good)]);
    let bytes = fs::read(&good).unwrap();
    let restore = ["image", "restore", string(&bad), string(&target)];
    for length in (5000..bytes.len()).step_by(bytes.len() / 8).chain([bytes.len() - 1]) {
        fs::write(&bad, &bytes[..length]).unwrap();
        fail(1, "at byte", ["image", "verify", string(&bad)]);
        fail(1, "at byte", restore);
        fail(1, "archive", ["ls", &format!("{}:/", bad.display())]);
        assert!(!target.exists(), "{length}");
    }
    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2] ^= 1;
    fs::write(&bad, &damaged).unwrap();
    let error = fail(1, "checksum", ["image", "verify", string(&bad)]);
    assert!(error.contains("bad.pbk: frame ") && error.contains(" at byte "), "{error}");
    fail(1, "checksum", restore);
    assert!(!target.exists());
    let result = papilio(["image", "verify", "--json", string(&bad)]);
    assert_eq!(result.status.code(), Some(1));
    assert!(text(&result.stdout).contains("\"good\":false"));
    fail(1, "overwrite", ["image", "archive", string(&original.images[0]), string(&original.images[0])]);
    // Too small for what is in use: the file that was begun goes.
    let small = ["image", "restore", "--size", "12M", string(&good), string(&target)];
    fail(1, "", small);
    assert!(!target.exists());
}

/// Makes a file system by the kernel, and returns its image and what is in it.
fn made_by_kernel(scratch: &Scratch) -> (ImageSet, Manifest) {
    let images = FileSystemSpec::default().make(scratch).unwrap();
    let mounted = images.mount().unwrap();
    let never = scratch.path().join("never");
    let refused = ["image", "archive", string(&images.paths()[0]), string(&never)];
    fail(1, "would change meanwhile", refused);
    for number in 0..40 {
        fs::write(mounted.path().join(format!("file{number}")), noise(number, 60_000)).unwrap();
    }
    run(
        "btrfs",
        &["subvolume", "snapshot", string(mounted.path()), string(&mounted.path().join("snapshot"))],
    );
    fs::remove_file(mounted.path().join("file7")).unwrap();
    mounted.unmount().unwrap();
    let mounted = images.mount_read_only().unwrap();
    let manifest = Manifest::read(&HostTree::new(mounted.path()), ManifestOptions::default()).unwrap();
    mounted.unmount().unwrap();
    (images, manifest)
}

#[test]
fn images_of_partclone_are_read_and_restored() {
    let needs = [Need::Command("partclone.btrfs"), Need::Command("partclone.restore")];
    if require(&[Need::KERNEL_MOUNT, &needs[..]].concat()).is_none() {
        return;
    }
    let scratch = Scratch::new(200 << 20).unwrap();
    let (images, manifest) = made_by_kernel(&scratch);
    let path = |name: &str| scratch.path().join(name);
    for (number, options) in [&[][..], &["-a0"], &["-k", "7"], &["-K"]].iter().enumerate() {
        let saved = path(&format!("saved{number}"));
        let device = LoopDevice::attach(&images.paths()[0], true).unwrap();
        let mut words = vec!["-c", "-q", "-s", string(device.path()), "-o", string(&saved)];
        words.extend(options.iter());
        let output = Command::new("partclone.btrfs").args(words).output().unwrap();
        assert!(output.status.success(), "{options:?}: {}", text(&output.stdout));
        drop(device);
        assert!(succeed(["cat", &format!("{}:/snapshot/file7", saved.display())]) == noise(7, 60_000));
        let (ours, theirs) = (path("ours"), path("theirs"));
        let restored = papilio(["image", "restore", string(&saved), string(&ours)]);
        assert!(restored.status.success(), "{options:?}: {}", text(&restored.stderr));
        assert!(text(&restored.stderr).starts_with("partclone saves one copy of metadata"));
        fs::File::create(&theirs).unwrap().set_len(fs::metadata(&ours).unwrap().len()).unwrap();
        let device = LoopDevice::attach(&theirs, false).unwrap();
        run("partclone.restore", &["-q", "-C", "-s", string(&saved), "-o", string(device.path())]);
        drop(device);
        run("cmp", &[string(&ours), string(&theirs)]);
        // Of metadata in two copies, partclone saves the first.
        fail(1, "errors found", ["check", string(&ours)]);
        succeed(["scrub", "start", "-B", string(&ours)]);
        assert_clean(&ours);
        let restored = ImageSet::open(&scratch, vec![ours.clone()]);
        let mounted = restored.mount_read_only().unwrap();
        let found = Manifest::read(&HostTree::new(mounted.path()), ManifestOptions::default()).unwrap();
        let differences = manifest.diff(&found, &CompareOptions::SAME_IMAGE);
        assert!(differences.is_empty(), "{options:?}: {differences:?}");
        mounted.unmount().unwrap();
        [ours, theirs].iter().for_each(|path| fs::remove_file(path).unwrap());
    }
    // As Clonezilla keeps it: compressed and split. Also onto something smaller.
    for (program, name) in
        [("gzip", "sda1.btrfs-ptcl-img.gz"), ("zstd", "sda1.btrfs-ptcl-img.zst"), ("xz", "x")]
    {
        let packed =
            Command::new(program).arg("-c").arg(path("saved0")).stderr(Stdio::null()).output().unwrap();
        assert!(packed.status.success());
        for (part, bytes) in packed.stdout.chunks(packed.stdout.len() / 3 + 1).enumerate() {
            fs::write(path(&format!("{name}.a{}", (b'a' + part as u8) as char)), bytes).unwrap();
        }
        let target = path("target");
        let first = path(&format!("{name}.aa"));
        let restored = papilio(["image", "restore", "--size", "400M", string(&first), string(&target)]);
        assert!(restored.status.success(), "{name}: {}", text(&restored.stderr));
        succeed(["scrub", "start", "-B", string(&target)]);
        assert_clean(&target);
        fs::remove_file(&target).unwrap();
        // A part that is missing cuts the image.
        fs::remove_file(path(&format!("{name}.ac"))).unwrap();
        check_failure(&papilio(["image", "restore", string(&first), string(&target)]), 1, "");
        assert!(!target.exists());
    }
    let cut = path("cut");
    copy_image(&path("saved0"), &cut);
    fs::File::options().write(true).open(&cut).unwrap().set_len(1_000_000).unwrap();
    fail(1, "it was cut", ["ls", &format!("{}:/", cut.display())]);
    fail(1, "it was cut", ["image", "restore", string(&cut), string(&path("target"))]);
    assert!(!path("target").exists());
}

/// Clonezilla's images of some versions lack blocks that the kernel reads at every mount.
#[test]
fn an_image_of_partclone_without_its_chunk_root_is_scanned() {
    let needs = [Need::Command("partclone.btrfs")];
    if require(&[Need::KERNEL_MOUNT, &needs[..]].concat()).is_none() {
        return;
    }
    let scratch = Scratch::new(200 << 20).unwrap();
    let (images, _) = made_by_kernel(&scratch);
    let saved = scratch.path().join("saved");
    let device = LoopDevice::attach(&images.paths()[0], true).unwrap();
    // Without checksums, blocks lie in it as they are.
    run("partclone.btrfs", &["-c", "-q", "-a0", "-s", string(device.path()), "-o", string(&saved)]);
    drop(device);
    let shown = succeed_text(["inspect", "dump-super", string(&images.paths()[0])]);
    let root = shown.lines().find_map(|line| line.strip_prefix("chunk_root\t")).unwrap();
    let root: u64 = root.trim().parse().unwrap();
    let mut bytes = fs::read(&saved).unwrap();
    // The header of a block has its address behind the checksum and the UUID.
    let tree = 3_u64.to_le_bytes();
    let is_root = |at: &usize| {
        let header = &bytes[*at..*at + 101];
        header[48..56] == root.to_le_bytes() && header[88..96] == tree
    };
    let places: Vec<_> = (0..bytes.len() - 16384).filter(is_root).collect();
    assert!(!places.is_empty(), "{root}");
    for place in places {
        bytes[place..place + 16384].fill(0);
    }
    fs::write(&saved, bytes).unwrap();
    let file = format!("{}:/snapshot/file7", saved.display());
    fail(1, "tree CHUNK_TREE", ["cat", &file]);
    fail(1, "--scan finds the file system", ["cat", &file]);
    let is_found = |file: &str| {
        let output = papilio(["cat", "--scan", file]);
        let stderr = text(&output.stderr);
        assert!(output.status.success() && stderr.contains("the chunk tree cannot be read"), "{stderr}");
        output.stdout == noise(7, 60_000)
    };
    assert!(is_found(&file));
    // The restored device lacks it, too, and is read in the same way.
    let target = scratch.path().join("target");
    let restored = papilio(["image", "restore", string(&saved), string(&target)]);
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    assert!(is_found(&format!("{}:/snapshot/file7", target.display())));
}
