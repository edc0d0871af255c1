//! Success is said only over a whole answer: faults of which a reader keeps nearly all, each with
//! the files that it has to show and the exit code.

use crate::common::{fail, papilio, succeed, text};
use crate::surgery::{edit_blocks, erase, items, remove, scan};
use crate::world::two_devices;
use papilio::device::{Access, Device, FileDevice};
use papilio::format::{ItemType, objectid};
use papilio::{FileSystem, MkfsOptions, OpenOptions};
use papilio_oracle::{FileSystemSpec, Need, Scratch, require, sys};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

const SIZE: u64 = 256 << 20;

fn place(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a command. Returns the exit code, standard output and standard error.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = papilio(arguments);
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Restores into a new directory. Returns the exit code, the files and standard error.
fn restore(folder: &Path, arguments: &[&str]) -> (Option<i32>, BTreeMap<String, Vec<u8>>, String) {
    let out = folder.join("out");
    let _ = fs::remove_dir_all(&out);
    let (code, _, errors) = run(&[&["restore"], arguments, &[place(&out)]].concat());
    let mut files = BTreeMap::new();
    let mut folders = vec![out.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
                continue;
            }
            let name = entry.path().strip_prefix(&out).unwrap().display().to_string();
            files.insert(name, fs::read(entry.path()).unwrap_or_default());
        }
    }
    (code, files, errors)
}

fn kernel_spec() -> FileSystemSpec {
    FileSystemSpec { device_size: SIZE, ..FileSystemSpec::default() }
}

/// Makes an image with the kernel, and fills it.
fn made_by_kernel(scratch: &Scratch, fill: impl Fn(&Path)) -> PathBuf {
    let images = kernel_spec().make(scratch).unwrap();
    let mounted = images.mount().unwrap();
    fill(mounted.path());
    mounted.unmount().unwrap();
    images.paths()[0].clone()
}

#[test]
fn of_two_roots_of_a_generation_that_with_the_newest_trees_is_read() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(SIZE * 2).unwrap();
    let image = made_by_kernel(&scratch, |top| {
        sys::create_subvolume(&top.join("@")).unwrap();
        fs::write(top.join("@/f"), "x\n").unwrap();
    });
    let generation = FileSystem::open(&image).unwrap().superblock().raw.generation;
    let found = scan(&image);
    let mut roots: Vec<_> = found
        .blocks
        .iter()
        .filter(|block| block.owner == objectid::ROOT_TREE && block.generation == generation)
        .map(|block| block.address)
        .collect();
    roots.sort_unstable();
    roots.dedup();
    assert!(roots.len() > 1, "the kernel wrote its root twice: {roots:?}");
    for offset in [64 << 10, 64 << 20] {
        erase(&image, offset, 4096);
    }
    let folder = tempfile::tempdir().unwrap();
    let (code, files, errors) = restore(folder.path(), &["--scan", "-s", place(&image)]);
    assert_eq!(files, BTreeMap::from([("@/f".to_owned(), b"x\n".to_vec())]), "{errors}");
    assert_eq!(code, Some(0), "{errors}");
    assert!(errors.contains("root trees of generation") && errors.contains("was taken"), "{errors}");
    let (code, listed, _) = run(&["--scan", "ls", &format!("{}:/", place(&image))]);
    assert_eq!((code, listed.as_str()), (Some(0), "@\n"));
}

#[test]
fn what_one_of_two_devices_has_is_read() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    for profile in ["single", "raid0"] {
        let scratch = Scratch::new(SIZE * 4).unwrap();
        let images = two_devices(profile).make(&scratch).unwrap();
        let mounted = images.mount().unwrap();
        for number in 0..20 {
            fs::write(mounted.path().join(format!("f{number}")), vec![number; 12 << 20]).unwrap();
            fs::write(mounted.path().join(format!("s{number}")), vec![number; 100]).unwrap();
        }
        mounted.unmount().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut whole = 0;
        for image in images.paths() {
            let alone = folder.path().join("alone");
            fs::copy(image, &alone).unwrap();
            let name = place(&alone);
            let (code, files, errors) = restore(folder.path(), &["--degraded", name]);
            assert_eq!(code, Some(1), "{errors}");
            assert_eq!(files.len(), 40, "{profile}: {errors}");
            for number in 0..20u8 {
                assert_eq!(files[&format!("s{number}")], vec![number; 100]);
                let content = &files[&format!("f{number}")];
                whole += usize::from(*content == vec![number; 12 << 20]);
                assert!(content.iter().all(|byte| *byte == number || *byte == 0));
            }
            let (code, listed, errors) = run(&["--degraded", "ls", &format!("{name}:/")]);
            assert_eq!((code, listed.lines().count()), (Some(0), 40), "{errors}");
            let (code, report, _) = run(&["--degraded", "check", name]);
            assert_eq!(code, Some(1));
            assert!(report.contains("chunk-unreadable"), "{report}");
            let said = fail(1, "--degraded", ["--degraded", "rm", &format!("{name}:/f0")]);
            assert!(said.contains("devices are missing"), "{said}");
        }
        // Each file is on one device, or on both.
        assert!(profile == "raid0" || whole >= 18, "{profile}: {whole}");
    }
}

