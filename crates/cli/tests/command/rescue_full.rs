//! `papilio rescue full`: the kernel fills a file system until it can neither write nor delete, and
//! works again afterwards.

use crate::common::{assert_clean, fail, papilio, succeed_json, succeed_text as succeed, text};
use papilio_oracle::{FileSystemSpec, ImageSet, Mounted, Need, Scratch, require, sys};
use std::fs;
use std::io::Write;
use std::path::Path;

/// Files with inline data in one directory.
const IN_DIRECTORY: usize = 2000;

/// Fills the data with files of 1 MiB, then deletes those that `keeps` refuses by their number and
/// the number of all; then fills the metadata with inline files. Returns the files that stay.
fn fill(mounted: &Mounted, keeps: impl Fn(usize, usize) -> bool) -> Vec<std::path::PathBuf> {
    let top = mounted.path();
    let big = top.join("big");
    fs::create_dir(&big).unwrap();
    let mut files = Vec::new();
    for number in 0.. {
        let path = big.join(number.to_string());
        let bytes = vec![number as u8; 1 << 20];
        let written = fs::File::create(&path).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        });
        if written.is_err() {
            let _ = fs::remove_file(&path);
            break;
        }
        files.push(path);
    }
    mounted.sync().unwrap();
    let (mut left, count) = (Vec::new(), files.len());
    for (number, path) in files.into_iter().enumerate() {
        match keeps(number, count) {
            true => left.push(path),
            false => fs::remove_file(path).unwrap(),
        }
    }
    mounted.sync().unwrap();
    let small = [b's'; 1800];
    'full: for directory in 0.. {
        let directory = top.join(format!("small{directory}"));
        if fs::create_dir(&directory).is_err() {
            break;
        }
        for number in 0..IN_DIRECTORY {
            if fs::write(directory.join(number.to_string()), small).is_err() {
                break 'full;
            }
        }
        // The kernel may refuse to commit.
        let _ = mounted.sync();
    }
    let _ = mounted.sync();
    left
}

fn string(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The kernel can write, delete and commit.
fn assert_works(images: &ImageSet, kept: &[std::path::PathBuf], old: &Path) {
    let mounted = images.mount().unwrap();
    let top = mounted.path();
    for path in kept {
        let bytes = fs::read(top.join(path.strip_prefix(old).unwrap())).unwrap();
        let number: usize = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert!(bytes == vec![number as u8; 1 << 20], "{path:?}");
    }
    for number in 0..200 {
        fs::write(top.join(format!("after{number}")), [b'n'; 1800]).unwrap();
    }
    mounted.sync().unwrap();
    fs::remove_dir_all(top.join("small0")).unwrap();
    mounted.sync().unwrap();
    mounted.unmount().unwrap();
    images.btrfs_check().unwrap();
}

#[test]
fn a_file_system_with_full_metadata_is_writable_again() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(500 << 20).unwrap();
    let spec = FileSystemSpec {
        device_size: 300 << 20,
        mount_options: vec!["max_inline=2048".to_owned(), "nodiscard".to_owned()],
        ..FileSystemSpec::default()
    };
    let images = spec.make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    let old = mounted.path().to_path_buf();
    let kept = fill(&mounted, |number, _| number % 8 == 0);
    mounted.unmount().unwrap();
    let image = string(&images.paths()[0]).to_owned();

    let plan = succeed_json(["rescue", "full", "--json", "-n", &image]);
    assert_eq!(plan["before"]["short"], true, "{plan:#}");
    assert!(!plan["before"]["movable"].as_array().unwrap().is_empty(), "{plan:#}");
    // Nobody answers the question.
    let asked = papilio(["rescue", "full", &image]);
    assert_eq!(asked.status.code(), Some(1));
    assert!(text(&asked.stderr).contains("nothing was written"), "{}", text(&asked.stderr));
    let done = papilio(["rescue", "full", "--yes", &image]);
    let said = text(&done.stdout);
    assert!(done.status.success(), "{said}{}", text(&done.stderr));
    assert!(said.contains("emptied the block group at") && said.contains(": enough"), "{said}");
    assert_clean(&images.paths()[0]);
    assert_works(&images, &kept, &old);
    assert!(succeed(["rescue", "full", &image]).contains("nothing to do"));
}

