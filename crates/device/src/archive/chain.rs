//! `ArchiveChain`: an archive and those that it is based on, read as one.
//!
//! **Invariants**
//! - Each archive but the oldest names the next one by its id, and is based on that one's commit.
//! - The oldest is a full one.
//! - Bytes come from the newest archive that has their address.

use super::error::{ArchiveError, ArchiveFault};
use super::file::{ArchiveFile, Indexed};
use crate::device::{Access, Device};
use crate::open::OpenOptions;
use papilio_format::disk_archive::{ARCHIVE_MAGIC, ArchiveHeader};
use papilio_format::{LogicalAddress, PhysicalAddress, Uuid};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most archives of a chain.
const MAX_CHAIN: usize = 4096;

/// An archive with all that it is based on.
#[derive(Debug)]
pub struct ArchiveChain {
    /// Newest first.
    files: Vec<ArchiveFile>,
}

impl ArchiveChain {
    /// Opens an archive, and those that it is based on, which `find` returns by their ids.
    ///
    /// # Errors
    /// A damaged archive; one that is not found, or of another state than its child says.
    pub fn open(
        newest: Arc<dyn Device>,
        find: &mut dyn FnMut(Uuid) -> Result<Option<Arc<dyn Device>>, ArchiveError>,
    ) -> Result<Self, ArchiveError> {
        let mut files = vec![ArchiveFile::open(newest)?];
        while let Some(child) = files.last().filter(|file| file.header().is_incremental()) {
            let (name, header) = (child.name().to_owned(), *child.header());
            let failed = |fault: ArchiveFault| ArchiveError::at(&name, 0, fault);
            if files.len() == MAX_CHAIN {
                let text = format!("its chain has more than {MAX_CHAIN} archives");
                return Err(failed(ArchiveFault::Contradiction(text)));
            }
            let found = find(header.parent)?.ok_or_else(|| failed(ArchiveFault::NoParent(header.parent)))?;
            let parent = ArchiveFile::open(found)?;
            check_parent(&name, &header, parent.name(), parent.header())?;
            if files.iter().any(|known| known.header().id == parent.header().id) {
                let text = "it is based on itself".to_owned();
                return Err(failed(ArchiveFault::Contradiction(text)));
            }
            files.push(parent);
        }
        Ok(Self { files })
    }

    /// Opens the archive at a path, with those of its directory that it is based on and with
    /// `parents`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_path(path: &Path, file: Arc<dyn Device>, parents: &[PathBuf]) -> Result<Self, ArchiveError> {
        Self::open(file, &mut |id| {
            let Some(found) = find_parent(path, parents, id) else { return Ok(None) };
            let opened = OpenOptions::new(Access::ReadOnly).open(&found);
            let opened = opened.map_err(|error| {
                ArchiveError::at(&found.display().to_string(), 0, io::Error::other(error))
            })?;
            Ok(Some(Arc::new(opened) as Arc<dyn Device>))
        })
    }

    /// Returns the archive that was opened.
    pub fn newest(&self) -> &ArchiveFile {
        &self.files[0]
    }

    /// Returns all archives, newest first.
    pub fn files(&self) -> &[ArchiveFile] {
        &self.files
    }

    /// Returns whether the archives have all bytes of a range. Those that the source could not read
    /// are not there.
    pub fn covers(&self, start: LogicalAddress, length: u64) -> bool {
        let mut at = start.0;
        while at < start.0.saturating_add(length) {
            let found = self.files.iter().find_map(|file| file.find(at).ok());
            match found.filter(Indexed::is_readable) {
                Some(range) => at = range.end().min(self.next_newer(at, range.end())),
                None => return false,
            }
        }
        true
    }

    /// Returns where the first range starts after `at`, or else `end`.
    fn next_newer(&self, at: u64, end: u64) -> u64 {
        let starts = self.files.iter().filter_map(|file| file.find(at).err().flatten());
        starts.min().map_or(end, |start| start.min(end))
    }

    /// Reads bytes of the logical address space. Those that no archive has are zeros.
    ///
    /// # Errors
    /// A damaged frame; bytes that the source could not read.
    pub fn read(&self, start: LogicalAddress, buffer: &mut [u8]) -> Result<(), ArchiveError> {
        let (mut at, mut rest) = (start.0, buffer);
        while !rest.is_empty() {
            // Newer archives end the part that an older one gives.
            let mut limit = rest.len() as u64;
            let mut source = None;
            for file in &self.files {
                match file.find(at) {
                    Ok(range) => {
                        limit = limit.min(range.end() - at);
                        source = Some((file, range));
                        break;
                    }
                    Err(next) => limit = limit.min(next.map_or(limit, |next| next - at)),
                }
            }
            let (part, after) = rest.split_at_mut(limit as usize);
            match source {
                Some((file, range)) => file.read(&range, at, part)?,
                None => part.fill(0),
            }
            (at, rest) = (at.saturating_add(limit), after);
        }
        Ok(())
    }
}

/// Checks that an archive is the one that another one is based on.
///
/// # Errors
/// Another archive, or another state than the child names.
pub fn check_parent(
    child: &str,
    header: &ArchiveHeader,
    parent: &str,
    found: &ArchiveHeader,
) -> Result<(), ArchiveError> {
    let failed = |text: String| Err(ArchiveError::at(child, 0, ArchiveFault::Contradiction(text)));
    if found.id != header.parent {
        return failed(format!("it is based on the archive {}, and {parent} is {}", header.parent, found.id));
    }
    if found.fsid != header.fsid || found.generation != header.parent_generation {
        return failed(format!("it is based on another state than that of {parent}"));
    }
    Ok(())
}

/// Returns whether a file is an archive.
pub fn is_archive(path: &Path) -> bool {
    header_id(path).is_some()
}

/// Returns the path of the archive with an id, of `given` or of the directory of `child`.
pub fn find_parent(child: &Path, given: &[PathBuf], id: Uuid) -> Option<PathBuf> {
    if let Some(found) = given.iter().find(|path| header_id(path) == Some(id)) {
        return Some(found.clone());
    }
    let directory = child.parent().filter(|parent| !parent.as_os_str().is_empty());
    let entries = std::fs::read_dir(directory.unwrap_or(Path::new("."))).ok()?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.into_iter().find(|path| header_id(path) == Some(id))
}

/// Returns the id of an archive; `None` if the file is none.
fn header_id(path: &Path) -> Option<Uuid> {
    // Opening others could block.
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut bytes = [0; ArchiveHeader::SIZE];
    File::open(path).ok()?.read_exact(&mut bytes).ok()?;
    let (header, _) = ArchiveHeader::parse_prefix(&bytes).ok()?;
    (header.magic == ARCHIVE_MAGIC).then_some(header.id)
}

/// Returns whether a device starts as an archive.
pub(crate) fn has_magic(device: &dyn Device) -> bool {
    let mut magic = [0; ARCHIVE_MAGIC.len()];
    device.size() >= magic.len() as u64
        && device.read_at(&mut magic, PhysicalAddress(0)).is_ok()
        && magic == ARCHIVE_MAGIC
}
