//! File systems made by `mkfs.btrfs` and mounted by the kernel.
//!
//! - [`FileSystemSpec`]: the parameters of a file system.
//! - [`ImageSet`]: its image files, one per device.
//! - [`Mounted`]: a mount of them, with its loop devices.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::loop_device::LoopDevice;
use crate::mount::Mount;
use crate::scratch::{self, Scratch};
use crate::{requirement, sys};

/// Mounts the whole file system, independent of the default subvolume.
const TOP_LEVEL: &str = "subvolid=5";

/// Quotas to enable after the first mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quota {
    /// None.
    #[default]
    Off,
    /// Quota groups with full accounting.
    Full,
    /// Simple quotas (kernel 6.7).
    Simple,
}

/// Parameters for `mkfs.btrfs` and for the writable mount. `None` leaves a choice to mkfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystemSpec {
    /// Number of devices.
    pub devices: usize,
    /// Size of each device in bytes. The files are sparse.
    pub device_size: u64,
    /// `--csum`: crc32c, xxhash, sha256, blake2.
    pub csum: Option<String>,
    /// `--nodesize`, in bytes.
    pub nodesize: Option<u32>,
    /// `--sectorsize`, in bytes.
    pub sectorsize: Option<u32>,
    /// `--data`.
    pub data_profile: Option<String>,
    /// `--metadata`.
    pub metadata_profile: Option<String>,
    /// `--mixed`.
    pub mixed: bool,
    /// `-O`, for example `^no-holes`.
    pub features: Vec<String>,
    /// `-R`, for example `^free-space-tree`.
    pub runtime_features: Vec<String>,
    /// `--label`.
    pub label: Option<String>,
    /// `--uuid`.
    pub uuid: Option<String>,
    /// Options of the writable mount.
    pub mount_options: Vec<String>,
    /// Enabled by `make`, in a mount of its own.
    pub quota: Quota,
}

impl Default for FileSystemSpec {
    fn default() -> Self {
        Self {
            devices: 1,
            device_size: 512 << 20,
            csum: None,
            nodesize: None,
            sectorsize: None,
            data_profile: None,
            metadata_profile: None,
            mixed: false,
            features: Vec::new(),
            runtime_features: Vec::new(),
            label: None,
            uuid: None,
            mount_options: Vec::new(),
            quota: Quota::Off,
        }
    }
}

impl FileSystemSpec {
    /// Returns the specification with devices large enough, in every profile, for `bytes` of data
    /// and its metadata.
    #[must_use]
    pub fn sized_for(mut self, bytes: u64) -> Self {
        // On n devices a profile stores each byte at most n times (DUP, on one device: twice). Half
        // as much again covers metadata, changes after snapshots and partly filled chunks.
        self.device_size = self.device_size.max((512 << 20) + bytes.saturating_mul(3));
        self
    }

    /// Returns the number of bytes on all devices per byte of data, rounded up.
    pub fn copies(&self) -> u64 {
        match self.data_profile.as_deref() {
            Some("dup" | "raid1" | "raid10" | "raid5" | "raid6") => 2,
            Some("raid1c3") => 3,
            Some("raid1c4") => 4,
            _ => 1,
        }
    }

    /// Makes the file system in new images in `scratch`.
    ///
    /// # Errors
    /// The images cannot be created, or `mkfs.btrfs` fails; the error includes its output.
    pub fn make(&self, scratch: &Scratch) -> anyhow::Result<ImageSet> {
        self.make_in(scratch, scratch.path(), &scratch.unique("device").to_string_lossy())
    }

    /// Makes the file system in new images `STEM-NUMBER.img` in `folder`. Outside the scratch
    /// folder they outlive it. Mount points are in `scratch`.
    ///
    /// # Errors
    /// The images cannot be created (or exist already), or `mkfs.btrfs` fails.
    pub fn make_in(&self, scratch: &Scratch, folder: &Path, stem: &str) -> anyhow::Result<ImageSet> {
        let mut images = Vec::with_capacity(self.devices);
        for number in 0..self.devices {
            let image = folder.join(format!("{stem}-{number}.img"));
            scratch::create_image(&image, self.device_size).with_context(|| image.display().to_string())?;
            images.push(image);
        }
        run(self.command(&images)?)?;
        let set = ImageSet { images, scratch: scratch.clone(), spec: self.clone() };
        if self.quota != Quota::Off {
            let mounted = set.mount()?;
            sys::enable_quota(mounted.path(), self.quota == Quota::Simple).context("enable quotas")?;
            // The first accounting runs in the background; later writes are counted in any case.
            mounted.unmount()?;
        }
        Ok(set)
    }

