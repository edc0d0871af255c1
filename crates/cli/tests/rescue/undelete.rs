//! `papilio subvolume undelete`: the kernel deletes a subvolume, and it comes back.

use crate::common::{assert_clean, fail, papilio, succeed, succeed_json, succeed_text, text};
use papilio_oracle::{FileSystemSpec, ImageSet, Mounted, Need, Scratch, require, sys};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Everything of a subvolume that must come back: mode, owner, attribute and content by path.
type Files = BTreeMap<PathBuf, (u32, (u32, u32), Option<Vec<u8>>, Vec<u8>)>;

fn files_of(top: &Path) -> Files {
    use std::os::unix::fs::MetadataExt;
    let mut found = Files::new();
    let mut left = vec![top.to_path_buf()];
    while let Some(path) = left.pop() {
        let metadata = path.symlink_metadata().unwrap();
        let content = match () {
            () if metadata.is_dir() => {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                Vec::new()
            }
            () if metadata.is_symlink() => {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            }
            () => fs::read(&path).unwrap(),
        };
        let attribute = if metadata.is_symlink() { None } else { xattr::get(&path, "user.note").unwrap() };
        let below = path.strip_prefix(top).unwrap().to_path_buf();
        found.insert(below, (metadata.mode(), (metadata.uid(), metadata.gid()), attribute, content));
    }
    found
}

fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(seed + 7) / 3 + at / 4096 * (seed + 1)) as u8).collect()
}

/// Fills a subvolume with files of all kinds, some of which it shares with a snapshot.
fn populate(home: &Path, snapshot: &Path) {
    sys::create_subvolume(home).unwrap();
    for number in 0..300 {
        let directory = home.join(format!("dir{}", number % 7));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("small{number}")), bytes(number, 100 + number * 3)).unwrap();
    }
    for number in 0..12 {
        fs::write(home.join(format!("large{number}")), bytes(number, 200_000 + number * 5000)).unwrap();
    }
    sys::create_snapshot(home, snapshot, true).unwrap();
    for number in 0..4 {
        fs::write(home.join(format!("large{number}")), bytes(90 + number, 300_000)).unwrap();
    }
    fs::write(home.join("zeros"), vec![0; 1 << 20]).unwrap();
    fs::write(home.join("text"), "the same line\n".repeat(20_000)).unwrap();
    let sparse = fs::File::create(home.join("sparse")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &bytes(3, 9000), 1 << 20).unwrap();
    sparse.set_len(3 << 20).unwrap();
    sparse.sync_all().unwrap();
    std::os::unix::fs::symlink("large1", home.join("link")).unwrap();
    fs::hard_link(home.join("large2"), home.join("second name")).unwrap();
    std::os::unix::fs::chown(home.join("large3"), Some(7), Some(8)).unwrap();
    xattr::set(home.join("large3"), "user.note", b"kept").unwrap();
}

/// Deletes a subvolume, and waits until the kernel has freed its blocks, if `clean` is set.
fn delete(mounted: &Mounted, path: &Path, clean: bool) {
    let id = sys::subvolume_id(path).unwrap();
    sys::delete_subvolume(path).unwrap();
    mounted.sync().unwrap();
    if clean {
        succeed(["subvolume", "sync", mounted.path().to_str().unwrap(), &id.to_string()]);
        mounted.sync().unwrap();
    }
}

fn undelete(arguments: &[&str]) -> std::process::Output {
    papilio([&["subvolume", "undelete"], arguments].concat())
}

struct Case {
    scratch: Scratch,
    images: ImageSet,
    image: String,
    files: Files,
}

fn deleted(options: &[&str], clean: bool, later: impl Fn(&Path)) -> Option<Case> {
    let _met = require(Need::KERNEL_MOUNT)?;
    let scratch = Scratch::new(800 << 20).unwrap();
    let mount_options = ["nodiscard"].iter().chain(options).map(|&option| option.to_owned()).collect();
    let spec = FileSystemSpec { mount_options, ..FileSystemSpec::default() };
    let images = spec.make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    let top = mounted.path();
    fs::create_dir(top.join("users")).unwrap();
    fs::write(top.join("users/other"), "other").unwrap();
    let home = top.join("users/home");
    populate(&home, &top.join("snapshot"));
    // Data behind that of the subvolume: the kernel removes a chunk that becomes empty.
    let keeper = fs::File::create(top.join("users/keeper")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&keeper, &bytes(1, 20_000), 0).unwrap();
    keeper.sync_all().unwrap();
    mounted.sync().unwrap();
    let files = files_of(&home);
    delete(&mounted, &home, clean);
    later(top);
    mounted.unmount().unwrap();
    let image = images.paths()[0].to_str().unwrap().to_owned();
    Some(Case { scratch, images, image, files })
}