#[test]
fn a_device_cut_behind_its_last_chunk_is_read_and_mended() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let name = place(&image);
    papilio::mkfs(&image, &MkfsOptions::new().size(500 << 20)).unwrap();
    let note = folder.path().join("note");
    fs::write(&note, "hello").unwrap();
    succeed(["cp", place(&note), &format!("{name}:/")]);
    fs::File::options().write(true).open(&image).unwrap().set_len(484 << 20).unwrap();
    let (code, shown, errors) = run(&["cat", &format!("{name}:/note")]);
    assert_eq!((code, shown.as_str()), (Some(0), "hello"), "{errors}");
    assert!(errors.contains("rescue fix-device-size"), "{errors}");
    let (code, report, _) = run(&["check", name]);
    assert_eq!(code, Some(1), "{report}");
    assert!(report.contains("device-cut"), "{report}");
    fail(1, "rescue fix-device-size", ["cp", place(&note), &format!("{name}:/more")]);
    let (code, _, errors) = run(&["rescue", "fix-device-size", name]);
    assert_eq!(code, Some(0), "{errors}");
    crate::common::assert_clean(&image);
    succeed(["cp", place(&note), &format!("{name}:/more")]);
}

/// Makes 300 files with owners, modes and times. Returns these, by name.
fn filled(top: &Path) -> BTreeMap<String, (u32, u32, u32, i64)> {
    for number in 0..300u32 {
        let path = top.join(format!("f{number}"));
        fs::write(&path, format!("file {number}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::chown(&path, Some(number), Some(number + 1)).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000 + u64::from(number));
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    }
    facts(top)
}

fn facts(top: &Path) -> BTreeMap<String, (u32, u32, u32, i64)> {
    let fact = |entry: fs::DirEntry| {
        let found = entry.metadata().unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, (found.mode(), found.uid(), found.gid(), found.mtime()))
    };
    fs::read_dir(top).unwrap().flatten().map(fact).collect()
}

#[test]
fn unknown_inode_flags_hide_no_file() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(SIZE * 3).unwrap();
    let expected = std::cell::RefCell::default();
    let image = made_by_kernel(&scratch, |top| *expected.borrow_mut() = filled(top));
    let expected = expected.into_inner();
    let changed = edit_blocks(&image, objectid::FS_TREE, |block| {
        let inodes: Vec<_> = items(block)
            .into_iter()
            .filter(|item| item.key.item_type == ItemType::INODE_ITEM && item.key.objectid > 256)
            .collect();
        // Bit 30 of the flags, at offset 64 of an inode.
        inodes.iter().for_each(|item| block[item.data.start + 67] |= 0x40);
        !inodes.is_empty()
    });
    assert!(changed > 4, "{changed}");
    let folder = tempfile::tempdir().unwrap();
    let (code, files, errors) = restore(folder.path(), &[place(&image)]);
    assert_eq!((code, files.len()), (Some(0), 300), "{errors}");
    assert_eq!(facts(&folder.path().join("out")), expected);
    assert!(errors.contains("flags is 1073741824"), "{errors}");
    // A few stand for all.
    assert_eq!(errors.lines().count(), 4, "{errors}");
    assert!(errors.contains("297 more items"), "{errors}");
    let clone = folder.path().join("clone");
    let (code, said, errors) = run(&["rescue", "clone", place(&image), place(&clone)]);
    // The flags are lost in the clone.
    assert_eq!(code, Some(1), "{said}{errors}");
    let (code, said, errors) = run(&["check", "--repair", "--yes", place(&image)]);
    assert_eq!(code, Some(0), "{said}{errors}");
    assert!(said.contains("before 300 files"), "{said}");
    for image in [clone, image] {
        crate::common::assert_clean(&image);
        let out = folder.path().join("again");
        let _ = fs::remove_dir_all(&out);
        succeed(["restore", place(&image), place(&out)]);
        assert_eq!(facts(&out), expected);
    }
}

