//! Writes to a subvolume, snapshots it, and writes again:
//! `cargo run --example write_and_snapshot -- IMAGE`. The image is created.

use papilio::{FileSystem, MkfsOptions, OpenOptions};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: write_and_snapshot IMAGE")?;
    write_and_snapshot(image.as_ref())
}

/// Makes an image with a subvolume and a snapshot.
pub fn write_and_snapshot(image: &Path) -> Result<(), Box<dyn Error>> {
    papilio::mkfs(image, &MkfsOptions::new().size(256 << 20))?;
    let fs = FileSystem::open_with(image, &OpenOptions::new().write(true))?;
    fs.create_subvolume("/data")?;
    fs.write("/data/notes", "first")?;

    // A snapshot takes constant time and shares all data with its source.
    let read_only = true;
    fs.snapshot("/data", "/data-1", read_only)?;
    fs.write("/data/notes", "second")?;

    assert_eq!(fs.read("/data/notes")?, b"second");
    assert_eq!(fs.read("/data-1/notes")?, b"first");
    fs.close()?;
    Ok(())
}
