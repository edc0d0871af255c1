//! Room for data is taken without a handle, so that chunks are made at any time of a commit. What that may meet,
//! one step after the other.

use crate::fs::file_system::FileSystem;
use crate::space::SpaceKind;
use crate::{CheckOptions, MkfsOptions, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use std::sync::Arc;

fn made() -> (Arc<dyn Device>, FileSystem) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(512 << 20));
    crate::mkfs_device(&device, &MkfsOptions::new()).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(None);
    let fs = FileSystem::from_devices(vec![Arc::clone(&device)], &options).unwrap();
    // The block group that there is from the first.
    fs.create_file("/first").unwrap().write_at(&[1; 8192], 0).unwrap();
    fs.sync().unwrap();
    (device, fs)
}

#[test]
fn a_chunk_whose_items_wait_is_not_taken_for_an_empty_one() {
    let (device, fs) = made();
    let transactions = fs.info.transactions().unwrap();
    let make =
        || transactions.chunks().allocate(transactions.volume(), transactions.space(), SpaceKind::Data);
    let starts = || transactions.volume().chunk_map().iter().map(|chunk| chunk.start()).collect::<Vec<_>>();
    let before = starts();
    make().unwrap();
    let with_one = starts();
    assert_eq!(with_one.len(), before.len() + 1);
    // A commit comes here after it has inserted the items of chunks.
    transactions.change(1, |handle| transactions.remove_empty_groups(handle)).unwrap();
    assert_eq!(starts(), with_one, "its items wait");
    // This one inserts them, and takes them out again.
    fs.create_file("/second").unwrap();
    transactions.commit().unwrap();
    assert_eq!(starts(), before);
    make().unwrap();
    assert_eq!(starts(), with_one, "where the last one was");
    fs.create_file("/third").unwrap().write_at(&vec![1; 100 << 20], 0).unwrap();
    fs.close().unwrap();
    let check = CheckOptions::new().data_csum(true);
    let report = crate::check_devices(vec![device], &OpenOptions::new(), &check).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}

#[test]
fn a_block_group_in_which_something_is_by_now_stays() {
    let (_, fs) = made();
    let space = fs.info.transactions().unwrap().space();
    let taken = space.allocate(SpaceKind::Data, 4096, 4096).unwrap();
    let group = space.block_group_of(taken.start).unwrap();
    assert!(!space.mark_empty_read_only(group.range.start));
    assert!(space.is_writable(taken.start));
}
