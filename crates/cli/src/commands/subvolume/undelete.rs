//! `papilio subvolume undelete`: a deleted subvolume comes back, as far as its blocks stand.

use super::format::to_json;
use crate::commands::rescue_change::{self, Consent};
use crate::context::{Context, of_image};
use crate::output::{JsonArray, Output};
use crate::path::parse_image_path;
use crate::time;
use anyhow::Context as _;
use papilio::{DeletedSubvolume, RescueChange};
use serde_json::json;
use std::ffi::OsString;
use std::path::PathBuf;

/// Bring back a deleted subvolume, as far as its blocks were not overwritten
///
/// IMAGE alone lists the deleted subvolumes that older root trees still have. IMAGE:/PATH, or IMAGE
/// with --id, brings one back to the place that it had, or into lost+found if that is taken.
/// Nothing is copied: the blocks and the data come into use again where they lie. Overwritten files
/// are lost and listed, and the exit status is 1.
///
/// The plan is made in memory and checked first. The old bytes of changed blocks go to the undo
/// file; papilio rescue undo takes the change back. Until then, write nothing to the file system:
/// each write may overwrite a part of what was deleted.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device, with the path that the subvolume had; it must not be mounted
    #[arg(value_name = "IMAGE[:/PATH]", value_hint = clap::ValueHint::FilePath)]
    place: OsString,
    /// The subvolume with this id; needed if several had the same path
    #[arg(short = 'r', long, visible_alias = "rootid", value_name = "ID")]
    id: Option<u64>,
    /// Only print the plan
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Write without asking
    #[arg(short, long, conflicts_with = "dry_run")]
    yes: bool,
    /// The undo file to write; it must not exist [default: IMAGE.undo]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    undo: Option<PathBuf>,
    /// Print the list as one JSON array
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Lists deleted subvolumes, or brings one back.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let place = parse_image_path(&self.place)?;
        let found = self.find(context, &place.image)?;
        let wanted = place.path.strip_prefix(b"/").unwrap_or(&place.path);
        let wanted = wanted.strip_suffix(b"/").unwrap_or(wanted);
        if wanted.is_empty() && self.id.is_none() {
            return self.list(&found);
        }
        let mut matching = found.iter().filter(|one| {
            self.id.is_none_or(|id| one.subvolume.id.0 == id)
                && (wanted.is_empty() || one.subvolume.path.as_deref() == Some(wanted))
        });
        let one = matching.next().with_context(|| format!("{place}: no such deleted subvolume is left"))?;
        if let Some(other) = matching.next() {
            let (first, second) = (one.subvolume.id, other.subvolume.id);
            anyhow::bail!("{place}: subvolumes {first} and {second} had this path; choose with --id");
        }
        let consent = match (self.dry_run, self.yes) {
            (true, _) => Consent::Refused,
            (false, true) => Consent::Given,
            (false, false) => Consent::Asked,
        };
        let change = RescueChange::Undelete { tree: one.subvolume.id, root_tree: one.root_tree };
        let images = [place.image.clone()];
        let losses = rescue_change::made(context, &images, self.undo.as_deref(), change, consent)?;
        if !losses.is_empty() {
            context.error(format_args!("{place}: {} losses are listed above", losses.len()));
        }
        Ok(())
    }

    fn find(&self, context: &Context, image: &std::path::Path) -> anyhow::Result<Vec<DeletedSubvolume>> {
        let devices = context.devices(image)?;
        let scan = context.scan(&devices)?;
        let options = context.options_for(image);
        papilio::find_deleted_subvolumes(&devices, &options, &scan).map_err(|error| of_image(image, error))
    }

    fn list(&self, found: &[DeletedSubvolume]) -> anyhow::Result<()> {
        let mut output = Output::new()?;
        if self.json {
            let mut array = JsonArray::begin(&mut output)?;
            for one in found {
                let value = json!({
                    "subvolume": to_json(&one.subvolume),
                    "root_tree": one.root_tree.0,
                    "generation": one.generation.0,
                    "blocks": one.blocks,
                    "missing": one.missing,
                    "being_freed": one.is_being_freed,
                });
                array.push(&mut output, &value)?;
            }
            array.end(&mut output)?;
            return Ok(output.finish()?);
        }
        output.text(format_args!(
            "{:>8} {:<19}  {:>10} {:<24} Path\n",
            "ID", "Changed", "Generation", "Tree"
        ))?;
        for one in found {
            let tree = match one.missing {
                0 => format!("whole, {} blocks", one.blocks),
                missing => format!("{} blocks, {missing} are lost", one.blocks),
            };
            let changed = time::to_second(one.subvolume.change_time);
            let (id, generation) = (one.subvolume.id, one.generation);
            output.text(format_args!("{id:>8} {changed:<19}  {generation:>10} {tree:<24} "))?;
            match &one.subvolume.path {
                Some(path) => output.name(&[b"/", &path[..]].concat())?,
                None => output.text(format_args!("<unreachable>"))?,
            }
            output.bytes(b"\n")?;
        }
        Ok(output.finish()?)
    }
}
