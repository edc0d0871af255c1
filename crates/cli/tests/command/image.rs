//! `papilio image` and the name `btrfs-image`: dumps of either program are restored by the other,
//! and the result has the same files.

use crate::common::{binary, check_failure, command, fail, papilio, succeed, succeed_text, text};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file system with directories, a snapshot, inline files, extents and xattrs.
struct Original {
    images: Vec<PathBuf>,
    scratch: Scratch,
}

const VALUE: &[u8] = b"a value that must not get out";
const INLINE: &[u8] = b"text that must not get out";

impl Original {
    fn new(devices: usize, options: &[&str]) -> Self {
        let scratch = Scratch::new(64 << 20).unwrap();
        let source = scratch.path().join("source");
        fs::create_dir_all(source.join("directory")).unwrap();
        for number in 0..400_u32 {
            let path = source.join(format!("directory/file-{number:03}"));
            let length = number as usize * 40 % 9000;
            fs::write(path, number.to_le_bytes().repeat(length / 4)).unwrap();
        }
        fs::write(source.join("inline"), INLINE).unwrap();
        xattr::set(source.join("inline"), "user.secret", VALUE).unwrap();
        fs::hard_link(source.join("inline"), source.join("directory/second name")).unwrap();
        std::os::unix::fs::symlink("/some/where", source.join("link to it")).unwrap();
        let image = |number| scratch.path().join(format!("image{number}"));
        let images: Vec<_> = (0..devices).map(image).collect();
        for image in &images {
            fs::File::create(image).unwrap().set_len(320 << 20).unwrap();
        }
        let start = ["mkfs", "--rootdir"].map(OsStr::new).into_iter().chain([source.as_os_str()]);
        let options = options.iter().map(OsStr::new);
        succeed(start.chain(options).chain(images.iter().map(|image| image.as_os_str())));
        let original = Self { images, scratch };
        let (top, snapshot) = (original.at("/"), original.at("/snapshot"));
        original.run(&["subvolume", "snapshot"], &[top.as_ref(), snapshot.as_ref()]);
        original
    }

    fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.images[0].display())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Runs the command with all devices.
    fn run(&self, words: &[&str], operands: &[&OsStr]) -> String {
        let further = self.images[1..].iter().flat_map(|image| [OsStr::new("--device"), image.as_os_str()]);
        let words = words.iter().map(OsStr::new).chain(further).chain(operands.iter().copied());
        succeed_text(words)
    }

    fn dump(&self, options: &[&str], name: &str) -> PathBuf {
        let dump = self.path(name);
        let words: Vec<_> = ["image", "dump"].iter().chain(options).copied().collect();
        self.run(&words, &[self.images[0].as_os_str(), dump.as_os_str()]);
        dump
    }

    /// Returns what there is to see without data.
    fn listing(&self) -> Listing {
        let found = self.run(&["find"], &[self.at("/").as_ref(), "-json".as_ref()]);
        Listing::of(&found)
    }
}

/// The files of an image, as `find -json` shows them.
#[derive(Debug, PartialEq)]
struct Listing(Vec<serde_json::Value>);

impl Listing {
    fn of(json: &str) -> Self {
        Self(serde_json::from_str(json).unwrap())
    }

    fn of_image(image: &Path) -> Self {
        Self::of(&succeed_text(["find", &format!("{}:/", image.display()), "-json"]))
    }

    /// Returns the files without their names.
    fn nameless(mut self) -> Vec<String> {
        for file in &mut self.0 {
            file.as_object_mut()
                .unwrap()
                .retain(|key, _| !key.starts_with("path") && !key.starts_with("name"));
        }
        let mut lines: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        lines.sort();
        lines
    }
}

