//! Old content is never a silent answer: images with a log of fsyncs, of the kernel and of Papilio,
//! whole and damaged, in the hands of every reader.
//!
//! Each reader shows the newest content and succeeds, or fails and names what is older.

use crate::common::{assert_clean, papilio, text};
use papilio::device::{Access, Device, FileDevice};
use papilio::format::superblock::{SUPERBLOCK_SIZE, Superblock, superblock_offset};
use papilio::format::{PhysicalAddress, TreeId, objectid};
use papilio::{FileSystem, MkfsOptions, OlderPart, OpenOptions, ScanOptions};
use papilio_oracle::{FileSystemSpec, Need, Scratch, require, sys};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SIZE: u64 = 128 << 20;

/// Writes a file as a program does that overwrites it and calls fsync.
fn fsync_file(path: &Path, content: &str) {
    fs::write(path, content).unwrap();
    fs::File::open(path).unwrap().sync_all().unwrap();
}

/// Makes an image with a log of the kernel: the backing file as it was while the kernel had it
/// mounted.
fn log_of_kernel(image: &Path) {
    let scratch = Scratch::new(SIZE * 2).unwrap();
    let mount_options = vec!["commit=300".to_owned()];
    let spec = FileSystemSpec { device_size: SIZE, mount_options, ..FileSystemSpec::default() };
    let images = spec.make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    let top = mounted.path();
    sys::create_subvolume(&top.join("sub")).unwrap();
    for directory in ["e", "sub/d"] {
        fs::create_dir(top.join(directory)).unwrap();
    }
    for (path, content) in [("e/c", "old"), ("e/gone", "gone"), ("sub/d/f", "old")] {
        fs::write(top.join(path), content).unwrap();
    }
    mounted.sync().unwrap();
    fsync_file(&top.join("e/c"), "newer");
    fsync_file(&top.join("e/b"), "newer");
    fsync_file(&top.join("sub/d/f"), "newer");
    fs::remove_file(top.join("e/gone")).unwrap();
    fs::File::open(top.join("e")).unwrap().sync_all().unwrap();
    fs::copy(&images.paths()[0], image).unwrap();
    mounted.unmount().unwrap();
}

/// Makes an image with a log of Papilio: the image as it was while Papilio had it open.
fn log_of_papilio(image: &Path) {
    let made = image.with_extension("open");
    papilio::mkfs(&made, &MkfsOptions::new().size(SIZE)).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(None);
    let fs = FileSystem::open_with(&made, &options).unwrap();
    fs.create_subvolume("/sub").unwrap();
    fs.create_dir("/e").unwrap();
    fs.create_dir("/sub/d").unwrap();
    fs.write("/e/c", "old").unwrap();
    fs.write("/sub/d/f", "old").unwrap();
    fs.sync().unwrap();
    for path in ["/e/c", "/sub/d/f"] {
        let file = fs.inode(path).unwrap().open().unwrap();
        file.write_all_at(b"newer", 0).unwrap();
        file.sync_all().unwrap();
    }
    let file = fs.create_file("/e/b").unwrap();
    file.write_all_at(b"newer", 0).unwrap();
    file.sync_all().unwrap();
    fs::copy(&made, image).unwrap();
    drop((file, fs));
    fs::remove_file(made).unwrap();
}

/// A fault of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Nothing,
    /// A bit of each block of the logs, of all copies. Names can still be read.
    FlippedLog,
    /// The blocks of the logs are gone.
    ErasedLog,
    /// The extent tree, which a replay needs and a reader does not, is gone.
    LostExtentTree,
}

impl Damage {
    fn plant(self, image: &Path) {
        match self {
            Self::Nothing => {}
            Self::FlippedLog => change_blocks(image, objectid::TREE_LOG, |block| block[16_000] ^= 0x10),
            Self::ErasedLog => change_blocks(image, objectid::TREE_LOG, |block| block.fill(0)),
            Self::LostExtentTree => change_blocks(image, objectid::EXTENT_TREE, |block| block.fill(0)),
        }
    }
}

