//! `papilio setfattr`.

use super::getfattr::decode;
use crate::context::Context;
use crate::operands::for_each_operand_to_change;
use crate::usage_error::UsageError;
use papilio::XattrSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Set or remove an extended attribute
///
/// The names can be in user., trusted. and security., ACLs in the kernel's binary format, and the
/// property btrfs.compression.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("attribute").required(true).args(["name", "remove"]))]
pub struct Args {
    /// The files
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Set this attribute
    #[arg(short, long)]
    name: Option<OsString>,
    /// The value: text, quoted text with \ooo, 0x and hexadecimal digits, or 0s and base64
    #[arg(long, requires = "name", allow_hyphen_values = true)]
    value: Option<OsString>,
    /// Remove this attribute
    #[arg(short = 'x', long, value_name = "NAME", conflicts_with = "value")]
    remove: Option<OsString>,
    /// Change symbolic links themselves
    #[arg(long)]
    no_dereference: bool,
}

impl Args {
    /// Sets or removes the attribute.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let value = self.value.as_deref().unwrap_or_default().as_bytes();
        let value = decode(value).map_err(UsageError::new)?;
        for_each_operand_to_change(context, &self.paths, |path, _| {
            let inode = context.inode(&path, !self.no_dereference)?;
            let done = match (&self.name, &self.remove) {
                (Some(name), _) => inode.set_xattr(name.as_bytes(), &value, XattrSet::Any),
                (None, Some(name)) => inode.remove_xattr(name.as_bytes()),
                (None, None) => Ok(()),
            };
            done.map_err(|error| context.at(&path, &error))
        })
    }
}
