//! Where backups are restored.
//!
//! Owns [`RestoreTarget`], and [`ImageTarget`], a directory in an image. `directory_target` has a
//! directory of the host.

use crate::error::{BackupError, Result};
use crate::manifest::BaseName;
use papilio::{ExistingSubvolume, FileSystem, Receive, ReceiveObserver, ReceivedSubvolume, Subvolume};
use std::io::Read;

/// A directory that receives the subvolumes of a chain.
pub trait RestoreTarget {
    /// Returns the path of an entry for messages.
    fn shown(&self, name: &[u8]) -> String;

    /// Returns what has this name.
    ///
    /// # Errors
    /// It cannot be looked up.
    fn existing(&mut self, name: &[u8]) -> Result<ExistingSubvolume>;

    /// Returns whether the target's file system has a read-only subvolume of this snapshot, from
    /// which the next one of the chain can begin.
    fn has(&mut self, snapshot: BaseName) -> bool;

    /// Receives a stream.
    ///
    /// # Errors
    /// As receiving.
    fn receive(
        &mut self,
        receive: &Receive,
        input: &mut dyn Read,
        observer: &mut dyn ReceiveObserver,
    ) -> Result<()>;

    /// Deletes a subvolume.
    ///
    /// # Errors
    /// It cannot be deleted.
    fn delete(&mut self, name: &[u8]) -> Result<()>;
}

/// Returns whether a subvolume is a copy of a snapshot, or that itself.
pub(crate) fn is_copy(subvolume: &Subvolume, snapshot: BaseName) -> bool {
    let is =
        |uuid, generation: papilio::Generation| uuid == snapshot.uuid && generation.0 == snapshot.ctransid;
    let same = is(subvolume.received_uuid, subvolume.sent) || is(subvolume.uuid, subvolume.changed);
    same && subvolume.is_read_only() && !subvolume.is_being_deleted()
}

/// Fails with the error of a receive that left a subvolume incomplete.
pub(crate) fn check_complete(received: &[ReceivedSubvolume]) -> Result<()> {
    match received.iter().find(|subvolume| !subvolume.complete) {
        None => Ok(()),
        Some(left) => {
            let name = String::from_utf8_lossy(&left.name);
            Err(BackupError::Invalid(format!("{name}: the subvolume is not complete")))
        }
    }
}

/// A directory in an image.
#[derive(Debug)]
pub struct ImageTarget {
    fs: FileSystem,
    path: Vec<u8>,
}

impl ImageTarget {
    /// Names a directory.
    ///
    /// # Errors
    /// There is none.
    pub fn new(fs: &FileSystem, path: &[u8]) -> Result<Self> {
        fs.inode(path)?;
        Ok(Self { fs: fs.clone(), path: path.to_vec() })
    }

    fn at(&self, name: &[u8]) -> Vec<u8> {
        [&self.path[..], b"/", name].concat()
    }
}

impl RestoreTarget for ImageTarget {
    fn shown(&self, name: &[u8]) -> String {
        String::from_utf8_lossy(&self.at(name)).into_owned()
    }

    fn existing(&mut self, name: &[u8]) -> Result<ExistingSubvolume> {
        let inode = match self.fs.inode(self.at(name)) {
            Err(papilio::Error::Path { kind: papilio::PathError::NotFound, .. }) => {
                return Ok(ExistingSubvolume::Missing);
            }
            inode => inode?,
        };
        if !inode.is_subvolume_root() {
            return Ok(ExistingSubvolume::Other);
        }
        let subvolume = self.fs.subvolume(inode.tree())?;
        if subvolume.is_read_only() && !subvolume.received_uuid.is_nil() {
            let (uuid, ctransid) = (subvolume.received_uuid, subvolume.sent);
            return Ok(ExistingSubvolume::Complete(papilio::SentSubvolume { uuid, ctransid }));
        }
        let note = inode.xattr(b"user.papilio.receive")?;
        Ok(note.map_or(ExistingSubvolume::Other, ExistingSubvolume::Incomplete))
    }

    fn has(&mut self, snapshot: BaseName) -> bool {
        self.fs.subvolumes().is_ok_and(|all| all.iter().any(|one| is_copy(one, snapshot)))
    }

    fn receive(
        &mut self,
        receive: &Receive,
        input: &mut dyn Read,
        observer: &mut dyn ReceiveObserver,
    ) -> Result<()> {
        let mut received = Vec::new();
        receive.receive(&self.fs, &self.path[..], input, &mut received, observer)?;
        check_complete(&received)
    }

    fn delete(&mut self, name: &[u8]) -> Result<()> {
        Ok(self.fs.delete_subvolume(self.at(name))?)
    }
}
