//! Many fsyncs in one transaction, whose log is written over its own old blocks: whenever the power goes, what
//! was acknowledged is there.

use fastrand::Rng;
use papilio::format::superblock::superblock_offset;
use papilio::format::{Generation, Superblock};
use papilio::{File, FileSystem, MkfsOptions, OpenOptions};
use papilio_device::{Action, Device, MemoryDevice, Recording};
use std::collections::HashSet;
use std::sync::Arc;

const FILES: usize = 3;
const FILE_BYTES: usize = 600_000;
const FSYNCS: usize = 80;

fn open(device: Arc<dyn Device>) -> FileSystem {
    let options = OpenOptions::new().write(true).commit_interval(None);
    FileSystem::from_devices(vec![device], &options).expect("open")
}

fn content(file: &File) -> Vec<u8> {
    let mut content = vec![0; file.len() as usize];
    let read = file.read_at(&mut content, 0).expect("every sector is as its sum says");
    assert_eq!(read, content.len());
    content
}

/// The last commit.
fn committed(device: &MemoryDevice) -> Generation {
    let place = superblock_offset(0);
    let mut bytes = vec![0; 4096];
    device.read_at(&mut bytes, place).unwrap();
    Superblock::parse(&bytes, place).unwrap().raw.generation
}

/// A file system with the files, all in the last commit.
fn base(random: &mut Rng) -> (Arc<MemoryDevice>, Vec<Vec<u8>>) {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let options = MkfsOptions::new().node_size(4096);
    papilio::mkfs_device(&(device.clone() as Arc<dyn Device>), &options).expect("mkfs");
    let fs = open(device.clone());
    // Chunks are made before, as a log cannot tell of them.
    fs.create_file("/room").unwrap().write_at(&vec![1; 16 << 20], 0).unwrap();
    fs.remove_file("/room").unwrap();
    let contents: Vec<Vec<u8>> = (0..FILES).map(|_| vec![random.u8(..); FILE_BYTES]).collect();
    for (number, content) in contents.iter().enumerate() {
        fs.create_file(format!("/{number}")).unwrap().write_at(content, 0).unwrap();
    }
    fs.close().unwrap();
    (device, contents)
}

/// Writes that end outside of superblocks, at places that had been written before.
fn written_again(recording: &Recording) -> usize {
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
fn no_state_of_the_log_is_lost_to_the_next() {
    let mut random = Rng::with_seed(20);
    let (device, mut contents) = base(&mut random);
    let recording = Recording::new();
    let fs = open(Arc::new(recording.attach(device.clone())));
    let files: Vec<File> = (0..FILES).map(|number| fs.open_file(format!("/{number}")).unwrap()).collect();
    let before = committed(&device);
    // What was there, and from which event on it was promised.
    let mut states = vec![(0, contents.clone())];
    for _ in 0..FSYNCS {
        let number = random.usize(..FILES);
        for _ in 0..random.usize(1..12) {
            let start = random.usize(..FILE_BYTES / 4096) * 4096;
            let bytes = vec![random.u8(..); random.usize(1..5) << 12];
            let bytes = &bytes[..bytes.len().min(FILE_BYTES - start)];
            files[number].write_at(bytes, start as u64).unwrap();
            contents[number][start..start + bytes.len()].copy_from_slice(bytes);
        }
        files[number].sync().unwrap();
        states.push((recording.len(), contents.clone()));
    }
    assert_eq!(committed(&device), before, "no fsync was a commit");
    let again = written_again(&recording);
    assert!(again > FSYNCS, "blocks of the log are used again: {again} writes");

    let mut replay = recording.replay();
    let mut logs = 0;
    for position in 0..=recording.len() {
        replay.advance(position);
        let mut left = match position % 3 {
            0 => replay.everything(),
            1 => replay.durable(),
            _ => replay.crash(position as u64),
        };
        let left: Arc<dyn Device> = Arc::new(left.pop().unwrap());
        let seen = FileSystem::from_devices(vec![left.clone()], &OpenOptions::new()).unwrap();
        logs += usize::from(seen.has_log());
        drop(seen);
        let fs = open(left);
        let found: Vec<Vec<u8>> =
            (0..FILES).map(|number| content(&fs.open_file(format!("/{number}")).unwrap())).collect();
        let last = states.partition_point(|(promised, _)| *promised <= position) - 1;
        let matches = states[last..].iter().take(2).any(|(_, state)| *state == found);
        assert!(matches, "before event {position} of {}: not what fsync {last} left", recording.len());
    }
    assert!(logs > recording.len() / 2, "logs are there to be replayed: {logs}");
}
