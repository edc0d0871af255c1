//! Subvolumes and snapshots through the public API: created, changed on both sides, moved, deleted
//! and cleaned up. The check is clean after each commit and after each crash during cleaning. The
//! kernel sees the same subvolumes, and can change them in turn.

mod cleaning;
mod kernel;
mod model;
mod rules;

use papilio::FileSystem;

/// Fills a directory with enough files that the tree has several levels.
fn fill(fs: &FileSystem, directory: &str, files: usize, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for number in 0..files {
        let file = fs.create_file(format!("{directory}/file{number}")).unwrap();
        let length = if number % 20 == 0 { random.usize(4096..40_000) } else { random.usize(0..300) };
        let content: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
        file.write_all_at(&content, 0).unwrap();
    }
}
