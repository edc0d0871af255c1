//! `papilio backup list` and `show`.

use super::place::open_confined;
use crate::context::Context;
use crate::output::Output;
use crate::time;
use crate::units::Units;
use papilio::Timespec;
use papilio_backup::{Backup, Backups};
use serde_json::{Value, json};
use std::ffi::OsString;

/// List the backups, the oldest first
#[derive(Debug, clap::Args)]
pub struct List {
    /// The repository
    #[arg(value_name = "REPOSITORY", value_hint = clap::ValueHint::DirPath)]
    repository: OsString,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

impl List {
    /// Prints the list.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let repository = open_confined(context, &self.repository, None)?;
        let backups = load(context, &repository)?;
        let mut output = Output::new()?;
        if self.json {
            let all: Vec<Value> = backups.all().iter().map(|backup| to_json(&backups, backup)).collect();
            output.text(format_args!("{}\n", Value::from(all)))?;
            return Ok(output.finish()?);
        }
        for backup in backups.all() {
            let manifest = &backup.manifest;
            output.text(format_args!(
                "{}  {}  {:<11}  {:>10}  {}\n",
                backup.short_id(),
                time::to_second(seconds(manifest.time)),
                kind(backup),
                Units::HUMAN.text(manifest.stored_bytes()),
                manifest.name
            ))?;
        }
        Ok(output.finish()?)
    }
}

/// Reads the manifests, and reports those that are damaged.
pub fn load(context: &Context, repository: &papilio_backup::Repository) -> anyhow::Result<Backups> {
    let backups = repository.backups()?;
    for (_, error) in backups.damaged() {
        context.error(error);
    }
    Ok(backups)
}

pub fn seconds(seconds: i64) -> Timespec {
    Timespec { seconds, nanoseconds: 0 }
}

fn kind(backup: &Backup) -> &'static str {
    if backup.manifest.base.is_some() { "incremental" } else { "full" }
}

fn to_json(backups: &Backups, backup: &Backup) -> Value {
    let manifest = &backup.manifest;
    let base = manifest.base.map(|base| {
        json!({
            "id": backups.of(base).map(|base| base.id.clone()),
            "uuid": base.uuid.to_string(),
            "ctransid": base.ctransid,
        })
    });
    json!({
        "id": backup.id,
        "name": manifest.name,
        "name_hex": manifest.name_hex,
        "time": time::rfc3339(seconds(manifest.time)),
        "host": manifest.host,
        "source": manifest.source,
        "series": manifest.series,
        "uuid": manifest.snapshot.uuid.to_string(),
        "ctransid": manifest.snapshot.ctransid,
        "base": base,
        "stream_bytes": manifest.stream_bytes,
        "stored_bytes": manifest.stored_bytes(),
        "objects": manifest.objects().count(),
    })
}

/// Show one backup
#[derive(Debug, clap::Args)]
pub struct Show {
    /// The repository
    #[arg(value_name = "REPOSITORY", value_hint = clap::ValueHint::DirPath)]
    repository: OsString,
    /// The backup
    #[arg(value_name = "BACKUP")]
    backup: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Show {
    /// Prints the backup.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let repository = open_confined(context, &self.repository, None)?;
        let backups = load(context, &repository)?;
        let backup = backups.find(&self.backup)?;
        let mut output = Output::new()?;
        if self.json {
            output.text(format_args!("{}\n", to_json(&backups, backup)))?;
            return Ok(output.finish()?);
        }
        let manifest = &backup.manifest;
        let size = |bytes| Units::HUMAN.text(bytes);
        output.text(format_args!("Backup:   {}\n", backup.id))?;
        output.text(format_args!("Snapshot: {}\n", manifest.name))?;
        output.text(format_args!("Time:     {}\n", time::to_second_with_zone(seconds(manifest.time))))?;
        output.text(format_args!("Source:   {} on {}\n", manifest.source, manifest.host))?;
        output.text(format_args!("UUID:     {}\n", manifest.snapshot.uuid))?;
        match manifest.base.map(|base| (base, backups.of(base))) {
            None => output.text(format_args!("Base:     none, it is a full backup\n"))?,
            Some((_, Some(base))) => {
                output.text(format_args!("Base:     {}  {}\n", base.short_id(), base.manifest.name))?;
            }
            Some((base, None)) => {
                output.text(format_args!("Base:     {}, which is not in the repository\n", base.uuid))?;
            }
        }
        output.text(format_args!("Stream:   {}\n", size(manifest.stream_bytes)))?;
        let objects = manifest.objects().count();
        output.text(format_args!("Stored:   {} in {objects} objects\n", size(manifest.stored_bytes())))?;
        Ok(output.finish()?)
    }
}