#[test]
fn entries_that_only_one_kind_of_item_has_are_shown() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let scratch = Scratch::new(SIZE * 5).unwrap();
    let image = made_by_kernel(&scratch, |top| drop(filled(top)));
    let folder = tempfile::tempdir().unwrap();
    for lost in [ItemType::DIR_INDEX, ItemType::DIR_ITEM] {
        let broken = scratch.unique("broken");
        fs::copy(&image, &broken).unwrap();
        let changed = edit_blocks(&broken, objectid::FS_TREE, |block| {
            let found = items(block).into_iter().find(|item| item.key.item_type == lost);
            found.iter().for_each(|item| remove(block, item));
            found.is_some()
        });
        assert!(changed > 0);
        for options in [&[][..], &["--scan"]] {
            let (code, files, errors) = restore(folder.path(), &[options, &[place(&broken)]].concat());
            assert_eq!((code, files.len()), (Some(0), 300), "{lost:?} {options:?}: {errors}");
            assert!(errors.contains("its counterpart is used"), "{errors}");
        }
        let (code, said, errors) = run(&["--scan", "find", "-type", "f", &format!("{}:/", place(&broken))]);
        assert_eq!((code, said.lines().count()), (Some(0), 300), "{lost:?}: {errors}");
    }
}

#[test]
fn a_root_item_with_a_wrong_bit_in_its_key_is_used_and_mended() {
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    // One type that the kernel checks, and one that it does not know.
    for bit in [0x04, 0x08] {
        let scratch = Scratch::new(SIZE * 3).unwrap();
        let image = made_by_kernel(&scratch, |top| {
            for number in 0..22 {
                fs::write(top.join(format!("f{number}")), vec![number; 5000]).unwrap();
            }
        });
        let generation = FileSystem::open(&image).unwrap().superblock().raw.generation;
        edit_blocks(&image, objectid::ROOT_TREE, |block| {
            let header = papilio::format::node::NodeHeader::parse_prefix(block).unwrap().0;
            let is_root = |key: papilio::format::Key| {
                (key.objectid, key.item_type) == (objectid::FS_TREE.0, ItemType::ROOT_ITEM)
            };
            let found = items(block).into_iter().find(|item| is_root(item.key));
            let Some(item) = found.filter(|_| header.generation == generation) else { return false };
            block[item.header + 8] ^= bit;
            true
        });
        let folder = tempfile::tempdir().unwrap();
        let (code, files, errors) = restore(folder.path(), &[place(&image)]);
        assert_eq!(files.len(), 22, "{bit:#x}: {errors}");
        assert_eq!(code, Some(1), "{errors}");
        let (code, said, errors) = run(&["check", "--repair", "--yes", place(&image)]);
        assert_eq!(code, Some(0), "{bit:#x}: {said}{errors}");
        assert!(said.contains("before 22 files") && said.contains("afterwards 22 with"), "{said}");
        crate::common::assert_clean(&image);
        let (code, files, errors) = restore(folder.path(), &[place(&image)]);
        assert_eq!((code, files.len()), (Some(0), 22), "{errors}");
    }
}

/// Makes an image with files in the top level and in two subvolumes, and overwrites the only leaf
/// of the top level.
fn without_top_level(folder: &Path) -> PathBuf {
    let image = folder.join("image");
    papilio::mkfs(&image, &MkfsOptions::new().size(SIZE)).unwrap();
    let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap();
    for name in ["/@", "/@home"] {
        fs.create_subvolume(name).unwrap();
        for file in ["a", "b"] {
            fs.write(format!("{name}/{file}"), format!("{name}/{file}")).unwrap();
        }
    }
    fs.write("/top", "lost").unwrap();
    fs.close().unwrap();
    let found = scan(&image);
    let device = FileDevice::open(&image, Access::ReadWrite).unwrap();
    for block in found.blocks.iter().filter(|block| block.owner == objectid::FS_TREE) {
        device.write_at(&vec![0x55; found.node_size as usize], block.offset).unwrap();
    }
    image
}

