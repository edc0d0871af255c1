//! `papilio subvolume get-default`.

use super::format::{SHORT, btrfs_facts, to_json};
use crate::btrfs_json::of_btrfs;
use crate::context::Context;
use crate::mounted::Target;
use crate::output::Output;
use papilio::Subvolume;
use papilio::format::{TreeId, objectid};
use std::ffi::OsString;

/// Show the subvolume that a mount without options shows
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Prints the subvolume.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let target = Target::parse(&self.path)?;
        context.confine_to_target(&target);
        let (id, subvolumes): (TreeId, Vec<Subvolume>) = match target {
            Target::Image(path) => {
                let fs = context.open(&path.image)?;
                (fs.default_subvolume()?, fs.subvolumes()?)
            }
            Target::Mounted(mounted) => {
                let named = |error: std::io::Error| mounted.at(&error);
                let mount = mounted.open()?;
                let id = mount.default_subvolume().map_err(named)?;
                (id, mount.subvolumes().map_err(named)?)
            }
        };
        let mut output = Output::new()?;
        if self.json {
            let found = subvolumes.iter().find(|one| one.id == id);
            let value = match found {
                Some(found) if !context.arguments().drop_in => to_json(found),
                Some(found) if id != objectid::FS_TREE => of_btrfs(btrfs_facts(found, SHORT)),
                _ => of_btrfs([("id".to_owned(), id.0.into())]),
            };
            output.text(format_args!("{value:#}\n"))?;
            return Ok(output.finish()?);
        }
        let Some(subvolume) = subvolumes.iter().find(|one| one.id == id && id != objectid::FS_TREE) else {
            output.text(format_args!("ID {} (FS_TREE)\n", id.0))?;
            return Ok(output.finish()?);
        };
        let parent = subvolume.parent.map_or(0, |parent| parent.0);
        output.text(format_args!("ID {} gen {} top level {parent} path ", id.0, subvolume.generation.0))?;
        output.name(subvolume.path.as_deref().unwrap_or(&subvolume.name))?;
        output.text(format_args!("\n"))?;
        Ok(output.finish()?)
    }
}
