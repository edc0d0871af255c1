//! `papilio store`: checkpoints, clones, growth, space and cleaning of devices in object stores.
//!
//! [`key`] has the keys of encrypted ones.

mod key;
mod prices;
mod shared;

use crate::context::Context;
use crate::time;
use crate::units::{Units, parse_size};
use anyhow::Context as _;
use papilio::device::{RequestCounts, StoreCheckpoint, StoreCleaned, StoreInfo, object_stores};
use prices::{Cost, Prices};
use shared::{Stores, at, timespec};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Make, list and delete checkpoints of a device in an object store, clone it, grow it, clean it,
/// and manage its keys
///
/// Such a device has a URL like slatedb+s3://bucket/prefix; papilio mkfs makes one. A checkpoint is
/// a state that stays readable, as URL?checkpoint=NAME, while the device changes. A clone is a new
/// device that begins with such a state. It copies no data, and both can be written.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// Make a checkpoint, and print its UUID
    ///
    /// The device may be in use. A checkpoint then has the state of its last flush, or that of up
    /// to 30 s before.
    Checkpoint {
        /// The URL of the device
        #[arg(value_name = "URL")]
        url: String,
        /// A name for the checkpoint
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Let the checkpoint expire
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=36_500))]
        expires: Option<u64>,
    },
    /// List checkpoints: UUID, time, time of expiry, and name
    ///
    /// A program that reads the device without a checkpoint makes one without a name, and deletes
    /// it at the end.
    List {
        /// The URL of the device
        #[arg(value_name = "URL")]
        url: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete a checkpoint
    Delete {
        /// The URL of the device
        #[arg(value_name = "URL")]
        url: String,
        /// The name or UUID of the checkpoint
        #[arg(value_name = "CHECKPOINT")]
        checkpoint: String,
    },
    /// Make a device that begins with the state of another one, or of its checkpoint
    Clone {
        /// The URL of the device, with ?checkpoint=NAME for that state
        #[arg(value_name = "URL")]
        url: String,
        /// The URL of the new device, in the same bucket
        #[arg(value_name = "NEW-URL")]
        to: String,
    },
    /// Make a device larger
    ///
    /// The file system on it grows afterwards, by papilio filesystem resize max URL. Nothing may
    /// use the device meanwhile: a program that writes it is fenced, and fails.
    Grow {
        /// The URL of the device
        #[arg(value_name = "URL")]
        url: String,
        /// The new size in bytes, or with a suffix K, M, G, T, P or E
        #[arg(value_name = "SIZE", value_parser = parse_size)]
        size: u64,
    },
    /// Show the objects of a device, the bytes in use and not in use, and the requests of writers
    ///
    /// The device may be in use. Its last writes and requests are then missing.
    Info {
        /// The URL of the device
        #[arg(value_name = "URL")]
        url: String,
        /// A table of the store's prices, for an estimate of the cost
        ///
        /// A JSON object with the currency and numbers: storage_gib_month; put_1000, get_1000,
        /// list_1000 and delete_1000 for 1,000 requests; sent_gib and received_gib.
        #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
        prices: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    Key(key::Args),
    /// Free space: delete unreferenced segments, and compact those that are half empty
    ///
    /// Segments are the objects that hold large runs of blocks. Those that a crash left behind go,
    /// too. A segment that a checkpoint or a clone may name stays. Nothing may use the device
    /// meanwhile: a program that writes it is fenced, and fails.
    Clean {
        /// The URL of the device
        #[arg(value_name = "URL")]
        url: String,
    },
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let options = context.arguments().remote_options();
        match self.command {
            Subcommand::Checkpoint { url, name, expires } => {
                let lifetime = expires.map(|days| Duration::from_secs(days * 24 * 3600));
                let make =
                    |stores: Stores| stores.create_checkpoint(&url, name.as_deref(), lifetime, &options);
                let made = object_stores().and_then(make).map_err(at(&url))?;
                writeln!(std::io::stdout(), "{}", made.id).context("standard output")
            }
            Subcommand::List { url, json } => {
                let list_all = |stores: Stores| stores.checkpoints(&url, &options);
                let found = object_stores().and_then(list_all).map_err(at(&url))?;
                list(&found, json).context("standard output")
            }
            Subcommand::Delete { url, checkpoint } => {
                let delete = |stores: Stores| stores.delete_checkpoint(&url, &checkpoint, &options);
                Ok(object_stores().and_then(delete).map_err(at(&url))?)
            }
            Subcommand::Clone { url, to } => {
                let clone = |stores: Stores| stores.clone_device(&url, &to, &options);
                Ok(object_stores().and_then(clone).map_err(at(&url))?)
            }
            Subcommand::Grow { url, size } => {
                let grow = |stores: Stores| stores.grow(&url, size, &options);
                object_stores().and_then(grow).map_err(at(&url))?;
                Ok(())
            }
            Subcommand::Info { url, prices, json } => {
                let prices = prices.as_deref().map(Prices::read).transpose()?;
                let info = |stores: Stores| stores.info(&url, &options);
                let info = object_stores().and_then(info).map_err(at(&url))?;
                let cost = prices.map(|prices| prices.cost(&info));
                print_info(&info, cost.as_ref(), json).context("standard output")
            }
            Subcommand::Key(command) => command.run(context),
            Subcommand::Clean { url } => {
                let clean = |stores: Stores| stores.clean(&url, &options);
                let cleaned = object_stores().and_then(clean).map_err(at(&url))?;
                print_cleaned(&cleaned).context("standard output")
            }
        }
    }
}

