//! `papilio filesystem resize`.
//!
//! An image file grows before its file system and shrinks after it, so that the file system is
//! never larger than the file. A file that holds more than the file system keeps its length.

use crate::context::Context;
use crate::jobs;
use crate::mounted::{Mounted, Target};
use crate::moving::MovingBar;
use crate::output::Output;
use crate::units::{Units, parse_size};
use anyhow::{Context as _, bail};
use papilio::device::is_raw_file;
use papilio::format::DeviceId;
use papilio::{BalanceControl, FileSystem};
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::job::JobKind;
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Change the size of a file system and of its image file
///
/// Data and metadata behind the new end are moved. max is the size of the device or image file, min
/// the end of its last chunk, to which nothing needs to be moved. cancel stops a resize that the
/// server of a mount is doing; the size then stays. Sizes take the suffixes K, M, G, T, P and E,
/// powers of 1024.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The new size in bytes, a change with a leading + or -, max, min or cancel
    ///
    /// DEVID chooses the device; without it, that is the one with id 1.
    #[arg(value_name = "[DEVID:]SIZE", allow_hyphen_values = true)]
    size: NewSize,
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Wait while the server of a mount does other work
    #[arg(long)]
    enqueue: bool,
    /// Fail if the file system is mounted
    #[arg(long, conflicts_with = "enqueue")]
    offline: bool,
}

/// The requested size of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NewSize {
    devid: DeviceId,
    size: ResizeTo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResizeTo {
    To(u64),
    More(u64),
    Less(u64),
    Min,
    Max,
    Cancel,
}

impl FromStr for NewSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (devid, text) = match text.split_once(':') {
            Some((devid, size)) => (devid.parse().map_err(|_| format!("{devid:?}: not a device id"))?, size),
            None => (1, text),
        };
        let size = match (text, text.strip_prefix('+'), text.strip_prefix('-')) {
            ("max", ..) => ResizeTo::Max,
            ("min", ..) => ResizeTo::Min,
            ("cancel", ..) => ResizeTo::Cancel,
            (_, Some(more), _) => ResizeTo::More(parse_size(more)?),
            (_, _, Some(less)) => ResizeTo::Less(parse_size(less)?),
            (text, None, None) => ResizeTo::To(parse_size(text)?),
        };
        Ok(Self { devid: DeviceId(devid), size })
    }
}

