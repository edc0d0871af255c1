//! `Export`: the directory of a file system that clients see, and how paths lead into it.
//!
//! **Invariants**
//! - Every look-up starts at the exported directory and goes name by name. `..` in a symbolic link
//!   stops there, and an absolute link starts there, as after chroot(2). So nothing outside of the
//!   directory can be named.
//! - Each directory on the way must let the user through.
//!
//! **Locks**: `names`, held from the check of permissions and conditions to the change that they
//! allow. The server is the only process that changes the file system. No body is read and no
//! answer written under it. The locks of the file system are acquired below it.

use crate::reply::Refusal;
use papilio::format::{InodeNumber, TreeId};
use papilio::{Caller, FileKind, FileSystem, Inode, PathError, Permissions};
use papilio_locks::Mutex;
use std::collections::VecDeque;

/// The most symbolic links on a path, as in the kernel.
const LINKS_MOST: usize = 40;
/// The most names that a path can have, with those of its links.
const NAMES_MOST: usize = 4096;

/// A file system, or the part of it below one of its directories.
#[derive(Debug)]
pub struct Export {
    pub(crate) fs: FileSystem,
    root: (TreeId, InodeNumber),
    /// The path of the exported directory from the root of its subvolume.
    pub(crate) prefix: Vec<Vec<u8>>,
    pub(crate) is_writable: bool,
    pub(crate) caller: Caller,
    pub(crate) names: Mutex<()>,
    /// The name that pages show for the whole.
    pub(crate) title: String,
}

/// A place in the export: where a path leads.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The names from the exported directory on, without symbolic links.
    pub(crate) names: Vec<Vec<u8>>,
    /// The directory of the last name; `None` if that does not exist, or for the root.
    pub(crate) parent: Option<Inode>,
    /// The inode; `None` if there is none.
    pub(crate) inode: Option<Inode>,
}

impl Place {
    /// Returns the inode.
    pub(crate) fn found(&self) -> Result<&Inode, Refusal> {
        self.inode.as_ref().ok_or_else(|| Refusal::new(404, "there is no such file or directory"))
    }

    /// Returns the directory in which the last name can be made, changed or removed, and the name.
    pub(crate) fn entry(&self) -> Result<(&Inode, &[u8]), Refusal> {
        match (&self.parent, self.names.last()) {
            (Some(parent), Some(name)) => Ok((parent, name)),
            (None, Some(_)) => Err(Refusal::new(409, "the directory above does not exist")),
            (_, None) => Err(Refusal::new(403, "the exported directory itself cannot be replaced")),
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.inode.as_ref().is_some_and(|inode| inode.file_type() == FileKind::Directory)
    }
}

impl Export {
    /// Exports the directory at `path`, in bytes, and all below it. `title` is shown for it.
    ///
    /// # Errors
    /// There is no such directory, or a tree block cannot be read.
    pub fn new(fs: FileSystem, path: &[u8], is_writable: bool, title: &str) -> papilio::Result<Self> {
        let root = fs.inode(path)?;
        root.read_dir()?;
        Ok(Self {
            prefix: path_in_subvolume(&fs, &root)?,
            root: (root.tree(), root.number()),
            fs,
            is_writable,
            caller: Caller::root(),
            names: Mutex::default(),
            title: title.to_owned(),
        })
    }

    /// Acts as a user with one group. Without this call, requests have the rights of root.
    #[must_use]
    pub fn user(mut self, uid: u32, gid: u32) -> Self {
        self.caller = Caller::new(uid, gid, Vec::new());
        self
    }

    /// Returns the file system.
    pub fn file_system(&self) -> &FileSystem {
        &self.fs
    }

    /// Returns the exported directory as it is now.
    pub(crate) fn root(&self) -> Result<Inode, Refusal> {
        Ok(self.fs.inode_at(self.root.0, self.root.1)?)
    }

    /// Refuses a user without permissions.
    pub(crate) fn must_have(&self, inode: &Inode, wanted: Permissions) -> Result<(), Refusal> {
        Ok(inode.check_permissions(&self.caller, wanted)?)
    }

    /// Refuses changes of an export that is for reading.
    pub(crate) fn must_be_writable(&self) -> Result<(), Refusal> {
        match self.is_writable {
            true => Ok(()),
            false => {
                Err(Refusal::new(403, "the server is read-only: start it with --writable to change files"))
            }
        }
    }

    /// Looks a name up in a directory that the user may search.
    pub(crate) fn child(&self, directory: &Inode, name: &[u8]) -> Result<Option<Inode>, Refusal> {
        if directory.file_type() != FileKind::Directory {
            return Ok(None);
        }
        self.must_have(directory, Permissions::EXECUTE)?;
        Ok(directory.lookup(name)?)
    }

    /// Returns where a path leads. A symbolic link at its end is followed if `follows` is set.
    pub(crate) fn find(&self, names: &[Vec<u8>], follows: bool) -> Result<Place, Refusal> {
        let mut stack: Vec<(Vec<u8>, Inode)> = Vec::new();
        let root = self.root()?;
        let mut left: VecDeque<Vec<u8>> = names.iter().cloned().collect();
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            match &name[..] {
                b"" | b"." => continue,
                b".." => {
                    stack.pop();
                    continue;
                }
                _ => {}
            }
            if stack.len() + left.len() > NAMES_MOST {
                return Err(Refusal::new(414, "the path has too many names"));
            }
            let directory = stack.last().map_or(&root, |(_, inode)| inode);
            let Some(inode) = self.child(directory, &name)? else {
                let is_last = left.iter().all(|name| name.is_empty());
                let can_have = directory.file_type() == FileKind::Directory && is_last;
                let parent = can_have.then(|| directory.clone());
                let mut names: Vec<Vec<u8>> = stack.into_iter().map(|(name, _)| name).collect();
                names.push(name);
                names.extend(left);
                return Ok(Place { names, parent, inode: None });
            };
            if inode.file_type() == FileKind::Symlink && (follows || !left.is_empty()) {
                links += 1;
                if links > LINKS_MOST {
                    return Err(papilio::Error::path(&name, PathError::SymlinkLoop).into());
                }
                let target = inode.read_link()?;
                if target.starts_with(b"/") {
                    stack.clear();
                }
                for part in target.split(|byte| *byte == b'/').rev() {
                    left.push_front(part.to_vec());
                }
                continue;
            }
            stack.push((name, inode));
        }
        let inode = stack.last().map_or_else(|| root.clone(), |(_, inode)| inode.clone());
        let parent = match stack.len() {
            0 => None,
            1 => Some(root),
            depth => Some(stack[depth - 2].1.clone()),
        };
        let names = stack.into_iter().map(|(name, _)| name).collect();
        Ok(Place { names, parent, inode: Some(inode) })
    }
}

/// Returns the names that lead from the root of a subvolume to a directory in it.
fn path_in_subvolume(fs: &FileSystem, directory: &Inode) -> papilio::Result<Vec<Vec<u8>>> {
    let mut path = Vec::new();
    let mut inode = directory.clone();
    while !inode.is_subvolume_root() {
        let (parent, name) = inode
            .names()?
            .into_iter()
            .next()
            .ok_or_else(|| papilio::Error::path(b"the exported directory", PathError::NotFound))?;
        path.push(name);
        inode = fs.inode_at(inode.tree(), parent)?;
    }
    path.reverse();
    Ok(path)
}
