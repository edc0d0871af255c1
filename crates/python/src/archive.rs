//! Archives of whole file systems.
//!
//! Owns `FileSystem.archive`, [`verify_archive()`] and [`restore_archive()`]. docs/images.md
//! has the format.

use crate::errors::{CorruptError, Raise, of_library};
use crate::file_system::FileSystem;
use crate::paths::{PathArg, host_path};
use crate::streams::{BUFFER, Stream};
use papilio::archive::{
    ArchiveChain, ArchiveCreated, ArchiveError, ArchiveFault, ArchiveOptions, open_sources,
    restore_archive as restore_to, restore_sizes, verify_archive as verify,
};
use papilio::device::{Access, DeviceOptions};
use papilio::{Error, ImageTargets};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use rustix::io::Errno;
use std::io::{BufWriter, ErrorKind, Write};
use std::sync::Arc;

/// An error of reading an archive, until it becomes an exception.
enum Fault {
    Archive(ArchiveError),
    Library(Error),
}

impl From<ArchiveError> for Fault {
    fn from(error: ArchiveError) -> Self {
        Self::Archive(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl Fault {
    /// Makes the exception. Damage of an archive is a `CorruptError`.
    fn exception(self) -> PyErr {
        let corrupt = |text: String| CorruptError::new_err((Errno::IO.raw_os_error(), text));
        let error = match self {
            Self::Library(Error::Invalid(text)) => return corrupt(text),
            Self::Library(error) => return of_library(error),
            Self::Archive(error) => error,
        };
        let errno = match &error.fault {
            ArchiveFault::NoParent(_) => Errno::NOENT.raw_os_error(),
            ArchiveFault::Io(source) => source.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
            _ => return corrupt(error.to_string()),
        };
        PyOSError::new_err((errno, error.to_string()))
    }
}

/// Raises what an archive lacks.
fn check_whole(damaged: u64, unreadable: u64) -> PyResult<()> {
    match (damaged, unreadable) {
        (0, 0) => Ok(()),
        _ => {
            let text = format!("{damaged} bytes have no good copy, and {unreadable} could not be read");
            Err(CorruptError::new_err((Errno::IO.raw_os_error(), text)))
        }
    }
}

#[pymethods]
impl FileSystem {
    /// Writes an archive of the last commit to a file object or descriptor: the used bytes of all
    /// devices. With since, the path of an older archive, only what that one does not have. Returns
    /// the id of the archive and its bytes.
    #[pyo3(signature = (out, *, since = None, level = 3, threads = 0, skip_unreadable = false))]
    fn archive(
        &self,
        py: Python<'_>,
        out: &Bound<'_, PyAny>,
        since: Option<PathArg>,
        level: i32,
        threads: usize,
        skip_unreadable: bool,
    ) -> PyResult<(papilio::Uuid, u64)> {
        if !(0..=19).contains(&level) {
            return Err(PyValueError::new_err(format!("level {level}: there are 0 to 19")));
        }
        let stream = Stream::new(out)?;
        let options = ArchiveOptions::new().level(level).threads(threads).skip_unreadable(skip_unreadable);
        let created = self.run(py, |fs| {
            let parent = match &since {
                None => None,
                Some(path) => {
                    let path = &host_path(path);
                    let file = DeviceOptions::new(Access::ReadOnly).open(path).map_err(Error::from)?;
                    Some(Arc::new(ArchiveChain::open_path(path, Arc::new(file), &[])?))
                }
            };
            let mut out = BufWriter::with_capacity(BUFFER, stream);
            let created = fs.archive(parent, &mut out, &options, |_, _| {});
            let created = created.and_then(|created: ArchiveCreated| {
                out.flush().map_err(|source| Error::Host { path: "archive".into(), source })?;
                Ok(created)
            });
            // Bytes that a failed archive left must not be written after it.
            drop(out.into_parts());
            Ok::<_, Fault>(created)
        })?;
        let created = created.map_err(Fault::exception)?.raise()?;
        check_whole(created.damaged_bytes, created.unreadable_bytes)?;
        Ok((created.id, created.bytes))
    }
}

/// Reads an archive, and those that it is based on, and checks every checksum. Parents are archives
/// that are not in the directory of the archive.
#[pyfunction]
#[pyo3(signature = (archive, *, parents = Vec::new()))]
pub fn verify_archive(py: Python<'_>, archive: PathArg, parents: Vec<PathArg>) -> PyResult<()> {
    let verified = py.detach(|| {
        let parents: Vec<_> = parents.iter().map(host_path).collect();
        let mut unreadable = 0;
        for source in &mut open_sources(&host_path(&archive), &parents)? {
            unreadable = verify(source, 0, &mut |_| {})?.unreadable_bytes;
        }
        Ok::<_, Fault>(unreadable)
    });
    check_whole(0, verified.map_err(Fault::exception)?)
}

/// Restores an archive to images or devices, in the order of the ids of the archived devices. A
/// missing image is made, with the archived size or that of sizes. A smaller device gets a file
/// system that was shrunk to it.
#[pyfunction]
#[pyo3(signature = (archive, *images, parents = Vec::new(), sizes = None, force = false))]
pub fn restore_archive(
    py: Python<'_>,
    archive: PathArg,
    images: Vec<PathArg>,
    parents: Vec<PathArg>,
    sizes: Option<Vec<u64>>,
    force: bool,
) -> PyResult<()> {
    let opened = py.detach(|| {
        let parents: Vec<_> = parents.iter().map(host_path).collect();
        open_sources(&host_path(&archive), &parents)
    });
    let mut sources = opened.map_err(|error| Fault::Archive(error).exception())?;
    let archived = sources.last().map(restore_sizes).unwrap_or_default();
    let sizes = sizes.unwrap_or_else(|| archived.clone());
    if images.len() != archived.len() || sizes.len() != archived.len() {
        let (needed, given) = (archived.len(), images.len());
        let text = format!(
            "the file system has {needed} devices, {given} images and {} sizes were given",
            sizes.len()
        );
        return Err(PyValueError::new_err(text));
    }
    let mut targets = ImageTargets::new();
    for (image, size) in images.iter().zip(&sizes) {
        let added = targets.add(&host_path(image), *size, force);
        added.map_err(|error| match &error {
            Error::Host { source, .. } if source.kind() == ErrorKind::AlreadyExists => {
                PyOSError::new_err((Errno::EXIST.raw_os_error(), error.to_string()))
            }
            _ => of_library(error),
        })?;
    }
    let restored = py
        .detach(|| restore_to(&mut sources, targets.devices(), &std::env::temp_dir(), |_| {}))
        .map_err(|error| Fault::Library(error).exception())?;
    targets.keep();
    check_whole(0, restored.unreadable_bytes)
}
