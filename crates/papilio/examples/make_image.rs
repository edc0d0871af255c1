//! Makes an image from a directory: `cargo run --example make_image -- DIRECTORY IMAGE`.

use papilio::{FileSystem, MkfsOptions, OpenOptions, Populate};
use std::error::Error;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [directory, image] = &arguments[..] else { return Err("usage: make_image DIRECTORY IMAGE".into()) };
    make_image(directory, image)
}

/// Makes an image of the size that the directory needs, and fills it.
pub fn make_image(directory: &Path, image: &Path) -> Result<(), Box<dyn Error>> {
    let populate = Populate::new();
    let size = populate.estimated_size(directory)?;
    papilio::mkfs(image, &MkfsOptions::new().size(size).label("example"))?;

    let options = OpenOptions::new().write(true).compress("zstd".parse()?);
    let fs = FileSystem::open_with(image, &options)?;
    let done = populate.directory(directory, &fs.root()?, &mut ())?;
    println!("{} entries, {} bytes", done.entries, done.bytes);
    fs.close()?;
    Ok(())
}
