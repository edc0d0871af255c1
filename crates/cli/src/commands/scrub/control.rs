//! `papilio scrub cancel` and `papilio scrub limit`.

use super::code::NOTHING;
use super::image::image_of;
use super::state::Folder;
use crate::context::Context;
use crate::mounted::Target;
use crate::output::Output;
use crate::units::parse_size;
use papilio::{DeviceId, FoundDevice};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time between two looks at whether the scrub has ended.
const LOOK: Duration = Duration::from_millis(50);

/// Stop a running scrub
///
/// Returns when it has stopped. `papilio scrub resume` continues it.
#[derive(Debug, clap::Args)]
pub struct Cancel {
    /// The image or device, or a directory in a mount
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
}

/// Limit the bytes that a scrub reads per second
///
/// Holds for the running scrub and for later ones of this file system. Without a limit, prints the
/// one that is set. On a mount of the kernel's Btrfs the limit is that of each device, until the
/// unmount.
#[derive(Debug, clap::Args)]
pub struct Limit {
    /// The limit of all devices together, for example 100M; 0 for none; on a mount of the kernel's
    /// Btrfs that of each device
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    limit: Option<u64>,
    /// Only the device with this id, on a mount of the kernel's Btrfs
    #[arg(short, long, value_name = "DEVID", conflicts_with = "all")]
    devid: Option<u64>,
    /// All devices, as without -d
    #[arg(short, long, requires = "limit")]
    all: bool,
    /// The image or device, or a directory in a mount
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
}

fn folder_of(image: &Path) -> anyhow::Result<Folder> {
    let image = image_of(image)?;
    match FoundDevice::read(&image)? {
        Some(found) => Folder::of(found.fsid),
        None => anyhow::bail!("{}: no Btrfs file system", image.display()),
    }
}

impl Cancel {
    /// Stops the scrub.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if let Target::Mounted(mounted) = Target::parse(self.image.as_os_str())? {
            if !super::mounted::cancel(&mounted)? {
                context.fail_with(NOTHING, format_args!("{mounted}: no scrub is running"));
                return Ok(());
            }
            let mut output = Output::new()?;
            output.text(format_args!("scrub cancelled\n"))?;
            return Ok(output.finish()?);
        }
        let folder = folder_of(&self.image)?;
        if folder.lock()?.is_some() {
            context.fail_with(NOTHING, format_args!("{}: no scrub is running", self.image.display()));
            return Ok(());
        }
        folder.request_stop()?;
        while folder.lock()?.is_none() {
            std::thread::sleep(LOOK);
        }
        folder.clear_stop();
        let mut output = Output::new()?;
        output.text(format_args!("scrub cancelled\n"))?;
        Ok(output.finish()?)
    }
}

impl Limit {
    /// Sets or prints the limit.
    pub fn run(self, _context: &Context) -> anyhow::Result<()> {
        let folder = match Target::parse(self.image.as_os_str())? {
            Target::Mounted(mounted) if !mounted.mount.is_papilio() => {
                let only = self.devid.map(DeviceId);
                let limits = super::kernel::limits(&mounted, only, self.limit)?;
                return if self.limit.is_some() { Ok(()) } else { print_limits(&limits) };
            }
            _ if self.devid.is_some() => anyhow::bail!(
                "{}: Papilio bounds a scrub of all devices together: leave -d out",
                self.image.display()
            ),
            Target::Mounted(mounted) => super::mounted::limit(&mounted, self.limit)?,
            Target::Image(_) => folder_of(&self.image)?,
        };
        if let Some(limit) = self.limit {
            return folder.set_limit(limit);
        }
        let mut output = Output::new()?;
        match folder.limit() {
            0 => output.text(format_args!("no limit\n"))?,
            limit => output.text(format_args!("{limit} bytes per second\n"))?,
        }
        Ok(output.finish()?)
    }
}

fn print_limits(limits: &[(DeviceId, u64)]) -> anyhow::Result<()> {
    let mut output = Output::new()?;
    for (devid, limit) in limits {
        match limit {
            0 => output.text(format_args!("device {devid}: no limit\n"))?,
            limit => output.text(format_args!("device {devid}: {limit} bytes per second\n"))?,
        }
    }
    Ok(output.finish()?)
}