/// Changes all copies of all blocks of a tree.
fn change_blocks(image: &Path, tree: TreeId, change: impl Fn(&mut [u8])) {
    let read: Vec<Arc<dyn Device>> = vec![Arc::new(FileDevice::open(image, Access::ReadOnly).unwrap())];
    let scan = papilio::scan_devices(&read, &ScanOptions::new()).unwrap();
    drop(read);
    let device = FileDevice::open(image, Access::ReadWrite).unwrap();
    let mut changed = 0;
    for block in scan.blocks.iter().filter(|block| block.owner == tree) {
        let mut bytes = vec![0; scan.node_size as usize];
        device.read_at(&mut bytes, block.offset).unwrap();
        change(&mut bytes);
        device.write_at(&bytes, block.offset).unwrap();
        changed += 1;
    }
    assert!(changed > 0, "{tree:?} has blocks");
}

/// The answer of a reader: the exit code, standard error, and the content of files that it showed.
struct Answer {
    code: Option<i32>,
    errors: String,
    shown: Vec<String>,
}

/// The files that a reader shows, and their paths from the top level.
const FILES: [&str; 3] = ["e/c", "e/b", "sub/d/f"];

/// A reader of an image, with a name and a folder for what it makes.
struct Reader {
    name: &'static str,
    read: fn(&Path, &Path) -> Answer,
}

fn command(arguments: &[&str]) -> Answer {
    let output = papilio(arguments);
    Answer { code: output.status.code(), errors: text(&output.stderr), shown: vec![text(&output.stdout)] }
}

fn cat(options: &[&str], image: &Path) -> Answer {
    let places = FILES.map(|file| format!("{}:/{file}", image.display()));
    command(&[options, &["cat"], &places.each_ref().map(String::as_str)].concat())
}

fn restore(options: &[&str], image: &Path, folder: &Path) -> Answer {
    let out = folder.join("out");
    let _ = fs::remove_dir_all(&out);
    let places = [image.to_str().unwrap(), out.to_str().unwrap()];
    let answer = command(&[&["restore"], options, &places].concat());
    let shown = FILES.iter().filter_map(|file| fs::read_to_string(out.join(file)).ok()).collect();
    Answer { shown, ..answer }
}

fn clone(options: &[&str], image: &Path, folder: &Path) -> Answer {
    let out = folder.join("clone.img");
    let _ = fs::remove_file(&out);
    let places = [image.to_str().unwrap(), out.to_str().unwrap()];
    let answer = command(&[options, &["rescue", "clone"], &places].concat());
    let losses = !answer.shown[0].contains("; 0 losses");
    assert_eq!(losses, answer.code == Some(1), "{}{}", answer.shown[0], answer.errors);
    assert_clean(&out);
    Answer { shown: cat(&[], &out).shown, ..answer }
}

/// A dump has names and sizes, but no content.
fn dump(image: &Path, folder: &Path) -> Answer {
    let (dump, out) = (folder.join("dump"), folder.join("dumped.img"));
    let _ = fs::remove_file(&out);
    let _ = fs::remove_file(&dump);
    let place = |path: &Path| path.to_str().unwrap().to_owned();
    let dumped = command(&["image", "dump", &place(image), &place(&dump)]);
    if dumped.code != Some(0) {
        return dumped;
    }
    let restored = command(&["image", "restore", &place(&dump), &place(&out)]);
    if restored.code != Some(0) {
        return restored;
    }
    let listed = cat(&[], &out);
    let size = |file: &&str| {
        let fs = FileSystem::open_with(&out, &OpenOptions::new().allow_older(true)).unwrap();
        let size = fs.metadata(*file).ok()?.size();
        Some(if size == 5 { "newer" } else { "old" }.to_owned())
    };
    Answer { shown: FILES.iter().filter_map(size).collect(), ..listed }
}

