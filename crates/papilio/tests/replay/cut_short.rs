//! A replay that is itself cut short, at every moment: the log is still there, or all of it is replayed.

use crate::bridge::Papilio;
use crate::carried;
use papilio::{CheckOptions, FileSystem, FindingKind, OpenOptions};
use papilio_device::{Device, Recording};
use papilio_oracle::manifest::ManifestOptions;
use papilio_oracle::{CompareOptions, Manifest};
use std::sync::Arc;

fn open(device: Arc<dyn Device>, write: bool) -> FileSystem {
    let options = OpenOptions::new().write(write).commit_interval(None);
    FileSystem::from_devices(vec![device], &options).unwrap()
}

/// What is there, but for times: a replay repeated is another one.
const COMPARED: CompareOptions =
    CompareOptions { mtime: false, ctime: false, atime: false, ..CompareOptions::SAME_IMAGE };

/// Everything that a file system shows.
fn seen(fs: FileSystem) -> Manifest {
    Manifest::read(&Papilio(fs), ManifestOptions::default()).unwrap()
}

#[test]
fn a_replay_that_is_cut_short_is_repeated() {
    let device = carried::disk();
    let before = seen(open(Arc::new(device.snapshot()), false));
    let recording = Recording::new();
    let recorder: Arc<dyn Device> = Arc::new(recording.attach(Arc::new(device)));
    let fs = open(Arc::clone(&recorder), true);
    let expected = seen(fs.clone());
    assert!(!before.diff(&expected, &COMPARED).is_empty(), "the log says something");
    // Before it is closed, which has nothing to write.
    let mut replay = recording.replay();
    let (mut logs, mut states) = (0, 0);
    for position in 0..=replay.len() {
        replay.advance(position);
        let mut disks = vec![replay.durable(), replay.everything()];
        disks.extend((0..3).map(|seed| replay.crash(seed ^ (position as u64) << 8)));
        for mut disk in disks {
            let disk: Arc<dyn Device> = Arc::new(disk.remove(0));
            let fs = open(Arc::clone(&disk), false);
            logs += usize::from(fs.has_log());
            states += 1;
            drop(fs);
            let fs = open(Arc::clone(&disk), true);
            let found = expected.diff(&seen(fs.clone()), &COMPARED);
            assert!(found.is_empty(), "after event {position}: {}", found[0]);
            fs.close().unwrap();
            if position % 5 == 0 {
                let report = open(disk, false).check(&CheckOptions::new().data_csum(true)).unwrap();
                // Superblocks are written one after the other.
                let other = report.findings.iter().find(|found| found.kind != FindingKind::SuperblockCopy);
                assert!(other.is_none(), "after event {position}: {}", other.unwrap());
            }
        }
    }
    println!("{states} states, {logs} of them with the log");
    assert!(logs > 5 && logs < states, "{logs} of {states}");
}