#[test]
fn subvolumes_are_reached_without_the_top_level() {
    let folder = tempfile::tempdir().unwrap();
    let image = without_top_level(folder.path());
    let name = place(&image);
    let (code, listed, errors) = run(&["ls", &format!("{name}:/")]);
    assert_eq!((code, listed.as_str()), (Some(1), "@\n@home\n"), "{errors}");
    assert!(errors.contains("root block cannot be read"), "{errors}");
    // Nothing below a subvolume that the root tree names is lost.
    let (code, listed, errors) = run(&["ls", &format!("{name}:/@")]);
    assert_eq!((code, listed.as_str()), (Some(0), "a\nb\n"), "{errors}");
    assert!(errors.contains("root block cannot be read"), "{errors}");
    assert_eq!(run(&["cat", &format!("{name}:/@home/b")]).0, Some(0));
    assert_eq!(run(&["stat", &format!("{name}:/")]).0, Some(1), "its root directory is made up");
    let files = |list: &[&str]| -> Vec<String> { list.iter().map(ToString::to_string).collect() };
    let all = files(&["@/a", "@/b", "@home/a", "@home/b"]);
    for options in [&["-s"][..], &["-s", "--scan"]] {
        let (code, found, errors) = restore(folder.path(), &[options, &[name]].concat());
        assert_eq!(found.keys().cloned().collect::<Vec<_>>(), all, "{options:?}: {errors}");
        assert_eq!(code, Some(1));
    }
    let (code, found, errors) = restore(folder.path(), &["-r", "256", name]);
    assert_eq!((code, found.len()), (Some(0), 2), "{errors}");
    let fs = FileSystem::open_with(
        &image,
        &OpenOptions::new().subvolume(papilio::SubvolumeChoice::Id(papilio::TreeId(256))),
    );
    assert_eq!(fs.unwrap().read("/a").unwrap(), b"/@/a");
    assert!(FileSystem::open(&image).is_err(), "nobody asked for less than the top level");
    let clone = folder.path().join("clone");
    let (code, said, errors) = run(&["rescue", "clone", name, place(&clone)]);
    assert_eq!(code, Some(1), "{said}{errors}");
    let (code, found, _) = restore(folder.path(), &["-s", place(&clone)]);
    assert_eq!((code, found.keys().cloned().collect::<Vec<_>>()), (Some(0), all.clone()));
    let (code, said, errors) = run(&["check", "--repair", "--yes", name]);
    assert_eq!(code, Some(0), "{said}{errors}");
    crate::common::assert_clean(&image);
    let (_, found, errors) = restore(folder.path(), &["-s", name]);
    assert_eq!(found.keys().cloned().collect::<Vec<_>>(), all, "{errors}");
}

#[test]
fn an_expression_that_matches_nothing_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    papilio::mkfs(&image, &MkfsOptions::new().size(SIZE)).unwrap();
    let note = folder.path().join("note");
    fs::write(&note, "hello").unwrap();
    succeed(["cp", place(&note), &format!("{}:/", place(&image))]);
    let regex = |expression: &str| restore(folder.path(), &["--path-regex", expression, place(&image)]);
    let (code, files, _) = regex("^/(|note)$");
    assert_eq!((code, files.len()), (Some(0), 1));
    let (code, files, errors) = regex("^/(|nothing)$");
    assert_eq!((code, files.len()), (Some(1), 0));
    assert!(errors.contains("no file matches"), "{errors}");
}

#[test]
fn a_path_that_nobody_receives_is_not_sent() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    papilio::mkfs(&image, &MkfsOptions::new().size(SIZE)).unwrap();
    for levels in [16, 17] {
        let name = format!("/deep{levels}");
        let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap();
        fs.create_subvolume(&name).unwrap();
        let mut at = fs.inode(&name).unwrap();
        for _ in 0..levels {
            let new = papilio::NewInode::new(papilio::NewKind::Directory, 0o755);
            at = at.create("d".repeat(250).as_bytes(), &new).unwrap();
        }
        fs.snapshot(&name, format!("{name}.ro"), true).unwrap();
        drop(at);
        fs.close().unwrap();
        let stream = folder.path().join("stream");
        let source = format!("{}:{name}.ro", place(&image));
        let sent = run(&["send", "-f", place(&stream), &source]);
        if levels == 16 {
            assert_eq!(sent.0, Some(0), "{}", sent.2);
            succeed(["receive", "--dump", "-f", place(&stream)]);
        } else {
            assert_eq!(sent.0, Some(1));
            assert!(sent.2.contains("cannot be sent"), "{}", sent.2);
        }
    }
}

/// Returns a tar archive with one empty file.
fn tar(folder: &Path, name: &str) -> Vec<u8> {
    let path = folder.join(name);
    fs::write(&path, "").unwrap();
    let output =
        std::process::Command::new("tar").args(["-C", place(folder), "-cf", "-", name]).output().unwrap();
    output.stdout
}

#[test]
fn what_is_left_out_of_an_archive_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (tar(folder.path(), "one"), tar(folder.path(), "two"));
    let whiteout = tar(folder.path(), ".wh.gone");
    let cases = [(first.clone(), 0, ""), ([&first[..], &second].concat(), 0, ""), (whiteout, 1, "whiteout")];
    for (bytes, code, part) in cases {
        let (archive, image) = (folder.path().join("archive.tar"), folder.path().join("image"));
        fs::write(&archive, bytes).unwrap();
        let _ = fs::remove_file(&image);
        let made = run(&["mkfs", "--rootdir", place(&archive), place(&image)]);
        assert_eq!(made.0, Some(code), "{}", made.2);
        assert!(made.2.contains(part), "{}", made.2);
    }
}

#[test]
fn owners_that_only_fakeroot_knows_are_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    let mut command = crate::common::command();
    command.env("FAKEROOTKEY", "12345").args(["mkfs", "--rootdir", place(&source), place(&image)]);
    let output = command.output().unwrap();
    let said = crate::common::check_failure(&output, 1, "unshare -r");
    assert!(said.contains("tar") && !image.exists(), "{said}");
}