/// The library, and with it C, Python and servers.
fn library(options: &OpenOptions, image: &Path) -> Answer {
    let fs = match FileSystem::open_with(image, options) {
        Ok(fs) => fs,
        Err(error) => return Answer { code: Some(1), errors: error.to_string(), shown: Vec::new() },
    };
    let mut errors = String::new();
    for state in fs.older_states() {
        errors += &format!("{state}\n");
        fs.older_files(state).iter().for_each(|file| errors += &format!("{file}\n"));
    }
    let shown = FILES.iter().filter_map(|file| String::from_utf8(fs.read(file).ok()?).ok()).collect();
    Answer { code: Some(i32::from(!errors.is_empty())), errors, shown }
}

const READERS: &[Reader] = &[
    Reader { name: "cat", read: |image, _| cat(&[], image) },
    Reader { name: "cat ignorebadroots", read: |image, _| cat(&["--rescue=ignorebadroots"], image) },
    Reader { name: "cat ignoremetacsums", read: |image, _| cat(&["--rescue=ignoremetacsums"], image) },
    Reader { name: "cat all", read: |image, _| cat(&["--rescue=all"], image) },
    Reader { name: "cat --scan", read: |image, _| cat(&["--scan"], image) },
    Reader { name: "cat --backup-root", read: |image, _| cat(&["--backup-root"], image) },
    Reader { name: "cat --degraded", read: |image, _| cat(&["--degraded"], image) },
    Reader { name: "restore", read: |image, folder| restore(&["-s"], image, folder) },
    Reader { name: "restore -m", read: |image, folder| restore(&["-s", "-m", "-S", "-i"], image, folder) },
    Reader { name: "restore --scan", read: |image, folder| restore(&["-s", "--scan"], image, folder) },
    Reader { name: "restore --json", read: |image, folder| restore(&["-s", "--json"], image, folder) },
    Reader {
        name: "restore --backup-root",
        read: |image, folder| restore(&["-s", "--backup-root"], image, folder),
    },
    Reader { name: "restore -r", read: |image, folder| restore(&["-s", "-r", "5"], image, folder) },
    Reader {
        name: "restore --path-regex",
        read: |image, folder| restore(&["-s", "--path-regex", "^/(|.*)$"], image, folder),
    },
    Reader {
        name: "btrfs restore",
        read: |image, folder| restore(&["--drop-in", "-s", "-m"], image, folder),
    },
    Reader { name: "clone", read: |image, folder| clone(&[], image, folder) },
    Reader { name: "clone --scan", read: |image, folder| clone(&["--scan"], image, folder) },
    Reader { name: "image dump", read: dump },
    Reader { name: "library", read: |image, _| library(&OpenOptions::new(), image) },
    Reader {
        name: "library, older allowed",
        read: |image, _| library(&OpenOptions::new().allow_older(true), image),
    },
    Reader {
        name: "library, ignore_bad_roots",
        read: |image, _| library(&OpenOptions::new().ignore_bad_roots(true), image),
    },
    Reader { name: "library, scan", read: |image, _| library(&OpenOptions::new().scan(true), image) },
];

/// Returns the fault of an answer.
fn fault(answer: &Answer, damage: Damage, is_dump: bool) -> Option<String> {
    let shown = answer.shown.concat();
    let Answer { code, errors, .. } = answer;
    if *code == Some(0) {
        let is_newest = shown == "newer".repeat(FILES.len());
        return (!is_newest || !errors.is_empty()).then(|| format!("exit 0 with {shown:?}, {errors:?}"));
    }
    if *code != Some(1) || damage == Damage::Nothing {
        return Some(format!("exit {code:?} with {shown:?}, {errors:?}"));
    }
    let causes = errors.matches("log of fsyncs cannot be replayed").count();
    let names = match damage {
        // A dump has no damaged blocks.
        _ if is_dump => errors.contains("a part of the log of fsyncs cannot be read"),
        Damage::ErasedLog => errors.contains("a part of the log of fsyncs cannot be read"),
        _ => ["/e/c: it is older", "/e/b: it is missing", "/sub/d/f: it is older"]
            .iter()
            .all(|name| errors.contains(name)),
    };
    let blames_options = errors.contains("ignorebadroots") || errors.contains("read-only");
    let wrong = causes != 1 || !names || blames_options;
    wrong.then(|| format!("the cause {causes} times, {names}, {blames_options}: {errors}"))
}

