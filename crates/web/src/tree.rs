//! Copies and removes files and folders with everything in them.
//!
//! A copy shares the data of its source (reflinks). It is made under a temporary name beside its
//! destination and then takes the destination's name in one step, so that nobody sees a part of it.
//!
//! **Invariants**
//! - Symbolic links are copied and removed as such, never followed.
//! - A subvolume is copied as folders, and never removed.
//! - The user must be allowed each step.
//!
//! **Locks**: `Export::names`, for each name that is made or removed. Callers do not hold it.

use crate::export::Export;
use crate::random;
use crate::reply::Refusal;
use papilio::format::{InodeNumber, TreeId};
use papilio::{Entries, File, FileKind, Inode, NewKind, PathError, Permissions, XattrSet};
use std::io;

/// The most levels of folders that a copy or a removal goes down.
const DEPTH_MOST: usize = 1000;
/// The names that are removed from a folder before it is listed again.
const REMOVED_AT_ONCE: usize = 500;
/// Bytes that are copied at once where data cannot be shared.
const STEP: usize = 256 << 10;
/// The attributes that belong to the content: those of users.
const USER: &[u8] = b"user.";

/// A member that could not be removed.
#[derive(Debug)]
pub(crate) struct NotRemoved {
    /// Its names below what was to be removed.
    pub(crate) below: Vec<Vec<u8>>,
    pub(crate) refusal: Refusal,
}

/// Returns a name that nothing has.
pub(crate) fn temporary_name() -> Result<Vec<u8>, Refusal> {
    let digits = random::digits::<8>();
    let digits = digits.map_err(|error: io::Error| Refusal::new(500, format!("no random bytes: {error}")))?;
    Ok(format!(".papilio-{digits}").into_bytes())
}

impl Export {
    /// Copies `source` as an entry of `parent`; a folder with its content if `is_deep` is set.
    pub(crate) fn copy_tree(
        &self,
        source: &Inode,
        parent: &Inode,
        name: &[u8],
        is_deep: bool,
    ) -> Result<(), Refusal> {
        // The inode of the copy itself, which may lie inside of what is copied.
        let made = self.copy_one(source, parent, name)?;
        if source.file_type() != FileKind::Directory || !is_deep {
            return Ok(());
        }
        let own = (made.tree(), made.number());
        let mut stack: Vec<(Entries, Inode)> = vec![(self.listed(source)?, made)];
        while let Some((entries, target)) = stack.last_mut() {
            let Some(entry) = entries.next() else {
                stack.pop();
                continue;
            };
            let entry = entry?;
            let inode = entry.inode()?;
            if place(&inode) == own {
                continue;
            }
            let target = target.clone();
            let copy = self.copy_one(&inode, &target, entry.file_name())?;
            if inode.file_type() == FileKind::Directory {
                if stack.len() >= DEPTH_MOST {
                    return Err(Refusal::new(507, "the folders are nested too deep"));
                }
                stack.push((self.listed(&inode)?, copy));
            }
        }
        Ok(())
    }

    fn listed(&self, directory: &Inode) -> Result<Entries, Refusal> {
        self.must_have(directory, Permissions::READ | Permissions::EXECUTE)?;
        Ok(directory.read_dir()?)
    }

    /// Copies one inode without what is below it.
    fn copy_one(&self, source: &Inode, parent: &Inode, name: &[u8]) -> Result<Inode, Refusal> {
        let mode = source.metadata().permissions() & 0o777;
        let target = match source.file_type() {
            FileKind::Symlink => Some(source.read_link()?),
            _ => None,
        };
        let kind = match (source.file_type(), &target) {
            (FileKind::Regular, _) => NewKind::Regular,
            (FileKind::Directory, _) => NewKind::Directory,
            (_, Some(target)) => NewKind::Symlink(target),
            _ => return Err(Refusal::new(403, "devices, pipes and sockets are not copied")),
        };
        if kind == NewKind::Regular {
            self.must_have(source, Permissions::READ)?;
        }
        let made = {
            let _names = self.names.lock();
            let parent = self.fs.inode_at(parent.tree(), parent.number())?;
            let new = parent.check_create(&self.caller, kind, mode)?;
            parent.create(name, &new)?
        };
        if kind == NewKind::Regular {
            copy_data(&source.open()?, &made.open()?)?;
        }
        if target.is_none() {
            for attribute in source.xattrs()?.iter().filter(|attribute| attribute.name.starts_with(USER)) {
                made.set_xattr(&attribute.name, &attribute.value, XattrSet::Any)?;
            }
        }
        Ok(self.fs.inode_at(made.tree(), made.number())?)
    }

