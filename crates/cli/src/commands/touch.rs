//! `papilio touch`.

use crate::context::Context;
use crate::filling::Caller;
use crate::operands::for_each_operand_to_change;
use crate::time;
use papilio::{Error, NewKind, PathError, SetAttributes, SetTime, Timespec};
use std::ffi::OsString;

/// Change the times of files, and create missing ones
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Set this time instead of now: @SECONDS, YYYY-MM-DD or "YYYY-MM-DD HH:MM:SS"
    #[arg(short, long, value_name = "TIME", value_parser = time::parse)]
    date: Option<(i64, u32)>,
    /// Change only the time of the last access
    #[arg(short, conflicts_with = "modified")]
    accessed: bool,
    /// Change only the time of the last modification
    #[arg(short)]
    modified: bool,
    /// Do not create files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Change symbolic links themselves
    #[arg(long)]
    no_dereference: bool,
}

impl Args {
    /// Changes the times.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let caller = Caller::new();
        let time = match self.date {
            Some((seconds, nanoseconds)) => SetTime::At(Timespec { seconds, nanoseconds }),
            None => SetTime::Now,
        };
        let set = SetAttributes {
            atime: (!self.modified).then_some(time),
            mtime: (!self.accessed).then_some(time),
            ..SetAttributes::default()
        };
        for_each_operand_to_change(context, &self.paths, |path, fs| {
            let found = match self.no_dereference {
                true => fs.inode_nofollow(&path.path),
                false => fs.inode(&path.path),
            };
            let inode = match found {
                Err(Error::Path { kind: PathError::NotFound, .. }) if self.no_create => return Ok(()),
                Err(Error::Path { kind: PathError::NotFound, .. }) => {
                    fs.create(&path.path, &caller.inode(NewKind::Regular, 0o666))
                }
                found => found,
            };
            inode.and_then(|inode| inode.set_attributes(&set)).map_err(|error| context.at(&path, &error))
        })
    }
}
