//! `papilio store key`: the passphrases and key files of encrypted devices.

use super::shared::{Stores, at, timespec};
use crate::context::Context;
use crate::new_secret::new_secret;
use crate::time;
use anyhow::Context as _;
use papilio::device::{StoreKey, object_stores};
use papilio_keys::Secret;
use papilio_layers::KeySource;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

/// List, add, remove and change the keys of an encrypted device
///
/// A key is a passphrase or the content of a key file. Each opens the random key that encrypts the
/// device, so that no data is written anew. The device may be in use. The options --key-file,
/// --key-fd and --key-command give a key that the device has; without them the terminal asks.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// List keys: number, and the time when each was added or changed
    List {
        /// The URL of the device
        #[arg(value_name = "URL")]
        url: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a key, and print its number
    Add {
        /// The URL of the device
        #[arg(value_name = "URL")]
        url: String,
        #[command(flatten)]
        new: NewKey,
    },
    /// Remove a key
    ///
    /// A key that stays is needed.
    Remove {
        /// The URL of the device
        #[arg(value_name = "URL")]
        url: String,
        /// The number of the key
        #[arg(value_name = "NUMBER")]
        number: u32,
    },
    /// Change a key, and print its number
    Change {
        /// The URL of the device
        #[arg(value_name = "URL")]
        url: String,
        /// The number of the key; the default is the one that is given
        #[arg(value_name = "NUMBER")]
        number: Option<u32>,
        #[command(flatten)]
        new: NewKey,
    },
}

/// The new key.
#[derive(Debug, clap::Args)]
struct NewKey {
    /// The file with the new key, all of its bytes; without it the terminal asks for a passphrase
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    new_key_file: Option<PathBuf>,
    /// The command that prints the new key
    #[arg(long, value_name = "COMMAND", conflicts_with = "new_key_file")]
    #[arg(value_hint = clap::ValueHint::CommandString)]
    new_key_command: Option<OsString>,
}

impl NewKey {
    fn read(self, url: &str) -> anyhow::Result<Secret> {
        let source = match (self.new_key_file, self.new_key_command) {
            (Some(file), _) => KeySource::File(file),
            (None, Some(command)) => KeySource::Command(command),
            (None, None) => KeySource::Terminal,
        };
        new_secret(&source, &format!("the new key of {url}"), "--new-key-file")
    }
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let options = context.arguments().remote_options();
        match self.command {
            Subcommand::List { url, json } => {
                let keys = |stores: Stores| stores.keys(&url, &options);
                let found = object_stores().and_then(keys).map_err(at(&url))?;
                list(&found, json).context("standard output")
            }
            Subcommand::Add { url, new } => {
                let secret = new.read(&url)?;
                let add = |stores: Stores| stores.add_key(&url, &secret, &options);
                print(object_stores().and_then(add).map_err(at(&url))?)
            }
            Subcommand::Remove { url, number } => {
                let remove = |stores: Stores| stores.remove_key(&url, number, &options);
                Ok(object_stores().and_then(remove).map_err(at(&url))?)
            }
            Subcommand::Change { url, number, new } => {
                let secret = new.read(&url)?;
                let change = |stores: Stores| stores.change_key(&url, number, &secret, &options);
                print(object_stores().and_then(change).map_err(at(&url))?)
            }
        }
    }
}

fn print(number: u32) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{number}").context("standard output")
}

fn list(keys: &[StoreKey], json: bool) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    if json {
        let key = |key: &StoreKey| serde_json::json!({ "number": key.slot, "added": time::with_zone(timespec(key.added)) });
        let all: Vec<_> = keys.iter().map(key).collect();
        return writeln!(output, "{}", serde_json::Value::from(all));
    }
    for key in keys {
        writeln!(output, "{:>2}  {}", key.slot, time::to_second(timespec(key.added)))?;
    }
    Ok(())
}
