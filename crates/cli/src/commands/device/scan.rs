//! `papilio device scan`.

use crate::context::Context;
use crate::kernel_devices::{block_device, control_device};
use crate::output::{Output, json_bytes};
use anyhow::{Context as _, bail};
use papilio::FoundDevice;
use serde_json::{Map, Value};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// List the devices that belong to a Btrfs file system
///
/// Without operands, all block devices of this machine are searched. The kernel's Btrfs, if the
/// machine has one, is told of those that are found, so that it can mount file systems of several
/// devices. Papilio itself searches anew in each command.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Images or devices to search
    #[arg(value_name = "IMAGE", value_hint = clap::ValueHint::FilePath)]
    images: Vec<PathBuf>,
    /// Search all block devices, as without operands
    #[arg(short = 'd', long, conflicts_with = "images")]
    all_devices: bool,
    /// Make the kernel forget the devices, or all that no mounted file system uses
    #[arg(short = 'u', long)]
    forget: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Lists the devices.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if self.forget {
            return self.forget();
        }
        let mut found = Vec::new();
        if self.images.is_empty() {
            found = FoundDevice::on_this_machine()?;
        }
        for image in &self.images {
            let read = || match FoundDevice::read(image)? {
                Some(device) => Ok(device),
                None => bail!("{}: no Btrfs file system", image.display()),
            };
            match read() {
                Ok(device) => found.push(device),
                Err(error) => context.failure(&error),
            }
        }
        context.changed_devices.note(&self.images);
        context.changed_devices.note_found(found.iter().map(|device| device.path.clone()));
        // The devices of one file system stand together.
        found.sort_by_key(|device| (device.fsid, device.devid));
        let mut output = Output::new()?;
        if self.json {
            let array = found.iter().map(json_of).collect();
            output.text(format_args!("{:#}\n", Value::Array(array)))?;
        }
        for device in found.iter().filter(|_| !self.json) {
            let FoundDevice { fsid, devid, devices, .. } = device;
            output.text(format_args!("{fsid} devid {} of {devices} path ", devid.0))?;
            output.name(device.path.as_os_str().as_bytes())?;
            output.bytes(b"\n")?;
        }
        Ok(output.finish()?)
    }

    /// Makes the kernel forget devices.
    fn forget(&self) -> anyhow::Result<()> {
        let Some(control) = control_device()? else { return Ok(()) };
        if self.images.is_empty() {
            return control.forget(None).context("the kernel did not forget its devices");
        }
        for image in &self.images {
            let shown = image.display();
            let Some(path) = block_device(image) else { bail!("{shown}: is not a block device") };
            control.forget(Some(&path)).with_context(|| format!("{shown}: the kernel did not forget it"))?;
        }
        Ok(())
    }
}

fn json_of(device: &FoundDevice) -> Value {
    let mut object = Map::new();
    json_bytes(&mut object, "path", device.path.as_os_str().as_bytes());
    json_bytes(&mut object, "label", &device.label);
    object.insert("uuid".into(), device.fsid.to_string().into());
    object.insert("devid".into(), device.devid.0.into());
    object.insert("device_uuid".into(), device.uuid.to_string().into());
    object.insert("total_devices".into(), device.devices.into());
    object.insert("generation".into(), device.generation.0.into());
    object.insert("size".into(), device.size.into());
    object.insert("used".into(), device.allocated.into());
    Value::Object(object)
}
