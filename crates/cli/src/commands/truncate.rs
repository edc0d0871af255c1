//! `papilio truncate`.

use crate::context::Context;
use crate::filling::Caller;
use crate::operands::for_each_operand_to_change;
use crate::units::parse_size;
use papilio::{Error, NewKind, PathError};
use std::ffi::OsString;
use std::str::FromStr;

/// Change the sizes of files, and create missing ones
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The new size, or a change with a leading + or -
    #[arg(short, long, allow_hyphen_values = true)]
    size: SizeChange,
    /// The files
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Do not create files
    #[arg(short = 'c', long)]
    no_create: bool,
}

/// A new size or a change of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SizeChange {
    To(u64),
    More(u64),
    Less(u64),
}

impl FromStr for SizeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(text) = text.strip_prefix('+') {
            return parse_size(text).map(Self::More);
        }
        match text.strip_prefix('-') {
            Some(text) => parse_size(text).map(Self::Less),
            None => parse_size(text).map(Self::To),
        }
    }
}

impl Args {
    /// Changes the sizes.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let caller = Caller::new();
        for_each_operand_to_change(context, &self.paths, |path, fs| {
            let inode = match fs.inode(&path.path) {
                Err(Error::Path { kind: PathError::NotFound, .. }) if self.no_create => return Ok(()),
                Err(Error::Path { kind: PathError::NotFound, .. }) => {
                    fs.create(&path.path, &caller.inode(NewKind::Regular, 0o666))
                }
                found => found,
            };
            let file = inode.and_then(|inode| inode.open()).map_err(|error| context.at(&path, &error))?;
            let size = match self.size {
                SizeChange::To(size) => size,
                // The library refuses a size that is too large.
                SizeChange::More(more) => file.len().saturating_add(more),
                SizeChange::Less(less) => file.len().saturating_sub(less),
            };
            file.set_len(size).map_err(|error| context.at(&path, &error))
        })
    }
}
