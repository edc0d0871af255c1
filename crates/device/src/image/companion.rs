//! Files that an image names as its parts: backing files, data files, extents.
//!
//! Owns [`Companions`], which opens and locks them, and keeps them open.
//!
//! **Invariants**
//! - Unless the caller allows it, only a regular file is opened whose name has no `..`, does not
//!   start with a slash, and names no protocol. Such a file is in the image's directory or below.
//! - No file is opened twice, so a chain of backing files ends.

use crate::device::Access;
use crate::error::OpenErrorKind;
use crate::file::FileDevice;
use crate::open::OpenOptions;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// The most files that one image may consist of.
const MAX_FILES: usize = 256;

/// The files of an image, which stay locked as long as this lives.
#[derive(Debug)]
pub(super) struct Companions {
    format: &'static str,
    allow_all: bool,
    /// Device and inode of each file.
    seen: Vec<(u64, u64)>,
    /// Files that a driver has open, too. Never read again: they hold the locks.
    files: Vec<FileDevice>,
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl Companions {
    /// Begins with the image itself, which the caller keeps open.
    pub(super) fn new(
        format: &'static str,
        image: &FileDevice,
        allow_all: bool,
    ) -> Result<Self, OpenErrorKind> {
        let seen = vec![identity(&image.host_file().metadata().map_err(OpenErrorKind::Io)?)];
        Ok(Self { format, allow_all, seen, files: Vec::new() })
    }

    /// Returns an error of the image.
    pub(super) fn fault(&self, reason: impl Into<String>) -> OpenErrorKind {
        OpenErrorKind::Image { format: self.format, reason: reason.into() }
    }

    /// Opens the file that the image at `image` names, keeps it open for its lock, and returns its
    /// path and another descriptor of it.
    pub(super) fn open(
        &mut self,
        image: &Path,
        name: &str,
        access: Access,
    ) -> Result<(PathBuf, std::fs::File), OpenErrorKind> {
        let (path, file) = self.open_device(image, name, access)?;
        let host = file.host_file().try_clone().map_err(OpenErrorKind::Io)?;
        self.files.push(file);
        Ok((path, host))
    }

    /// Opens the file that the image at `image` names, with the host's page cache, and returns its
    /// path and the device.
    pub(super) fn open_device(
        &mut self,
        image: &Path,
        name: &str,
        access: Access,
    ) -> Result<(PathBuf, FileDevice), OpenErrorKind> {
        let path = self.resolve(image, name)?;
        let file = OpenOptions::new(access).direct(false).open(&path);
        let file =
            file.map_err(|error| self.fault(format!("it needs {}: {}", path.display(), error.kind)))?;
        if file.is_block_device() && !self.allow_all {
            return Err(self.refusal(name, "is a block device"));
        }
        let host = file.host_file();
        let found = identity(&host.metadata().map_err(OpenErrorKind::Io)?);
        if self.seen.contains(&found) {
            return Err(
                self.fault(format!("its chain of files is a loop: {} is in it already", path.display()))
            );
        }
        if self.seen.len() >= MAX_FILES {
            return Err(self.fault(format!("it consists of more than {MAX_FILES} files")));
        }
        self.seen.push(found);
        Ok((path, file))
    }

    fn resolve(&self, image: &Path, name: &str) -> Result<PathBuf, OpenErrorKind> {
        let name = name.strip_prefix("file:").unwrap_or(name);
        let protocol = name.split_once(':').is_some_and(|(before, _)| !before.contains('/'));
        if protocol || name.is_empty() {
            return Err(self.fault(format!("it names {name:?}, which is no file name")));
        }
        let relative = Path::new(name);
        let inside =
            relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !inside && !self.allow_all {
            return Err(self.refusal(name, "is outside of its directory"));
        }
        Ok(image.parent().unwrap_or(Path::new("")).join(relative))
    }

    fn refusal(&self, name: &str, why: &str) -> OpenErrorKind {
        self.fault(format!(
            "it names {name:?}, which {why}; an image from an untrusted source could name any file: if you \
             trust it, use --allow-backing"
        ))
    }
}
