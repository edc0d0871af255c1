//! Seed devices: Papilio and the kernel sprout, write what the other sprouted, and remove the seed.
//! No byte of the seed changes.

use super::world::{MIB, NEEDS, assert_same, bytes, files_of_kernel, files_of_papilio, made, write_files};
use crate::images::{assert_clean_for_both, btrfs, open, writable};
use papilio::device::{Access, Device, FileDevice, MemoryDevice};
use papilio::format::{DeviceId, PhysicalAddress};
use papilio::{FileSystem, MkfsOptions, OpenOptions, RaidProfile, ScrubOptions, Tune};
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

fn contents(images: &[PathBuf]) -> Vec<Vec<u8>> {
    images.iter().map(|image| digest(image)).collect()
}

fn digest(image: &Path) -> Vec<u8> {
    let output = Command::new("sha256sum").arg(image).output().unwrap();
    assert!(output.status.success());
    output.stdout
}

/// Sprouts a file system by the kernel, and lets `change` write to it.
fn sprout_by_kernel(scratch: &Scratch, seeds: &[PathBuf], added: &Path, change: impl FnOnce(&Path)) {
    let set = ImageSet::open(scratch, seeds.to_vec());
    let new = LoopDevice::attach(added, false).unwrap();
    let mounted = set.mount_with(&[], true).unwrap();
    let point = mounted.path().to_str().unwrap();
    btrfs(&["device", "add", "-f", new.path().to_str().unwrap(), point]);
    let remounted = Command::new("mount").args(["-o", "remount,rw", point]).status().unwrap();
    assert!(remounted.success());
    change(mounted.path());
    mounted.sync().unwrap();
    mounted.unmount().unwrap();
}

