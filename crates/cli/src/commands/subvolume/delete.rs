//! `papilio subvolume delete`.

use crate::context::{Context, for_each_operand_to_change};
use papilio::{Error, PathError};
use std::ffi::OsString;

/// Delete subvolumes and snapshots, with all that they hold
///
/// What they took is free when the command ends.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The subvolumes
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
}

impl Args {
    /// Deletes them.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        for_each_operand_to_change(context, &self.paths, |path, fs| {
            let deleted = match fs.inode_nofollow(&path.path) {
                Ok(inode) if !inode.is_subvolume_root() => {
                    Err(Error::Path { path: Vec::new(), kind: PathError::NoSubvolume })
                }
                Ok(_) => fs.delete_subvolume(&path.path),
                Err(error) => Err(error),
            };
            // A commit makes the deletion durable before it is carried out.
            let deleted = deleted.and_then(|()| fs.sync()).and_then(|()| fs.clean_subvolumes());
            deleted.map_err(|error| context.at(&path, &error))
        })
    }
}
