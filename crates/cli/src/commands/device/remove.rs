//! `papilio device remove`.

use crate::context::{Context, of_image};
use crate::moving::MovingBar;
use crate::output::Output;
use anyhow::{Context as _, bail};
use papilio::format::DeviceId;
use papilio::{FileSystem, FoundDevice};
use std::path::{Path, PathBuf};

/// Move everything off devices, and remove them from a file system that is not mounted
///
/// Interrupting the command loses nothing; the device stays part of the file system.
#[derive(Debug, clap::Args)]
#[command(visible_alias = "delete")]
pub struct Args {
    /// Devices by id or path, then an image or device that stays
    #[arg(required = true, num_args = 2.., value_names = ["DEVID|DEVICE", "IMAGE"])]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    devices: Vec<PathBuf>,
}

impl Args {
    /// Removes the devices.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let (image, removed) = self.devices.split_last().expect("two arguments are required");
        let fs = context.change(image)?;
        for name in removed {
            let devid = device_id(&fs, name)?;
            let bar = MovingBar::new(context);
            let gone =
                fs.remove_device(devid, |report| bar.show(report)).map_err(|error| of_image(image, error));
            drop(bar);
            gone.with_context(|| format!("device {devid}"))?;
            if context.verbosity >= 0 {
                let mut output = Output::new()?;
                output.text(format_args!("device {devid} removed\n"))?;
                output.finish()?;
            }
        }
        Ok(())
    }
}

/// Returns the id of a device that is named by its id or its path.
fn device_id(fs: &FileSystem, name: &Path) -> anyhow::Result<DeviceId> {
    if let Some(number) = name.to_str().and_then(|text| text.parse().ok()) {
        return Ok(DeviceId(number));
    }
    let found = FoundDevice::read(name)?;
    match found {
        Some(device) if device.fsid == fs.superblock().raw.fsid => Ok(device.devid),
        _ => bail!("{}: is not a device of the file system", name.display()),
    }
}
