//! `papilio filesystem df`, in the format of `btrfs filesystem df`.

use super::redundancy::warn_of_lesser_profiles;
use super::source::{UsageSource, warn_of_mixed};
use crate::btrfs_json::list_of_btrfs;
use crate::context::Context;
use crate::output::Output;
use crate::units::UnitArgs;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Show the used space by type and profile
///
/// The global reserve is the one that the kernel would set aside right after mounting, according to
/// the sizes of the trees.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    #[command(flatten)]
    units: UnitArgs,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Args {
    /// Shows the space.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        context.confine_to_place(&self.image);
        let usage = UsageSource::open(context, &self.image)?.usage()?;
        let spaces = usage.spaces.iter();
        let rows = spaces
            .map(|space| (space.kind_name(), space.profile.name(), space.total, space.used))
            .chain([("GlobalReserve", "single", usage.global_reserve, 0)]);
        let mut output = Output::new()?;
        if self.json && context.arguments().drop_in {
            let rows = rows.map(|(kind, profile, total, used)| {
                json!({ "bg-type": kind, "bg-profile": profile, "total": total, "used": used })
            });
            output.text(format_args!("{:#}\n", list_of_btrfs("filesystem-df", rows)))?;
        } else if self.json {
            let rows = rows.map(|(kind, profile, total, used)| {
                json!({ "type": kind, "profile": profile, "total": total, "used": used })
            });
            output.text(format_args!("{:#}\n", rows.collect::<Value>()))?;
        } else {
            let units = self.units.resolve();
            for (kind, profile, total, used) in rows {
                let (total, used) = (units.text(total), units.text(used));
                output.text(format_args!("{kind}, {profile}: total={total}, used={used}\n"))?;
            }
        }
        output.finish()?;
        warn_of_mixed(context, &usage);
        warn_of_lesser_profiles(context, &self.image, &usage);
        Ok(())
    }
}
