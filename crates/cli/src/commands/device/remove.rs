//! `papilio device remove`.

use crate::commands::filesystem::{OpenedAs, RedundancyArgs, warn_of_profiles};
use crate::context::{Context, of_image};
use crate::devices::absolute;
use crate::jobs;
use crate::kernel_jobs;
use crate::mounted::{Mounted, Target};
use crate::moving::MovingBar;
use crate::output::Output;
use crate::usage_error::UsageError;
use anyhow::{Context as _, bail};
use papilio::format::DeviceId;
use papilio::{BalanceControl, FileSystem, FoundDevice};
use papilio_ioctl::job::{JobKind, JobState};
use std::path::{Path, PathBuf};

/// Move all data off devices, then remove them from the file system
///
/// Interrupting the command loses nothing. The device of an image then stays part of the file
/// system; the server of a mount goes on, until `device remove cancel PATH` stops it. The word
/// missing stands for the first device that is missing, which needs --degraded.
#[derive(Debug, clap::Args)]
#[command(visible_alias = "delete")]
pub struct Args {
    /// Devices by devid or path, missing or cancel, then an image or device that stays, or a
    /// directory in the mount
    #[arg(required = true, value_name = "DEVID|DEVICE... IMAGE|PATH")]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    devices: Vec<PathBuf>,
    /// Wait while the server of a mount does other work
    #[arg(long)]
    enqueue: bool,
    /// Skip the countdown before several devices are removed; only the command named btrfs has one
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    redundancy: RedundancyArgs,
}

/// Stands for the first missing device.
const MISSING: &str = "missing";

impl Args {
    /// Removes the devices.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let (image, removed) = self.devices.split_last().expect("clap requires one");
        if removed.is_empty() {
            return Err(UsageError::new("device remove: name a device and an image or path").into());
        }
        let cancels = removed.iter().any(|name| name.as_os_str() == "cancel");
        if cancels && removed.len() > 1 {
            return Err(UsageError::new("device remove: cancel stands alone").into());
        }
        if context.arguments().drop_in && !self.force && removed.len() > 1 {
            let count = removed.len();
            context.count_down(format_args!("{count} devices are removed one after the other"));
        }
        if let Target::Mounted(mounted) = Target::parse(image.as_os_str())? {
            if cancels {
                return jobs::stop(&mounted, JobKind::RemoveDevice, BalanceControl::Cancel);
            }
            run_mounted(context, &mounted, removed, self.enqueue)?;
            self.redundancy.apply(context, image, &OpenedAs::Mounted(&mounted))?;
            if let Err(error) = warn_of_profiles(context, image) {
                context.warning(format_args!("cannot read the profiles: {error:#}"));
            }
            return Ok(());
        }
        if cancels {
            bail!("{}: no device is being removed: the file system is not mounted", image.display());
        }
        let fs = context.change(image)?;
        context.changed_devices.note([image]);
        for name in removed {
            let devid = device_id(&fs, name)?;
            let devices = fs.usage()?.devices;
            let path =
                devices.into_iter().find(|device| device.devid == devid).and_then(|device| device.path);
            let bar = MovingBar::new(context);
            let gone =
                fs.remove_device(devid, |report| bar.show(report)).map_err(|error| of_image(image, error));
            drop(bar);
            gone.with_context(|| format!("device {devid}"))?;
            context.changed_devices.note_removed(path.map(PathBuf::from));
            if context.tells_more() {
                let mut output = Output::new()?;
                output.text(format_args!("device {devid} removed\n"))?;
                output.finish()?;
            }
        }
        self.redundancy.apply(context, image, &OpenedAs::Image(&fs))
    }
}

/// Removes the devices of a mount one after the other.
fn run_mounted(
    context: &Context,
    mounted: &Mounted,
    removed: &[PathBuf],
    enqueue: bool,
) -> anyhow::Result<()> {
    if !mounted.mount.is_papilio() {
        let mount = mounted.open()?;
        for name in removed {
            let missing = name.as_os_str() == MISSING;
            if let Some(id) = number(name) {
                let known = mount.device_paths().map_err(|error| mounted.at(&error))?;
                if !known.iter().any(|(devid, _)| devid.0 == id) {
                    return Err(no_device(context, name));
                }
            }
            let devid = kernel_jobs::remove(mounted, &mount, name, missing, enqueue)?;
            if context.tells_more() {
                let mut output = Output::new()?;
                match devid {
                    Some(devid) => output.text(format_args!("device {devid} removed\n"))?,
                    None => output.text(format_args!("the missing device was removed\n"))?,
                }
                output.finish()?;
            }
        }
        return Ok(());
    }
    let mount = jobs::open(mounted)?;
    for name in removed {
        let devices = mount.usage().map_err(|error| mounted.at(&error))?.devices;
        let whole = absolute(name).unwrap_or_else(|_| name.clone());
        let is_named = |device: &&papilio::DeviceUsage| {
            if name.as_os_str() == MISSING {
                return device.is_missing();
            }
            name.to_str() == Some(&*device.devid.0.to_string())
                || device
                    .path
                    .as_deref()
                    .is_some_and(|path| Path::new(path) == whole || Path::new(path) == name)
        };
        let Some(device) = devices.iter().find(is_named) else { return Err(no_device(context, name)) };
        let (devid, path) = (device.devid, device.path.clone().map(PathBuf::from));
        jobs::start(mounted, &mount, JobKind::RemoveDevice, enqueue, || mount.start_remove_device(devid))?;
        let status = jobs::follow_moves(context, mounted, &mount)?;
        if status.state == JobState::Done {
            context.changed_devices.note_removed(path);
        }
        if context.tells_more() && status.state == JobState::Done {
            let mut output = Output::new()?;
            output.text(format_args!("device {devid} removed\n"))?;
            output.finish()?;
        }
    }
    Ok(())
}

/// Returns the id by which a device is named.
fn number(name: &Path) -> Option<u64> {
    name.to_str().and_then(|name| name.parse().ok())
}

/// Returns the error for a device that the file system does not have: of an id under the name
/// `btrfs` in its words for the kernel's ENOENT.
fn no_device(context: &Context, name: &Path) -> anyhow::Error {
    let shown = name.display();
    match context.arguments().drop_in && number(name).is_some() {
        true => anyhow::anyhow!("error removing devid {shown}: No such file or directory"),
        false => anyhow::anyhow!("{shown}: is not a device of the file system"),
    }
}

/// Returns the id of a device that is named by its id or its path.
fn device_id(fs: &FileSystem, name: &Path) -> anyhow::Result<DeviceId> {
    if let Some(number) = name.to_str().and_then(|text| text.parse().ok()) {
        return Ok(DeviceId(number));
    }
    if name.as_os_str() == MISSING {
        let missing = fs.usage()?.devices.into_iter().find(papilio::DeviceUsage::is_missing);
        return Ok(missing.context("no missing devices found to remove")?.devid);
    }
    let found = FoundDevice::read(name)?;
    match found {
        Some(device) if device.fsid == fs.superblock().raw.fsid => Ok(device.devid),
        _ => bail!("{}: is not a device of the file system", name.display()),
    }
}
