//! `papilio rm`.

use crate::context::{Context, describe};
use crate::operands::{for_each_operand_to_change, is_root};
use crate::path::ImagePath;
use papilio::{Error, FileKind, Inode, PathError};
use std::ffi::OsString;

/// Remove files and directories
///
/// -r does not remove subvolumes inside a directory; use papilio subvolume delete.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files and directories
    #[arg(value_name = "IMAGE:/PATH", required = true, value_hint = clap::ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// Remove directories with everything below them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Remove empty directories
    #[arg(short, long)]
    dir: bool,
    /// Ignore files that do not exist
    #[arg(short, long)]
    force: bool,
}

/// A directory that is being emptied.
struct EmptiedDirectory {
    directory: Inode,
    path: ImagePath,
    /// Its name in its parent.
    name: Vec<u8>,
    /// The names that are left to remove, in reverse order.
    left: Vec<Vec<u8>>,
}

impl Args {
    /// Removes the operands.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        for_each_operand_to_change(context, &self.paths, |path, fs| {
            if is_root(&path) {
                anyhow::bail!("{path}: the root of the file system cannot be deleted");
            }
            let removed = fs.parent(&path.path).map(|(parent, name)| (parent, name.to_vec()));
            let (parent, name) = match removed {
                Err(Error::Path { kind: PathError::NotFound, .. }) if self.force => return Ok(()),
                removed => removed.map_err(|error| context.at(&path, &error))?,
            };
            let inode = match parent.lookup(&name).map_err(|error| context.at(&path, &error))? {
                Some(inode) => inode,
                None if self.force => return Ok(()),
                None => anyhow::bail!("{path}: {}", PathError::NotFound),
            };
            if inode.file_type() != FileKind::Directory {
                if path.wants_directory() {
                    anyhow::bail!("{path}: {}", PathError::NotADirectory);
                }
                return self.finish(context, &path, parent.remove_file(&name));
            }
            match (self.recursive, self.dir) {
                (true, _) => self.tree(context, path, &parent, name, inode),
                (false, true) => self.finish(context, &path, parent.remove_dir(&name)),
                (false, false) => {
                    anyhow::bail!("{path}: {}; removed only with -r", PathError::IsADirectory)
                }
            }
        })
    }

    /// Prints the path of a removed inode under `-v`, or returns the error with the path.
    fn finish(&self, context: &Context, path: &ImagePath, done: papilio::Result<()>) -> anyhow::Result<()> {
        match done {
            Ok(()) if context.verbosity > 0 => {
                context.note(format_args!("removed {path}"));
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(error) => Err(context.at(path, &error)),
        }
    }

    /// Removes a directory with everything below it. Reports what cannot be removed, and keeps the
    /// directories above.
    fn tree(
        &self,
        context: &Context,
        path: ImagePath,
        parent: &Inode,
        name: Vec<u8>,
        inode: Inode,
    ) -> anyhow::Result<()> {
        let mut stack = vec![frame(context, path, name, inode)?];
        while let Some(top) = stack.last_mut() {
            let Some(name) = top.left.pop() else {
                let done = stack.pop().expect("the stack has a last frame");
                let above = stack.last().map_or(parent, |above| &above.directory);
                let removed = above.remove_dir(&done.name);
                match removed {
                    // The failures below were reported.
                    Err(Error::Path { kind: PathError::NotEmpty, .. }) if context.has_failed() => {}
                    removed => self.report(context, &done.path, removed)?,
                }
                continue;
            };
            let path = top.path.join(&name);
            let removed = match top.directory.lookup(&name) {
                Ok(Some(inode)) if inode.file_type() == FileKind::Directory => {
                    if inode.is_subvolume_root() {
                        Err(Error::Path { path: name, kind: PathError::IsASubvolume })
                    } else {
                        stack.push(frame(context, path, name, inode)?);
                        continue;
                    }
                }
                Ok(Some(_)) => top.directory.remove_file(&name),
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            self.report(context, &path, removed)?;
        }
        Ok(())
    }

    /// Like [`Args::finish`], but reports an error that concerns one file.
    fn report(&self, context: &Context, path: &ImagePath, done: papilio::Result<()>) -> anyhow::Result<()> {
        match done {
            Err(error @ Error::Path { .. }) => context.error(describe(path, &error)),
            done => self.finish(context, path, done)?,
        }
        Ok(())
    }
}

fn frame(
    context: &Context,
    path: ImagePath,
    name: Vec<u8>,
    directory: Inode,
) -> anyhow::Result<EmptiedDirectory> {
    let names = directory.read_dir().and_then(|entries| {
        entries.map(|entry| Ok(entry?.file_name().to_vec())).collect::<papilio::Result<_>>()
    });
    let mut left: Vec<Vec<u8>> = names.map_err(|error| context.at(&path, &error))?;
    left.reverse();
    Ok(EmptiedDirectory { directory, path, name, left })
}
