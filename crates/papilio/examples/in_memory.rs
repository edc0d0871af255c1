//! Makes and uses a file system in memory: `cargo run --example in_memory`.

use papilio::device::{Device, MemoryDevice};
use papilio::{FileSystem, MkfsOptions, OpenOptions};
use std::error::Error;
use std::io::Write;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    in_memory()
}

/// Makes a file system in memory, writes a file, and reads it after a reopen.
pub fn in_memory() -> Result<(), Box<dyn Error>> {
    // Memory is allocated as it is written, not by the size.
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(1 << 30));
    papilio::mkfs_device(&device, &MkfsOptions::new())?;

    let fs = FileSystem::from_devices(vec![Arc::clone(&device)], &OpenOptions::new().write(true))?;
    fs.create_dir("/logs")?;
    let mut log = fs.create_file("/logs/today")?.cursor();
    for line in 0..1000 {
        writeln!(log, "line {line}")?;
    }
    drop(log);
    fs.close()?;

    let fs = FileSystem::from_devices(vec![device], &OpenOptions::new())?;
    assert!(fs.read("/logs/today")?.ends_with(b"line 999\n"));
    Ok(())
}
