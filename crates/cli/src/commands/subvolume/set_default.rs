//! `papilio subvolume set-default`.

use crate::context::Context;
use crate::mounted::{Mounted, Target};
use papilio::PathError;
use papilio::format::TreeId;
use std::ffi::OsString;

/// Choose the subvolume that a mount without options shows
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The subvolume; IMAGE alone means its top level
    #[arg(value_name = "IMAGE:/PATH|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// Choose the subvolume with this id; the path names only its file system
    #[arg(short = 'r', long = "rootid", value_name = "ID")]
    id: Option<u64>,
}

impl Args {
    /// Sets the default subvolume.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let path = match Target::parse(&self.path)? {
            Target::Image(path) => path,
            Target::Mounted(mounted) => return self.run_mounted(&mounted),
        };
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
    fn run_mounted(&self, mounted: &Mounted) -> anyhow::Result<()> {
        let with_path = |error: std::io::Error| mounted.at(&error);
        let mount = mounted.open()?;
        let id = match self.id {
            Some(id) => TreeId(id),
            None if !mount.is_subvolume_root().map_err(with_path)? => {
                anyhow::bail!("{mounted}: {}", PathError::NoSubvolume);
            }
            None => mount.subvolume_id().map_err(with_path)?,
        };
        mount.set_default_subvolume(id).map_err(with_path)
    }
}
