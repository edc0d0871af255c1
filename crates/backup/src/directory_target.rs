//! Restoring into a directory of the host.
//!
//! Owns [`DirectoryTarget`].

use crate::error::{BackupError, Result};
use crate::manifest::BaseName;
use crate::target::{RestoreTarget, check_complete, is_copy};
use papilio::{ExistingSubvolume, HostDirectory, Receive, ReceiveObserver, ReceiveTarget};
use papilio_ioctl::client::MountedPath;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A directory of the host: on a mount of Papilio or the kernel, or of any other file system.
#[derive(Debug)]
pub struct DirectoryTarget {
    path: PathBuf,
    directory: HostDirectory,
}

impl DirectoryTarget {
    /// Opens a directory.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), directory: HostDirectory::open(path)? })
    }

    /// Returns whether snapshots become plain directories here, not subvolumes.
    pub fn is_plain(&self) -> bool {
        self.directory.is_plain()
    }

    fn at(&self, name: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(name))
    }
}

impl RestoreTarget for DirectoryTarget {
    fn shown(&self, name: &[u8]) -> String {
        self.at(name).display().to_string()
    }

    fn existing(&mut self, name: &[u8]) -> Result<ExistingSubvolume> {
        Ok(self.directory.existing(name)?)
    }

    fn has(&mut self, snapshot: BaseName) -> bool {
        // Where the list is refused, the whole chain is received.
        let all = MountedPath::open(&self.path).and_then(|open| open.subvolumes());
        !self.directory.is_plain() && all.is_ok_and(|all| all.iter().any(|one| is_copy(one, snapshot)))
    }

    fn receive(
        &mut self,
        receive: &Receive,
        input: &mut dyn Read,
        observer: &mut dyn ReceiveObserver,
    ) -> Result<()> {
        let mut received = Vec::new();
        receive.receive_into(&mut self.directory, input, &mut received, observer)?;
        check_complete(&received)
    }

    fn delete(&mut self, name: &[u8]) -> Result<()> {
        let place = self.at(name);
        let deleted = match self.directory.is_plain() {
            true => std::fs::remove_dir_all(&place),
            false => MountedPath::open(&self.path).and_then(|open| open.delete_subvolume(name)),
        };
        deleted.map_err(|source| BackupError::Store { object: place.display().to_string(), source })
    }
}