    fn command(&self, images: &[PathBuf]) -> anyhow::Result<Command> {
        let mut command = tool("mkfs.btrfs")?;
        // The images are sparse already, so a discard would only take time.
        command.args(["--quiet", "--force", "--nodiscard"]);
        let numbers = [("--nodesize", self.nodesize), ("--sectorsize", self.sectorsize)];
        for (option, value) in numbers {
            if let Some(value) = value {
                command.arg(option).arg(value.to_string());
            }
        }
        for (option, value) in [
            ("--csum", &self.csum),
            ("--data", &self.data_profile),
            ("--metadata", &self.metadata_profile),
            ("--label", &self.label),
            ("--uuid", &self.uuid),
        ] {
            if let Some(value) = value {
                command.arg(option).arg(value);
            }
        }
        for (option, list) in [("-O", &self.features), ("-R", &self.runtime_features)] {
            if !list.is_empty() {
                command.arg(option).arg(list.join(","));
            }
        }
        if self.mixed {
            command.arg("--mixed");
        }
        command.args(images);
        Ok(command)
    }
}

/// The image files of one file system.
#[derive(Clone, Debug)]
pub struct ImageSet {
    images: Vec<PathBuf>,
    scratch: Scratch,
    spec: FileSystemSpec,
}

impl ImageSet {
    /// Opens existing images, one per device.
    pub fn open(scratch: &Scratch, images: Vec<PathBuf>) -> Self {
        let spec = FileSystemSpec { devices: images.len(), ..FileSystemSpec::default() };
        Self { images, scratch: scratch.clone(), spec }
    }

    /// Returns the image files, in the order of the device ids.
    pub fn paths(&self) -> &[PathBuf] {
        &self.images
    }

    /// Returns the specification that the images were made with.
    pub fn spec(&self) -> &FileSystemSpec {
        &self.spec
    }

    /// Mounts the top-level subvolume read-write, with the options of the specification.
    ///
    /// # Errors
    /// No loop device is free, or the kernel refuses the mount.
    pub fn mount(&self) -> anyhow::Result<Mounted> {
        let mut options = vec![TOP_LEVEL.to_owned()];
        options.extend(self.spec.mount_options.iter().cloned());
        self.mount_with(&options, false)
    }

    /// Mounts the top-level subvolume read-only.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub fn mount_read_only(&self) -> anyhow::Result<Mounted> {
        self.mount_with(&[TOP_LEVEL.to_owned()], true)
    }

    /// Mounts with the caller's options; without `subvol` or `subvolid`, the default subvolume.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub fn mount_with(&self, options: &[String], read_only: bool) -> anyhow::Result<Mounted> {
        let loops = self.attach(read_only)?;
        // Naming the other devices here spares the kernel a udev scan.
        let named = loops.iter().skip(1).map(|device| format!("device={}", device.path().display()));
        let options: Vec<String> = named.chain(options.iter().cloned()).collect();
        let first = loops.first().context("the file system has no devices")?;
        let mount = Mount::btrfs(&self.scratch, first.path(), &options.join(","), read_only)?;
        Ok(Mounted { mount, _loops: loops })
    }

    /// Attaches each image to a loop device.
    ///
    /// # Errors
    /// No loop device is free.
    pub fn attach(&self, read_only: bool) -> anyhow::Result<Vec<LoopDevice>> {
        self.images.iter().map(|image| LoopDevice::attach(image, read_only)).collect()
    }

    /// Runs `btrfs check --readonly` with data checksums on the unmounted images, and returns its
    /// output.
    ///
    /// # Errors
    /// The check finds a fault (the error includes its output) or cannot run.
    pub fn btrfs_check(&self) -> anyhow::Result<String> {
        let loops = self.attach(true)?;
        let mut command = tool("btrfs")?;
        command.args(["check", "--readonly", "--check-data-csum"]);
        command.arg(loops.first().context("the file system has no devices")?.path());
        run(command)
    }

    /// Returns whether btrfs-progs 6.2 supports every feature of the file system; it refuses simple
    /// quotas.
    pub fn checkable(&self) -> bool {
        self.spec.quota != Quota::Simple
    }
}

/// A mounted file system. Dropping it unmounts it, then detaches the loop devices.
#[derive(Debug)]
pub struct Mounted {
    // Fields are dropped in declaration order: unmount first.
    mount: Mount,
    _loops: Vec<LoopDevice>,
}

impl Mounted {
    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Commits all writes.
    ///
    /// # Errors
    /// The file system's.
    pub fn sync(&self) -> std::io::Result<()> {
        self.mount.sync()
    }

    /// Commits, reporting errors, then unmounts and detaches.
    ///
    /// # Errors
    /// The last commit fails.
    pub fn unmount(self) -> anyhow::Result<()> {
        self.sync().context("sync before unmounting")
    }
}

/// Returns a command of the host, also one for root only.
pub(crate) fn tool(name: &str) -> anyhow::Result<Command> {
    let path = requirement::find_command(name).with_context(|| format!("{name} is not installed"))?;
    Ok(Command::new(path))
}

/// Runs a command to completion and returns its output.
fn run(mut command: Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        bail!("{command:?}: {}\n{}", output.status, text.trim_end());
    }
    Ok(text)
}
