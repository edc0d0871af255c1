//! The kernel's cleaner of deleted subvolumes, which sleeps for up to 30 seconds.
//!
//! Owns [`clean_subvolumes`]. Kernel counterpart: `BTRFS_IOC_SYNC` in `btrfs_ioctl`
//! (`fs/btrfs/ioctl.c`), which wakes it.

use crate::mkfs::tool;
use anyhow::{Context as _, ensure};
use std::path::Path;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(50);

/// Waits until the kernel has cleaned up all deleted subvolumes of its mount at `root`, and commits
/// meanwhile: each commit that a program asks for wakes the cleaner.
///
/// # Errors
/// There is no command `btrfs`, or it fails.
pub fn clean_subvolumes(root: &Path) -> anyhow::Result<()> {
    let mut waits =
        tool("btrfs")?.args(["subvolume", "sync", "-s", "1"]).arg(root).spawn().context("btrfs")?;
    let status = loop {
        let synced = tool("btrfs")?.args(["filesystem", "sync"]).arg(root).status().context("btrfs")?;
        if let Some(status) = waits.try_wait()? {
            ensure!(synced.success(), "btrfs filesystem sync: {synced}");
            break status;
        }
        std::thread::sleep(PAUSE);
    };
    ensure!(status.success(), "btrfs subvolume sync: {status}");
    Ok(())
}
