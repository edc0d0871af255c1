//! The filters of a balance: on copies of one image, the kernel and Papilio move the same block
//! groups.

use super::world::{MIB, NEEDS, bytes, copy, made};
use crate::images::{btrfs, open, writable};
use papilio::format::DeviceId;
use papilio::{BalanceFilter, BalanceOptions, BlockGroupFlags};
use papilio_oracle::{ImageSet, Scratch, require};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// The starts of all chunks of data.
fn data_chunks(images: &[PathBuf]) -> BTreeSet<u64> {
    let dump = btrfs(&["inspect-internal", "dump-tree", "-t", "chunk", images[0].to_str().unwrap()]);
    let mut found = BTreeSet::new();
    let mut start = 0;
    for line in dump.lines() {
        if let Some((_, key)) = line.split_once("key (FIRST_CHUNK_TREE CHUNK_ITEM ") {
            start = key.split(')').next().unwrap().parse().unwrap();
        }
        if line.contains(" type DATA") {
            found.insert(start);
        }
    }
    found
}

/// A file system on two devices with chunks of data of two profiles, filled to different parts.
fn image(scratch: &Scratch) -> Vec<PathBuf> {
    let images: Vec<_> = (0..2).map(|_| scratch.image("filters", 400 * MIB).unwrap()).collect();
    made(&images, &["-m", "raid1", "-d", "single"]);
    let set = ImageSet::open(scratch, images.clone());
    let mounted = set.mount().unwrap();
    let root = mounted.path();
    for number in 0..200u64 {
        fs::write(root.join(format!("file {number:03}")), bytes(number, 1 << 20)).unwrap();
        if number % 20 == 0 {
            mounted.sync().unwrap();
        }
    }
    mounted.sync().unwrap();
    btrfs(&["balance", "start", "-dconvert=raid0,limit=1", root.to_str().unwrap()]);
    // Each chunk keeps another share of its files.
    for number in 0..200u64 {
        if (number * 7) % 40 < number / 4 {
            fs::remove_file(root.join(format!("file {number:03}"))).unwrap();
        }
    }
    mounted.sync().unwrap();
    mounted.unmount().unwrap();
    images
}

fn copies(scratch: &Scratch, images: &[PathBuf], name: &str) -> Vec<PathBuf> {
    let copied = images.iter().enumerate().map(|(number, image)| {
        let to = scratch.path().join(format!("{name}{number}"));
        copy(image, &to);
        to
    });
    copied.collect()
}

/// A filter as the kernel's tool names it, and ours.
type Case = (String, BalanceFilter);

/// Balances copies of one image by the kernel and by Papilio. The block groups that stay are the
/// same. `least` of the filters have to move some, but not all.
fn compare(least: usize, cases: impl FnOnce(&[u64]) -> Vec<Case>) {
    let Some(_met) = require(NEEDS) else { return };
    let scratch = Scratch::new(3 << 30).unwrap();
    let images = image(&scratch);
    let before: Vec<u64> = data_chunks(&images).into_iter().collect();
    assert!(before.len() >= 4, "{before:?}");
    let old: BTreeSet<u64> = before.iter().copied().collect();
    let stayed =
        |images: &[PathBuf]| -> Vec<u64> { data_chunks(images).intersection(&old).copied().collect() };
    let mut moved_some = 0;
    for (text, filter) in cases(&before) {
        let by_kernel = copies(&scratch, &images, "kernel");
        let set = ImageSet::open(&scratch, by_kernel.clone());
        let mounted = set.mount().unwrap();
        btrfs(&["balance", "start", &format!("-d{text}"), mounted.path().to_str().unwrap()]);
        mounted.unmount().unwrap();
        let ours = copies(&scratch, &images, "ours");
        let fs = open(&ours, &writable()).unwrap();
        let options = BalanceOptions { data: Some(filter), metadata: None, system: None, force: false };
        fs.balance(&options, |_| true).unwrap();
        fs.close().unwrap();
        let (kernel, papilio) = (stayed(&by_kernel), stayed(&ours));
        assert_eq!(kernel, papilio, "{text}: these stayed (kernel, Papilio), of {before:?}");
        moved_some += usize::from(kernel.len() < before.len() && !kernel.is_empty());
    }
    assert!(moved_some >= least, "too few filters made a difference: {moved_some}");
}

fn none() -> BalanceFilter {
    BalanceFilter::default()
}

#[test]
fn filters_by_usage_and_profile_move_the_same_block_groups() {
    compare(4, |_| {
        let raid0 = BlockGroupFlags::RAID0;
        let single = BlockGroupFlags::empty();
        vec![
            ("usage=60".into(), BalanceFilter { usage: Some(0..=59), ..none() }),
            ("usage=30..80".into(), BalanceFilter { usage: Some(30..=80), ..none() }),
            ("profiles=raid0".into(), BalanceFilter { profiles: Some(vec![raid0]), ..none() }),
            ("profiles=single".into(), BalanceFilter { profiles: Some(vec![single]), ..none() }),
            ("convert=raid0,soft".into(), BalanceFilter { convert: Some(raid0), soft: true, ..none() }),
            ("convert=raid0".into(), BalanceFilter { convert: Some(raid0), ..none() }),
        ]
    });
}

#[test]
fn filters_by_place_move_the_same_block_groups() {
    compare(4, |before| {
        let (second, third) = (before[1], before[2]);
        vec![
            ("devid=2".into(), BalanceFilter { devid: Some(DeviceId(2)), ..none() }),
            (format!("vrange={second}..{third}"), BalanceFilter { vrange: Some(second..third), ..none() }),
            (
                "devid=1,drange=0..150000000".into(),
                BalanceFilter { devid: Some(DeviceId(1)), drange: Some(0..150_000_000), ..none() },
            ),
            ("stripes=2..2".into(), BalanceFilter { stripes: Some(2..=2), ..none() }),
            ("stripes=1..1".into(), BalanceFilter { stripes: Some(1..=1), ..none() }),
        ]
    });
}

#[test]
fn limits_move_the_same_block_groups() {
    compare(2, |_| {
        vec![
            ("limit=2".into(), BalanceFilter { limit: Some(2), ..none() }),
            ("limit=1..2".into(), BalanceFilter { limit: Some(2), limit_min: Some(1), ..none() }),
            ("limit=90..99".into(), BalanceFilter { limit: Some(99), limit_min: Some(90), ..none() }),
        ]
    });
}
