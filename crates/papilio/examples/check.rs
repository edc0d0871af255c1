//! Checks an image and all its data: `cargo run --release --example check -- IMAGE [DEVICE ...]`.

use papilio::{CheckOptions, OpenOptions};
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let devices: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if check(&devices)? { Ok(()) } else { Err("the file system has faults".into()) }
}

/// Prints all faults and returns whether there are none.
pub fn check(devices: &[PathBuf]) -> Result<bool, Box<dyn Error>> {
    let (image, others) = devices.split_first().ok_or("usage: check IMAGE [DEVICE ...]")?;
    let open = others.iter().fold(OpenOptions::new(), |open, path| open.device(path));
    let report = papilio::check(image, &open, &CheckOptions::new().data_csum(true))?;
    for finding in &report.findings {
        println!("{finding}");
    }
    println!("{:#?}", report.statistics);
    Ok(report.is_clean())
}
