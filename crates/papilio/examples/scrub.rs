//! Scrubs a file system: `cargo run --release --example scrub -- IMAGE [DEVICE ...]`.

use papilio::{FileSystem, OpenOptions, ScrubOptions};
use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let devices: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if scrub(&devices)? { Ok(()) } else { Err("errors are left that cannot be corrected".into()) }
}

/// Mends what can be mended, prints the counters, and returns whether everything is good now.
pub fn scrub(devices: &[PathBuf]) -> Result<bool, Box<dyn Error>> {
    let (image, others) = devices.split_first().ok_or("usage: scrub IMAGE [DEVICE ...]")?;
    let options = OpenOptions::new().write(true).heal_reads(false);
    let options = others.iter().fold(options, |options, path| options.device(path));
    let fs = FileSystem::open_with(image, &options)?;
    let begun = Instant::now();
    let report = fs.scrub(&ScrubOptions::new(), |_| true)?;
    let (total, seconds) = (report.total(), begun.elapsed().as_secs_f64());
    fs.close()?;
    let bytes = total.data_bytes_scrubbed + total.tree_bytes_scrubbed;
    println!("{total:#?}");
    println!(
        "{:.0} MiB in {seconds:.2} s, {:.0} MiB/s",
        bytes as f64 / 1048576.0,
        bytes as f64 / 1048576.0 / seconds
    );
    Ok(total.uncorrectable_errors == 0 && report.skipped == 0)
}
