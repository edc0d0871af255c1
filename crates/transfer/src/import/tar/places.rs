//! Where the members of an archive go: directories by path, and symbolic links on the way to them.
//!
//! Owns [`Places`].
//!
//! **Invariants**
//! - A symbolic link on the way to a member is followed inside the directory to fill: an absolute
//!   target begins there, and `..` stays there.
//! - Keys are paths without symbolic links. The directory to fill has the empty path.

use super::super::event::MemberAttributes;
use super::super::writer::TreeWriter;
use papilio_engine::errors::{Error, PathError, Result};
use papilio_format::items::inode::FileKind;
use papilio_fs::Inode;
use std::collections::BTreeMap;

/// The most symbolic links on the way to a member, as the kernel's for a path.
const LINKS_MAX: usize = 40;

/// A directory with members.
pub(super) struct Directory {
    pub(super) inode: Inode,
    /// The attributes of its own member, if it had one.
    pub(super) attributes: Option<MemberAttributes>,
    pub(super) is_new: bool,
}

/// The directories of an archive.
pub(super) struct Places {
    directories: BTreeMap<Vec<u8>, Directory>,
}

impl Places {
    /// Begins with the directory to fill.
    pub(super) fn new(top: &Inode) -> Self {
        let top = Directory { inode: top.clone(), attributes: None, is_new: false };
        Self { directories: BTreeMap::from([(Vec::new(), top)]) }
    }

    /// Returns the directory at `path`, and its path without symbolic links. Creates it and its
    /// parents, owned by root, if no member did.
    ///
    /// # Errors
    /// Something else than a directory on the way; too many symbolic links.
    pub(super) fn directory(&mut self, path: &[u8], writer: &mut TreeWriter<'_>) -> Result<(Vec<u8>, Inode)> {
        let found = self.walk(path, Some(writer))?;
        found.ok_or_else(|| Error::path(path, PathError::NotFound))
    }

    /// Returns the target of a hard link. Only its last name may be a symbolic link itself.
    ///
    /// # Errors
    /// A target that does not exist.
    pub(super) fn find(&mut self, path: &[u8]) -> Result<Inode> {
        let missing =
            || Error::Invalid(format!("hard link to {}: no such member", String::from_utf8_lossy(path)));
        let (above, name) = split(path);
        let (_, above) = self.walk(above, None)?.ok_or_else(missing)?;
        above.lookup(name)?.ok_or_else(missing)
    }

    /// Returns the directory at a path without symbolic links, if members are known of it.
    pub(super) fn get_mut(&mut self, path: &[u8]) -> Option<&mut Directory> {
        self.directories.get_mut(path)
    }

    /// Adds a directory that has a member of its own.
    pub(super) fn insert(&mut self, path: Vec<u8>, directory: Directory) {
        self.directories.insert(path, directory);
    }

    /// Forgets a directory that was removed, and all below it.
    pub(super) fn forget(&mut self, path: &[u8]) {
        let below =
            |key: &[u8]| key.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        let from = self.directories.range(path.to_vec()..).map(|(key, _)| key);
        let gone: Vec<_> =
            from.take_while(|key| key.starts_with(path)).filter(|key| below(key)).cloned().collect();
        for key in gone {
            self.directories.remove(&key);
        }
    }

    /// Returns the directories in reverse order of paths, so that each comes before its parent.
    pub(super) fn into_deepest_first(self) -> impl Iterator<Item = (Vec<u8>, Directory)> {
        self.directories.into_iter().rev()
    }

    /// Follows a path. With a writer, it creates what is missing; otherwise it returns `None`.
    fn walk(
        &mut self,
        path: &[u8],
        mut writer: Option<&mut TreeWriter<'_>>,
    ) -> Result<Option<(Vec<u8>, Inode)>> {
        if let Some(known) = self.directories.get(path) {
            return Ok(Some((path.to_vec(), known.inode.clone())));
        }
        let mut pending = reversed_names(path);
        let (mut at, mut links) = (Vec::new(), 0);
        while let Some(name) = pending.pop() {
            if name == b".." {
                let above = split(&at).0.len();
                at.truncate(above);
                continue;
            }
            let next = joined(&at, &name);
            if self.directories.contains_key(&next) {
                at = next;
                continue;
            }
            let above = self.directories[&at].inode.clone();
            let (inode, is_new) = match above.lookup(&name)? {
                Some(there) if there.file_type() == FileKind::Directory => (there, false),
                Some(there) if there.file_type() == FileKind::Symlink => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Error::path(path, PathError::SymlinkLoop));
                    }
                    let target = there.read_link()?;
                    if target.starts_with(b"/") {
                        at.clear();
                    }
                    pending.extend(reversed_names(&target));
                    continue;
                }
                Some(_) => return Err(Error::path(&next, PathError::NotADirectory)),
                None => match writer.as_deref_mut() {
                    Some(writer) => (made(&above, &name, &next, writer)?, true),
                    None => return Ok(None),
                },
            };
            self.directories.insert(next.clone(), Directory { inode, attributes: None, is_new });
            at = next;
        }
        let inode = self.directories[&at].inode.clone();
        Ok(Some((at, inode)))
    }
}

/// Creates a directory that has no member.
fn made(above: &Inode, name: &[u8], path: &[u8], writer: &mut TreeWriter<'_>) -> Result<Inode> {
    let attributes = MemberAttributes { mode: 0o755, ..MemberAttributes::default() };
    let attributes = writer.attributes_at(path, attributes);
    let made = writer.make_directory(above, name, path, &attributes)?;
    let made = made.ok_or_else(|| Error::path(path, PathError::Exists))?;
    writer.finish(&made.inode, &attributes, true)?;
    Ok(made.inode)
}

/// Returns the names of a path, the first one last.
fn reversed_names(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.rev().map(<[u8]>::to_vec).collect()
}

/// Returns the path of an entry.
pub(super) fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        b"" => name.to_vec(),
        directory => [directory, name].join(&b'/'),
    }
}

/// Splits a path into directory and name.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}
