//! The files with fs-verity whose descriptors are loaded.
//!
//! Owns [`OpenVerity`]. A file with fs-verity never changes, and no other file gets its number in
//! its subvolume, so that an entry stays valid as long as the file system is open.
//!
//! Locks: one, alone, for moments. Kernel counterpart: `fsverity_get_info` (`fs/verity/open.c`).

use crate::data::file_data::FileData;
use crate::data::fsverity::FileVerity;
use crate::errors::Result;
use papilio_format::{InodeNumber, TreeId};
use papilio_locks::Mutex;
use std::sync::Arc;

/// Most files whose descriptors are kept.
const MOST_KEPT: usize = 64;

/// One loaded file.
type Loaded = ((TreeId, InodeNumber), Arc<FileVerity>);

/// Loaded descriptors, those used last behind the others.
#[derive(Debug, Default)]
pub(crate) struct OpenVerity(Mutex<Vec<Loaded>>);

impl OpenVerity {
    /// Returns what verifies `file`, which has the flag of fs-verity.
    ///
    /// # Errors
    /// As [`FileVerity::load`].
    pub(crate) fn of(&self, file: &FileData<'_>) -> Result<Arc<FileVerity>> {
        let tree = file.tree.get();
        let key = (tree.id(), file.inode);
        {
            let mut loaded = self.0.lock();
            if let Some(at) = loaded.iter().position(|(other, _)| *other == key) {
                let found = loaded.remove(at);
                loaded.push(found);
                return Ok(Arc::clone(&loaded[loaded.len() - 1].1));
            }
        }
        let verity = Arc::new(FileVerity::load(tree, file.inode, file.size)?);
        let mut loaded = self.0.lock();
        if loaded.len() >= MOST_KEPT {
            loaded.remove(0);
        }
        loaded.push((key, Arc::clone(&verity)));
        Ok(verity)
    }
}
