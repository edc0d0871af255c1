//! `papilio mkdir`.

use super::chmod::Mode;
use crate::context::Context;
use crate::filling::Caller;
use crate::operands::for_each_operand_to_change;
use crate::path::ImagePath;
use papilio::{Error, FileKind, FileSystem, NewKind, PathError, SetAttributes};
use std::ffi::OsString;

/// Create directories
///
/// The user who runs the command owns them, as on a mounted file system.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directories
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Create missing parents, and accept existing directories
    #[arg(short, long)]
    parents: bool,
    /// The mode, as in chmod; the umask does not apply
    #[arg(short, long, value_name = "MODE")]
    mode: Option<Mode>,
}

impl Args {
    /// Creates the directories.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let caller = Caller::new();
        for_each_operand_to_change(context, &self.paths, |path, fs| {
            if self.parents {
                self.create_parents(context, &path, &fs, caller)?;
            }
            let made = fs
                .parent(&path.path)
                .and_then(|(parent, name)| parent.create(name, &caller.inode(NewKind::Directory, 0o777)));
            match made {
                Ok(made) => {
                    if let Some(mode) = &self.mode {
                        let mode = mode.apply(made.metadata().permissions(), true, 0);
                        let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
                        made.set_attributes(&set).map_err(|error| context.at(&path, &error))?;
                    }
                    if context.verbosity > 0 {
                        context.note(&path);
                    }
                    Ok(())
                }
                Err(error) if self.parents && is_directory(&fs, &path, &error) => Ok(()),
                Err(error) => Err(context.at(&path, &error)),
            }
        })
    }

    /// Creates the missing directories above `path`.
    fn create_parents(
        &self,
        context: &Context,
        path: &ImagePath,
        fs: &FileSystem,
        caller: Caller,
    ) -> anyhow::Result<()> {
        let end = path.path.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
        for at in (1..end).filter(|&at| path.path[at] == b'/' && path.path[at - 1] != b'/') {
            let above = ImagePath { image: path.image.clone(), path: path.path[..at].to_vec() };
            match fs.inode(&above.path) {
                Ok(_) => continue,
                Err(Error::Path { kind: PathError::NotFound, .. }) => {}
                Err(error) => return Err(context.at(&above, &error)),
            }
            fs.parent(&above.path)
                .and_then(|(parent, name)| parent.create(name, &caller.inode(NewKind::Directory, 0o777)))
                .map_err(|error| context.at(&above, &error))?;
        }
        Ok(())
    }
}

/// Returns whether `error` only says that the directory exists.
fn is_directory(fs: &FileSystem, path: &ImagePath, error: &Error) -> bool {
    let exists = matches!(error, Error::Path { kind: PathError::Exists | PathError::InvalidName, .. });
    exists && fs.inode(&path.path).is_ok_and(|inode| inode.file_type() == FileKind::Directory)
}
