//! The cost of verifying what an encoder gives, by algorithm and level.
//!
//! `PAPILIO_COST` lists directories, separated by colons, whose files are compressed. Their first
//! bytes are used until the sample is full.

use super::tests::choices;
use super::*;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of the sample.
const SAMPLE: usize = 24 << 20;
/// The most bytes of one file.
const OF_A_FILE: u64 = 1 << 20;

/// Adds extents of the files below a directory.
fn collect(directory: &Path, extents: &mut Vec<Vec<u8>>, left: &mut usize) {
    use std::io::Read;
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if metadata.is_dir() {
            collect(&path, extents, left);
        } else if metadata.is_file() {
            let mut bytes = Vec::new();
            let Ok(file) = std::fs::File::open(&path) else { continue };
            file.take(OF_A_FILE).read_to_end(&mut bytes).expect("a file of the sample");
            for extent in bytes.chunks(MAX_UNCOMPRESSED as usize).filter(|extent| extent.len() > 4096) {
                *left = left.saturating_sub(extent.len());
                extents.push(extent.to_vec());
            }
        }
        if *left == 0 {
            return;
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn cost_of_verification() {
    let directories = std::env::var("PAPILIO_COST").unwrap_or_else(|_| "/usr/bin:/usr/share/doc".to_owned());
    let directories: Vec<&str> = directories.split(':').collect();
    let mut extents = Vec::new();
    for directory in &directories {
        let mut left = SAMPLE / directories.len();
        collect(Path::new(directory), &mut extents, &mut left);
    }
    let bytes: usize = extents.iter().map(Vec::len).sum();
    println!("{} extents, {bytes} bytes", extents.len());
    println!("| choice | stored | encode MB/s | decode MB/s | cost |\n|---|---|---|---|---|");
    let framing = Framing { sector: 4096, inline: false };
    for choice in choices() {
        let (mut coders, mut output) = (Coders::default(), Vec::new());
        let (mut encoding, mut decoding) = (Duration::ZERO, Duration::ZERO);
        let (mut stored, mut verified) = (0, 0);
        let mut decoded = vec![0; MAX_UNCOMPRESSED as usize];
        for data in &extents {
            let begun = Instant::now();
            let limit = data.len().next_multiple_of(4096) - 4096;
            let fits = coders.pack(choice, data, &mut output, limit, framing);
            encoding += begun.elapsed();
            stored += if fits { output.len().next_multiple_of(4096) } else { data.len() };
            if fits {
                let begun = Instant::now();
                let target = &mut decoded[..data.len()];
                let filled = coders.decode(choice.algorithm(), &output, target, 4096);
                assert!(filled == Ok(data.len()) && target == data, "{choice}");
                decoding += begun.elapsed();
                verified += data.len();
            }
        }
        let rate = |bytes: usize, time: Duration| bytes as f64 / 1e6 / time.as_secs_f64();
        println!(
            "| {choice} | {:.0} % | {:.0} | {:.0} | {:.1} % |",
            stored as f64 * 100.0 / bytes as f64,
            rate(bytes, encoding),
            rate(verified, decoding),
            decoding.as_secs_f64() * 100.0 / encoding.as_secs_f64()
        );
    }
}
