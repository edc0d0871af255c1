//! `papilio filesystem label`.

use super::source::UsageSource;
use crate::context::Context;
use crate::mounted::Target;
use crate::output::Output;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Show or set the label
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// The new label, up to 255 bytes; an empty one removes it
    label: Option<OsString>,
}

impl Args {
    /// Shows or sets the label.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if let Some(label) = self.label {
            return match Target::parse(self.image.as_os_str())? {
                Target::Image(path) => {
                    let set = context.change(&path.image)?.set_label(label.as_bytes());
                    set.map_err(|error| anyhow::anyhow!("{}: {error}", self.image.display()))
                }
                Target::Mounted(mounted) => {
                    let set = mounted.open()?.set_label(label.as_bytes());
                    set.map_err(|error| mounted.at(&error))
                }
            };
        }
        let label = UsageSource::open(context, &self.image)?.label()?;
        let mut output = Output::new()?;
        output.name(&label)?;
        output.bytes(b"\n")?;
        Ok(output.finish()?)
    }
}
