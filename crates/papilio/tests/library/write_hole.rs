//! The write hole of RAID5 and RAID6: the power fails while rows are written, each device keeps
//! another part of the unflushed writes, and then one device (RAID6: two) is lost. All files of the
//! last commit must still be read from the others: copy-on-write never writes into a row with
//! committed bytes while whole rows are free.
//!
//! `PAPILIO_HOLE_STATES` sets the number of power cuts for each profile.

use crate::in_memory::writable;
use papilio::device::Device;
use papilio::{FileSystem, MkfsOptions, OpenOptions, RaidProfile, ScrubOptions};
use papilio_device::{MemoryDevice, Recording};
use std::collections::BTreeMap;
use std::sync::Arc;

const SIZE: u64 = 320 << 20;
const ROUNDS: u8 = 12;

/// The files after a commit, by name.
type Files = BTreeMap<String, Vec<u8>>;

fn states() -> u64 {
    std::env::var("PAPILIO_HOLE_STATES").map_or(25, |number| number.parse().expect("a number"))
}

fn shared(devices: &[Arc<MemoryDevice>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect()
}

/// Makes new files, changes parts of others, and removes some. Their sizes range from a part of a
/// sector to several rows.
fn change(fs: &FileSystem, files: &mut Files, random: &mut fastrand::Rng) {
    for _ in 0..random.usize(1..10) {
        let name = format!("/{}", random.u8(..40));
        let most = 1 << random.u32(8..20);
        let length = random.usize(1..most);
        let content: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(length).collect();
        match (files.get_mut(&name), random.u8(..4)) {
            (Some(old), 0) => {
                let start = random.usize(..old.len());
                fs.open_file(&name).unwrap().write_all_at(&content, start as u64).unwrap();
                old.resize(old.len().max(start + content.len()), 0);
                old[start..start + content.len()].copy_from_slice(&content);
            }
            (Some(_), 1) => {
                fs.remove_file(&name).unwrap();
                files.remove(&name);
            }
            _ => {
                fs.write(&name, &content).unwrap();
                files.insert(name, content);
            }
        }
    }
}

/// Compares all files with those of the commit that the file system shows.
fn assert_files(fs: &FileSystem, commits: &[Files], done: usize, what: &str) {
    let round = fs.read("/round").unwrap_or_else(|error| panic!("{what}: {error}"))[0] as usize;
    assert!(round == done || round == done + 1, "{what}: commit {round} instead of {done} or the next");
    for (name, content) in &commits[round] {
        let read = fs.read(name).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
        assert!(read == *content, "{what}: {name} differs");
    }
}

/// Loses each device in turn, or each two.
fn assert_without(devices: &[Arc<MemoryDevice>], lost: usize, commits: &[Files], done: usize, what: &str) {
    for first in 0..devices.len() {
        let seconds = if lost == 2 { first + 1..devices.len() } else { first..first + 1 };
        for second in seconds {
            let left = devices.iter().enumerate().filter(|(number, _)| ![first, second].contains(number));
            let left: Vec<_> = left.map(|(_, device)| device.clone()).collect();
            let what = format!("{what}, without {first} and {second}");
            let fs = FileSystem::from_devices(shared(&left), &OpenOptions::new().degraded(true));
            assert_files(&fs.unwrap_or_else(|error| panic!("{what}: {error}")), commits, done, &what);
        }
    }
}

fn cut(count: usize, data: RaidProfile, metadata: RaidProfile) {
    let devices: Vec<_> = (0..count).map(|_| Arc::new(MemoryDevice::new(SIZE))).collect();
    let options = MkfsOptions::new().data_profile(data).metadata_profile(metadata);
    papilio::mkfs_devices(&shared(&devices), &options).unwrap();
    let mut random = fastrand::Rng::with_seed(count as u64);
    let (mut files, mut commits, mut ends) = (Files::new(), Vec::new(), Vec::new());
    let commit = |fs: &FileSystem, files: &mut Files, round: u8| {
        fs.write("/round", [round]).unwrap();
        fs.sync().unwrap();
        files.clone()
    };
    let fs = FileSystem::from_devices(shared(&devices), &writable()).unwrap();
    change(&fs, &mut files, &mut random);
    commits.push(commit(&fs, &mut files, 0));
    fs.close().unwrap();

    let recording = Recording::new();
    let attach = |device: &Arc<MemoryDevice>| Arc::new(recording.attach(device.clone())) as Arc<dyn Device>;
    let fs = FileSystem::from_devices(devices.iter().map(attach).collect(), &writable()).unwrap();
    ends.push(0);
    for round in 1..=ROUNDS {
        change(&fs, &mut files, &mut random);
        commits.push(commit(&fs, &mut files, round));
        ends.push(recording.len());
    }
    let end = recording.len();
    let mut moments: Vec<_> = (0..states()).map(|_| random.usize(..=end)).collect();
    moments.sort_unstable();
    let mut replay = recording.replay();
    for moment in moments {
        replay.advance(moment);
        let seed = random.u64(..);
        let what = format!("{data}, metadata {metadata}, event {moment} of {end}, seed {seed}");
        let done = ends.iter().rposition(|end| *end <= moment).expect("the first is 0");
        let cut = |seed| replay.crash(seed).into_iter().map(Arc::new).collect::<Vec<_>>();
        let state = cut(seed);
        assert_without(&state, data.parity(), &commits, done, &what);
        // A scrub mends the parity of all rows.
        let fs = FileSystem::from_devices(shared(&state), &writable()).unwrap();
        assert_files(&fs, &commits, done, &what);
        let report = fs.scrub(&ScrubOptions::new(), |_| true).unwrap();
        assert_eq!(report.total().uncorrectable_errors, 0, "{what}");
        fs.close().unwrap();
        assert_without(&state, data.parity(), &commits, done, &format!("{what}, scrubbed"));
    }
}

#[test]
fn raid5_loses_no_commit() {
    cut(3, RaidProfile::Raid5, RaidProfile::Raid1);
    cut(4, RaidProfile::Raid5, RaidProfile::Raid1);
}

#[test]
fn raid6_loses_no_commit() {
    cut(4, RaidProfile::Raid6, RaidProfile::Raid1c3);
    cut(5, RaidProfile::Raid6, RaidProfile::Raid1c3);
}

#[test]
fn metadata_with_parity_loses_no_commit() {
    cut(3, RaidProfile::Raid5, RaidProfile::Raid5);
    cut(4, RaidProfile::Raid6, RaidProfile::Raid6);
}
