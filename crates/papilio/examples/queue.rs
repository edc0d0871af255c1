//! Writes many blocks with an I/O queue: `cargo run --example queue -- IMAGE`. The image is
//! created.

use papilio::{FileSystem, IoOperation, IoQueue, IoRequest, MkfsOptions, OpenOptions};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 1000;
const DEPTH: usize = 16;
const THREADS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: queue IMAGE")?;
    queue(image.as_ref())
}

/// Makes an image and writes a file through a queue.
pub fn queue(image: &Path) -> Result<(), Box<dyn Error>> {
    papilio::mkfs(image, &MkfsOptions::new().size(256 << 20))?;
    let fs = FileSystem::open_with(image, &OpenOptions::new().write(true))?;
    let file = Arc::new(fs.create_file("/blocks")?);
    let mut queue = IoQueue::with_threads(DEPTH, THREADS)?;
    let mut completions = Vec::new();
    for token in 0..BLOCKS {
        if queue.in_flight() == queue.depth() {
            queue.wait(1, &mut completions);
        }
        let operation = IoOperation::Write { buffer: vec![token as u8; BLOCK], offset: token * BLOCK as u64 };
        let request = IoRequest { file: Arc::clone(&file), operation, token };
        queue.submit(request).expect("the queue has space after the wait");
    }
    queue.wait(DEPTH, &mut completions);
    for completion in completions {
        assert_eq!(completion.result?, BLOCK, "block {}", completion.token);
    }
    file.sync_all()?;
    assert_eq!(file.size()?, BLOCKS * BLOCK as u64);
    Ok(())
}