impl Args {
    /// Changes the size.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let named = |error: papilio::Error| crate::context::of_image(&self.image, error);
        let devid = self.size.devid;
        if let Target::Mounted(mounted) = Target::parse(self.image.as_os_str())? {
            if self.offline {
                bail!("{mounted}: it is mounted; --offline is for images that are not");
            }
            return self.run_mounted(context, &mounted);
        }
        if self.size.size == ResizeTo::Cancel {
            bail!("{}: no resize runs: the file system is not mounted", self.image.display());
        }
        let fs = self.open(context)?;
        let mut devices = fs.usage()?.devices.into_iter();
        let device = devices
            .find(|device| device.devid == devid)
            .with_context(|| format!("{}: the file system has no device {devid}", self.image.display()))?;
        let path = device.path.map_or_else(|| self.image.clone(), PathBuf::from);
        let shown = || path.display().to_string();
        let (before, held) = (device.total, device.size.unwrap_or(device.total));
        let is_file = is_raw_file(&path);
        let wanted = match self.size.size {
            ResizeTo::To(size) => size,
            ResizeTo::More(more) => before.checked_add(more).context("the size does not fit into 64 bits")?,
            ResizeTo::Less(less) if less >= before => bail!("{}: has only {before} bytes", shown()),
            ResizeTo::Less(less) => before - less,
            ResizeTo::Min => fs.minimum_size(devid).map_err(named)?,
            ResizeTo::Max | ResizeTo::Cancel => held,
        };
        if !is_file && wanted > held {
            let shown = shown();
            bail!("{shown}: has {held} bytes, so the file system on it cannot have {wanted}");
        }
        // Reopened below, since the size of a device is read when it is opened.
        fs.close()?;
        let grown = is_file && wanted > held;
        if grown {
            set_length(&path, wanted)?;
        }
        let fs = self.open(context)?;
        let bar = MovingBar::new(context);
        let resized = match wanted < before {
            true => fs.shrink(devid, wanted, |report| bar.show(report)),
            false => fs.resize(devid, wanted).map(Some),
        };
        drop(bar);
        let resized = resized.map_err(named).map(|size| size.expect("the command does not stop it"));
        let closed = fs.close();
        let now = match resized {
            Ok(now) => now,
            Err(error) => {
                if grown {
                    set_length(&path, held)?;
                }
                return Err(error);
            }
        };
        closed?;
        if is_file && now < before && held > now {
            set_length(&path, now)?;
        }
        self.report(context, devid, &shown(), [before, now])
    }

    /// Resizes through the server of a mount. The image file grows before and shrinks after, as it
    /// does without a mount.
    fn run_mounted(&self, context: &Context, mounted: &Mounted) -> anyhow::Result<()> {
        let devid = self.size.devid;
        let mount = mounted.open()?;
        let devices = mount.usage().map_err(|error| mounted.at(&error));
        let size = match self.size.size {
            ResizeTo::To(size) => size.to_string(),
            ResizeTo::More(more) => format!("+{more}"),
            ResizeTo::Less(less) => format!("-{less}"),
            ResizeTo::Max => "max".to_owned(),
            ResizeTo::Min if !mounted.mount.is_papilio() => {
                bail!("{mounted}: only a mount of Papilio resizes to min; give a size")
            }
            ResizeTo::Min => "min".to_owned(),
            ResizeTo::Cancel if mounted.mount.is_papilio() => {
                return jobs::stop(mounted, JobKind::Resize, BalanceControl::Cancel);
            }
            ResizeTo::Cancel => "cancel".to_owned(),
        };
        let resize = || self.resize_when_free(mounted, &mount, &format!("{devid}:{size}"));
        let devices = match devices {
            Ok(usage) => usage.devices,
            // This is the kernel's Btrfs, which resizes no image files.
            Err(_) if !mounted.mount.is_papilio() => return resize(),
            Err(error) => return Err(error),
        };
        let device = devices.into_iter().find(|device| device.devid == devid);
        let device = device.with_context(|| format!("{mounted}: the file system has no device {devid}"))?;
        let (before, held) = (device.total, device.size.unwrap_or(device.total));
        let wanted = match self.size.size {
            ResizeTo::To(size) => size,
            ResizeTo::More(more) => before.checked_add(more).context("the size does not fit into 64 bits")?,
            ResizeTo::Less(less) => before.saturating_sub(less),
            ResizeTo::Max | ResizeTo::Cancel => held,
            // The server knows it, and never grows the device.
            ResizeTo::Min => before,
        };
        let shown = device.path.clone().unwrap_or_default();
        let path = device.path.map(PathBuf::from).filter(|path| is_raw_file(path));
        let grown = path.as_deref().filter(|_| wanted > held);
        if let Some(path) = grown {
            set_length(path, wanted)?;
        }
        if let Err(error) = resize() {
            if let Some(path) = grown {
                set_length(path, held)?;
            }
            return Err(error);
        }
        let now = match self.size.size {
            ResizeTo::Min => {
                let usage = mount.usage().map_err(|error| mounted.at(&error))?;
                usage.devices.iter().find(|device| device.devid == devid).map_or(before, |found| found.total)
            }
            _ => wanted - wanted % SECTOR,
        };
        if let Some(path) = path
            && now < before
            && held > now
        {
            set_length(&path, now)?;
        }
        self.report(context, devid, &shown, [before, now])
    }

    /// Prints the change of the size of a device.
    fn report(
        &self,
        context: &Context,
        devid: DeviceId,
        device: &str,
        [before, now]: [u64; 2],
    ) -> anyhow::Result<()> {
        let text = |bytes| Units::HUMAN.text(bytes);
        let (old, new) = (text(before), text(now));
        if context.verbosity < 0 {
            return Ok(());
        }
        let mut output = Output::new()?;
        if context.arguments().drop_in {
            let new = if self.size.size == ResizeTo::Max { "max".to_owned() } else { new };
            output.text(format_args!("Resize device id {devid} ({device}) from {old} to {new}\n"))?;
        } else {
            output.text(format_args!("device {devid}: {old} -> {new} ({now} bytes)\n"))?;
        }
        Ok(output.finish()?)
    }

    /// Asks the server to resize; with --enqueue again while it does other work.
    fn resize_when_free(&self, mounted: &Mounted, mount: &MountedPath, size: &str) -> anyhow::Result<()> {
        loop {
            let Err(error) = mount.resize(size) else { return Ok(()) };
            let busy = [Errno::INPROGRESS, Errno::TXTBSY].map(|busy| Some(busy.raw_os_error()));
            if !(self.enqueue && busy.contains(&error.raw_os_error())) {
                return Err(resize_error(mounted, mount, self.size.devid, &error));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Opens the file system apart from those of the run, since it must be closed in between.
    fn open(&self, context: &Context) -> anyhow::Result<FileSystem> {
        let options = context.options_for(&self.image).write(true).commit_interval(None);
        let opened = FileSystem::open_with(&self.image, &options);
        opened.map_err(|error| crate::context::of_image(&self.image, error))
    }
}

/// How long --enqueue waits between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// The unit that sizes are rounded down to, in bytes.
const SECTOR: u64 = 4096;

/// Returns the reason why a server has not changed the size.
fn resize_error(
    mounted: &Mounted,
    mount: &MountedPath,
    devid: DeviceId,
    error: &std::io::Error,
) -> anyhow::Error {
    let held = || {
        let device = mount.usage().ok()?.devices.into_iter().find(|device| device.devid == devid)?;
        Some(format!(": it has {} bytes", device.size?))
    };
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::FBIG) => {
            anyhow::anyhow!("{mounted}: device {devid} is not that large{}", held().unwrap_or_default())
        }
        Some(rustix::io::Errno::NOSPC) => {
            anyhow::anyhow!("{mounted}: the new size has no room for the data")
        }
        Some(rustix::io::Errno::NODEV) => {
            anyhow::anyhow!("{mounted}: the file system has no device {devid}")
        }
        _ => mounted.at(error),
    }
}

fn set_length(path: &Path, length: u64) -> anyhow::Result<()> {
    let shown = || path.display().to_string();
    let file = File::options().write(true).open(path).with_context(shown)?;
    file.set_len(length).with_context(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_like_in_btrfs_progs() {
        let size = |text: &str| text.parse::<NewSize>().map(|new| (new.devid.0, new.size));
        assert_eq!(size("1G"), Ok((1, ResizeTo::To(1 << 30))));
        assert_eq!(size("2:+5m"), Ok((2, ResizeTo::More(5 << 20))));
        assert_eq!(size("-5m"), Ok((1, ResizeTo::Less(5 << 20))));
        assert_eq!(size("1:max"), Ok((1, ResizeTo::Max)));
        assert_eq!(size("cancel"), Ok((1, ResizeTo::Cancel)));
        for wrong in ["", "x", "x:1G", "1:", "+"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
