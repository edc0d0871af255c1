//! `papilio property`: what `btrfs property` gets and sets.

use crate::UsageError;
use crate::context::Context;
use crate::output::Output;
use crate::path::ImagePath;
use papilio::{PathError, XattrSet};
use std::ffi::OsString;

const COMPRESSION: &[u8] = b"btrfs.compression";

/// Show and set properties: ro of a subvolume, compression of a file or directory
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// Show one, or all that there are
    Get(Get),
    /// Set one
    Set(Set),
}

/// Show one, or all that there are
#[derive(Debug, clap::Args)]
struct Get {
    /// The file, directory or subvolume
    #[arg(value_name = "IMAGE:/PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// Which; all without it
    name: Option<Name>,
}

/// Set one
#[derive(Debug, clap::Args)]
struct Set {
    /// The file, directory or subvolume
    #[arg(value_name = "IMAGE:/PATH", value_hint = clap::ValueHint::AnyPath)]
    path: OsString,
    /// Which
    name: Name,
    /// true or false; zlib, lzo, zstd, none, or nothing for what the mount says
    value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    /// Whether a subvolume does not change
    Ro,
    /// How what is written to a file is compressed
    Compression,
}

impl Args {
    /// Shows or sets.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Get(get) => get.run(context),
            Subcommand::Set(set) => set.run(context),
        }
    }
}

impl Get {
    fn run(self, context: &Context) -> anyhow::Result<()> {
        let path = ImagePath::parse(&self.path)?;
        let inode = context.inode(&path, true)?;
        let mut output = Output::new()?;
        if inode.is_subvolume_root() && self.name != Some(Name::Compression) {
            let all = context.open(&path.image)?.subvolumes()?;
            let read_only = all.iter().any(|one| one.id == inode.tree() && one.is_read_only());
            output.text(format_args!("ro={read_only}\n"))?;
        } else if self.name == Some(Name::Ro) {
            anyhow::bail!("{path}: {}", PathError::NoSubvolume);
        }
        if self.name != Some(Name::Ro)
            && let Some(value) = inode.xattr(COMPRESSION).map_err(|error| context.at(&path, &error))?
        {
            output.bytes(b"compression=")?;
            output.name(&value)?;
            output.bytes(b"\n")?;
        }
        Ok(output.finish()?)
    }
}

impl Set {
    fn run(self, context: &Context) -> anyhow::Result<()> {
        let path = ImagePath::parse(&self.path)?;
        let fs = context.change(&path.image)?;
        let done = match self.name {
            Name::Ro => {
                let read_only = match self.value.as_str() {
                    "true" => true,
                    "false" => false,
                    other => {
                        return Err(
                            UsageError::new(format_args!("ro: {other:?} is not true or false")).into()
                        );
                    }
                };
                fs.set_subvolume_read_only(&path.path, read_only)
            }
            Name::Compression => {
                context.inode(&path, true)?.set_xattr(COMPRESSION, self.value.as_bytes(), XattrSet::Any)
            }
        };
        done.map_err(|error| context.at(&path, &error))
    }
}