fn judge(make: fn(&Path), what: &str) {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole.img");
    make(&whole);
    let mut faults = Vec::new();
    let all = [Damage::Nothing, Damage::FlippedLog, Damage::ErasedLog, Damage::LostExtentTree];
    for damage in all {
        let image = folder.path().join("image");
        fs::copy(&whole, &image).unwrap();
        damage.plant(&image);
        let before = fs::read(&image).unwrap();
        for reader in READERS {
            if reader.name == "image dump" && damage == Damage::LostExtentTree {
                // A dump has the trees as they are, and fails as it lacks one.
                continue;
            }
            let answer = (reader.read)(&image, folder.path());
            let fault = fault(&answer, damage, reader.name == "image dump");
            faults.extend(fault.map(|fault| format!("{what}, {damage:?}, {}: {fault}", reader.name)));
        }
        assert!(fs::read(&image).unwrap() == before, "{what}, {damage:?}: a reader wrote");
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn every_reader_shows_the_newest_content_of_a_kernel_log_or_names_what_is_older() {
    if require(Need::KERNEL_MOUNT).is_some() {
        judge(log_of_kernel, "the kernel's log");
    }
}

#[test]
fn every_reader_shows_the_newest_content_of_our_log_or_names_what_is_older() {
    judge(log_of_papilio, "our log");
}

/// An image with our log, and its folder.
fn logged() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    log_of_papilio(&image);
    (folder, image)
}

fn assert_answer(answer: &Answer, code: i32, shown: &str, part: &str) {
    let Answer { code: found, errors, .. } = answer;
    assert_eq!(*found, Some(code), "{errors}");
    assert_eq!(answer.shown.concat(), shown, "{errors}");
    assert!(errors.contains(part), "{part:?} is not in {errors:?}");
}

/// An older state that the user asked for is no failure, and one line says which it is.
#[test]
fn an_older_state_that_was_asked_for_is_named_in_one_line() {
    let (folder, image) = logged();
    let folder = folder.path();
    let asked = "warning: ";
    let last = restore(&["-s", "--rescue=nologreplay"], &image, folder);
    assert_answer(&last, 0, "oldold", "the log of fsyncs is not replayed, as asked");
    assert_eq!(last.errors.lines().count(), 1, "{}", last.errors);
    assert!(last.errors.contains(asked));
    let last = clone(&["--rescue=nologreplay"], &image, folder);
    assert_eq!((last.code, last.errors.lines().count()), (Some(0), 1), "{}", last.errors);
    // The second copy names no log.
    let copy = restore(&["-s", "-u", "1"], &image, folder);
    assert_answer(&copy, 0, "oldold", "a log of fsyncs follows it");
    assert_eq!(copy.errors.lines().count(), 1, "{}", copy.errors);
    // The newest backup root is the last commit, to which the log belongs. Older ones are not.
    let raw = read_superblock(&image, 0).raw;
    let newest = raw.super_roots.iter().position(|backup| backup.tree_root_generation == raw.generation);
    let number = format!("--backup-root={}", newest.unwrap());
    let backup = restore(&["-s", &number], &image, folder);
    assert_answer(&backup, 0, &"newer".repeat(3), "");
    let older = raw.super_roots.iter().map(|backup| backup.tree_root_generation.0);
    let older = older.filter(|number| *number < raw.generation.0).max().unwrap();
    let shown = command(&["--tree-root", &format!("gen:{older}"), "ls", image.to_str().unwrap()]);
    assert_eq!((shown.code, shown.errors.lines().count()), (Some(0), 1), "{}", shown.errors);
    assert!(shown.errors.contains("a log of fsyncs follows it"), "{}", shown.errors);
}

/// A log that needs more memory than the limit is not replayed; the files are listed, and a higher
/// limit shows the newest content.
#[test]
fn a_log_that_exceeds_the_memory_of_a_replay_is_a_failure_with_a_list() {
    let (folder, image) = logged();
    let path = image.to_str().unwrap();
    let newest = restore(&["-s"], &image, folder.path());
    assert_answer(&newest, 0, &"newer".repeat(3), "");
    let small = restore(&["-s", "--replay-bytes", "16k"], &image, folder.path());
    assert_answer(&small, 1, "oldold", "would take more than 16384 bytes");
    for file in ["/e/b: it is missing", "/e/c: it is older", "/sub/d/f: it is older"] {
        assert!(small.errors.contains(file), "{file}: {}", small.errors);
    }
    for arguments in [["ls", path], ["du", path]] {
        let seen = command(&[&["--replay-bytes=16k"], &arguments[..]].concat());
        assert_eq!(seen.code, Some(1), "{}", seen.errors);
        assert!(seen.errors.contains("/e/b: it is missing"), "{}", seen.errors);
    }
    assert_eq!(command(&["--replay-bytes=1m", "ls", path]).code, Some(0));
}

fn read_superblock(image: &Path, copy: usize) -> Superblock {
    let device = FileDevice::open(image, Access::ReadOnly).unwrap();
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    device.read_at(&mut bytes, superblock_offset(copy)).unwrap();
    Superblock::parse(&bytes, superblock_offset(copy)).unwrap()
}

/// Only the first superblock copy names a log. Without it a scan says that a log may be left.
#[test]
fn a_lost_superblock_that_named_a_log_is_said() {
    let (folder, image) = logged();
    let folder = folder.path();
    let place = superblock_offset(0);
    let device = || FileDevice::open(&image, Access::ReadWrite).unwrap();
    // A torn one still names it.
    device().write_at(&[7], PhysicalAddress(place.0 + 3000)).unwrap();
    let torn = restore(&["-s", "--scan"], &image, folder);
    assert_answer(&torn, 0, &"newer".repeat(3), "");
    let copy = restore(&["-s", "--super", "1"], &image, folder);
    assert_answer(&copy, 0, "oldold", "copy 0, which may have named one, is bad");
    device().write_at(&[0; SUPERBLOCK_SIZE], place).unwrap();
    let lost = restore(&["-s", "--scan"], &image, folder);
    assert_answer(&lost, 1, "oldold", "not the superblock that names it");
    let lost = clone(&["--scan"], &image, folder);
    assert_eq!(lost.code, Some(1), "{}", lost.errors);
}

/// The first copy is older than the second, as after a lost write.
#[test]
fn a_newer_superblock_copy_is_named() {
    let (folder, image) = logged();
    let folder = folder.path();
    let device = FileDevice::open(&image, Access::ReadWrite).unwrap();
    let mut first = vec![0; SUPERBLOCK_SIZE];
    device.read_at(&mut first, superblock_offset(0)).unwrap();
    drop(device);
    // A mount for writing replays the log and commits.
    drop(FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap());
    let newest = restore(&["-s"], &image, folder);
    assert_answer(&newest, 0, &"newer".repeat(3), "");
    let device = FileDevice::open(&image, Access::ReadWrite).unwrap();
    let place = superblock_offset(0);
    first[0x60..0x68].fill(0);
    let raw = Superblock::parse_unverified(&first).unwrap();
    device.write_at(&raw.to_bytes(place), place).unwrap();
    drop(device);
    let older = restore(&["-s"], &image, folder);
    assert_answer(&older, 1, "oldold", "superblock copy 1 of");
    let older = clone(&[], &image, folder);
    assert_eq!(older.code, Some(1), "{}", older.errors);
    let listed = command(&["ls", &format!("{}:/e", image.display())]);
    assert_answer(&listed, 0, "c\n", "warning: ");
    let asked = restore(&["-s", "-u", "0"], &image, folder);
    assert_answer(&asked, 0, "oldold", "as asked");
    let newest = restore(&["-s", "-u", "1"], &image, folder);
    assert_answer(&newest, 0, &"newer".repeat(3), "");
}

/// A backup root that takes the place of a lost root tree is an older state, which nobody chose.
#[test]
fn a_backup_root_that_nobody_chose_by_number_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    papilio::mkfs(&image, &MkfsOptions::new().size(SIZE)).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(None);
    for content in ["old", "newer"] {
        let fs = FileSystem::open_with(&image, &options).unwrap();
        if content == "old" {
            fs.create_dir("/e").unwrap();
            fs.write("/e/c", content).unwrap();
            fs.sync().unwrap();
        }
        fs.write("/e/c", content).unwrap();
        fs.close().unwrap();
    }
    let raw = read_superblock(&image, 0).raw;
    let read: Vec<Arc<dyn Device>> = vec![Arc::new(FileDevice::open(&image, Access::ReadOnly).unwrap())];
    let scan = papilio::scan_devices(&read, &ScanOptions::new()).unwrap();
    drop(read);
    let device = FileDevice::open(&image, Access::ReadWrite).unwrap();
    for block in scan.blocks.iter().filter(|block| block.address == raw.root) {
        device.write_at(&vec![0; scan.node_size as usize], block.offset).unwrap();
    }
    drop(device);
    for how in ["--backup-root", "--rescue=usebackuproot", "--rescue=all", "--scan"] {
        let restored = restore(&["-s", how], &image, folder.path());
        assert_answer(&restored, 1, "old", "this is an older state than that of the last commit");
        let cloned = clone(&[how], &image, folder.path());
        assert_eq!(cloned.code, Some(1), "{how}: {}", cloned.errors);
        let shown = command(&[how, "cat", &format!("{}:/e/c", image.display())]);
        assert_answer(&shown, 1, "old", "this is an older state");
    }
    let number = raw.super_roots.iter().filter(|backup| backup.tree_root_generation < raw.generation);
    let newest = number.map(|backup| backup.tree_root_generation).max().unwrap();
    let number = raw.super_roots.iter().position(|backup| backup.tree_root_generation == newest);
    let asked = restore(&["-s", &format!("--backup-root={}", number.unwrap())], &image, folder.path());
    assert_answer(&asked, 0, "old", "");
    assert_eq!(asked.errors, "");
}

/// A file that only the log removed, and one that only the log has, are told apart.
#[test]
fn the_list_tells_removed_missing_and_changed_files_apart() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    log_of_kernel(&image);
    let last = OpenOptions::new().replay_log(false);
    let fs = FileSystem::open_with(&image, &last).unwrap();
    let [state] = fs.older_states() else { panic!("{:?}", fs.older_states()) };
    let found = fs.older_files(state);
    let part = |path: &str| {
        let of_path = found.iter().find(|file| file.path == path.as_bytes());
        of_path.map(|file| file.part.clone())
    };
    assert_eq!(part("e/c"), Some(OlderPart::Changed), "{found:?}");
    assert_eq!(part("e/b"), Some(OlderPart::Missing), "{found:?}");
    assert_eq!(part("e/gone"), Some(OlderPart::Removed), "{found:?}");
    assert_eq!(part("sub/d/f"), Some(OlderPart::Changed), "{found:?}");
    // Files that the log has removed are deleted files.
    drop(fs);
    let deleted = command(&["ls", "--deleted", image.to_str().unwrap()]);
    assert_eq!(deleted.code, Some(0), "{}", deleted.errors);
    assert!(deleted.shown[0].contains("/e/gone\n"), "{}", deleted.shown[0]);
}
