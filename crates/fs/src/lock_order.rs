//! A proof that the feature `lock-order` detects forbidden orders of locks, for a test program.

use super::{File, FileSystem};
use papilio_device::{Device, MemoryDevice};
use papilio_engine::options::OpenOptions;
use papilio_progs::mkfs::{MkfsOptions, mkfs_device};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

fn detected(what: impl FnOnce()) {
    let panicked = catch_unwind(AssertUnwindSafe(what)).expect_err("the lock order is checked");
    let text = panicked.downcast_ref::<String>().expect("the panic has a message");
    assert!(text.contains("lock order"), "{text}");
}

/// Dropping the last handle of a file may delete the file. The dropping thread must not hold a lock
/// that the deletion acquires, even if the file still has a name.
///
/// # Panics
/// If such a lock is not detected.
pub fn dropping_a_file_under_locks_of_its_deletion_panics() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    mkfs_device(&device, &MkfsOptions::new()).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(None);
    let fs = FileSystem::from_devices(vec![device], &options).unwrap();
    let tree = fs.create_file("/file").unwrap().inode().tree();
    fs.sync().unwrap();
    let opened = || -> File { fs.open_file("/file").unwrap() };

    let file = opened();
    detected(|| {
        let _table = fs.info.open_inodes.lock_table();
        drop(file);
    });
    let file = opened();
    detected(|| {
        let _table = fs.info.dirty_inodes.lock_table();
        drop(file);
    });
    let file = opened();
    detected(|| {
        let file = std::cell::Cell::new(Some(file));
        let _ = fs.info.change(tree, 1, |_handle, _| {
            drop(file.take());
            Ok(())
        });
    });
    let file = opened();
    detected(|| {
        let file = std::cell::Cell::new(Some(file));
        let _ = fs.info.change_tree(tree, 1, |_editor, _, _| {
            drop(file.take());
            Ok(())
        });
    });
    // Without locks it is allowed.
    drop(opened());
    fs.close().unwrap();
}
