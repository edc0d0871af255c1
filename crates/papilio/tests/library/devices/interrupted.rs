//! Balances that the kernel was in the middle of when the power went: its relocation trees are on
//! disk. Papilio opens the file system for writing, drops them, and goes on with the balance.

use super::world::{
    MIB, NEEDS, assert_same, bytes, copy, files_of_kernel, files_of_papilio, made, write_files,
};
use crate::images::{assert_clean_for_both, btrfs, open, writable};
use papilio_oracle::{ImageSet, Scratch, require, sys};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Whether the root tree has roots of relocation trees.
fn has_relocation_trees(image: &Path) -> bool {
    let mut command = Command::new("btrfs");
    let output = command.args(["inspect-internal", "dump-tree", "-t", "root"]).arg(image).output().unwrap();
    // It may also fail, on a copy that is torn.
    String::from_utf8_lossy(&output.stdout).contains("key (TREE_RELOC ROOT_ITEM")
}

/// Whether a balance left files in the tree of moved data.
fn has_moved_data(image: &Path) -> bool {
    let dump = btrfs(&["inspect-internal", "dump-tree", "-t", "data_reloc", image.to_str().unwrap()]);
    dump.contains("ORPHAN_ITEM")
}

#[test]
fn relocation_trees_of_the_kernel_are_dropped_and_the_balance_resumed() {
    let Some(_met) = require(NEEDS) else { return };
    let scratch = Scratch::new(2048 * MIB).unwrap();
    let image = scratch.image("image", 800 * MIB).unwrap();
    made(std::slice::from_ref(&image), &["-m", "single", "-n", "4096"]);
    let set = ImageSet::open(&scratch, vec![image.clone()]);
    let mounted = set.mount().unwrap();
    let root = mounted.path();
    sys::create_subvolume(&root.join("sub")).unwrap();
    write_files(&root.join("sub"), 1, 400);
    for number in 0..2000u64 {
        fs::write(root.join(format!("sub/d1/small {number}")), bytes(number, 700)).unwrap();
    }
    mounted.sync().unwrap();
    for snapshot in 0..5 {
        sys::create_snapshot(&root.join("sub"), &root.join(format!("snap{snapshot}")), false).unwrap();
        fs::write(root.join(format!("snap{snapshot}/d2/own")), bytes(snapshot, 5000)).unwrap();
    }
    mounted.sync().unwrap();

    // The state of a power cut, which a commit in the middle of the balance left.
    let cut = scratch.path().join("cut");
    let mut found = 0;
    let point = root.to_path_buf();
    let balance = |what: &str| {
        let mut command = Command::new("btrfs");
        command.args(["balance", "start", what]).arg(&point);
        command.stdout(std::process::Stdio::null()).spawn().unwrap()
    };
    'search: for round in 0..40 {
        if round >= 6 && found > 0 {
            break;
        }
        let mut running = balance(["-m", "-d"][round % 2]);
        while running.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(3 + round as u64 % 6 * 2));
            // A commit in the middle, which has the relocation trees of that moment.
            mounted.sync().unwrap();
            // The kernel reuses no space of a commit before the next one, so that a copy made
            // quickly is mostly as a power cut leaves it. The check tells.
            copy(&image, &cut);
            let set = ImageSet::open(&scratch, vec![cut.clone()]);
            if !has_relocation_trees(&cut) || set.btrfs_check().is_err() {
                continue;
            }
            found += 1;
            judge(&scratch, &cut);
            if found == 3 {
                let _ = Command::new("btrfs").args(["balance", "cancel"]).arg(&point).output();
                running.wait().unwrap();
                break 'search;
            }
        }
    }
    assert!(found > 0, "no commit of the kernel had relocation trees");
    mounted.unmount().unwrap();
}

/// Opens a state with relocation trees, and goes on in three ways.
fn judge(scratch: &Scratch, cut: &Path) {
    let set = ImageSet::open(scratch, vec![cut.to_path_buf()]);
    let wanted = files_of_papilio(set.paths());
    assert!(wanted.len() > 2400 * 5, "{}", wanted.len());

    // Opened for writing, and closed.
    let fs = open(set.paths(), &writable()).unwrap();
    assert!(fs.stored_balance().unwrap().is_some(), "the balance is still to be resumed");
    fs.close().unwrap();
    assert!(!has_relocation_trees(cut) && !has_moved_data(cut));
    assert_clean_for_both(&set, "the relocation trees were dropped");

    // Resumed.
    let fs = open(set.paths(), &writable()).unwrap();
    let report = fs.resume_balance(|_| true).unwrap();
    assert_eq!(report.completed, report.expected);
    assert!(fs.stored_balance().unwrap().is_none());
    fs.close().unwrap();
    assert_clean_for_both(&set, "the balance was resumed");
    assert_same(&wanted, &files_of_kernel(&set), "the balance was resumed");
}
