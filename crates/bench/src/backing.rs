//! The backing: one file or block device under every side's file system, for the whole run.
//!
//! Owns [`Backing`].
//!
//! - The file's blocks are allocated and written before the first measurement, because memory of a
//!   virtual machine is slow at its first use. File systems are made on it without a discard. So no
//!   side pays for memory or extents that another side already has.
//! - Dropping a [`Backing`] removes its file. A block device keeps the contents of the last run.

use crate::{interrupt, machine};
use anyhow::{Context, bail};
use papilio_oracle::Scratch;
use rustix::fs::{FallocateFlags, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of memory reserved for the system and fio.
const MEMORY_MARGIN: u64 = 1 << 30;
/// Directory of files in memory.
const MEMORY: &str = "/dev/shm";

/// Requested location of the backing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file in memory.
    Ram,
    /// A file in this directory, or this block device.
    Path(PathBuf),
}

impl std::str::FromStr for Place {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == "ram" { Self::Ram } else { Self::Path(text.into()) })
    }
}

/// Kind of a backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A file in memory.
    Ram,
    /// A file in a directory.
    File,
    /// A block device.
    Device,
}

/// A file or block device with its properties.
#[derive(Debug)]
pub struct Backing {
    path: PathBuf,
    kind: Kind,
    bytes: u64,
    direct: bool,
    scratch: Scratch,
}

impl Backing {
    /// Creates a file of `bytes`, or uses a block device of at least that size. Reserves `cache`
    /// bytes of memory for page caches.
    ///
    /// # Errors
    /// Space or memory is insufficient, or the device is in use or `overwrite` is false.
    pub fn new(place: &Place, bytes: u64, cache: u64, overwrite: bool) -> anyhow::Result<Self> {
        match place {
            Place::Ram => {
                let free = machine::available_memory();
                let needed = bytes + cache + MEMORY_MARGIN;
                if free < needed {
                    bail!(
                        "backing in memory: {} MiB free, {} MiB needed; use a smaller --scale or --backing DIR",
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
                    bail!("--backing {}: not a directory or a block device", path.display());
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
            bail!(
                "--backing {}: the run would overwrite the device; use --force to allow it",
                path.display()
            );
        }
        // O_EXCL fails if the device is mounted or part of another device.
        let exclusive = OFlags::EXCL.bits().cast_signed();
        let file = File::options().read(true).write(true).custom_flags(exclusive).open(path);
        let file = file.with_context(|| path.display().to_string())?;
        let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?;
        if size < bytes {
            bail!("{}: device has {} MiB, {} MiB needed", path.display(), size >> 20, bytes >> 20);
        }
        let scratch = Scratch::new(0)?;
        Ok(Self { path: path.to_owned(), kind: Kind::Device, bytes, direct: opens_direct(path), scratch })
    }

    /// Returns the path of the file or device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the kind of the backing.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the size in bytes that file systems may use.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the backing supports `O_DIRECT`.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Returns a directory for mount points and temporary files.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }
}

/// Fills a file with zeros.
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
    fn a_file_is_allocated_and_removed() {
        let backing = Backing::new(&Place::Ram, 1 << 20, 0, false).unwrap();
        let path = backing.path().to_owned();
        let metadata = path.metadata().unwrap();
        assert_eq!(metadata.len(), 1 << 20);
        assert!(std::os::unix::fs::MetadataExt::blocks(&metadata) * 512 >= 1 << 20);
        drop(backing);
        assert!(!path.exists());
    }

    #[test]
    fn insufficient_space_and_wrong_paths_are_errors() {
        let error = |place: &str, bytes| {
            let place: Place = place.parse().unwrap();
            format!("{:#}", Backing::new(&place, bytes, 0, false).unwrap_err())
        };
        assert!(error("ram", 1 << 60).contains("--scale"));
        assert!(error("/nowhere", 1).contains("/nowhere"));
        assert!(error("/dev/null", 1).contains("not a directory or a block device"));
        assert_eq!("ram".parse(), Ok(Place::Ram));
    }
}
