//! `papilio subvolume set-default`.

use crate::context::Context;
use crate::mounted::{Mounted, Target};
use crate::usage_error::UsageError;
use papilio::PathError;
use papilio::format::TreeId;
use std::ffi::OsString;

/// Choose the subvolume that a mount without options shows
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The subvolume; IMAGE alone means its top level. Or its id, then a path in the file system
    #[arg(required = true, num_args = 1..=2, value_name = "[ID] IMAGE:/PATH|PATH")]
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    operands: Vec<OsString>,
    /// Choose the subvolume with this id; the path names only its file system
    #[arg(short = 'r', long = "rootid", value_name = "ID")]
    id: Option<u64>,
}

impl Args {
    /// Sets the default subvolume.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let (id, path) = match &self.operands[..] {
            [id, path] => {
                let number = id.to_str().and_then(|id| id.parse().ok()).filter(|_| self.id.is_none());
                let number = number.ok_or_else(|| {
                    UsageError::new(format_args!("{}: not the id of a subvolume", id.display()))
                })?;
                (Some(number), path)
            }
            operands => (self.id, &operands[0]),
        };
        let path = match Target::parse(path)? {
            Target::Image(path) => path,
            Target::Mounted(mounted) => return run_mounted(&mounted, id),
        };
        let fs = context.change(&path.image)?;
        let id = match id {
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

fn run_mounted(mounted: &Mounted, id: Option<u64>) -> anyhow::Result<()> {
    let with_path = |error: std::io::Error| mounted.at(&error);
    let mount = mounted.open()?;
    let id = match id {
        Some(id) => TreeId(id),
        None if !mount.is_subvolume_root().map_err(with_path)? => {
            anyhow::bail!("{mounted}: {}", PathError::NoSubvolume);
        }
        None => mount.subvolume_id().map_err(with_path)?,
    };
    mount.set_default_subvolume(id).map_err(with_path)
}
