//! `papilio filesystem sync`.

use crate::context::Context;
use crate::mounted::Target;
use std::path::PathBuf;

/// Commit all changes and clean up deleted subvolumes
///
/// In a mount, only commits: its server cleans up in the background.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
}

impl Args {
    /// Synchronizes the file system.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let image = match Target::parse(self.image.as_os_str())? {
            Target::Image(path) => path.image,
            Target::Mounted(mounted) => {
                return mounted.open()?.sync().map_err(|error| mounted.at(&error));
            }
        };
        let fs = context.change(&image)?;
        let done = fs.clean_subvolumes().and_then(|()| fs.sync());
        done.map_err(|error| anyhow::anyhow!("{}: {error}", self.image.display()))
    }
}