#[test]
fn a_full_file_system_gets_room_from_a_snapshot_or_a_larger_device() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(700 << 20).unwrap();
    let spec = FileSystemSpec {
        device_size: 300 << 20,
        mount_options: vec!["max_inline=2048".to_owned(), "nodiscard".to_owned()],
        ..FileSystemSpec::default()
    };
    let images = spec.make(&scratch).unwrap();
    let mounted = images.mount().unwrap();
    let old = mounted.path().to_path_buf();
    sys::create_subvolume(&old.join("home")).unwrap();
    for number in 0..8000 {
        fs::write(old.join(format!("home/{number}")), [b'h'; 1800]).unwrap();
    }
    sys::create_snapshot(&old.join("home"), &old.join("day1"), true).unwrap();
    sys::delete_subvolume(&old.join("home")).unwrap();
    mounted.sync().unwrap();
    let kept = fill(&mounted, |number, count| number + 6 < count);
    mounted.unmount().unwrap();
    let image = string(&images.paths()[0]).to_owned();
    let copy = scratch.path().join("copy");
    crate::fixture::copy_image(&images.paths()[0], &copy);

    let plan = succeed_json(["rescue", "full", "--json", "-n", &image]);
    assert_eq!(plan["before"]["short"], true, "{plan:#}");
    assert_eq!(plan["snapshots"][0]["path"], "/day1");
    assert!(plan["snapshots"][0]["metadata"].as_u64().unwrap() > 10 << 20, "{plan:#}");
    fail(2, "no subvolume has this id or path", ["rescue", "full", "--yes", "--delete", "day9", &image]);
    let done = papilio(["rescue", "full", "--yes", "--delete", "day1", &image]);
    assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
    assert_works(&images, &kept, &old);

    // A larger device needs no deletion.
    fs::File::options().write(true).open(&copy).unwrap().set_len(500 << 20).unwrap();
    let done = papilio(["rescue", "full", "--yes", string(&copy)]);
    assert!(text(&done.stdout).contains("grew on device 1"), "{}{}", text(&done.stdout), text(&done.stderr));
    assert!(done.status.success());
    assert_works(&ImageSet::open(&scratch, vec![copy]), &kept, &old);
}

#[test]
fn empty_block_groups_are_removed_where_nothing_else_changes() {
    let folder = tempfile::tempdir().unwrap();
    let (image, host) = (folder.path().join("image"), folder.path().join("host"));
    let (image, host) = (string(&image), string(&host));
    succeed(["mkfs", "-q", "--size", "150M", image]);
    fs::write(host, crate::fixture::noise(1, 69 << 20)).unwrap();
    succeed(["cp", host, &format!("{image}:/large")]);
    let many = folder.path().join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..8500 {
        fs::write(many.join(number.to_string()), crate::fixture::noise(number, 1900)).unwrap();
    }
    succeed(["cp", "-r", string(&many), &format!("{image}:/")]);
    succeed(["rm", &format!("{image}:/large")]);
    let plan = succeed_json(["rescue", "full", "--json", "-n", image]);
    assert_eq!(plan["before"]["short"], true, "{plan:#}");
    let empty = |plan: &serde_json::Value, when: &str| plan[when]["empty"].as_array().unwrap().len();
    assert!(empty(&plan, "before") > 3, "{plan:#}");
    let done = succeed_json(["rescue", "full", "--yes", "--json", image]);
    assert_eq!((&done["after"]["short"], empty(&done, "after") <= 1), (&false.into(), true), "{done:#}");
    assert_clean(Path::new(image));
}
