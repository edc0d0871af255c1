//! Seed devices: Papilio reads and writes what the kernel sprouted. No byte of the seed changes.

use crate::images::{assert_clean_for_both, btrfs, open, writable};
use crate::world::{MIB, NEEDS, assert_same, bytes, files_of_kernel, files_of_papilio, made, write_files};
use papilio::ScrubOptions;
use papilio_oracle::loop_device::LoopDevice;
use papilio_oracle::{ImageSet, Scratch, require, sys};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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