fn list(checkpoints: &[StoreCheckpoint], json: bool) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    if json {
        let all: Vec<_> = (checkpoints.iter())
            .map(|checkpoint| {
                serde_json::json!({
                    "id": checkpoint.id,
                    "name": checkpoint.name,
                    "created": time::with_zone(timespec(checkpoint.created)),
                    "expires": checkpoint.expires.map(|at| time::with_zone(timespec(at))),
                })
            })
            .collect();
        return writeln!(output, "{}", serde_json::Value::from(all));
    }
    for checkpoint in checkpoints {
        let expires = checkpoint.expires.map_or_else(|| "-".to_owned(), |at| time::to_second(timespec(at)));
        let name = checkpoint.name.as_deref().unwrap_or("-");
        writeln!(
            output,
            "{}  {}  {expires:<19}  {name}",
            checkpoint.id,
            time::to_second(timespec(checkpoint.created))
        )?;
    }
    Ok(())
}

fn print_info(info: &StoreInfo, cost: Option<&Cost>, json: bool) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    let requests = [("segments", info.requests.segments), ("database", info.requests.database)];
    if json {
        let counts = |counts: RequestCounts| {
            serde_json::json!({
                "puts": counts.puts,
                "gets": counts.gets,
                "lists": counts.lists,
                "deletes": counts.deletes,
                "bytes_sent": counts.bytes_sent,
                "bytes_received": counts.bytes_received,
            })
        };
        let value = serde_json::json!({
            "size": info.size,
            "version": info.version,
            "encrypted": info.is_encrypted,
            "segments": {
                "objects": info.segments,
                "bytes": info.segment_bytes,
                "live_bytes": info.live_bytes,
                "dead_bytes": info.dead_bytes,
                "orphans": info.orphans,
                "orphan_bytes": info.orphan_bytes,
            },
            "ancestors": { "segments": info.ancestor_segments, "live_bytes": info.ancestor_bytes },
            "database": { "objects": info.database_objects, "bytes": info.database_bytes },
            "checkpoints": info.checkpoints,
            "clones": info.clones,
            "requests": { "segments": counts(requests[0].1), "database": counts(requests[1].1) },
            "cost": cost.map(Cost::to_json),
        });
        return writeln!(output, "{value}");
    }
    let size = |bytes: u64| Units::HUMAN.text(bytes);
    writeln!(output, "Size:         {} (format version {})", size(info.size), info.version)?;
    writeln!(output, "Encrypted:    {}", if info.is_encrypted { "yes" } else { "no" })?;
    writeln!(output, "Segments:     {} objects, {}", info.segments, size(info.segment_bytes))?;
    writeln!(output, "  in use:     {}", size(info.live_bytes))?;
    writeln!(output, "  not in use: {}", size(info.dead_bytes))?;
    writeln!(output, "  orphans:    {} objects, {}", info.orphans, size(info.orphan_bytes))?;
    if info.ancestor_segments > 0 {
        let (count, bytes) = (info.ancestor_segments, size(info.ancestor_bytes));
        writeln!(output, "  shared:     {count} objects of ancestors, {bytes} in use")?;
    }
    writeln!(output, "Database:     {} objects, {}", info.database_objects, size(info.database_bytes))?;
    writeln!(output, "Checkpoints:  {}", info.checkpoints)?;
    writeln!(output, "Clones:       {}", info.clones)?;
    writeln!(output, "Requests of writers")?;
    for (name, counts) in requests {
        writeln!(
            output,
            "  {name}:   {} put ({}), {} get ({}), {} list, {} delete",
            counts.puts,
            size(counts.bytes_sent),
            counts.gets,
            size(counts.bytes_received),
            counts.lists,
            counts.deletes
        )?;
    }
    match cost {
        Some(cost) => cost.print(&mut output),
        None => Ok(()),
    }
}

fn print_cleaned(cleaned: &StoreCleaned) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    let size = |bytes: u64| Units::HUMAN.text(bytes);
    writeln!(output, "Copied:   {} of {} segments", size(cleaned.copied_bytes), cleaned.copied_segments)?;
    writeln!(output, "Deleted:  {} segments", cleaned.deleted_segments)?;
    writeln!(output, "Orphans:  {} segments, {}", cleaned.orphans, size(cleaned.orphan_bytes))?;
    if cleaned.kept_dead_segments > 0 {
        let count = cleaned.kept_dead_segments;
        writeln!(output, "Kept:     {count} segments not in use, which a checkpoint or a clone may name")?;
    }
    if cleaned.corrected_accounts > 0 {
        writeln!(output, "Counted:  {} segments had a wrong count of blocks", cleaned.corrected_accounts)?;
    }
    Ok(())
}
