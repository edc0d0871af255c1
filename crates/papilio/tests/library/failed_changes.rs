//! Changes that fail: a change that had completed a part leaves the file system writable. In
//! memory, so that no test needs the kernel.

use crate::in_memory::{crashed, formatted_with, open, places_of_blocks};
use papilio::format::{Key, LogicalAddress, TreeId};
use papilio::{FileSystem, MkfsOptions};
use papilio_device::{Device, MemoryDevice};

const NODE: usize = 4096;

/// Overwrites all copies of a tree block.
fn destroy(device: &MemoryDevice, address: LogicalAddress) {
    let places = places_of_blocks(device, |header| header.address == address);
    assert!(!places.is_empty(), "no block at {address}");
    for place in places {
        device.write_at(&[0xa5; NODE], place).unwrap();
    }
}

/// Returns the leaves of a tree with the first key of each.
fn leaves(fs: &FileSystem, tree: TreeId) -> Vec<(LogicalAddress, Key)> {
    let roots = fs.tree_roots().unwrap();
    let root = roots.iter().find(|root| root.id == tree).unwrap();
    let blocks = fs.tree_blocks(root).map(|block| block.unwrap());
    let leaves = blocks.filter(|block| block.node().is_leaf());
    leaves.map(|block| (block.header().address, block.node().key(0))).collect()
}

#[test]
fn a_clone_that_fails_after_zeroing_the_tail_is_complete_so_far() {
    let device = formatted_with(128 << 20, &MkfsOptions::new().node_size(NODE as u32));
    let fs = open(&device);
    fs.create_subvolume("/sub").unwrap();
    let source = fs.create_file("/sub/source").unwrap();
    for number in 0..200 {
        source.write_all_at(&[7; 4096], number * 8192).unwrap();
    }
    // The last sector of the target has old bytes behind the end of the file.
    fs.write("/target", vec![3; 12_288]).unwrap();
    let target = fs.open_file("/target").unwrap();
    target.set_len(9000).unwrap();
    let (tree, inode) = (source.inode().tree(), source.inode().number());
    drop((source, target));
    fs.close().unwrap();

    let fs = open(&device);
    let mut leaves = leaves(&fs, tree).into_iter();
    let (last, first_key) = leaves.rfind(|(_, first)| first.objectid == inode.0).unwrap();
    fs.close().unwrap();
    let damaged = crashed(&device);
    destroy(&damaged, last);
    let fs = open(&damaged);
    let (source, target) = (fs.open_file("/sub/source").unwrap(), fs.open_file("/target").unwrap());
    let from = first_key.offset - first_key.offset % 8192;
    target.clone_range(&source, from, 40_960, 65_536).unwrap_err();
    // The clone changed nothing that is visible, and others may change the file system.
    assert_eq!(fs.read("/target").unwrap(), vec![3; 9000]);
    fs.write("/other", "bytes").unwrap();
    fs.sync().unwrap();
    target.set_len(12_288).unwrap();
    let grown = fs.read("/target").unwrap();
    assert!(grown[..9000] == [3; 9000] && grown[9000..].iter().all(|byte| *byte == 0));
    fs.close().unwrap();
}
