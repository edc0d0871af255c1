//! `papilio subvolume create`.

use crate::commands::quota::parse_qgroup;
use crate::context::Context;
use crate::filling::Caller;
use crate::mounted::Target;
use crate::operands::for_each_target;
use papilio::{NewKind, QgroupId};
use std::ffi::OsString;

/// Create empty subvolumes
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The subvolumes
    #[arg(value_name = "IMAGE:/PATH|PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Make the subvolumes members of this qgroup; repeatable. Only in images
    #[arg(short = 'i', value_name = "LEVEL/ID", value_parser = parse_qgroup)]
    qgroups: Vec<QgroupId>,
}

impl Args {
    /// Creates the subvolumes.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let caller = Caller::new();
        for_each_target(context, &self.paths, Target::parse_new, |target| {
            let path = match target {
                Target::Image(path) => path,
                Target::Mounted(mounted) => {
                    if !self.qgroups.is_empty() {
                        anyhow::bail!("{mounted}: -i works in images only");
                    }
                    let (directory, name) = mounted.open_parent()?;
                    return directory.create_subvolume(&name).map_err(|error| mounted.at(&error));
                }
            };
            let fs = context.change(&path.image)?;
            let made = fs.parent(&path.path).and_then(|(parent, name)| {
                parent.create_subvolume_in(name, &caller.inode(NewKind::Directory, 0o777), &self.qgroups)
            });
            made.map(drop).map_err(|error| context.at(&path, &error))
        })
    }
}
