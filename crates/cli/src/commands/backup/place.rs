//! Repositories: `papilio backup init`, and [`open`] for the other subcommands.

use crate::context::Context;
use crate::new_secret::new_secret;
use crate::usage_error::UsageError;
use papilio_backup::{BackupError, Derivation, Encryption, ObjectStore, Repository, open_store};
use papilio_layers::KeySource;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

/// How often a terminal asks for a passphrase.
const ATTEMPTS: usize = 3;

/// Make a repository in an empty place
#[derive(Debug, clap::Args)]
pub struct Init {
    /// The folder, which is made if it is missing, or the URL
    #[arg(value_name = "REPOSITORY", value_hint = clap::ValueHint::DirPath)]
    repository: OsString,
    /// Encrypt everything; names, numbers and sizes of files are hidden, too
    #[arg(long)]
    encrypt: bool,
}

impl Init {
    /// Makes the repository.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let store = store(context, &self.repository)?;
        let encryption = match self.encrypt {
            true => {
                let secret = new_secret(&key_source(context), &store.place(), "--key-file")?;
                Some(Encryption { secret, derivation: Derivation::default() })
            }
            false => None,
        };
        Repository::init(store, encryption.as_ref())?;
        Ok(())
    }
}

fn key_source(context: &Context) -> KeySource {
    context.arguments().layer_options().key
}

/// Returns the store that an argument names.
pub fn store(context: &Context, argument: &OsStr) -> anyhow::Result<Arc<dyn ObjectStore>> {
    open_store(Path::new(argument), &context.arguments().remote_options()).map_err(|error| match error {
        BackupError::Place { .. } => UsageError::new(error).into(),
        error => error.into(),
    })
}

/// As [`open`], for a command that only reads it, and writes to the directory at `output`. The run
/// gives up all other rights.
pub fn open_confined(
    context: &Context,
    argument: &OsStr,
    output: Option<&Path>,
) -> anyhow::Result<Repository> {
    context.confine_to_repository(Path::new(argument), output);
    let opened = open(context, argument)?;
    context.seal();
    Ok(opened)
}

/// Opens a repository, and asks for its key if it is encrypted.
///
/// # Errors
/// There is none; the key is wrong; the store's error.
pub fn open(context: &Context, argument: &OsStr) -> anyhow::Result<Repository> {
    let store = store(context, argument)?;
    let source = key_source(context);
    let place = store.place();
    let attempts = if source == KeySource::Terminal { ATTEMPTS } else { 1 };
    for attempt in 1.. {
        let mut refused = None;
        let mut secret = || {
            source.read_secret(&place).map_err(|error| {
                let text = error.to_string();
                refused = Some(error);
                BackupError::Invalid(text)
            })
        };
        let opened = Repository::open(Arc::clone(&store), &mut secret);
        match (opened, refused) {
            (Err(BackupError::WrongKey(_)), _) if attempt < attempts => {
                context.warning(format_args!("{place}: wrong passphrase"));
            }
            (_, Some(papilio_layers::LayerError::NoKey(_))) => {
                return Err(BackupError::KeyNeeded(place).into());
            }
            (opened, _) => return opened.map_err(Into::into),
        }
    }
    unreachable!("the last attempt returns")
}
