//! Seed devices: Papilio uses what the kernel sprouted, and the kernel what Papilio sprouted. No
//! byte of the seed changes.

use crate::images::{assert_clean_for_both, btrfs, open, writable};
use crate::world::{MIB, NEEDS, assert_same, bytes, files_of_kernel, files_of_papilio, made, write_files};
use papilio::device::{Access, Device, FileDevice};
use papilio::format::DeviceId;
use papilio::{FileSystem, OpenOptions, ScrubOptions};
use papilio_oracle::loop_device::LoopDevice;
use papilio_oracle::{ImageSet, Scratch, require, sys};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Makes a seed with files on the images.
fn seed(scratch: &Scratch, images: &[PathBuf], options: &[&str]) {
    made(images, options);
    let set = ImageSet::open(scratch, images.to_vec());
    let mounted = set.mount().unwrap();
    sys::create_subvolume(&mounted.path().join("sub")).unwrap();
    write_files(&mounted.path().join("sub"), 1, 150);
    fs::write(mounted.path().join("large"), bytes(5, 9 << 20)).unwrap();
    mounted.sync().unwrap();
    mounted.unmount().unwrap();
    let loops = set.attach(false).unwrap();
    let flagged = Command::new("btrfstune").args(["-S", "1"]).arg(loops[0].path()).output().unwrap();
    assert!(flagged.status.success(), "{}", String::from_utf8_lossy(&flagged.stderr));
}

fn device(path: &Path, access: Access) -> Arc<dyn Device> {
    Arc::new(FileDevice::open(path, access).unwrap())
}

fn contents(images: &[PathBuf]) -> Vec<Vec<u8>> {
    images.iter().map(|image| digest(image)).collect()
}

fn digest(image: &Path) -> Vec<u8> {
    let output = Command::new("sha256sum").arg(image).output().unwrap();
    assert!(output.status.success());
    output.stdout
}

#[test]
fn what_the_kernel_sprouted_is_read_and_written() {
    let Some(_met) = require(NEEDS) else { return };
    let scratch = Scratch::new(2048 * MIB).unwrap();
    let seeds = vec![scratch.image("seed", 400 * MIB).unwrap()];
    let added = scratch.image("added", 600 * MIB).unwrap();
    seed(&scratch, &seeds, &["-m", "dup"]);
    let before = contents(&seeds);

    let set = ImageSet::open(&scratch, seeds.clone());
    {
        let new = LoopDevice::attach(&added, false).unwrap();
        let mounted = set.mount_with(&[], true).unwrap();
        let point = mounted.path().to_str().unwrap();
        btrfs(&["device", "add", "-f", new.path().to_str().unwrap(), point]);
        let remounted = Command::new("mount").args(["-o", "remount,rw", point]).status().unwrap();
        assert!(remounted.success());
        write_files(&mounted.path().join("sub"), 1000, 40);
        fs::remove_file(mounted.path().join("sub/d1/file 1 1")).unwrap();
        mounted.sync().unwrap();
        mounted.unmount().unwrap();
    }
    let both = ImageSet::open(&scratch, vec![added.clone(), seeds[0].clone()]);
    let files = files_of_kernel(&both);
    assert_eq!(files.len(), 150 + 1 + 40 - 1);
    assert_same(&files, &files_of_papilio(both.paths()), "sprouted by the kernel");

    let fs = open(both.paths(), &writable()).unwrap();
    fs.write("/sub/d2/file 1 2", b"changed").unwrap();
    fs.write("/new", bytes(8, 3 << 20)).unwrap();
    fs.sync().unwrap();
    let report = fs.scrub(&ScrubOptions::new(), |_| true).unwrap();
    assert!(!report.total().has_errors(), "{report:?}");
    fs.close().unwrap();
    assert_clean_for_both(&both, "written by Papilio");
    assert_same(&files_of_kernel(&both), &files_of_papilio(both.paths()), "written by Papilio");
    assert!(before == contents(&seeds), "the seed was written");
}

