//! Ordered extents allocate data space while commits run: chunks are made, emptied and removed
//! while commits insert the items of other chunks.

use super::support::SECTOR;
use crate::in_memory::{close_clean, formatted, open};
use papilio::{File, FileSystem};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a file: several data chunks of this file system.
const LENGTH: u64 = 96 << 20;
const PIECE: usize = 2 << 20;

/// Fills a new file with ordered extents and removes it before they reach a tree, `rounds` times.
fn fill_and_remove(fs: &FileSystem, path: &str, rounds: u64) -> Result<(), papilio::Error> {
    let piece = vec![7; PIECE];
    for _ in 0..rounds {
        let file: File = fs.create_file(path)?;
        file.set_len(LENGTH)?;
        for at in (0..LENGTH).step_by(PIECE) {
            file.write_all_at(&piece, at)?;
        }
        fs.remove_file(path)?;
    }
    Ok(())
}

#[test]
fn chunks_are_made_and_removed_while_commits_run() {
    let device = formatted(512 << 20);
    let fs = open(&device);
    let kept = fs.create_file("/kept").unwrap();
    kept.write_all_at(&[1; SECTOR as usize], 0).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (fs, kept, stop) = (&fs, &kept, &stop);
        let writers: Vec<_> =
            ["/a", "/b"].map(|path| scope.spawn(move || fill_and_remove(fs, path, 12))).into_iter().collect();
        let syncing = scope.spawn(move || {
            let mut byte = 0u8;
            while !stop.load(Ordering::Relaxed) {
                byte = byte.wrapping_add(1);
                kept.write_all_at(&[byte; SECTOR as usize], 0)?;
                fs.sync()?;
            }
            Ok::<u8, papilio::Error>(byte)
        });
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, Ordering::Relaxed);
        let byte = syncing.join().unwrap().unwrap();
        for result in written {
            result.unwrap().unwrap();
        }
        assert_eq!(kept.read_all().unwrap(), [byte; SECTOR as usize]);
    });
    drop(kept);
    close_clean(fs, &device);
}
