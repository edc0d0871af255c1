//! Many fsyncs in one transaction, each of which reuses blocks of older logs: a power loss at any
//! point leaves the state of an acknowledged fsync.

use crate::in_memory::{formatted_with, open, open_last_commit, superblock};
use fastrand::Rng;
use papilio::format::superblock::superblock_offset;
use papilio::{File, MkfsOptions};
use papilio_device::{Action, MemoryDevice, Recording};
use std::collections::HashSet;
use std::sync::Arc;

const FILES: usize = 3;
const FILE_BYTES: usize = 600_000;
const FSYNCS: usize = 200;

fn content(file: &File) -> Vec<u8> {
    let mut content = vec![0; file.len() as usize];
    let read = file.read_at(&mut content, 0).expect("every sector has its checksum");
    assert_eq!(read, content.len());
    content
}

/// Makes a file system with [`FILES`] committed files; returns its device and their content.
fn base(random: &mut Rng) -> (Arc<MemoryDevice>, Vec<Vec<u8>>) {
    let device = formatted_with(256 << 20, &MkfsOptions::new().node_size(4096));
    let fs = open(&device);
    // Makes the data chunk: a log cannot hold a new one.
    fs.create_file("/filler").unwrap().write_all_at(&vec![1; 16 << 20], 0).unwrap();
    fs.remove_file("/filler").unwrap();
    let contents: Vec<Vec<u8>> = (0..FILES).map(|_| vec![random.u8(..); FILE_BYTES]).collect();
    for (number, content) in contents.iter().enumerate() {
        fs.create_file(format!("/{number}")).unwrap().write_all_at(content, 0).unwrap();
    }
    fs.close().unwrap();
    (device, contents)
}

/// Counts writes to offsets that had been written before, superblocks apart.
fn rewrites(recording: &Recording) -> usize {
    let mut places = HashSet::new();
    let events = recording.events();
    let writes = events.iter().filter_map(|event| match &event.action {
        Action::Write { offset, .. } if (0..3).all(|copy| *offset != superblock_offset(copy)) => {
            Some(*offset)
        }
        _ => None,
    });
    writes.filter(|offset| !places.insert(*offset)).count()
}

#[test]
fn a_crash_at_any_point_keeps_the_last_acknowledged_fsync() {
    let mut random = Rng::with_seed(20);
    let (device, mut contents) = base(&mut random);
    let recording = Recording::new();
    let fs = open(&Arc::new(recording.attach(device.clone())));
    let files: Vec<File> = (0..FILES).map(|number| fs.open_file(format!("/{number}")).unwrap()).collect();
    let before = superblock(&device).raw.generation;
    // The content after each fsync, and the number of events when it returned.
    let mut states = vec![(0, contents.clone())];
    for _ in 0..FSYNCS {
        let number = random.usize(..FILES);
        for _ in 0..random.usize(1..12) {
            let start = random.usize(..FILE_BYTES / 4096) * 4096;
            let bytes = vec![random.u8(..); random.usize(1..5) << 12];
            let bytes = &bytes[..bytes.len().min(FILE_BYTES - start)];
            files[number].write_all_at(bytes, start as u64).unwrap();
            contents[number][start..start + bytes.len()].copy_from_slice(bytes);
        }
        files[number].sync_all().unwrap();
        states.push((recording.len(), contents.clone()));
    }
    assert_eq!(superblock(&device).raw.generation, before, "no fsync is a commit");
    let rewrites = rewrites(&recording);
    assert!(rewrites > FSYNCS / 2, "logs reuse blocks of older ones: {rewrites} writes");

    let mut replay = recording.replay();
    let mut logs = 0;
    for position in 0..=recording.len() {
        replay.advance(position);
        let mut left = match position % 3 {
            0 => replay.everything(),
            1 => replay.durable(),
            _ => replay.crash(position as u64),
        };
        let left = Arc::new(left.pop().unwrap());
        logs += usize::from(open_last_commit(&left).has_log());
        let fs = open(&left);
        let found: Vec<Vec<u8>> =
            (0..FILES).map(|number| content(&fs.open_file(format!("/{number}")).unwrap())).collect();
        let last = states.partition_point(|(acknowledged, _)| *acknowledged <= position) - 1;
        let matches = states[last..].iter().take(2).any(|(_, state)| *state == found);
        assert!(
            matches,
            "after {position} of {} events: the files differ from fsync {last}",
            recording.len()
        );
    }
    assert!(logs > recording.len() / 2, "most states have a log: {logs}");
}
