//! A memory cgroup: the limit that the kernel's page cache is run under.
//!
//! Owns [`MemoryLimit`], for both versions of cgroups. The group is removed when dropped.

use anyhow::Context;
use std::fs;
use std::path::{Path, PathBuf};

/// What fio itself needs beside the cache: its processes' memory and shared state ...
const FIO_BYTES: u64 = 32 << 20;
/// ... and the page tables of its mappings: 16 jobs, 8 bytes for each page of the file.
const TABLES: u64 = 4096 / (16 * 8);

/// A memory cgroup of our own.
#[derive(Debug)]
pub struct MemoryLimit {
    folder: PathBuf,
}

impl MemoryLimit {
    /// Makes a group that holds `cache` bytes of page cache, and fio with a file of `file_bytes`.
    ///
    /// # Errors
    /// There is no memory controller that this process may use.
    pub fn new(cache: u64, file_bytes: u64) -> anyhow::Result<Self> {
        let (parent, file) = controller()?;
        let folder = parent.join(format!("papilio-bench-{}", std::process::id()));
        if folder.is_dir() {
            // Left by a killed run whose number came round again.
            let _ = fs::remove_dir(&folder);
        }
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        let group = Self { folder };
        let limit = group.folder.join(file);
        fs::write(&limit, (cache + file_bytes / TABLES + FIO_BYTES).to_string())
            .with_context(|| limit.display().to_string())?;
        Ok(group)
    }

    /// The file that takes the number of a process that shall live in the group.
    pub fn procs(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Why there can be none; `None` where there can.
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
        // The last process may not be quite gone yet.
        for _ in 0..50 {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                _ => return,
            }
        }
        eprintln!("{}: not removed", self.folder.display());
    }
}

/// The folder of the memory controller, and the name of the file that limits a group in it.
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
