//! `papilio backup prune`.

use super::list::{load, seconds};
use super::place::open;
use crate::context::Context;
use crate::output::Output;
use crate::time;
use crate::units::Units;
use papilio_backup::{Backup, Kept, PruneOptions, Retention, plan_prune, prune};
use std::ffi::OsString;

/// Delete backups that no rule keeps, and objects that no backup uses
///
/// A rule keeps the last backup of each of the last N periods that have one. Days, weeks from
/// Monday, months and years are those of UTC. Each series of snapshots counts alone. A backup that
/// a kept one is based on stays, and the list says so; with --merge the kept one is joined with it
/// instead. Without a rule all backups stay.
#[derive(Debug, clap::Args)]
pub struct Prune {
    /// The repository
    #[arg(value_name = "REPOSITORY", value_hint = clap::ValueHint::DirPath)]
    repository: OsString,
    /// Keep the last N backups
    #[arg(long, value_name = "N", default_value = "0")]
    keep_last: u32,
    /// Keep the last backup of N days
    #[arg(long, value_name = "N", default_value = "0")]
    keep_daily: u32,
    /// Keep the last backup of N weeks
    #[arg(long, value_name = "N", default_value = "0")]
    keep_weekly: u32,
    /// Keep the last backup of N months
    #[arg(long, value_name = "N", default_value = "0")]
    keep_monthly: u32,
    /// Keep the last backup of N years
    #[arg(long, value_name = "N", default_value = "0")]
    keep_yearly: u32,
    /// Join kept backups with the bases that no rule keeps
    #[arg(long)]
    merge: bool,
    /// Print what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Take the lock away from another process, which must not run any more
    #[arg(long)]
    break_lock: bool,
}

impl Prune {
    /// Prunes the repository.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let repository = open(context, &self.repository)?;
        let retention = Retention {
            last: self.keep_last,
            daily: self.keep_daily,
            weekly: self.keep_weekly,
            monthly: self.keep_monthly,
            yearly: self.keep_yearly,
        };
        let options = PruneOptions { retention, merge: self.merge };
        let mut output = Output::new()?;
        if self.dry_run {
            let plan = plan_prune(&load(context, &repository)?, &options)?;
            print(&mut output, &plan)?;
            return Ok(output.finish()?);
        }
        let lock = repository.lock("papilio backup prune", self.break_lock)?;
        let plan = plan_prune(&repository.backups()?, &options)?;
        let pruned = prune(&repository, &lock, &options)?;
        lock.release()?;
        print(&mut output, &plan)?;
        for (id, reason) in &pruned.not_merged {
            context.warning(format_args!("backup {}: not joined with its bases: {reason}", &id[..12]));
        }
        let (removed, objects) = (pruned.removed, pruned.objects);
        let bytes = Units::HUMAN.text(pruned.bytes);
        output.text(format_args!("{removed} backups and {objects} objects deleted, {bytes}\n"))?;
        Ok(output.finish()?)
    }
}

fn print(output: &mut Output, plan: &papilio_backup::PrunePlan) -> anyhow::Result<()> {
    let mut lines: Vec<(&Backup, String)> = Vec::new();
    for (backup, why) in &plan.kept {
        let why = match why {
            Kept::ByRules(rules) => rules.join(", "),
            Kept::BaseOf(id) => format!("{} is based on it", &id[..12]),
        };
        let joined = if plan.merged.contains(&backup.id) { "; joined with its bases" } else { "" };
        lines.push((backup, format!("keep    {why}{joined}")));
    }
    lines.extend(plan.removed.iter().map(|backup| (backup, "delete".to_owned())));
    lines.sort_by(|(a, _), (b, _)| (a.manifest.time, &a.id).cmp(&(b.manifest.time, &b.id)));
    for (backup, what) in lines {
        let (id, name) = (backup.short_id(), &backup.manifest.name);
        let time = time::to_second(seconds(backup.manifest.time));
        output.text(format_args!("{id}  {time}  {name}  {what}\n"))?;
    }
    Ok(())
}
