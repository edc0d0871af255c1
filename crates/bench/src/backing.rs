//! What all sides keep their bytes on: one file, or one block device, for the whole run.
//!
//! Owns [`Backing`]. The file's blocks are allocated and written before anything is measured (memory of a virtual
//! machine that was only allocated is slow the first time), and file systems are made on it without discarding
//! them, so that no side pays for memory or extents that another had been given already. It is removed when dropped; a block device stays, with what the last run left on it.

use crate::{interrupt, machine};
use anyhow::{Context, bail};
use papilio_oracle::Scratch;
use rustix::fs::{FallocateFlags, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of memory that are left to the machine and to fio.
const MEMORY_MARGIN: u64 = 1 << 30;
/// Where files live in memory.
const MEMORY: &str = "/dev/shm";

/// Where the backing shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file in memory.
    Ram,
    /// A file in a folder, or a block device.
    Path(PathBuf),
}

impl std::str::FromStr for Place {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == "ram" { Self::Ram } else { Self::Path(text.into()) })
    }
}

/// The kinds of backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A file in memory.
    Ram,
    /// A file in a folder.
    File,
    /// A block device.
    Device,
}

/// The backing.
#[derive(Debug)]
pub struct Backing {
    path: PathBuf,
    kind: Kind,
    bytes: u64,
    direct: bool,
    scratch: Scratch,
}

impl Backing {
    /// Makes a file of `bytes`, or takes a block device that has as many. `cache` bytes of memory are
    /// left for page caches.
    ///
    /// # Errors
    /// There is no room, or the device is in use or may not be overwritten.
    pub fn new(place: &Place, bytes: u64, cache: u64, overwrite: bool) -> anyhow::Result<Self> {
        match place {
            Place::Ram => {
                let free = machine::available_memory();
                let needed = bytes + cache + MEMORY_MARGIN;
                if free < needed {
                    bail!(
                        "{} MiB of memory are free, {} MiB are needed: choose a smaller --scale or --backing DIR",
                        free >> 20,
                        needed >> 20
                    );
                }
                Self::file(Path::new(MEMORY), bytes, Kind::Ram)
            }
            Place::Path(path) => {
                let metadata = path.metadata().with_context(|| format!("--backing {}", path.display()))?;
                if metadata.is_dir() {
                    Self::file(path, bytes, Kind::File)
                } else if metadata.file_type().is_block_device() {
                    Self::device(path, bytes, overwrite)
                } else {
                    bail!("--backing {}: neither a folder nor a block device", path.display());
                }
            }
        }
    }

    fn file(folder: &Path, bytes: u64, kind: Kind) -> anyhow::Result<Self> {
        let scratch = Scratch::under(folder, bytes)?;
        let path = scratch.image("backing", bytes)?;
        let file = File::options().write(true).open(&path)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
            .with_context(|| format!("{}: cannot allocate {} MiB", path.display(), bytes >> 20))?;
        write_all(&file, bytes).with_context(|| path.display().to_string())?;
        let direct = opens_direct(&path);
        Ok(Self { path, kind, bytes, direct, scratch })
    }

    fn device(path: &Path, bytes: u64, overwrite: bool) -> anyhow::Result<Self> {
        if !overwrite {
            bail!("--backing {}: all that it holds would be lost; say --force to mean it", path.display());
        }
        // O_EXCL on a block device fails while it is mounted or part of something.
        let exclusive = OFlags::EXCL.bits().cast_signed();
        let file = File::options().read(true).write(true).custom_flags(exclusive).open(path);
        let file = file.with_context(|| path.display().to_string())?;
        let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?;
        if size < bytes {
            bail!("{}: has {} MiB, {} MiB are needed", path.display(), size >> 20, bytes >> 20);
        }
        let scratch = Scratch::new(0)?;
        Ok(Self { path: path.to_owned(), kind: Kind::Device, bytes, direct: opens_direct(path), scratch })
    }

    /// The file or device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// How much of it is used.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it can be opened past the page cache (`O_DIRECT`).
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// A folder for mount points and the like, beside it.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }
}

/// Writes the whole of a file once.
fn write_all(file: &File, bytes: u64) -> anyhow::Result<()> {
    const PIECE: usize = 1 << 20;
    let zeros = vec![0; PIECE];
    for at in (0..bytes).step_by(PIECE) {
        interrupt::check()?;
        file.write_all_at(&zeros[..PIECE.min((bytes - at) as usize)], at)?;
    }
    Ok(())
}

fn opens_direct(path: &Path) -> bool {
    File::options().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_allocated_and_goes_away() {
        let backing = Backing::new(&Place::Ram, 1 << 20, 0, false).unwrap();
        let path = backing.path().to_owned();
        let metadata = path.metadata().unwrap();
        assert_eq!(metadata.len(), 1 << 20);
        assert!(std::os::unix::fs::MetadataExt::blocks(&metadata) * 512 >= 1 << 20);
        drop(backing);
        assert!(!path.exists());
    }

    #[test]
    fn no_room_and_wrong_places_are_named() {
        let error = |place: &str, bytes| {
            let place: Place = place.parse().unwrap();
            format!("{:#}", Backing::new(&place, bytes, 0, false).unwrap_err())
        };
        assert!(error("ram", 1 << 60).contains("--scale"));
        assert!(error("/nowhere", 1).contains("/nowhere"));
        assert!(error("/dev/null", 1).contains("neither a folder nor a block device"));
        assert_eq!("ram".parse(), Ok(Place::Ram));
    }
}
