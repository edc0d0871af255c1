//! A memory cgroup that limits the kernel's page cache.
//!
//! Owns [`MemoryLimit`], for cgroups v1 and v2. Dropping it removes the group.

use anyhow::Context;
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of memory for fio's processes and their shared state.
const FIO_BYTES: u64 = 32 << 20;
/// File bytes for each byte of page tables: 16 jobs map the file, with 8 bytes per page of 4 KiB.
const FILE_BYTES_PER_TABLE_BYTE: u64 = 4096 / (16 * 8);

/// A memory cgroup of this process.
#[derive(Debug)]
pub struct MemoryLimit {
    folder: PathBuf,
}

impl MemoryLimit {
    /// Creates a group with space for `cache` bytes of page cache and for fio with a file of
    /// `file_bytes`.
    ///
    /// # Errors
    /// This process cannot use a memory controller.
    pub fn new(cache: u64, file_bytes: u64) -> anyhow::Result<Self> {
        let (parent, file) = controller()?;
        let folder = parent.join(format!("papilio-bench-{}", std::process::id()));
        if folder.is_dir() {
            // Left by a killed run with the same process ID.
            let _ = fs::remove_dir(&folder);
        }
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        let group = Self { folder };
        let limit = group.folder.join(file);
        fs::write(&limit, (cache + file_bytes / FILE_BYTES_PER_TABLE_BYTE + FIO_BYTES).to_string())
            .with_context(|| limit.display().to_string())?;
        Ok(group)
    }

    /// Returns the file to which a process ID is written to move that process into the group.
    pub fn procs(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Returns why a group cannot be created; `None` if it can.
    pub fn missing() -> Option<String> {
        match controller() {
            Ok(_) if rustix::process::geteuid().is_root() => None,
            Ok(_) => Some("needs root for a memory cgroup".to_owned()),
            Err(error) => Some(format!("{error:#}")),
        }
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // The last process may still be exiting.
        for _ in 0..50 {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                _ => return,
            }
        }
        eprintln!("{}: cannot remove the cgroup: still in use", self.folder.display());
    }
}

/// Finds the memory controller's directory, and the name of the file with a group's limit.
fn controller() -> anyhow::Result<(PathBuf, &'static str)> {
    let (old, new) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
    if old.join("memory.limit_in_bytes").exists() {
        return Ok((old.to_owned(), "memory.limit_in_bytes"));
    }
    let controllers = fs::read_to_string(new.join("cgroup.subtree_control")).unwrap_or_default();
    if controllers.split_whitespace().any(|name| name == "memory") {
        return Ok((new.to_owned(), "memory.max"));
    }
    anyhow::bail!("needs a memory cgroup under /sys/fs/cgroup")
}
