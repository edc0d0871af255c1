//! Walks over everything below a directory.
//!
//! Owns [`Walk`] and [`WalkEntry`].
//!
//! **Invariant:** the walk never enters a directory inside itself, so that it ends on any image.

use crate::dir::Entries;
use crate::inode::Inode;
use papilio_engine::errors::{Error, Result};
use papilio_engine::namespace::Place;
use papilio_format::Corrupt;
use papilio_format::items::inode::FileKind;

/// Limit of the nesting of directories.
const DEPTH_LIMIT: usize = 4096;

/// An inode found by a walk.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WalkEntry {
    /// The path from the start of the walk, without a leading slash; empty for the start itself.
    pub path: Vec<u8>,
    /// The inode.
    pub inode: Inode,
}

#[derive(Debug)]
struct Level {
    entries: Entries,
    place: Place,
    path_length: usize,
}

/// An iterator over an inode and all those below it, each directory before its content. It does not
/// follow symbolic links, and crosses into subvolumes. An error concerns one entry or one
/// directory, and the walk continues after it.
#[derive(Debug)]
pub struct Walk {
    start: Option<Inode>,
    levels: Vec<Level>,
    path: Vec<u8>,
    entered_last: bool,
}

impl Walk {
    pub(super) fn new(start: Inode) -> Self {
        Self { start: Some(start), levels: Vec::new(), path: Vec::new(), entered_last: false }
    }

    /// Skips the content of the entry returned last, if that is a directory.
    pub fn skip_directory(&mut self) {
        if std::mem::take(&mut self.entered_last)
            && let Some(level) = self.levels.pop()
        {
            self.path.truncate(level.path_length);
        }
    }

    fn enter(&mut self, inode: &Inode, path_length: usize) -> Result<()> {
        let place = inode.place();
        let looping = !inode.is_subvolume_stub() && self.levels.iter().any(|level| level.place == place);
        if looping || self.levels.len() >= DEPTH_LIMIT {
            return Err(Error::Item {
                tree: place.tree,
                key: papilio_format::items::inode::inode_key(place.inode),
                reason: Corrupt::field(
                    "directory",
                    "inode",
                    place.inode.0,
                    "the directory is inside itself, or nested too deep",
                ),
            });
        }
        self.levels.push(Level { entries: inode.read_dir()?, place, path_length });
        Ok(())
    }

    fn visit(&mut self, inode: Inode, path_length: usize) -> Result<WalkEntry> {
        let entry = WalkEntry { path: self.path.clone(), inode };
        if entry.inode.file_type() == FileKind::Directory {
            self.enter(&entry.inode, path_length)?;
            self.entered_last = true;
        } else {
            self.path.truncate(path_length);
        }
        Ok(entry)
    }
}

impl Iterator for Walk {
    type Item = Result<WalkEntry>;

    fn next(&mut self) -> Option<Result<WalkEntry>> {
        self.entered_last = false;
        if let Some(start) = self.start.take() {
            return Some(self.visit(start, 0));
        }
        loop {
            let level = self.levels.last_mut()?;
            let Some(entry) = level.entries.next() else {
                let length = level.path_length;
                self.levels.pop();
                self.path.truncate(length);
                continue;
            };
            let path_length = self.path.len();
            let visited = entry.and_then(|entry| {
                let inode = entry.inode()?;
                if !self.path.is_empty() {
                    self.path.push(b'/');
                }
                self.path.extend_from_slice(entry.file_name());
                self.visit(inode, path_length)
            });
            if visited.is_err() {
                self.path.truncate(path_length);
            }
            return Some(visited);
        }
    }
}