#[test]
fn what_the_kernel_sprouted_is_read_and_written() {
    let Some(_met) = require(NEEDS) else { return };
    let scratch = Scratch::new(2048 * MIB).unwrap();
    let seeds = vec![scratch.image("seed", 400 * MIB).unwrap()];
    let added = scratch.image("added", 600 * MIB).unwrap();
    seed(&scratch, &seeds, &["-m", "dup"]);
    let before = contents(&seeds);

    sprout_by_kernel(&scratch, &seeds, &added, |root| {
        write_files(&root.join("sub"), 1000, 40);
        fs::remove_file(root.join("sub/d1/file 1 1")).unwrap();
    });
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

/// Sprouts a file system by Papilio, and writes to it.
fn sprouted(scratch: &Scratch, seeds: &[PathBuf], added: &Path) -> ImageSet {
    let read =
        |path: &PathBuf| -> Arc<dyn Device> { Arc::new(FileDevice::open(path, Access::ReadOnly).unwrap()) };
    let devices: Vec<_> = seeds.iter().map(read).collect();
    let new: Arc<dyn Device> = Arc::new(FileDevice::open(added, Access::ReadWrite).unwrap());
    let fs = FileSystem::sprout(&devices, &new, false, &writable()).unwrap();
    fs.write("/sub/d2/file 1 2", b"changed").unwrap();
    fs.write("/new", bytes(8, 3 << 20)).unwrap();
    fs.remove_file("/sub/d1/file 1 1").unwrap();
    fs.close().unwrap();
    let mut all = vec![added.to_path_buf()];
    all.extend(seeds.iter().cloned());
    ImageSet::open(scratch, all)
}

/// Removes the seeds by Papilio, which leaves a file system on one device.
fn without_seeds(scratch: &Scratch, both: &ImageSet, seeds: usize) -> ImageSet {
    let fs = open(both.paths(), &writable()).unwrap();
    for devid in 1..=seeds {
        assert!(fs.remove_device(DeviceId(devid as u64), |_| true).unwrap());
    }
    fs.close().unwrap();
    ImageSet::open(scratch, vec![both.paths()[0].clone()])
}

#[test]
fn the_kernel_mounts_and_writes_what_papilio_sprouted_and_removes_the_seed() {
    let Some(_met) = require(NEEDS) else { return };
    let scratch = Scratch::new(2048 * MIB).unwrap();
    let seeds = vec![scratch.image("seed", 400 * MIB).unwrap()];
    let added = scratch.image("added", 600 * MIB).unwrap();
    seed(&scratch, &seeds, &["-m", "dup"]);
    let before = contents(&seeds);
    let both = sprouted(&scratch, &seeds, &added);
    assert_clean_for_both(&both, "sprouted by Papilio");
    let files = files_of_kernel(&both);
    assert_eq!(files.len(), 150 + 1);
    assert_same(&files, &files_of_papilio(both.paths()), "sprouted by Papilio");

    let mounted = both.mount().unwrap();
    write_files(&mounted.path().join("sub"), 1000, 40);
    mounted.unmount().unwrap();
    assert_clean_for_both(&both, "written by the kernel");
    let files = files_of_kernel(&both);
    assert_eq!(files.len(), 150 + 1 + 40);
    assert_same(&files, &files_of_papilio(both.paths()), "written by the kernel");

    let mounted = both.mount().unwrap();
    let point = mounted.path().to_str().unwrap();
    btrfs(&["device", "remove", "1", point]);
    let scrub = btrfs(&["scrub", "start", "-B", point]);
    assert!(scrub.contains("no errors found"), "{scrub}");
    mounted.unmount().unwrap();
    let alone = ImageSet::open(&scratch, vec![added]);
    assert_clean_for_both(&alone, "the kernel removed the seed");
    assert_same(&files, &files_of_papilio(alone.paths()), "the kernel removed the seed");
    assert!(before == contents(&seeds), "the seed was written");
}

#[test]
fn papilio_removes_the_seed_of_what_it_sprouted_from_two_devices() {
    let Some(_met) = require(NEEDS) else { return };
    let scratch = Scratch::new(2048 * MIB).unwrap();
    let seeds =
        vec![scratch.image("seed 1", 400 * MIB).unwrap(), scratch.image("seed 2", 400 * MIB).unwrap()];
    let added = scratch.image("added", 700 * MIB).unwrap();
    seed(&scratch, &seeds, &["-m", "raid1", "-d", "raid1"]);
    let before = contents(&seeds);
    let both = sprouted(&scratch, &seeds, &added);
    assert_clean_for_both(&both, "sprouted by Papilio");
    let files = files_of_kernel(&both);
    assert_eq!(files.len(), 150 + 1);

    let alone = without_seeds(&scratch, &both, seeds.len());
    assert_clean_for_both(&alone, "the seeds were removed");
    assert_same(&files, &files_of_kernel(&alone), "the seeds were removed");
    assert!(before == contents(&seeds), "the seed was written");
}

#[test]
fn papilio_removes_the_seed_of_what_the_kernel_sprouted() {
    let Some(_met) = require(NEEDS) else { return };
    let scratch = Scratch::new(2048 * MIB).unwrap();
    let seeds = vec![scratch.image("seed", 400 * MIB).unwrap()];
    let added = scratch.image("added", 600 * MIB).unwrap();
    seed(&scratch, &seeds, &["-m", "dup"]);
    let before = contents(&seeds);
    sprout_by_kernel(&scratch, &seeds, &added, |_| {});
    let both = ImageSet::open(&scratch, vec![added, seeds[0].clone()]);
    let files = files_of_kernel(&both);

    let alone = without_seeds(&scratch, &both, seeds.len());
    assert_clean_for_both(&alone, "the seed was removed");
    assert_same(&files, &files_of_kernel(&alone), "the seed was removed");
    assert!(before == contents(&seeds), "the seed was written");
}

#[test]
fn only_a_seed_is_sprouted_from_and_never_onto_itself() {
    let Some(_met) = require(NEEDS) else { return };
    let scratch = Scratch::new(2048 * MIB).unwrap();
    let plain = scratch.image("plain", 200 * MIB).unwrap();
    made(std::slice::from_ref(&plain), &[]);
    let added = scratch.image("added", 200 * MIB).unwrap();
    let device =
        |path: &Path| -> Arc<dyn Device> { Arc::new(FileDevice::open(path, Access::ReadWrite).unwrap()) };
    let before = contents(&[plain.clone(), added.clone()]);
    let refused = |seed: &Arc<dyn Device>, new: &Arc<dyn Device>| {
        FileSystem::sprout(std::slice::from_ref(seed), new, true, &writable()).unwrap_err().to_string()
    };
    let (first, second) = (device(&plain), device(&added));
    let error = refused(&first, &second);
    assert!(error.ends_with(": is not a seed device"), "{error}");
    drop(first);
    assert!(before == contents(&[plain.clone(), added]), "something was written");

    let flagged = Command::new("btrfstune").args(["-S", "1"]).arg(&plain).status().unwrap();
    assert!(flagged.success());
    let before = contents(std::slice::from_ref(&plain));
    let first = device(&plain);
    let error = refused(&first, &first);
    assert!(error.ends_with(": is a device of this file system"), "{error}");
    let small: Arc<dyn Device> = Arc::new(MemoryDevice::new(8 << 20));
    let error = refused(&first, &small);
    assert!(error.contains("are too few"), "{error}");
    drop(first);
    assert!(before == contents(&[plain]), "the seed was written");
}

/// A block of a seed becomes one of the sprouted file system in memory. A damaged one must not: its
/// new checksum would hide the damage.
#[test]
fn damaged_blocks_of_a_seed_are_errors() {
    let devices = [400, 300].map(|mib| Arc::new(MemoryDevice::new(mib * MIB)));
    let [seed, added] = devices.each_ref().map(|device| Arc::clone(device) as Arc<dyn Device>);
    let single = MkfsOptions::new().metadata_profile(RaidProfile::Single);
    papilio::mkfs_devices(std::slice::from_ref(&seed), &single).unwrap();
    let fs = FileSystem::from_devices(vec![Arc::clone(&seed)], &writable()).unwrap();
    for number in 0..300 {
        fs.write(format!("/{number}"), bytes(number, 3_000)).unwrap();
    }
    fs.close().unwrap();
    papilio::tune(std::slice::from_ref(&seed), Tune::Seed(true), &mut |_, _| {}).unwrap();
    FileSystem::sprout(std::slice::from_ref(&seed), &added, true, &writable()).unwrap().close().unwrap();

    let read_all = || -> papilio::Result<()> {
        let options = OpenOptions::new();
        let fs = FileSystem::from_devices(vec![Arc::clone(&added), Arc::clone(&seed)], &options)?;
        for number in 0..300 {
            assert!(fs.read(format!("/{number}"))? == bytes(number, 3_000));
        }
        Ok(())
    };
    read_all().unwrap();
    // The leaves of the top-level subvolume: level 0 at byte 100, and its number at byte 88.
    let mut superblock = [0; 64];
    seed.read_at(&mut superblock, PhysicalAddress(64 << 10)).unwrap();
    let mut damaged = 0;
    for place in (MIB..400 * MIB - 16_384).step_by(4096).map(PhysicalAddress) {
        let mut block = vec![0; 16_384];
        seed.read_at(&mut block, place).unwrap();
        if block[32..48] == superblock[32..48] && block[88..96] == 5u64.to_le_bytes() && block[100] == 0 {
            block[16_000] ^= 4;
            devices[0].write_at(&block, place).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 3, "{damaged} leaves");
    let error = read_all().unwrap_err().to_string();
    assert!(error.contains("checksum"), "{error}");
}
