//! Reads a file in pieces of 1 MiB and asks for metadata, and prints how fast.
//!
//! `read_and_stat IMAGE FILE DIRECTORY SECONDS` prints MiB read a second, then `stat`s a second of
//! the files `f0`, `f1`, … in the directory. The Python bench (`make bench-python`) compares itself
//! with it.

use papilio::FileSystem;
use std::error::Error;
use std::time::{Duration, Instant};

const PIECE: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [image, file, directory, seconds] = &arguments[..] else {
        return Err("usage: read_and_stat IMAGE FILE DIRECTORY SECONDS".into());
    };
    let limit = Duration::from_secs_f64(seconds.parse()?);
    let fs = FileSystem::open(image)?;

    let file = fs.open_file(file)?;
    let size = file.size()?;
    let mut buffer = vec![0; PIECE];
    let (mut bytes, mut offset, began) = (0, 0, Instant::now());
    while began.elapsed() < limit {
        bytes += file.read_at(&mut buffer, offset)?;
        offset = if offset + 2 * PIECE as u64 > size { 0 } else { offset + PIECE as u64 };
    }
    println!("{:.0}", bytes as f64 / PIECE as f64 / began.elapsed().as_secs_f64());

    let count = fs.read_dir(directory)?.count();
    let paths: Vec<String> = (0..count).map(|number| format!("{directory}/f{number}")).collect();
    let (mut stats, mut found, began) = (0, 0, Instant::now());
    while began.elapsed() < limit {
        for path in &paths {
            found += fs.metadata(path)?.size();
        }
        stats += paths.len();
    }
    println!("{:.0}", stats as f64 / began.elapsed().as_secs_f64());
    std::hint::black_box(found);
    Ok(())
}
