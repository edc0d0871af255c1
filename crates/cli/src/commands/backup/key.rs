//! `papilio backup key`: the secrets that open an encrypted repository.

use super::place::{open, store};
use crate::context::Context;
use crate::new_secret::new_secret;
use crate::output::Output;
use papilio_backup::{Derivation, Encryption, KeyInfo, Repository, RepositoryLock, Secret};
use papilio_layers::KeySource;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::PathBuf;

/// List, add, change and remove the keys of an encrypted repository
///
/// Each key has its own passphrase or key file, and opens the whole repository. Data that was
/// stored stays as it is. So an old passphrase still opens a copy of the old description,
/// and with it what the repository holds.
#[derive(Debug, clap::Args)]
pub struct Key {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    List(List),
    Add(Add),
    #[command(visible_alias = "passwd")]
    Change(Change),
    Remove(Remove),
}

impl Key {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::List(command) => command.run(context),
            Subcommand::Add(command) => command.run(context),
            Subcommand::Change(command) => command.run(context),
            Subcommand::Remove(command) => command.run(context),
        }
    }
}

/// The new secret.
#[derive(Debug, clap::Args)]
struct NewKey {
    /// The file with the new key, all of its bytes; - is standard input. Without it the terminal
    /// asks for a passphrase
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    new_key_file: Option<PathBuf>,
}

impl NewKey {
    fn read(&self, repository: &Repository) -> anyhow::Result<Encryption> {
        let source = self.new_key_file.clone().map_or(KeySource::Terminal, KeySource::File);
        let secret: Secret = new_secret(&source, &format!("{} (new)", repository.place()), "--new-key-file")?;
        Ok(Encryption { secret, derivation: Derivation::default() })
    }
}

fn lock(repository: &Repository, breaks: bool) -> anyhow::Result<RepositoryLock> {
    Ok(repository.lock("papilio backup key", breaks)?)
}

fn line(key: &KeyInfo) -> String {
    // A label may come from somebody else.
    key.label.as_ref().map_or_else(|| key.id.clone(), |label| format!("{}  {}", key.id, label.escape_debug()))
}

/// List the keys; this needs none
#[derive(Debug, clap::Args)]
struct List {
    /// The repository
    #[arg(value_name = "REPOSITORY", value_hint = clap::ValueHint::DirPath)]
    repository: OsString,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

impl List {
    fn run(self, context: &Context) -> anyhow::Result<()> {
        let keys = papilio_backup::list_keys(&*store(context, &self.repository)?)?;
        let mut output = Output::new()?;
        if self.json {
            let to_json = |key: &KeyInfo| {
                let Derivation { memory_kib, passes, lanes } = key.derivation;
                json!({
                    "id": key.id,
                    "label": key.label,
                    "memory_kib": memory_kib,
                    "passes": passes,
                    "lanes": lanes,
                })
            };
            let all: Vec<Value> = keys.iter().map(to_json).collect();
            output.text(format_args!("{}\n", Value::from(all)))?;
            return Ok(output.finish()?);
        }
        for key in &keys {
            output.text(format_args!("{}\n", line(key)))?;
        }
        Ok(output.finish()?)
    }
}

/// Let another passphrase or key file open the repository
#[derive(Debug, clap::Args)]
struct Add {
    /// The repository
    #[arg(value_name = "REPOSITORY", value_hint = clap::ValueHint::DirPath)]
    repository: OsString,
    /// A name for the key
    #[arg(long, value_name = "LABEL")]
    label: Option<String>,
    #[command(flatten)]
    new: NewKey,
    /// Take the lock away from another process, which must not run any more
    #[arg(long)]
    break_lock: bool,
}

impl Add {
    fn run(self, context: &Context) -> anyhow::Result<()> {
        let repository = open(context, &self.repository)?;
        let with = self.new.read(&repository)?;
        let lock = lock(&repository, self.break_lock)?;
        let added = repository.add_key(&lock, &with, self.label)?;
        lock.release()?;
        print(&added)
    }
}

/// Replace the passphrase or key file with which the repository is opened
#[derive(Debug, clap::Args)]
struct Change {
    /// The repository
    #[arg(value_name = "REPOSITORY", value_hint = clap::ValueHint::DirPath)]
    repository: OsString,
    #[command(flatten)]
    new: NewKey,
    /// Take the lock away from another process, which must not run any more
    #[arg(long)]
    break_lock: bool,
}

impl Change {
    fn run(self, context: &Context) -> anyhow::Result<()> {
        let mut repository = open(context, &self.repository)?;
        let with = self.new.read(&repository)?;
        let lock = lock(&repository, self.break_lock)?;
        let changed = repository.change_key(&lock, &with)?;
        lock.release()?;
        print(&changed)
    }
}

/// Remove a key; the last one stays
#[derive(Debug, clap::Args)]
struct Remove {
    /// The repository
    #[arg(value_name = "REPOSITORY", value_hint = clap::ValueHint::DirPath)]
    repository: OsString,
    /// The id or the label of the key, as list shows them
    #[arg(value_name = "KEY")]
    key: String,
    /// Take the lock away from another process, which must not run any more
    #[arg(long)]
    break_lock: bool,
}

impl Remove {
    fn run(self, context: &Context) -> anyhow::Result<()> {
        let repository = open(context, &self.repository)?;
        let lock = lock(&repository, self.break_lock)?;
        repository.remove_key(&lock, &self.key)?;
        lock.release()?;
        Ok(())
    }
}

fn print(key: &KeyInfo) -> anyhow::Result<()> {
    let mut output = Output::new()?;
    output.text(format_args!("{}\n", line(key)))?;
    Ok(output.finish()?)
}
