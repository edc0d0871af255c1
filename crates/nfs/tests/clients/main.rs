//! The server with stock clients (libnfs), and the calls of the protocol one by one.

mod calls;
mod garbage;
mod many;
mod permissions;
mod raw;
mod restart;
mod stock;

use papilio::{FileSystem, MkfsOptions, OpenOptions};
use papilio_nfs::{Export, Server, Squash};
use papilio_oracle::Scratch;
use std::path::{Path, PathBuf};

fn image(scratch: &Scratch) -> PathBuf {
    let image = scratch.path().join("nfs.img");
    papilio::mkfs(&image, &MkfsOptions::new().size(256 << 20)).unwrap();
    image
}

fn open(image: &Path) -> FileSystem {
    FileSystem::open_with(image, &OpenOptions::new().write(true).cache_bytes(16 << 20)).unwrap()
}

/// Starts a server whose clients' root is root.
fn trusting(fs: &FileSystem, path: &[u8]) -> Server {
    let export = Export::new(fs.clone(), path, false).unwrap();
    Server::start("127.0.0.1:0", export.squash(Squash::default().root(false))).unwrap()
}
