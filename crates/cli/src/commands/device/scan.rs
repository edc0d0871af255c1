//! `papilio device scan`.

use crate::context::Context;
use crate::output::{Output, json_bytes};
use anyhow::bail;
use papilio::FoundDevice;
use serde_json::{Map, Value};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// List the devices that belong to a Btrfs file system
///
/// Without operands, all block devices of this machine are searched. Nothing is registered: each
/// command finds the devices of a file system anew.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Images or devices to search
    #[arg(value_name = "IMAGE", value_hint = clap::ValueHint::FilePath)]
    images: Vec<PathBuf>,
    /// Search all block devices, as without operands
    #[arg(short = 'd', long, conflicts_with = "images")]
    all_devices: bool,
    /// Do nothing: there is nothing to forget
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
            return Ok(());
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
