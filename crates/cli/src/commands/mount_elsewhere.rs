//! `papilio mount` on hosts other than Linux: it says what to use instead.

use crate::context::Context;
use anyhow::bail;
use std::ffi::OsString;

/// Mount a file system (only on Linux)
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What `papilio mount` takes on Linux
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Args {
    /// Runs the command, which always fails.
    pub fn run(self, _: &Context) -> anyhow::Result<()> {
        let image = self.arguments.first().map_or("IMAGE".into(), |image| image.to_string_lossy());
        bail!("papilio can mount on Linux only; `papilio serve --nfs {image}` offers the files over NFS")
    }
}
