//! A replay interrupted by a power loss at every point: the disk has the log still, or all its
//! changes.

use super::carried;
use crate::bridge::Papilio;
use crate::in_memory::{check, open, open_last_commit};
use papilio::{FileSystem, FindingKind};
use papilio_device::Recording;
use papilio_oracle::manifest::ManifestOptions;
use papilio_oracle::{CompareOptions, Manifest};
use std::sync::Arc;

/// Everything except times: a repeated replay runs at another time.
const COMPARED: CompareOptions =
    CompareOptions { mtime: false, ctime: false, atime: false, ..CompareOptions::SAME_IMAGE };

/// Reads everything from a file system.
fn seen(fs: FileSystem) -> Manifest {
    Manifest::read(&Papilio(fs), ManifestOptions::default()).unwrap()
}

#[test]
fn an_interrupted_replay_is_repeated() {
    let device = carried::disk();
    let before = seen(open_last_commit(&device));
    let recording = Recording::new();
    let fs = open(&Arc::new(recording.attach(device)));
    let expected = seen(fs.clone());
    assert!(!before.diff(&expected, &COMPARED).is_empty(), "the log has changes");
    // The file system stays open: closing it writes nothing.
    let mut replay = recording.replay();
    let (mut logs, mut states) = (0, 0);
    for position in 0..=replay.len() {
        replay.advance(position);
        let mut disks = vec![replay.durable(), replay.everything()];
        disks.extend((0..3).map(|seed| replay.crash(seed ^ (position as u64) << 8)));
        for mut disk in disks {
            let disk = Arc::new(disk.remove(0));
            logs += usize::from(open_last_commit(&disk).has_log());
            states += 1;
            let fs = open(&disk);
            let found = expected.diff(&seen(fs.clone()), &COMPARED);
            assert!(found.is_empty(), "after event {position}: {}", found[0]);
            fs.close().unwrap();
            if position % 5 == 0 {
                let report = check(&disk);
                // A power loss between the superblocks leaves copies that differ.
                let other = report.findings.iter().find(|found| found.kind != FindingKind::SuperblockCopy);
                assert!(other.is_none(), "after event {position}: {}", other.unwrap());
            }
        }
    }
    println!("{states} states, {logs} of them with a log");
    assert!(logs > 5 && logs < states, "{logs} of {states} states have a log");
}
