//! The speed of the kernel's scrubs: a file in sysfs for each device.
//!
//! Owns [`OwnSpeed`], the limit of one scrub. The files are `devinfo/DEVID/scrub_speed_max` in
//! `/sys/fs/btrfs/FSID` (Linux 5.14 and later); 0 stands for no limit.

use crate::mounted::Mounted;
use anyhow::Context as _;
use papilio::format::{DeviceId, Uuid};
use std::fs;
use std::path::PathBuf;

fn file(fsid: Uuid, devid: DeviceId) -> PathBuf {
    PathBuf::from(format!("/sys/fs/btrfs/{fsid}/devinfo/{devid}/scrub_speed_max"))
}

fn read(fsid: Uuid, devid: DeviceId) -> anyhow::Result<u64> {
    let path = file(fsid, devid);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    text.trim().parse().with_context(|| format!("{}: not a number", path.display()))
}

fn write(fsid: Uuid, devid: DeviceId, limit: u64) -> anyhow::Result<()> {
    let path = file(fsid, devid);
    fs::write(&path, format!("{limit}\n")).with_context(|| path.display().to_string())
}

/// Sets the bytes that a scrub reads of each of these devices in a second, or returns those that
/// are set.
pub fn limits(fsid: Uuid, devices: &[DeviceId], limit: Option<u64>) -> anyhow::Result<Vec<(DeviceId, u64)>> {
    let each = |&devid: &DeviceId| {
        if let Some(limit) = limit {
            write(fsid, devid, limit)?;
        }
        Ok((devid, read(fsid, devid)?))
    };
    devices.iter().map(each).collect()
}

/// The limit of one scrub. Dropping it restores the limits before.
pub struct OwnSpeed {
    fsid: Uuid,
    before: Vec<(DeviceId, u64)>,
}

impl OwnSpeed {
    /// Sets the limit of these devices.
    pub fn set(mounted: &Mounted, fsid: Uuid, devices: &[DeviceId], limit: u64) -> anyhow::Result<Self> {
        let mut own = Self { fsid, before: Vec::new() };
        for &devid in devices {
            let before = read(fsid, devid).with_context(|| mounted.to_string())?;
            write(fsid, devid, limit)?;
            own.before.push((devid, before));
        }
        Ok(own)
    }
}

impl Drop for OwnSpeed {
    fn drop(&mut self) {
        for &(devid, limit) in &self.before {
            // A device that was removed meanwhile has no file.
            let _ = write(self.fsid, devid, limit);
        }
    }
}
