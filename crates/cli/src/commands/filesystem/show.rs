//! `papilio filesystem show`, in the format of `btrfs filesystem show`.

use super::source::Source;
use crate::context::Context;
use crate::output::{Output, json_bytes};
use crate::units::UnitArgs;
use serde_json::{Map, json};
use std::path::PathBuf;

/// Show the label, UUID and devices
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    #[command(flatten)]
    units: UnitArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Args {
    /// Shows the file system.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let system = Source::open(context, &self.image)?;
        let mut output = Output::new()?;
        if self.json {
            print_json(&mut output, &system)?;
        } else {
            self.print(&mut output, &system)?;
        }
        Ok(output.finish()?)
    }

    fn print(&self, output: &mut Output, system: &Source) -> anyhow::Result<()> {
        let units = self.units.resolve();
        let names = system.names()?;
        match &names.label[..] {
            [] => output.bytes(b"Label: none ")?,
            label => {
                output.bytes(b"Label: '")?;
                output.name(label)?;
                output.bytes(b"' ")?;
            }
        }
        let usage = system.usage()?;
        let devices = &usage.devices;
        output.text(format_args!(
            " uuid: {}\n\tTotal devices {} FS bytes used {}\n",
            names.uuid,
            names.devices,
            units.text(used(&usage))
        ))?;
        for device in devices {
            output.text(format_args!(
                "\tdevid {:>4} size {} used {} path ",
                device.devid.0,
                units.text(device.total),
                units.text(device.allocated)
            ))?;
            match &device.path {
                Some(path) => output.name(path.as_bytes())?,
                None => output.bytes(b"<missing disk> MISSING")?,
            }
            output.bytes(b"\n")?;
        }
        if devices.iter().any(papilio::DeviceUsage::is_missing) {
            output.bytes(b"\t*** Some devices missing\n")?;
        }
        Ok(output.bytes(b"\n")?)
    }
}

fn print_json(output: &mut Output, system: &Source) -> anyhow::Result<()> {
    let (names, usage) = (system.names()?, system.usage()?);
    let mut object = Map::new();
    json_bytes(&mut object, "label", &names.label);
    object.insert("uuid".into(), names.uuid.to_string().into());
    object.insert("metadata_uuid".into(), names.metadata_uuid.to_string().into());
    object.insert("total_devices".into(), names.devices.into());
    object.insert("bytes_used".into(), used(&usage).into());
    let devices = usage.devices.into_iter().map(|device| {
        json!({
            "devid": device.devid.0,
            "uuid": device.uuid.to_string(),
            "path": device.path,
            "missing": device.is_missing(),
            "size": device.total,
            "used": device.allocated,
        })
    });
    object.insert("devices".into(), devices.collect());
    Ok(output.text(format_args!("{:#}\n", serde_json::Value::Object(object)))?)
}

/// Returns the used bytes of all block groups, which the superblock has too.
fn used(usage: &papilio::Usage) -> u64 {
    usage.spaces.iter().map(|space| space.used).sum()
}
