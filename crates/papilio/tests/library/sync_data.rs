//! `fdatasync` makes data durable, and the metadata that reading it needs. It writes nothing where
//! neither changed.

use crate::held_device::{HeldDevice, Hold, Release};
use crate::in_memory::{formatted, open_with, writable};
use papilio::format::items::inode::Timespec;
use papilio::{File, FileSystem, InodeFlags, OpenOptions, SetAttributes, SetTime};
use papilio_device::{Action, Recording};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// A file system, and a recording of its device's writes and flushes.
struct Case {
    recording: Recording,
    open: OpenOptions,
    fs: FileSystem,
}

impl Case {
    fn new(cache: Option<u64>) -> Self {
        let mut open = writable();
        if let Some(bytes) = cache {
            open = open.cache_bytes(bytes);
        }
        let recording = Recording::new();
        let recorder = recording.attach(formatted(256 << 20));
        let fs = open_with(&Arc::new(recorder), &open);
        // Makes the data chunk: a log cannot hold a new one.
        fs.create_file("/first").unwrap().write_all_at(&[1; 100_000], 0).unwrap();
        fs.sync().unwrap();
        Self { recording, open, fs }
    }

    /// Returns the length of each write that `run` makes, in bytes, and its number of flushes.
    fn seen(&self, run: impl FnOnce()) -> (Vec<usize>, usize) {
        let before = self.recording.len();
        run();
        let events = self.recording.events();
        let new = &events[before..];
        let writes = new.iter().filter_map(|event| match &event.action {
            Action::Write { data, .. } => Some(data.len()),
            _ => None,
        });
        let flushes = new.iter().filter(|event| matches!(event.action, Action::Flush)).count();
        (writes.collect(), flushes)
    }

    /// Returns the content of a file after a power loss now.
    fn after_power_loss(&self, path: &str) -> Vec<u8> {
        let mut replay = self.recording.replay();
        replay.advance(self.recording.len());
        let fs = open_with(&Arc::new(replay.durable().pop().unwrap()), &self.open);
        let file = fs.open_file(path).unwrap();
        let mut content = vec![0; file.len() as usize];
        assert_eq!(file.read_at(&mut content, 0).unwrap(), content.len());
        content
    }
}

fn set_times(file: &File, seconds: i64) {
    let time = Timespec { seconds, nanoseconds: 0 };
    let set = SetAttributes {
        atime: Some(SetTime::At(time)),
        mtime: Some(SetTime::At(time)),
        ..SetAttributes::default()
    };
    file.inode().set_attributes(&set).unwrap();
}

#[test]
fn fdatasync_makes_data_sizes_and_new_files_durable() {
    for cache in [None, Some(4 << 20)] {
        let case = Case::new(cache);
        let file = case.fs.create_file("/new").unwrap();
        file.write_all_at(&[2; 50_000], 0).unwrap();
        file.sync_data().unwrap();
        assert_eq!(case.after_power_loss("/new"), [2; 50_000], "a new file");
        file.write_all_at(&[3; 10_000], 45_000).unwrap();
        file.sync_data().unwrap();
        let mut content = vec![2; 45_000];
        content.resize(55_000, 3);
        assert_eq!(case.after_power_loss("/new"), content, "it grew");
        case.fs.sync().unwrap();
        file.write_all_at(&[4; 4096], 4096).unwrap();
        content[4096..8192].fill(4);
        file.sync_data().unwrap();
        assert_eq!(case.after_power_loss("/new"), content, "a part was overwritten");
        file.set_len(20_000).unwrap();
        file.sync_data().unwrap();
        assert_eq!(case.after_power_loss("/new"), content[..20_000], "it was truncated");
        case.fs.create_file("/empty").unwrap().sync_data().unwrap();
        assert_eq!(case.after_power_loss("/empty"), [0u8; 0], "a new file without data");
    }
}

#[test]
fn fdatasync_of_changed_times_writes_nothing() {
    for cache in [None, Some(4 << 20)] {
        let case = Case::new(cache);
        let file = case.fs.open_file("/first").unwrap();
        set_times(&file, 1);
        assert_eq!(case.seen(|| file.sync_data().unwrap()), (vec![], 1), "not in the log yet");
        file.write_all_at(&[2; 4096], 0).unwrap();
        let (written, _) = case.seen(|| file.sync_data().unwrap());
        assert!(!written.is_empty(), "data changed");
        assert_eq!(case.seen(|| file.sync_data().unwrap()), (vec![], 1), "the log has it");
        set_times(&file, 2);
        assert_eq!(case.seen(|| file.sync_data().unwrap()), (vec![], 1), "times changed");
        let (written, _) = case.seen(|| file.sync_all().unwrap());
        assert!(!written.is_empty(), "an fsync writes times");
        case.fs.sync().unwrap();
        assert_eq!(case.seen(|| file.sync_data().unwrap()), (vec![], 1), "the commit has it");
    }
}

#[test]
fn fdatasync_after_an_overwrite_in_place_only_flushes() {
    let case = Case::new(None);
    let file = case.fs.create_file("/place").unwrap();
    file.inode().set_flags(InodeFlags::NODATACOW).unwrap();
    file.write_all_at(&[1; 16384], 0).unwrap();
    case.fs.sync().unwrap();
    let seen = case.seen(|| {
        file.write_all_at(&[2; 4096], 4096).unwrap();
        file.sync_data().unwrap();
    });
    assert_eq!(seen, (vec![4096], 1));
    let mut content = vec![1; 16384];
    content[4096..8192].fill(2);
    assert_eq!(case.after_power_loss("/place"), content);
}

#[test]
fn fdatasync_waits_for_the_log_of_an_fsync() {
    let device = HeldDevice::new(formatted(256 << 20));
    let fs = open_with(&device, &writable());
    let file = fs.create_file("/file").unwrap();
    file.write_all_at(&[1; 100_000], 0).unwrap();
    fs.sync().unwrap();
    file.write_all_at(&[2; 4096], 0).unwrap();
    let (ended, end) = mpsc::channel();
    thread::scope(|scope| {
        let release = Release(&device);
        device.set(Hold::Writes);
        let first = scope.spawn(|| file.sync_all().unwrap());
        // The log has the file now, and is being written.
        device.wait_for_a_call();
        scope.spawn(|| {
            file.sync_data().unwrap();
            ended.send(()).unwrap();
        });
        let early = end.recv_timeout(Duration::from_millis(200));
        assert!(early.is_err() && !first.is_finished(), "the file is in no log yet");
        drop(release);
    });
    end.recv().unwrap();
}
