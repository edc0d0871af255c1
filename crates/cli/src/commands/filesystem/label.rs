//! `papilio filesystem label`.

use crate::context::Context;
use crate::output::Output;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Show the label, or set it
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// The new label, up to 255 bytes; an empty one takes it away
    label: Option<OsString>,
}

impl Args {
    /// Shows or sets it.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if let Some(label) = self.label {
            let set = context.change(&self.image)?.set_label(label.as_bytes());
            return set.map_err(|error| anyhow::anyhow!("{}: {error}", self.image.display()));
        }
        let label = context.open(&self.image)?.label();
        let mut output = Output::new()?;
        output.name(&label)?;
        output.bytes(b"\n")?;
        Ok(output.finish()?)
    }
}
