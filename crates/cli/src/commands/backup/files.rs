//! `papilio backup ls` and `extract`.

use super::list::load;
use super::place::open_confined;
use crate::commands::stream::{inner_path, print_entry, to_json};
use crate::context::Context;
use crate::output::{JsonArray, Output};
use papilio::stream::{SentEntry, StreamChain, StreamError};
#[cfg(target_os = "linux")]
use papilio_backup::extract;
use papilio_backup::stream_chain;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Loads the chain of a backup, whose last part is the backup itself.
fn load_chain(context: &Context, repository: &OsStr, backup: &str) -> anyhow::Result<(StreamChain, usize)> {
    let repository = open_confined(context, repository, None)?;
    let backups = load(context, &repository)?;
    let chain = stream_chain(&repository, &backups, backups.find(backup)?)?;
    let last = chain.parts().len() - 1;
    Ok((chain, last))
}

/// List the files of a backup
///
/// Each directory is followed by its entries. Owners are numbers. Only the outlines of the backup
/// and its bases are read.
#[derive(Debug, clap::Args)]
pub struct Ls {
    /// The repository
    #[arg(value_name = "REPOSITORY", value_hint = clap::ValueHint::DirPath)]
    repository: OsString,
    /// The backup
    #[arg(value_name = "BACKUP")]
    backup: String,
    /// List this path and all below it
    #[arg(value_name = "PATH", default_value = "/")]
    path: OsString,
    /// Show mode, links, owner, group, size and time of modification
    #[arg(short, long)]
    long: bool,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

impl Ls {
    /// Prints the entries.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let (chain, last) = load_chain(context, &self.repository, &self.backup)?;
        let mut entries: Vec<SentEntry> = Vec::new();
        chain.for_each_entry(last, &inner_path(&self.path), |entry| {
            entries.push(entry);
            Ok::<_, StreamError>(())
        })?;
        let mut output = Output::new()?;
        let mut array = self.json.then(|| JsonArray::begin(&mut output)).transpose()?;
        for entry in &entries {
            match &mut array {
                Some(array) => array.push(&mut output, &to_json(entry))?,
                None => print_entry(&mut output, entry, self.long)?,
            }
        }
        if let Some(array) = array {
            array.end(&mut output)?;
        }
        Ok(output.finish()?)
    }
}

/// Copy files of a backup to a directory, without restoring the rest
///
/// Each PATH and all below it goes to DIRECTORY/NAME, where NAME is that of the snapshot. Only the
/// objects that hold the files are read. Only root can give files their owners and make device
/// files. An entry that the host refuses is left out and reported.
#[derive(Debug, clap::Args)]
pub struct ExtractArgs {
    /// The repository
    #[arg(value_name = "REPOSITORY", value_hint = clap::ValueHint::DirPath)]
    repository: OsString,
    /// The backup
    #[arg(value_name = "BACKUP")]
    backup: String,
    /// The paths in the snapshot
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
    /// Make the directory in DIRECTORY
    #[arg(short = 'C', long = "directory", value_name = "DIRECTORY", default_value = ".",
        value_hint = clap::ValueHint::DirPath)]
    directory: PathBuf,
    /// Leave owners as they are made; the default unless run by root
    #[arg(long)]
    no_owner: bool,
}

impl ExtractArgs {
    /// Extracts the paths.
    #[cfg(target_os = "linux")]
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let repository = open_confined(context, &self.repository, Some(&self.directory))?;
        let backups = load(context, &repository)?;
        let backup = backups.find(&self.backup)?;
        let owners = !self.no_owner && rustix::process::geteuid().is_root();
        let paths = self.paths.iter().map(|path| inner_path(path)).collect();
        let mut failed = |error: &papilio::Error| context.error(error);
        extract(&repository, &backups, backup, paths, &self.directory, owners, &mut failed)?;
        Ok(())
    }

    // Only Linux confines a path of the stream to a directory (openat2).
    #[cfg(not(target_os = "linux"))]
    pub fn run(self, _context: &Context) -> anyhow::Result<()> {
        anyhow::bail!("{}: files of backups cannot be extracted here", self.directory.display())
    }
}