    /// Removes the entry `name` of `parent` with everything in it. Stops at the first thing that
    /// stays.
    pub(crate) fn remove_tree(&self, parent: &Inode, name: &[u8]) -> Result<(), NotRemoved> {
        // Each folder that is being emptied: the folder above, and its name there.
        let mut stack: Vec<(Inode, Vec<u8>)> = vec![(parent.clone(), name.to_vec())];
        while let Some((parent, name)) = stack.last().cloned() {
            let below = || stack.iter().skip(1).map(|(_, name)| name.clone()).collect::<Vec<_>>();
            let failed = |refusal: Refusal| NotRemoved { below: below(), refusal };
            match self.remove_entry(&parent, &name).map_err(failed)? {
                None => {
                    stack.pop();
                }
                Some(directory) => {
                    let full = self.remove_files(&directory).map_err(|(name, refusal)| {
                        let mut below = below();
                        below.extend(name);
                        NotRemoved { below, refusal }
                    })?;
                    if let Some(name) = full {
                        if stack.len() >= DEPTH_MOST {
                            return Err(failed(Refusal::new(507, "the folders are nested too deep")));
                        }
                        stack.push((directory, name));
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes an entry. Returns it if it is a folder that has to be emptied first.
    fn remove_entry(&self, parent: &Inode, name: &[u8]) -> Result<Option<Inode>, Refusal> {
        let _names = self.names.lock();
        let parent = self.fs.inode_at(parent.tree(), parent.number())?;
        let Some(victim) = self.child(&parent, name)? else { return Ok(None) };
        parent.check_remove(&self.caller, &victim)?;
        if victim.is_subvolume_root() {
            return Err(Refusal::new(403, "a subvolume is removed by papilio subvolume delete"));
        }
        if victim.file_type() != FileKind::Directory {
            parent.remove_file(name)?;
            return Ok(None);
        }
        match parent.remove_dir(name) {
            Ok(()) => Ok(None),
            Err(error) if error.kind() == papilio::ErrorKind::Path(PathError::NotEmpty) => Ok(Some(victim)),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes files of a folder. Returns the name of a folder in it that must be emptied first.
    #[allow(clippy::type_complexity)]
    fn remove_files(&self, directory: &Inode) -> Result<Option<Vec<u8>>, (Option<Vec<u8>>, Refusal)> {
        let own = |refusal: Refusal| (None, refusal);
        let entries = self.listed(directory).map_err(own)?;
        let mut names = Vec::new();
        for entry in entries.take(REMOVED_AT_ONCE) {
            let entry = entry.map_err(|error| own(error.into()))?;
            names.push(entry.file_name().to_vec());
        }
        for name in names {
            match self.remove_entry(directory, &name) {
                Ok(None) => {}
                Ok(Some(_)) => return Ok(Some(name)),
                Err(refusal) => return Err((Some(name), refusal)),
            }
        }
        Ok(None)
    }
}

fn place(inode: &Inode) -> (TreeId, InodeNumber) {
    (inode.tree(), inode.number())
}

/// Copies the data of a file: shares it, or writes it again where it cannot be shared.
fn copy_data(source: &File, target: &File) -> Result<(), Refusal> {
    let size = source.size()?;
    if size == 0 || target.clone_range(source, 0, 0, 0).is_ok() {
        return Ok(());
    }
    let mut buffer = vec![0; STEP];
    let mut at = 0;
    loop {
        let read = source.read_at(&mut buffer, at)?;
        if read == 0 {
            return Ok(());
        }
        target.write_all_at(&buffer[..read], at)?;
        at += read as u64;
    }
}
