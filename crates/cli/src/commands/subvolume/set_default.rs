//! `papilio subvolume set-default`.

use crate::context::Context;
use crate::path::ImagePath;
use papilio::PathError;
use papilio::format::TreeId;
use std::ffi::OsString;

/// Choose the subvolume that a mount without options shows
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The subvolume; a bare IMAGE is its top level
    #[arg(value_name = "IMAGE:/PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// The subvolume with this id instead
    #[arg(short = 'r', long = "rootid", value_name = "ID")]
    id: Option<u64>,
}

impl Args {
    /// Chooses it.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let path = ImagePath::parse(&self.path)?;
        let fs = context.change(&path.image)?;
        let id = match self.id {
            Some(id) => TreeId(id),
            None => {
                let inode = context.inode(&path, true)?;
                if !inode.is_subvolume_root() {
                    anyhow::bail!("{path}: {}", PathError::NoSubvolume);
                }
                inode.tree()
            }
        };
        fs.set_default_subvolume(id).map_err(|error| context.at(&path, &error))
    }
}
