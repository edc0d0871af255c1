//! How a new entry replaces one of another kind.
//!
//! Owns [`Replacing`] and [`remove_tree`].

use papilio_engine::errors::{Error, PathError, Result};
use papilio_format::items::inode::FileKind;
use papilio_fs::Inode;

/// The entries that may be replaced, where existing ones are replaced at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Replacing {
    /// A regular file keeps its inode and gets new content. A directory neither replaces another
    /// kind nor is replaced by one.
    #[default]
    InPlace,
    /// As tar(1) does: the name is removed and made anew, so that other hard links keep their
    /// content. Of directories, only empty ones are replaced.
    ByName,
    /// As the layers of a container image: directories are replaced with all that is in them.
    ByLayer,
}

/// Removes an entry, and everything below it if it is a directory.
///
/// # Errors
/// A failure of the file system.
pub(super) fn remove_tree(parent: &Inode, name: &[u8]) -> Result<()> {
    let mut pending = vec![(parent.clone(), name.to_vec())];
    while let Some((parent, name)) = pending.last().cloned() {
        let Some(there) = parent.lookup(&name)? else {
            pending.pop();
            continue;
        };
        let removed = match there.file_type() {
            FileKind::Directory => parent.remove_dir(&name),
            _ => parent.remove_file(&name),
        };
        match removed {
            Ok(()) => drop(pending.pop()),
            Err(Error::Path { kind: PathError::NotEmpty, .. }) => {
                for entry in there.read_dir()? {
                    pending.push((there.clone(), entry?.file_name().to_vec()));
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
