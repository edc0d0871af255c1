//! Lists an image and copies a file out of it:
//! `cargo run --example read_image -- IMAGE [PATH TARGET]`.

use papilio::FileSystem;
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [image] => list(image.as_ref()),
        [image, path, target] => copy_out(image.as_ref(), path.as_ref(), target.as_ref()),
        _ => Err("usage: read_image IMAGE [PATH TARGET]".into()),
    }
}

/// Lists all files and subvolumes.
pub fn list(image: &Path) -> Result<(), Box<dyn Error>> {
    let fs = FileSystem::open(image)?;
    for entry in fs.walk("/")? {
        let entry = entry?;
        let metadata = entry.inode.metadata();
        println!("{:o} {:>12} /{}", metadata.mode(), metadata.size(), String::from_utf8_lossy(&entry.path));
    }
    for subvolume in fs.subvolumes()? {
        println!(
            "subvolume {} {}",
            subvolume.id,
            String::from_utf8_lossy(&subvolume.path.unwrap_or_default())
        );
    }
    Ok(())
}

/// Copies the file at `path` to the host file `target`.
pub fn copy_out(image: &Path, path: &Path, target: &Path) -> Result<(), Box<dyn Error>> {
    let fs = FileSystem::open(image)?;
    // Every byte is verified by its checksum.
    let mut source = fs.open_file(path)?.cursor();
    std::io::copy(&mut source, &mut std::fs::File::create(target)?)?;
    Ok(())
}
