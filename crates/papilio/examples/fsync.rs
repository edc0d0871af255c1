//! Writes records durably, one by one: `cargo run --example fsync -- IMAGE`. The image is created.

use papilio::{FileSystem, MkfsOptions, OpenOptions};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: fsync IMAGE")?;
    fsync(image.as_ref())
}

/// Makes an image, writes durable records, and reads the last one.
pub fn fsync(image: &Path) -> Result<(), Box<dyn Error>> {
    papilio::mkfs(image, &MkfsOptions::new().size(256 << 20))?;
    let fs = FileSystem::open_with(image, &OpenOptions::new().write(true))?;
    let journal = fs.create_file("/journal")?;
    // Makes the file and its name durable. The next crash cannot lose them.
    journal.sync_all()?;
    for record in 0..100u64 {
        journal.write_all_at(&record.to_le_bytes(), record * 8)?;
        // Makes the data and the size durable, but not the times.
        journal.sync_data()?;
    }
    drop(journal);
    fs.close()?;

    let fs = FileSystem::open(image)?;
    let mut last = [0; 8];
    fs.open_file("/journal")?.read_exact_at(&mut last, 99 * 8)?;
    assert_eq!(u64::from_le_bytes(last), 99);
    Ok(())
}
