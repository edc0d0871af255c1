//! `papilio filesystem sync`.

use crate::context::Context;
use std::path::PathBuf;

/// Finish what earlier changes left to the background: deleted subvolumes, and a commit
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
}

impl Args {
    /// Does it.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let fs = context.change(&self.image)?;
        let done = fs.clean_subvolumes().and_then(|()| fs.sync());
        done.map_err(|error| anyhow::anyhow!("{}: {error}", self.image.display()))
    }
}
