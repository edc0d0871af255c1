//! The members of a layer that delete what lower layers have.
//!
//! Owns [`Whiteouts`]. An empty file `.wh.NAME` deletes NAME, and `.wh..wh..opq` everything in its
//! directory. Neither touches what the layer itself brings.
//!
//! Format: the OCI image specification, "Image Layer Filesystem Changeset".

use super::places::{Places, joined, split};
use crate::import::replacing::remove_tree;
use papilio_engine::errors::Result;
use papilio_format::items::inode::FileKind;
use papilio_fs::Inode;
use std::collections::HashSet;

const PREFIX: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Other names with this prefix are for the use of AUFS itself.
const RESERVED: &[u8] = b".wh..wh.";

/// The whiteouts of a layer.
#[derive(Default)]
pub(super) struct Whiteouts {
    /// The paths that the layer brings, and those of the directories above them.
    made: HashSet<Vec<u8>>,
}

/// Returns whether a name is one of a whiteout.
pub(super) fn is_whiteout(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

impl Whiteouts {
    /// Notes that the layer brings this path.
    pub(super) fn note(&mut self, path: &[u8]) {
        let mut path = path;
        while !path.is_empty() && self.made.insert(path.to_vec()) {
            path = split(path).0;
        }
    }

    /// Applies the whiteout `name` in the directory `parent`, whose path is `directory`.
    ///
    /// # Errors
    /// A failure of the file system.
    pub(super) fn apply(
        &self,
        directory: &[u8],
        parent: &Inode,
        name: &[u8],
        places: &mut Places,
    ) -> Result<()> {
        let mut pending: Vec<(Inode, Vec<u8>)> = Vec::new();
        match name {
            OPAQUE => pending.push((parent.clone(), directory.to_vec())),
            name if name.starts_with(RESERVED) => {}
            name => {
                let name = &name[PREFIX.len()..];
                pending.extend(self.delete(directory, parent, name, places)?);
            }
        }
        while let Some((directory, path)) = pending.pop() {
            let names: Result<Vec<Vec<u8>>> =
                directory.read_dir()?.map(|entry| Ok(entry?.file_name().to_vec())).collect();
            for name in names? {
                pending.extend(self.delete(&path, &directory, &name, places)?);
            }
        }
        Ok(())
    }

    /// Deletes an entry of lower layers. A directory that the layer brings, too, is returned with
    /// its path: only what lower layers have in it goes.
    fn delete(
        &self,
        directory: &[u8],
        parent: &Inode,
        name: &[u8],
        places: &mut Places,
    ) -> Result<Option<(Inode, Vec<u8>)>> {
        let path = joined(directory, name);
        let there = if name.is_empty() { None } else { parent.lookup(name)? };
        let Some(there) = there else { return Ok(None) };
        if self.made.contains(&path) {
            return Ok((there.file_type() == FileKind::Directory).then_some((there, path)));
        }
        remove_tree(parent, name)?;
        places.forget(&path);
        Ok(None)
    }
}
