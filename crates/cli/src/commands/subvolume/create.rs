//! `papilio subvolume create`.

use crate::context::{Context, for_each_operand_to_change};
use crate::filling::Caller;
use papilio::NewKind;
use std::ffi::OsString;

/// Make empty subvolumes
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The subvolumes
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
}

impl Args {
    /// Makes them.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let caller = Caller::new();
        for_each_operand_to_change(context, &self.paths, |path, fs| {
            let made = fs.parent(&path.path).and_then(|(parent, name)| {
                parent.create_subvolume(name, &caller.inode(NewKind::Directory, 0o777))
            });
            made.map(drop).map_err(|error| context.at(&path, &error))
        })
    }
}
