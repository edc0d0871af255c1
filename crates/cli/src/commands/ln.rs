//! `papilio ln`.

use crate::context::Context;
use crate::filling::Caller;
use crate::path::{ImagePath, Operand, parse_image_path};
use crate::usage_error::UsageError;
use papilio::{Error, FileKind, NewKind, PathError};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Create a hard or symbolic link
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file, as IMAGE:/PATH; with -s, the text of the symbolic link
    #[arg(value_name = "TARGET", value_hint = clap::ValueHint::AnyPath)]
    target: OsString,
    /// The new name, or an existing directory, which gets an entry with the target's name
    #[arg(value_name = "IMAGE:/PATH", value_hint = clap::ValueHint::AnyPath)]
    link: OsString,
    /// Create a symbolic link
    #[arg(short, long)]
    symbolic: bool,
    /// Replace an existing file, but not a directory
    #[arg(short, long)]
    force: bool,
    /// Treat the new name as a file even if it is an existing directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
}

impl Args {
    /// Creates the link.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let mut link = parse_image_path(&self.link)?;
        let target = match self.symbolic {
            true => None,
            false => Some(parse_image_path(&self.target)?),
        };
        if let Some(target) = &target
            && target.image != link.image
        {
            let why = "a hard link must be in the file system of its target";
            return Err(UsageError::new(format_args!("{target}: {why}")).into());
        }
        let fs = context.change(&link.image)?;
        let into = fs.inode(&link.path).is_ok_and(|inode| inode.file_type() == FileKind::Directory);
        if into && !self.no_target_directory {
            let named = match &target {
                Some(target) => target.clone(),
                None => {
                    // Only the last component matters, even if the target does not exist.
                    let path = match Operand::parse(&self.target) {
                        Operand::Image(path) => path.path,
                        Operand::Host(path) => path.into_os_string().into_vec(),
                    };
                    ImagePath { image: link.image.clone(), path }
                }
            };
            let name =
                named.base_name().ok_or_else(|| anyhow::anyhow!("{named}: {}", PathError::InvalidName))?;
            link = link.join(name);
        }
        let make = || match &target {
            Some(target) => {
                let target_inode = fs.inode_nofollow(&target.path)?;
                let (parent, name) = fs.parent(&link.path)?;
                parent.hard_link(&target_inode, name)
            }
            None => {
                let text = self.target.clone().into_vec();
                let (parent, name) = fs.parent(&link.path)?;
                parent.create(name, &Caller::new().inode(NewKind::Symlink(&text), 0o777)).map(drop)
            }
        };
        let made = match make() {
            Err(Error::Path { kind: PathError::Exists, .. }) if self.force => {
                // Both names may already be links to one inode.
                let same = target.as_ref().is_some_and(|target| {
                    let of =
                        |path: &[u8]| fs.inode_nofollow(path).map(|inode| (inode.tree(), inode.number()));
                    of(&target.path).is_ok_and(|id| of(&link.path).is_ok_and(|other| other == id))
                });
                if same {
                    return Ok(());
                }
                fs.remove_file(&link.path).map_err(|error| context.at(&link, &error))?;
                make()
            }
            made => made,
        };
        match (made, target) {
            (Err(error @ Error::Path { kind: PathError::NotFound, .. }), Some(target))
                if fs.inode_nofollow(&target.path).is_err() =>
            {
                Err(context.at(&target, &error))
            }
            (made, _) => made.map_err(|error| context.at(&link, &error)),
        }
    }
}
