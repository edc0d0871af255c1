//! `papilio device usage`, in the format of `btrfs device usage`.

use crate::commands::filesystem::{UsageSource, warn_of_mixed};
use crate::context::Context;
use crate::output::Output;
use crate::units::UnitArgs;
use std::path::PathBuf;

/// Show how much of each device is allocated, and for what
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    #[command(flatten)]
    units: UnitArgs,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Args {
    /// Prints the devices.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let usage = UsageSource::open(context, &self.image)?.usage()?;
        let units = self.units.resolve();
        let mut output = Output::new()?;
        for device in &usage.devices {
            output.name(device.path.as_deref().unwrap_or("missing").as_bytes())?;
            output.text(format_args!(", ID: {}\n", device.devid.0))?;
            let mut line = |name: &str, bytes: u64| {
                let name = format!("{name}:");
                output.text(format_args!("   {name:<24}{:>14}\n", units.text(bytes)))
            };
            line("Device size", device.total)?;
            line("Device slack", device.size.unwrap_or(device.total).saturating_sub(device.total))?;
            for (space, bytes) in usage.spaces.iter().zip(&device.by_space).filter(|(_, bytes)| **bytes > 0) {
                line(&format!("{},{}", space.kind_name(), space.profile), *bytes)?;
            }
            line("Unallocated", device.unallocated())?;
            output.text(format_args!("\n"))?;
        }
        output.finish()?;
        warn_of_mixed(context, &usage);
        Ok(())
    }
}