fn sprouts(options: &[&str], seed_devices: usize) {
    let scratch = Scratch::new(3072 * MIB).unwrap();
    let seeds: Vec<_> = (0..seed_devices).map(|_| scratch.image("seed", 400 * MIB).unwrap()).collect();
    let added = scratch.image("added", 700 * MIB).unwrap();
    seed(&scratch, &seeds, options);
    let before = contents(&seeds);
    let old = files_of_papilio(&seeds);

    let read: Vec<_> = seeds.iter().map(|seed| device(seed, Access::ReadOnly)).collect();
    let error = FileSystem::from_devices(read.clone(), &writable()).unwrap_err().to_string();
    assert!(error.contains("seed"), "{error}");
    let fs = FileSystem::sprout(&read, device(&added, Access::ReadWrite), false, &writable()).unwrap();
    let mut wanted = old.clone();
    fs.write("/sub/d2/file 1 2", b"changed").unwrap();
    wanted.insert("sub/d2/file 1 2".to_owned(), b"changed".to_vec());
    fs.remove_file("/sub/d3/file 1 3").unwrap();
    wanted.remove("sub/d3/file 1 3").unwrap();
    fs.write("/new", bytes(8, 5 << 20)).unwrap();
    wanted.insert("new".to_owned(), bytes(8, 5 << 20));
    fs.close().unwrap();
    drop(read);

    let mut all = vec![added.clone()];
    all.extend(seeds.iter().cloned());
    let set = ImageSet::open(&scratch, all.clone());
    assert_clean_for_both(&set, "sprouted by Papilio");
    assert_same(&wanted, &files_of_kernel(&set), "sprouted, by the kernel");
    assert_same(&wanted, &files_of_papilio(&all), "sprouted, by Papilio");

    // The kernel goes on.
    let mounted = set.mount().unwrap();
    write_files(&mounted.path().join("sub"), 2000, 30);
    mounted.sync().unwrap();
    mounted.unmount().unwrap();
    let wanted = files_of_kernel(&set);
    assert_same(&wanted, &files_of_papilio(&all), "the kernel wrote");

    // Without the seed.
    let fs = open(&all, &writable()).unwrap();
    for devid in 1..=seed_devices as u64 {
        assert!(fs.remove_device(DeviceId(devid), |_| true).unwrap());
    }
    fs.close().unwrap();
    let alone = ImageSet::open(&scratch, vec![added]);
    assert_clean_for_both(&alone, "without the seed");
    assert_same(&wanted, &files_of_kernel(&alone), "without the seed");
    assert!(before == contents(&seeds), "the seed was written");
    assert_same(&old, &files_of_papilio(&seeds), "the seed");
}

#[test]
fn the_kernel_uses_what_papilio_sprouted() {
    let Some(_met) = require(NEEDS) else { return };
    sprouts(&["-m", "dup"], 1);
}

#[test]
fn a_seed_of_two_devices_sprouts() {
    let Some(_met) = require(NEEDS) else { return };
    sprouts(&["-m", "raid1", "-d", "raid0"], 2);
}

#[test]
fn only_seeds_sprout() {
    let scratch = Scratch::new(1024 * MIB).unwrap();
    let image = scratch.image("image", 200 * MIB).unwrap();
    papilio::mkfs_many(&[&image], &papilio::MkfsOptions::new()).unwrap();
    let added = scratch.image("added", 200 * MIB).unwrap();
    let seeds = [device(&image, Access::ReadOnly)];
    let new = device(&added, Access::ReadWrite);
    let options = OpenOptions::new();
    let error = FileSystem::sprout(&seeds, Arc::clone(&new), false, &options).unwrap_err().to_string();
    assert!(error.contains("is not a seed device"), "{error}");
    let error = FileSystem::sprout(&seeds, Arc::clone(&seeds[0]), false, &options).unwrap_err().to_string();
    assert!(error.contains("is a device of the seed"), "{error}");
    assert!(FileSystem::sprout(&[], new, false, &options).is_err());
}