/// Runs the program of btrfs-progs, which must succeed. With several threads version 6.2 restores
/// one image in fifty with a wrong system chunk in its superblock.
fn stock<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) {
    let output = Command::new("btrfs-image").args(["-t", "1"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

fn restore(dump: &Path, image: &Path) {
    succeed(["image".as_ref(), "restore".as_ref(), dump.as_os_str(), image.as_os_str()]);
}

/// Checks a restored image with both checkers and its files with a listing.
fn assert_restored(image: &Path, listing: &Listing) {
    succeed(["check".as_ref(), image.as_os_str()]);
    assert!(Listing::of_image(image) == *listing, "{}: the files differ", image.display());
    if require(&[Need::Root, Need::Loop, Need::KernelBtrfs, Need::Command("btrfs")]).is_none() {
        return;
    }
    let scratch = Scratch::new(0).unwrap();
    let set = ImageSet::open(&scratch, vec![image.to_path_buf()]);
    set.btrfs_check().unwrap();
    let mounted = set.mount_read_only().unwrap();
    let names = fs::read_dir(mounted.path().join("snapshot/directory")).unwrap();
    let mut count = 0;
    for name in names {
        assert!(name.unwrap().metadata().is_ok());
        count += 1;
    }
    assert!(count > 400, "{count}");
    mounted.unmount().unwrap();
}

/// Restores dumps of both programs by both programs.
fn exchange(devices: usize, options: &[&str]) {
    let original = Original::new(devices, options);
    let listing = original.listing();
    assert!(listing.0.len() > 800);
    let ours = original.dump(&["-c9"], "ours");
    let restored = original.path("restored");
    restore(&ours, &restored);
    assert_restored(&restored, &listing);
    let walked = original.dump(&["--walk"], "walked");
    restore_over(&walked, &restored);
    assert_restored(&restored, &listing);
    if require(&[Need::Root, Need::Loop, Need::Command("btrfs-image")]).is_none() {
        return;
    }
    fs::remove_file(&restored).unwrap();
    stock(["-r".as_ref(), ours.as_os_str(), restored.as_os_str()]);
    if devices == 1 {
        assert_restored(&restored, &listing);
    } else {
        // Version 6.2 leaves the old size in the superblock's device item, and makes the file as
        // small as the chunks need.
        ImageSet::open(&original.scratch, vec![restored.clone()]).btrfs_check().unwrap();
        fs::File::options().write(true).open(&restored).unwrap().set_len(320 << 20).unwrap();
        assert!(Listing::of_image(&restored) == listing, "the files differ");
    }
    let theirs = original.path("theirs");
    let set = ImageSet::open(&original.scratch, original.images.clone());
    let loops = set.attach(true).unwrap();
    stock(["-c".as_ref(), "3".as_ref(), loops[0].path().as_os_str(), theirs.as_os_str()]);
    drop(loops);
    restore_over(&theirs, &restored);
    assert_restored(&restored, &listing);
}

fn restore_over(dump: &Path, image: &Path) {
    fail(1, "--force", ["image".as_ref(), "restore".as_ref(), dump.as_os_str(), image.as_os_str()]);
    let words = ["image", "restore", "--force"].map(OsStr::new);
    succeed(words.into_iter().chain([dump.as_os_str(), image.as_os_str()]));
}

#[test]
fn one_device() {
    exchange(1, &[]);
}

#[test]
fn one_device_with_mixed_block_groups() {
    exchange(1, &["--mixed"]);
}

#[test]
fn two_devices_with_copies() {
    exchange(2, &["-d", "raid1", "-m", "raid1"]);
}

#[test]
fn two_devices_with_stripes() {
    exchange(2, &["-d", "raid0", "-m", "raid0"]);
}

#[test]
fn three_devices_with_parity() {
    exchange(3, &["-d", "raid5", "-m", "raid1c3"]);
}

#[test]
fn other_checksums_are_right() {
    let original = Original::new(1, &["--csum", "xxhash"]);
    let dump = original.dump(&[], "dump");
    let restored = original.path("restored");
    restore(&dump, &restored);
    assert_restored(&restored, &original.listing());
    if require(&[Need::Command("btrfs-image")]).is_some() {
        // btrfs-image writes CRC-32C, whatever the file system has.
        let theirs = original.path("theirs");
        stock([original.images[0].as_os_str(), theirs.as_os_str()]);
        restore_over(&theirs, &restored);
        assert_restored(&restored, &original.listing());
    }
}

#[test]
fn all_devices_come_back() {
    for (devices, profile) in [(2, "raid1"), (3, "raid5")] {
        let original = Original::new(devices, &["-d", profile, "-m", profile]);
        let dump = original.dump(&["-c1"], "dump");
        let targets: Vec<_> = (0..devices).map(|number| original.path(&format!("new{number}"))).collect();
        let start = ["image", "restore", "--multi"].map(OsStr::new).into_iter().chain([dump.as_os_str()]);
        succeed(start.clone().chain(targets.iter().map(|target| target.as_os_str())));
        let restored = Original { images: targets.clone(), scratch: Scratch::new(0).unwrap() };
        restored.run(&["check"], &[targets[0].as_os_str()]);
        assert!(restored.listing() == original.listing(), "{profile}");
        // Every copy and all parity is there: a device may be missing.
        let mut words = vec!["--degraded".to_owned(), "find".to_owned(), "-json".to_owned()];
        words.push(format!("{}:/", targets[0].display()));
        for further in &targets[2..] {
            words.extend(["--device".to_owned(), further.display().to_string()]);
        }
        let output = papilio(words);
        assert!(Listing::of(&text(&output.stdout)) == original.listing(), "{profile}");
        fail(1, "devices", start.chain(targets[1..].iter().map(|target| target.as_os_str())));
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn names_and_values_are_replaced() {
    let original = Original::new(1, &[]);
    let plain = fs::read(original.dump(&[], "plain")).unwrap();
    assert!(contains(&plain, b"file-123") && contains(&plain, VALUE) && !contains(&plain, INLINE));
    assert!(!contains(&plain, b"/some/where"));
    let restored = original.path("restored");
    let same = original.dump(&["-ss"], "same");
    restore(&same, &restored);
    succeed(["check".as_ref(), restored.as_os_str()]);
    assert_eq!(Listing::of_image(&restored).nameless(), original.listing().nameless());
    let random = original.dump(&["-s"], "random");
    for dump in [&same, &random] {
        let bytes = fs::read(dump).unwrap();
        for secret in [&b"file-"[..], b"directory", b"second name", b"link to it", b"snapshot", VALUE, INLINE]
        {
            assert!(!contains(&bytes, secret), "{}", text(secret));
        }
    }
    if require(&[Need::Root, Need::Loop, Need::Command("btrfs-image"), Need::Command("btrfs")]).is_some() {
        fs::remove_file(&restored).unwrap();
        stock(["-r".as_ref(), same.as_os_str(), restored.as_os_str()]);
        ImageSet::open(&original.scratch, vec![restored]).btrfs_check().unwrap();
        stock(["-r".as_ref(), random.as_os_str(), original.path("unreadable").as_os_str()]);
    }
}

#[test]
fn data_is_dumped_on_request() {
    let original = Original::new(2, &["-d", "raid0", "-m", "raid1"]);
    let dump = original.dump(&["--data", "-c3"], "dump");
    let restored = original.path("restored");
    restore(&dump, &restored);
    succeed(["check".as_ref(), "--check-data-csum".as_ref(), restored.as_os_str()]);
    let inline = format!("{}:/inline", restored.display());
    assert_eq!(succeed(["cat", &inline]), INLINE);
    let file = format!("{}:/snapshot/directory/file-223", restored.display());
    let expected = fs::read(original.path("source/directory/file-223")).unwrap();
    assert!(expected.len() > 4096 && succeed(["cat", &file]) == expected);
    // It can be written, too.
    succeed(["touch", &format!("{}:/new", restored.display())]);
    succeed(["check".as_ref(), "--check-data-csum".as_ref(), restored.as_os_str()]);
}

#[test]
fn without_a_mapping_only_btrfs_progs_read_it() {
    if require(&[Need::Command("btrfs-image")]).is_none() {
        return;
    }
    let original = Original::new(1, &[]);
    let dump = original.dump(&[], "dump");
    let (ours, theirs) = (original.path("ours"), original.path("theirs"));
    let words = ["image", "restore", "--old"].map(OsStr::new);
    succeed(words.into_iter().chain([dump.as_os_str(), ours.as_os_str()]));
    // It opens the result to learn its size, and newer versions refuse what they wrote.
    let words = ["-r".as_ref(), "-o".as_ref(), dump.as_os_str(), theirs.as_os_str()];
    Command::new("btrfs-image").args(words).output().unwrap();
    let dumped = |image: &Path| {
        let arguments = ["inspect-internal", "dump-super", "-f"];
        let output = Command::new("btrfs").args(arguments).arg(image).output().unwrap();
        let text = text(&output.stdout);
        // The first line has the path; unused bytes behind the system chunks are in the checksum.
        let lines = text.lines().skip(1).filter(|line| !line.starts_with("csum\t"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(dumped(&ours), dumped(&theirs));
}

#[test]
fn a_bad_dump_is_one_clear_error() {
    let original = Original::new(2, &["-d", "raid1", "-m", "raid1"]);
    let good = fs::read(original.dump(&["-c3"], "good")).unwrap();
    let (bad, target) = (original.path("bad"), original.path("target"));
    let words = [OsStr::new("image"), "restore".as_ref(), bad.as_os_str(), target.as_os_str()];
    for length in (0..good.len() - 1024).step_by(good.len() / 12).chain([1, 21, 1024, good.len() - 1024]) {
        fs::write(&bad, &good[..length]).unwrap();
        fail(1, "the dump", words);
        assert!(!target.exists(), "{length}");
    }
    let mut random = fastrand::Rng::with_seed(7);
    let mut refused = 0;
    for _ in 0..30 {
        let mut bytes = good.clone();
        for _ in 0..4 {
            let at = random.usize(..bytes.len().min(40_000));
            bytes[at] = random.u8(..);
        }
        fs::write(&bad, &bytes).unwrap();
        let output = papilio(words);
        if output.status.success() {
            fs::remove_file(&target).unwrap();
        } else {
            check_failure(&output, 1, "");
            refused += 1;
        }
        assert!(!target.exists());
    }
    assert!(refused > 20, "{refused}");
    fail(1, "not that of a metadata dump", [words[0], words[1], original.images[0].as_os_str(), words[3]]);
}

#[test]
fn the_name_btrfs_image_takes_its_arguments() {
    let original = Original::new(1, &[]);
    let program = original.path("btrfs-image");
    std::os::unix::fs::symlink(binary(), &program).unwrap();
    let image = original.images[0].as_os_str();
    let run = |arguments: &[&OsStr]| Command::new(&program).args(arguments).output().unwrap();
    let dumped = run(&["-c9".as_ref(), "-t".as_ref(), "2".as_ref(), image, "-".as_ref()]);
    assert!(dumped.status.success() && dumped.stdout.len() > 4096, "{}", text(&dumped.stderr));
    let piped = original.path("piped");
    fs::write(&piped, &dumped.stdout).unwrap();
    let restored = original.path("restored");
    let mut child = Command::new(&program);
    child.args(["-r".as_ref(), "-".as_ref(), restored.as_os_str()]).stdin(fs::File::open(&piped).unwrap());
    let output = child.stderr(Stdio::piped()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_restored(&restored, &original.listing());
    for wrong in [&["-r", "-c9"][..], &["-r", "-w"], &["-o"], &["-c10"], &["-m"]] {
        let arguments: Vec<_> = wrong.iter().map(OsStr::new).chain([image, piped.as_os_str()]).collect();
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(1), "{wrong:?}");
        assert!(!output.stderr.is_empty(), "{wrong:?}");
    }
    assert!(fs::read(&piped).unwrap() == dumped.stdout);
    let words = ["image".as_ref(), "dump".as_ref(), image, image];
    check_failure(&command().args(words).output().unwrap(), 1, "overwrite the image");
}
