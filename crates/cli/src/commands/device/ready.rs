//! `papilio device ready`.

use crate::context::Context;
use crate::devices;
use crate::kernel_devices::{block_device, control_device};
use anyhow::Context as _;
use papilio::FoundDevice;
use std::path::PathBuf;

/// Report whether all devices of a file system are present
///
/// The exit status is 0 if they are, and 1 if not. For a block device the kernel's Btrfs is told of
/// it and asked, if the machine has one. Otherwise devices are searched among the block devices of
/// this machine and those given with --device.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A device or image of the file system
    #[arg(value_name = "IMAGE", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
}

impl Args {
    /// Looks for the devices.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let shown = self.image.display();
        let Some(first) = FoundDevice::read(&self.image)? else {
            anyhow::bail!("{shown}: no Btrfs file system");
        };
        if let Some(path) = block_device(&self.image)
            && let Some(control) = control_device()?
        {
            if !control.is_complete(&path).with_context(|| shown.to_string())? {
                anyhow::bail!("{shown}: the kernel does not know all {} devices yet", first.devices);
            }
            return Ok(());
        }
        let found = 1 + devices::siblings(&first, &context.arguments().device).len() as u64;
        if found < first.devices {
            anyhow::bail!("{shown}: only {found} of {} devices are present", first.devices);
        }
        Ok(())
    }
}
