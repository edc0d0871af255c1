//! Tests of parts of the engine that need a whole file system.

use crate::in_memory::{formatted, new_file_system, open_last_commit, open_with, writable};
use papilio_format::LogicalAddress;
use std::ops::Range;
use std::time::{Duration, Instant};

const BYTES: u64 = 64 << 10;

#[test]
fn extents_come_in_batches() {
    let (_device, fs) = new_file_system(512 << 20);
    for number in 0..6 {
        let file = fs.create_file(format!("/file{number}")).unwrap();
        file.write_all_at(&vec![number; BYTES as usize], 0).unwrap();
    }
    fs.sync().unwrap();
    let transactions = fs.info.transactions().unwrap();
    let all = LogicalAddress(0)..LogicalAddress(u64::MAX);
    let found = |range: &Range<LogicalAddress>, most, bytes| {
        let found = transactions.extents_in(range, most, bytes).unwrap();
        assert!(found.is_sorted_by_key(|extent| extent.address));
        found
    };
    let everything = found(&all, usize::MAX, u64::MAX);
    let data: Vec<_> = everything.iter().filter(|extent| extent.is_data()).collect();
    assert_eq!(data.len(), 6);
    assert!(data.iter().all(|extent| extent.length == BYTES && extent.refs.len() == 1));
    assert!(everything.len() > data.len(), "there are tree blocks, too");
    let first = data[0].address;
    let from = first..LogicalAddress(u64::MAX);
    assert_eq!(found(&from, 2, u64::MAX).len(), 2);
    assert_eq!(found(&from, usize::MAX, 3 * BYTES).len(), 3);
    assert_eq!(found(&from, usize::MAX, 3 * BYTES + 1).len(), 3);
    // One is not too large, however little is wanted.
    assert_eq!(found(&from, usize::MAX, 1).len(), 1);
    let one = LogicalAddress(first.0 + 1)..LogicalAddress(data[1].address.0 + 1);
    assert_eq!(found(&one, usize::MAX, u64::MAX).len(), 1, "only those that begin in the range");
    fs.close().unwrap();
}

/// The cleaner waits for a lock meanwhile, as it does during a long clean-up.
#[test]
fn commits_go_on_while_the_cleaner_works() {
    let device = formatted(256 << 20);
    let fs = open_with(&device, &writable().commit_interval(Some(Duration::from_millis(20))));
    fs.create_subvolume("/subvolume").unwrap();
    fs.create_file("/subvolume/file").unwrap();
    let transactions = fs.info.transactions().unwrap();
    let cleaning = transactions.lock_cleaning();
    fs.delete_subvolume("/subvolume").unwrap();
    for name in ["/one", "/two", "/three"] {
        fs.create_file(name).unwrap();
        let begun = Instant::now();
        while open_last_commit(&device).inode(name).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{name} was not committed");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    drop(cleaning);
}
