//! `papilio subvolume create`.

use crate::commands::quota::parse_qgroup;
use crate::context::Context;
use crate::filling::Caller;
use crate::mounted::{Mounted, Target};
use crate::operands::for_each_target;
use anyhow::Context as _;
use papilio::{FileSystem, NewKind, QgroupId};
use std::ffi::OsString;
use std::io;
use std::path::Path;

/// Create empty subvolumes
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The subvolumes
    #[arg(value_name = "IMAGE:/PATH|PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Create missing parent directories
    #[arg(short = 'p', long)]
    parents: bool,
    /// Make the subvolumes members of this qgroup; repeatable
    #[arg(short = 'i', value_name = "LEVEL/ID", value_parser = parse_qgroup)]
    qgroups: Vec<QgroupId>,
}

impl Args {
    /// Creates the subvolumes.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let caller = Caller::new();
        let parse = if self.parents { Target::parse_with_parents } else { Target::parse_new };
        for_each_target(context, &self.paths, parse, |target| {
            let path = match target {
                Target::Image(path) => path,
                Target::Mounted(mounted) => {
                    if self.parents {
                        make_parents(&mounted.path)?;
                    }
                    let (directory, name) = mounted.open_parent()?;
                    match self.qgroups.as_slice() {
                        [] => directory.create_subvolume(&name).map_err(|error| mounted.at(&error)),
                        qgroups => directory
                            .create_subvolume_in(&name, qgroups)
                            .map_err(|error| inherit_error(&mounted, &error)),
                    }?;
                    return context.announce(format_args!("Create subvolume '{mounted}'"));
                }
            };
            let fs = context.change(&path.image)?;
            if self.parents {
                make_parents_in(&fs, &path.path, &caller).map_err(|error| context.at(&path, &error))?;
            }
            let made = fs.parent(&path.path).and_then(|(parent, name)| {
                parent.create_subvolume_in(name, &caller.inode(NewKind::Directory, 0o777), &self.qgroups)
            });
            made.map(drop).map_err(|error| context.at(&path, &error))?;
            context.announce(format_args!("Create subvolume '{path}'"))
        })
    }
}

/// Returns the reason why a subvolume was not made a member of qgroups.
pub fn inherit_error(mounted: &Mounted, error: &io::Error) -> anyhow::Error {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => anyhow::anyhow!("{mounted}: -i: there is no such qgroup"),
        Some(Errno::INVAL) => anyhow::anyhow!("{mounted}: -i: a qgroup of level 0 has no members"),
        Some(Errno::NOTTY) => anyhow::anyhow!(
            "{mounted}: -i: the server of the mount may not read this command's memory \
             (another user, or kernel.yama.ptrace_scope)"
        ),
        _ => mounted.at(error),
    }
}

fn make_parents(path: &Path) -> anyhow::Result<()> {
    match path.parent() {
        Some(parent) => std::fs::create_dir_all(parent).with_context(|| parent.display().to_string()),
        None => Ok(()),
    }
}

fn make_parents_in(fs: &FileSystem, path: &[u8], caller: &Caller) -> papilio::Result<()> {
    let ends = path.iter().enumerate().filter(|(at, byte)| **byte == b'/' && *at > 0);
    for end in ends.map(|(at, _)| at) {
        let parent = &path[..end];
        if fs.inode(parent).is_err() {
            let (directory, name) = fs.parent(parent)?;
            directory.create(name, &caller.inode(NewKind::Directory, 0o777))?;
        }
    }
    Ok(())
}
