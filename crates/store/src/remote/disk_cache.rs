//! `DiskCache`: pieces of objects in files, one for each piece, shared by processes.
//!
//! It owns one directory: that of a state of an object, or that of all segments of a store. Its
//! name is the SHA-256 of a key. A file has a checksum and a piece. It is written under another
//! name and then renamed, so a reader sees all of it or nothing.
//!
//! **Invariants**
//! - A file with a wrong checksum or length is never used.
//! - No failure of the cache fails a read: the block is fetched instead.
//! - The files of all objects have at most the limit in bytes, exceeded by a tenth at most for each
//!   process that writes. Files that were used longest ago are removed first.
//! - Other users cannot read the files. Those of an encrypted device are encrypted.
//!
//! **Locks**: none; `written` is atomic.

use crate::sealed::Sealing;
use crc_fast::CrcAlgorithm;
use papilio_device::{RemoteCache, RemoteOptions};
use sha2::{Digest, Sha256};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Bytes of the checksum before a block.
const HEADER: usize = 8;
const TEMPORARY: &str = "tmp";

/// The files of one object.
#[derive(Debug)]
pub(crate) struct DiskCache {
    root: PathBuf,
    directory: PathBuf,
    limit: u64,
    sealing: Option<Arc<Sealing>>,
    /// Bytes written since files were removed last.
    written: AtomicU64,
}

/// Returns the directory of the cache that options choose; `None` for a cache in memory only.
pub(crate) fn root_of(options: &RemoteOptions) -> Option<PathBuf> {
    let root = match &options.cache {
        RemoteCache::User => users_directory(),
        RemoteCache::Directory(path) => Some(path.clone()),
        RemoteCache::Memory => None,
    };
    root.filter(|_| options.cache_bytes > 0)
}

/// Returns the name of the directory for `key`.
pub(crate) fn directory_name(key: &str) -> String {
    Sha256::digest(key.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the directory of the user's cache.
fn users_directory() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("papilio/remote"))
}

fn sum(name: &str, bytes: &[u8]) -> u64 {
    let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(name.as_bytes());
    digest.update(bytes);
    digest.finalize()
}

impl DiskCache {
    /// Opens the cache of the object's state that `key` names, below `root`. `None` if the
    /// directory cannot be made.
    pub(crate) fn open(root: &Path, key: &str, limit: u64) -> Option<Self> {
        let directory = root.join(directory_name(key));
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).ok()?;
        let (root, written) = (root.to_owned(), AtomicU64::new(0));
        Some(Self { root, directory, limit, sealing: None, written })
    }

    /// Returns the same cache with files that are encrypted, if there is a cipher.
    pub(crate) fn sealed_by(self, sealing: Option<Arc<Sealing>>) -> Self {
        Self { sealing, ..self }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the piece of this name, which has `length` bytes, if it is there and whole.
    pub(crate) fn read(&self, name: &str, length: usize) -> Option<Vec<u8>> {
        match &self.sealing {
            None => self.read_file(name, length),
            Some(sealing) => {
                let stored = self.read_file(name, length + Sealing::cached_overhead())?;
                sealing.open_cached(name, &stored)
            }
        }
    }

    fn read_file(&self, name: &str, length: usize) -> Option<Vec<u8>> {
        let mut file = File::open(self.path(name)).ok()?;
        let mut header = [0; HEADER];
        file.read_exact(&mut header).ok()?;
        let mut bytes = Vec::with_capacity(length);
        (&file).take(length as u64 + 1).read_to_end(&mut bytes).ok()?;
        if bytes.len() != length || sum(name, &bytes).to_le_bytes() != header {
            return None;
        }
        // The time of the last use, which decides what is removed.
        let _ = file.set_modified(SystemTime::now());
        Some(bytes)
    }

    /// Keeps a piece.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        match &self.sealing {
            None => self.write_file(name, bytes),
            Some(sealing) => {
                // A piece that cannot be sealed is not kept.
                if let Ok(stored) = sealing.seal_cached(name, bytes) {
                    self.write_file(name, &stored);
                }
            }
        }
    }

    fn write_file(&self, name: &str, bytes: &[u8]) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = self.directory.join(format!("{}-{number}.{TEMPORARY}", std::process::id()));
        let write = || {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(&sum(name, bytes).to_le_bytes())?;
            file.write_all(bytes)?;
            fs::rename(&temporary, self.path(name))
        };
        if write().is_err() {
            let _ = fs::remove_file(&temporary);
        }
        let length = (HEADER + bytes.len()) as u64;
        let total = self.written.fetch_add(length, Ordering::Relaxed) + length;
        if total > self.limit / 10 && self.written.swap(0, Ordering::Relaxed) > 0 {
            self.shrink();
        }
    }

    /// Removes the files that were used longest ago until the limit is kept.
    pub(crate) fn shrink(&self) {
        let mut files = Vec::new();
        let mut total = 0;
        for directory in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            for file in fs::read_dir(directory.path()).into_iter().flatten().flatten() {
                let Ok(metadata) = file.metadata() else { continue };
                total += metadata.len();
                files.push((
                    metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                    metadata.len(),
                    file.path(),
                ));
            }
        }
        if total <= self.limit {
            return;
        }
        files.sort();
        for (_, length, path) in files {
            if total <= self.limit / 10 * 9 {
                break;
            }
            if fs::remove_file(&path).is_ok() {
                total -= length;
            }
            // Fails while other files are in it.
            if let Some(parent) = path.parent().filter(|parent| *parent != self.directory) {
                let _ = fs::remove_dir(parent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_in(root: &Path) -> u64 {
        let directories = fs::read_dir(root).unwrap().flatten();
        let files = directories.flat_map(|directory| fs::read_dir(directory.path()).unwrap().flatten());
        files.map(|file| file.metadata().unwrap().len()).sum()
    }

    #[test]
    fn damaged_files_are_not_used() {
        let root = tempfile::tempdir().unwrap();
        let cache = DiskCache::open(root.path(), "a", 1 << 20).unwrap();
        cache.write("3", &[5; 1000]);
        assert_eq!(cache.read("3", 1000), Some(vec![5; 1000]));
        assert_eq!(cache.read("3", 999), None);
        assert_eq!(cache.read("4", 1000), None);
        fs::rename(cache.path("3"), cache.path("4")).unwrap();
        assert_eq!(cache.read("4", 1000), None, "the block of another place");
        let mut bytes = fs::read(cache.path("4")).unwrap();
        fs::rename(cache.path("4"), cache.path("3")).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(cache.path("3"), bytes).unwrap();
        assert_eq!(cache.read("3", 1000), None);
        assert_eq!(DiskCache::open(root.path(), "b", 1 << 20).unwrap().read("3", 1000), None);
    }

    #[test]
    fn the_limit_is_kept_for_all_objects() {
        let root = tempfile::tempdir().unwrap();
        let limit = 100_000;
        for key in ["a", "b", "c"] {
            let cache = DiskCache::open(root.path(), key, limit).unwrap();
            for block in 0..50 {
                cache.write(&block.to_string(), &[block as u8; 4000]);
                assert!(bytes_in(root.path()) <= limit + limit / 10 + 4008);
            }
            assert_eq!(cache.read("49", 4000), Some(vec![49; 4000]), "the newest is kept");
        }
    }
}
