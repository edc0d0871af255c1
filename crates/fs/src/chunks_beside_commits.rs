//! Tests of chunk allocation during a commit. Data space is allocated without a transaction handle,
//! so that a chunk can be added at any point of a commit. The tests go through these points step by
//! step.

use crate::file_system::FileSystem;
use crate::{CheckOptions, MkfsOptions, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use papilio_engine::space::SpaceKind;
use std::sync::Arc;

fn made() -> (Arc<dyn Device>, FileSystem) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(512 << 20));
    crate::mkfs_device(&device, &MkfsOptions::new()).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(None);
    let fs = FileSystem::from_devices(vec![Arc::clone(&device)], &options).unwrap();
    // Uses the initial block group.
    fs.create_file("/first").unwrap().write_all_at(&[1; 8192], 0).unwrap();
    fs.sync().unwrap();
    (device, fs)
}

#[test]
fn chunk_with_pending_items_is_not_removed_as_empty() {
    let (device, fs) = made();
    let transactions = fs.info.transactions().unwrap();
    let make =
        || transactions.chunks().allocate(transactions.volume(), transactions.space(), SpaceKind::Data);
    let starts = || transactions.volume().chunk_map().iter().map(|chunk| chunk.start()).collect::<Vec<_>>();
    let before = starts();
    make().unwrap();
    let with_one = starts();
    assert_eq!(with_one.len(), before.len() + 1);
    // A commit does this after it has inserted the pending items of chunks.
    transactions.change(1, |handle| transactions.remove_empty_groups(handle)).unwrap();
    assert_eq!(starts(), with_one, "its items are pending");
    // This commit inserts the items and removes them again.
    fs.create_file("/second").unwrap();
    transactions.commit().unwrap();
    assert_eq!(starts(), before);
    make().unwrap();
    assert_eq!(starts(), with_one, "at the same address");
    fs.create_file("/third").unwrap().write_all_at(&vec![1; 100 << 20], 0).unwrap();
    fs.close().unwrap();
    let check = CheckOptions::new().data_csum(true);
    let report = crate::check_devices(vec![device], &OpenOptions::new(), &check).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}

#[test]
fn block_group_in_use_is_not_marked_read_only() {
    let (_, fs) = made();
    let space = fs.info.transactions().unwrap().space();
    let taken = space.allocate(SpaceKind::Data, 4096, 4096).unwrap();
    let group = space.block_group_of(taken.start).unwrap();
    assert!(!space.mark_empty_read_only(group.range.start));
    assert!(space.is_writable(taken.start));
}
