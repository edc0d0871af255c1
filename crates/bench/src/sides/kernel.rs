//! The kernel's Btrfs, on a loop device that uses direct I/O where the backing supports it.

use super::bench::{Bench, Turn};
use crate::backing::Kind;
use crate::cgroup::MemoryLimit;
use crate::fio::run::Measurement;
use crate::job::ScaledJob;
use anyhow::{Context, bail};
use papilio_oracle::loop_device::LoopDevice;
use papilio_oracle::mount::Mount;
use papilio_oracle::requirement::find_command;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The options of the original runs.
///
/// `nodiscard`: the original devices could not discard, and a discard would free blocks of the
/// backing that were allocated for all sides.
const MOUNT_OPTIONS: &str = "ssd,nodiscard";

/// A mounted file system. Fields drop in order: the mount before its device.
struct Mounted {
    mount: Mount,
    _device: Option<LoopDevice>,
}

impl Bench<'_> {
    pub(super) fn kernel(&self, turn: Turn<'_>) -> anyhow::Result<Measurement> {
        let Turn { job, fresh, stem, .. } = turn;
        if fresh {
            self.mkfs_btrfs()?;
        }
        // Mounts outside the cgroup, so that the mount's own reads do not count against its limit.
        let mounted = self.kernel_mount(job)?;
        let limit = job.cache.map(|cache| MemoryLimit::new(cache, job.file_bytes)).transpose()?;
        let mut file = job.file.clone();
        file.set("directory", mounted.mount.path().display());
        self.fio(job, &file, stem, limit.as_ref()).measure()
    }

    pub(super) fn kernel_lay_out(&self, job: &ScaledJob, stem: PathBuf) -> anyhow::Result<()> {
        self.mkfs_btrfs()?;
        let mounted = self.kernel_mount(job)?;
        let mut file = job.file.clone();
        file.set("directory", mounted.mount.path().display());
        self.fio(job, &file, stem, None).lay_out()?;
        mounted.mount.sync().context("cannot sync the files")
    }

    fn mkfs_btrfs(&self) -> anyhow::Result<()> {
        let program = find_command("mkfs.btrfs").context("mkfs.btrfs is not installed")?;
        let mut command = Command::new(program);
        command.args(["--quiet", "--force", "--nodiscard", "--csum", "crc32c", "-d", "single", "-m", "dup"]);
        command.args(["-O", "no-holes", "-R", "free-space-tree"]);
        command.arg("--byte-count").arg(self.backing.bytes().to_string()).arg(self.backing.path());
        let output = command.output().context("cannot start mkfs.btrfs")?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            bail!("mkfs.btrfs: {}", words.lines().last().unwrap_or("failed").trim());
        }
        Ok(())
    }

    fn kernel_mount(&self, job: &ScaledJob) -> anyhow::Result<Mounted> {
        let path = self.backing.path();
        let device = match self.backing.kind() {
            Kind::Device => None,
            Kind::Ram | Kind::File => Some(LoopDevice::attach_direct(path)?),
        };
        let node: &Path = device.as_ref().map_or(path, LoopDevice::path);
        let options = match job.job.nodatacow {
            true => format!("{MOUNT_OPTIONS},nodatacow"),
            false => MOUNT_OPTIONS.to_owned(),
        };
        let mount = Mount::btrfs(self.backing.scratch(), node, &options, false)?;
        Ok(Mounted { mount, _device: device })
    }
}