impl Case {
    /// The kernel shows the same files, can change them, and `btrfs check` finds nothing.
    fn assert_back(&self, path: &str) {
        assert_clean(&self.images.paths()[0]);
        let mounted = self.images.mount().unwrap();
        let home = mounted.path().join(path);
        assert!(files_of(&home) == self.files);
        assert!(files_of(&mounted.path().join("snapshot")).len() > 300);
        fs::remove_dir_all(home.join("dir0")).unwrap();
        fs::write(home.join("large1"), "changed").unwrap();
        fs::write(mounted.path().join("new"), bytes(5, 3 << 20)).unwrap();
        sys::create_snapshot(&home, &mounted.path().join("again"), false).unwrap();
        delete(&mounted, &home, true);
        mounted.unmount().unwrap();
        self.images.btrfs_check().unwrap();
    }
}

#[test]
fn a_deleted_subvolume_comes_back() {
    for options in [&[][..], &["compress=zstd"]] {
        let Some(case) = deleted(options, true, |_| {}) else { return };
        let found = succeed_json(["subvolume", "undelete", "--json", &case.image]);
        assert_eq!(found[0]["missing"], 0, "{found:#}");
        assert!(succeed_text(["subvolume", "undelete", &case.image]).contains("/users/home"));
        fail(1, "no such deleted subvolume", ["subvolume", "undelete", &format!("{}:/users/x", case.image)]);
        let place = format!("{}:/users/home", case.image);
        let before = fs::read(&case.image).unwrap();
        let dry = undelete(&["--dry-run", &place]);
        assert!(
            dry.status.success() && text(&dry.stdout).contains("will make subvolume"),
            "{}",
            text(&dry.stdout)
        );
        assert!(fs::read(&case.image).unwrap() == before);
        let undo = case.scratch.path().join("undo");
        let made = undelete(&["--yes", "--undo", undo.to_str().unwrap(), &place]);
        assert!(made.status.success(), "{}{}", text(&made.stdout), text(&made.stderr));
        // The undo file takes everything back.
        let copy = case.scratch.path().join("copy");
        fs::copy(&case.image, &copy).unwrap();
        succeed(["rescue", "undo", undo.to_str().unwrap(), copy.to_str().unwrap()]);
        assert!(fs::read(&copy).unwrap() == before);
        case.assert_back("users/home");
    }
}

#[test]
fn a_subvolume_in_deletion_and_one_without_its_directory_come_back() {
    let Some(case) = deleted(&[], false, |_| {}) else { return };
    let made = undelete(&["--yes", &format!("{}:/users/home", case.image)]);
    assert!(made.status.success(), "{}{}", text(&made.stdout), text(&made.stderr));
    case.assert_back("users/home");

    // The name is taken by then.
    let later = |top: &Path| fs::write(top.join("users/home"), "taken").unwrap();
    let Some(case) = deleted(&[], true, later) else { return };
    let id = succeed_json(["subvolume", "undelete", "--json", &case.image])[0]["subvolume"]["id"].clone();
    let made = undelete(&["--yes", "--id", &id.to_string(), &case.image]);
    assert!(made.status.success(), "{}{}", text(&made.stdout), text(&made.stderr));
    case.assert_back(&format!("lost+found/{id}"));
}

#[test]
fn losses_of_a_subvolume_are_listed() {
    let later = |top: &Path| {
        for number in 0..60 {
            fs::write(top.join(format!("late{number}")), bytes(number, 150_000)).unwrap();
            fs::write(top.join(format!("inline{number}")), bytes(number, 1000)).unwrap();
        }
        // The last commit leaves what is between the extents.
        let _ = std::process::Command::new("sync").arg("-f").arg(top).status();
    };
    let Some(case) = deleted(&[], true, later) else { return };
    let found = succeed_json(["subvolume", "undelete", "--json", &case.image]);
    if found.as_array().unwrap().is_empty() {
        println!("nothing is left of the subvolume");
        return;
    }
    let made = undelete(&["--yes", &format!("{}:/users/home", case.image)]);
    let (said, errors) = (text(&made.stdout), text(&made.stderr));
    if errors.contains("was overwritten") || errors.contains("cannot be read") {
        assert_eq!(made.status.code(), Some(1));
        return;
    }
    assert_eq!(made.status.code(), Some(if said.contains("lost: ") { 1 } else { 0 }), "{said}{errors}");
    assert_clean(&case.images.paths()[0]);
    let mounted = case.images.mount().unwrap();
    let back = files_of(&mounted.path().join("users/home"));
    let mut lost = 0;
    for (path, file) in &case.files {
        if back.get(path) != Some(file) {
            lost += 1;
            let name = path.file_name().unwrap_or_default().to_str().unwrap();
            // A file with two names is listed by one of them.
            let name = if name == "second name" { "large2" } else { name };
            assert!(said.contains(name) || said.contains("all items from"), "{path:?} is not listed: {said}");
        }
    }
    println!("{lost} of {} files are lost or changed", case.files.len());
    for number in 0..60 {
        assert!(fs::read(mounted.path().join(format!("late{number}"))).unwrap() == bytes(number, 150_000));
    }
    mounted.unmount().unwrap();
    case.images.btrfs_check().unwrap();
}
