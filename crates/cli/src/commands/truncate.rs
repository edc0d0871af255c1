//! `papilio truncate`.

use crate::context::Context;
use crate::filling::Caller;
use crate::operands::for_each_operand_to_change;
use crate::units::parse_size;
use papilio::{Error, NewKind, PathError};
use std::ffi::OsString;
use std::str::FromStr;

/// Change the sizes of files; make those that are not there
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The new size; with + or - in front, so much more or less
    #[arg(short, long, allow_hyphen_values = true)]
    size: Size,
    /// The files
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Make nothing
    #[arg(short = 'c', long)]
    no_create: bool,
}

/// A size as it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    To(u64),
    More(u64),
    Less(u64),
}

impl FromStr for Size {
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
    /// Changes them.
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
                Size::To(size) => size,
                // More than there can be is for the library to refuse.
                Size::More(more) => file.len().saturating_add(more),
                Size::Less(less) => file.len().saturating_sub(less),
            };
            file.set_len(size).map_err(|error| context.at(&path, &error))
        })
    }
}
