//! `papilio trim`.

use crate::context::Context;
use crate::mounted::Target;
use crate::output::Output;
use crate::units::{Units, parse_size};
use std::path::PathBuf;

/// Return free space to the host: punch holes in an image, or discard it on a device
///
/// Raw images and qcow2 images become smaller on the host. In a mount, use fstrim(8).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Skip runs of free space shorter than this
    #[arg(short, long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    minimum: u64,
    /// The image or device
    #[arg(value_name = "IMAGE", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
}

impl Args {
    /// Discards the free space.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let image = match Target::parse(self.image.as_os_str())? {
            Target::Image(path) => path.image,
            Target::Mounted(_) => {
                anyhow::bail!("{}: is in a mount: use fstrim(8)", self.image.display())
            }
        };
        let fs = context.change(&image)?;
        let at = |error| anyhow::anyhow!("{}: {error}", self.image.display());
        fs.clean_subvolumes().map_err(at)?;
        let bytes = fs.trim(0..u64::MAX, self.minimum).map_err(at)?;
        if context.verbosity >= 0 {
            let mut output = Output::new()?;
            output.text(format_args!(
                "{}: {} of free space discarded\n",
                self.image.display(),
                Units::HUMAN.text(bytes)
            ))?;
            output.finish()?;
        }
        Ok(())
    }
}
