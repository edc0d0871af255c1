//! `papilio backup verify`.

use super::place::open_confined;
use crate::context::Context;
use crate::output::Output;
use crate::units::Units;
use papilio_backup::{VerifyOptions, verify};
use serde_json::json;
use std::ffi::OsString;

/// Check that every backup can be restored
///
/// Every manifest is read, and every object that a backup uses must be there with its length. As
/// many objects as wanted are read in full and compared with their checksums. Standard error names
/// each fault, with the backups that cannot be restored for it. Exit status 1 means that there is
/// one.
#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// The repository
    #[arg(value_name = "REPOSITORY", value_hint = clap::ValueHint::DirPath)]
    repository: OsString,
    /// Read this part of the objects, chosen at random
    #[arg(long, value_name = "PERCENT", conflicts_with = "all", value_parser = percent)]
    sample: Option<f64>,
    /// Read all objects (default)
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').parse::<f64>().ok();
    number
        .filter(|number| (0.0..=100.0).contains(number))
        .ok_or_else(|| "not a number from 0 to 100".to_owned())
}

impl VerifyArgs {
    /// Verifies the repository.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let repository = open_confined(context, &self.repository, None)?;
        let found = verify(&repository, &VerifyOptions { percent: self.sample.unwrap_or(100.0) })?;
        for fault in &found.faults {
            let affected: Vec<&str> = fault.affects.iter().map(|id| &id[..12]).collect();
            let affected = match affected.is_empty() {
                true => String::new(),
                false => format!("; affects {}", affected.join(", ")),
            };
            context.error(format_args!("{}: {}{affected}", fault.object, fault.fault));
        }
        let mut output = Output::new()?;
        if self.json {
            let faults: Vec<_> = found
                .faults
                .iter()
                .map(
                    |fault| json!({ "object": fault.object, "fault": fault.fault, "affects": fault.affects }),
                )
                .collect();
            let value = json!({
                "backups": found.backups,
                "objects": found.objects,
                "read": found.read,
                "read_bytes": found.read_bytes,
                "orphans": found.orphans,
                "faults": faults,
            });
            output.text(format_args!("{value}\n"))?;
        } else {
            let bytes = Units::HUMAN.text(found.read_bytes);
            output.text(format_args!(
                "{} backups, {} objects, {} of them read ({bytes}), {} not in use, {} faults\n",
                found.backups,
                found.objects,
                found.read,
                found.orphans,
                found.faults.len()
            ))?;
        }
        Ok(output.finish()?)
    }
}
