//! What must never happen with locks is noticed, with the feature `lock-order`.

use super::{File, FileSystem};
use crate::{MkfsOptions, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

fn noticed(what: impl FnOnce()) {
    let panicked = catch_unwind(AssertUnwindSafe(what)).expect_err("it is noticed");
    let text = panicked.downcast_ref::<String>().expect("with a text");
    assert!(text.contains("lock order"), "{text}");
}

/// Letting go of an open file may delete it: not with what that asks for locked, whether or not it has a name now.
#[test]
fn a_file_is_let_go_of_without_locks_that_deleting_it_asks_for() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    crate::mkfs_device(&device, &MkfsOptions::new()).unwrap();
    let options = OpenOptions::new().write(true).commit_interval(None);
    let fs = FileSystem::from_devices(vec![device], &options).unwrap();
    let tree = fs.create_file("/file").unwrap().inode().tree();
    fs.sync().unwrap();
    let opened = || -> File { fs.open_file("/file").unwrap() };

    let file = opened();
    noticed(|| {
        let _table = fs.info.open_inodes.lock_table();
        drop(file);
    });
    let file = opened();
    noticed(|| {
        let _table = fs.info.dirty_inodes.lock_table();
        drop(file);
    });
    let file = opened();
    noticed(|| {
        let file = std::cell::Cell::new(Some(file));
        let _ = fs.info.change_handle(tree, 1, |_handle, _| {
            drop(file.take());
            Ok(())
        });
    });
    let file = opened();
    noticed(|| {
        let file = std::cell::Cell::new(Some(file));
        let _ = fs.info.change_tree(tree, 1, |_editor, _, _| {
            drop(file.take());
            Ok(())
        });
    });
    // As it is meant to be.
    drop(opened());
    fs.close().unwrap();
}
