//! `papilio backup create`.

use super::place::open;
use super::source::with_snapshot;
use crate::context::Context;
use crate::output::Output;
use crate::time;
use crate::units::Units;
use papilio_backup::{CreateOptions, Created, create};
use std::ffi::OsString;

/// Back up read-only snapshots
///
/// A backup is incremental if the repository has one of a snapshot of the same subvolume, and that
/// snapshot is still in the file system. A snapshot that the repository has is left out. Several
/// snapshots are backed up in their order. Standard output has a line for each.
#[derive(Debug, clap::Args)]
pub struct Create {
    /// The repository
    #[arg(value_name = "REPOSITORY", value_hint = clap::ValueHint::DirPath)]
    repository: OsString,
    /// The snapshots, in an image or on a mount
    #[arg(value_name = "IMAGE:/SNAPSHOT|PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    snapshots: Vec<OsString>,
    /// Make a full backup in any case
    #[arg(long)]
    full: bool,
    /// The time that prune goes by: @SECONDS, YYYY-MM-DD or "YYYY-MM-DD HH:MM:SS"; now by default
    #[arg(long, value_name = "TIME", value_parser = time::parse)]
    time: Option<(i64, u32)>,
    /// The level of zstd, 1 to 19
    #[arg(long, value_name = "LEVEL", default_value = "3", value_parser = clap::value_parser!(i32).range(1..=19))]
    level: i32,
    /// Take the lock away from another process, which must not run any more
    #[arg(long)]
    break_lock: bool,
}

impl Create {
    /// Makes the backups.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let repository = open(context, &self.repository)?;
        let lock = repository.lock("papilio backup create", self.break_lock)?;
        let options = CreateOptions::new()
            .full(self.full)
            .time(self.time.map(|(seconds, _)| seconds))
            .level(Some(self.level));
        let mut output = Output::new()?;
        for argument in &self.snapshots {
            let made =
                with_snapshot(context, argument, |source| Ok(create(&repository, &lock, source, &options)?));
            match made {
                Ok(created) => output.text(format_args!("{}\n", line(&created)))?,
                // The others may succeed.
                Err(error) => context.failure(&error),
            }
        }
        lock.release()?;
        Ok(output.finish()?)
    }
}

fn line(created: &Created) -> String {
    let backup = &created.backup;
    let name = &backup.manifest.name;
    let kind = match (created.existed, backup.manifest.base) {
        (true, _) => "was there already".to_owned(),
        (false, base) => {
            let kind = if base.is_some() { "incremental" } else { "full" };
            format!("{kind}, {} in {} new objects", Units::HUMAN.text(created.new_bytes), created.new_objects)
        }
    };
    format!("{}  {name}  {kind}", backup.short_id())
}
