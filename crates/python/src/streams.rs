//! `FileSystem`: send, receive, and copying in from the host and out to it.
//!
//! Owns these methods, and the file objects of Python as streams of the library. A stream goes
//! through a buffer of 1 MiB, and the GIL is taken for each buffer, not for each command.

use crate::buffer::Buffer;
use crate::errors::{Raise, incomplete, of_dedupe, of_export};
use crate::file_system::{FileSystem, SubvolumeArg};
use crate::paths::{PathArg, decode, host_path};
use crate::subvolumes::subvolume_id;
use papilio::{
    ChecksumDedupe, Dedupe, DedupeError, DedupeObserver, DedupeReport, DedupeStage, Error, Export,
    ExportError, ExportObserver, ExportProblem, ExportProblems, FileKind, ImagePath, NameChange, Populate,
    PopulateObserver, Receive, ReceivedSubvolume, SendOptions, SendProtocol, SnapshotChange, WalkRoot,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::cell::Cell;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Bytes that are kept between two calls of a stream.
pub const BUFFER: usize = 1 << 20;

/// A change between two snapshots: its kind, the path, the old path, whether data changed.
type ChangeRow = (&'static str, Py<PyAny>, Option<Py<PyAny>>, bool);

/// A descriptor or a file object.
pub enum Stream {
    /// A descriptor of this process.
    Descriptor(std::fs::File),
    /// A file object, whose methods are called.
    Object(Py<PyAny>),
}

impl Stream {
    /// Takes a descriptor or a file object.
    ///
    /// # Errors
    /// A descriptor that is not open.
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let Ok(descriptor) = object.extract::<i32>() else {
            return Ok(Self::Object(object.clone().unbind()));
        };
        if descriptor < 0 {
            return Err(PyValueError::new_err("negative file descriptor"));
        }
        // SAFETY: the caller keeps the descriptor open during the call, as for every function that
        // takes one; a closed one gives EBADF.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let owned: OwnedFd = borrowed.try_clone_to_owned()?;
        Ok(Self::Descriptor(owned.into()))
    }
}

/// Runs the signal handlers of Python that are due, such as that of Ctrl+C.
///
/// # Errors
/// The exception that a handler raised, as the cause of an error of the system.
pub fn check_signals() -> io::Result<()> {
    Python::attach(|py| py.check_signals()).map_err(io::Error::other)
}

/// An observer of long calls that Ctrl+C ends. It keeps the problems of copies.
#[derive(Default)]
pub struct Interruptible {
    problems: ExportProblems,
    /// The last time when signals were looked for: taking the GIL for each step would be slow.
    asked: Cell<Option<Instant>>,
}

impl Interruptible {
    fn check(&self) -> io::Result<()> {
        const PAUSE: Duration = Duration::from_millis(50);
        if self.asked.get().is_some_and(|asked| asked.elapsed() < PAUSE) {
            return Ok(());
        }
        self.asked.set(Some(Instant::now()));
        check_signals()
    }
}

impl ExportObserver for Interruptible {
    fn problem(&self, problem: ExportProblem) {
        self.problems.problem(problem);
    }

    fn proceed(&self) -> io::Result<()> {
        self.check()
    }
}

impl PopulateObserver for Interruptible {
    fn proceed(&mut self) -> papilio::Result<()> {
        self.check().map_err(|source| Error::Host { path: "copy".into(), source })
    }
}

impl DedupeObserver for DedupeWatch {
    fn file(&mut self, _path: &[u8], _before: &DedupeReport) -> io::Result<()> {
        self.signals.check()
    }

    fn stage(&mut self, _stage: DedupeStage, _done: u64) -> io::Result<()> {
        self.signals.check()
    }

    fn failed(&mut self, error: DedupeError) {
        self.left_out.push(error.to_string());
    }
}

/// As [`Interruptible`], for [`Dedupe`].
#[derive(Default)]
struct DedupeWatch {
    signals: Interruptible,
    left_out: Vec<String>,
}

impl Write for Stream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self {
            Self::Descriptor(file) => {
                check_signals()?;
                file.write(data)
            }
            Self::Object(object) => Python::attach(|py| {
                let written = object.call_method1(py, "write", (PyBytes::new(py, data),))?;
                // A raw file object returns None if it would block.
                written.extract::<Option<usize>>(py)
            })
            .map_err(io::Error::other)?
            .map(|written| written.min(data.len()))
            .ok_or_else(|| io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Descriptor(file) => file.flush(),
            Self::Object(_) => Ok(()),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Descriptor(file) => {
                check_signals()?;
                file.read(buffer)
            }
            Self::Object(object) => Python::attach(|py| {
                let bytes = object.call_method1(py, "read", (buffer.len(),))?;
                let bytes = Buffer::readable(bytes.bind(py))?;
                let length = bytes.len().min(buffer.len());
                buffer[..length].copy_from_slice(&bytes.bytes()[..length]);
                Ok::<_, PyErr>(length)
            })
            .map_err(io::Error::other),
        }
    }
}

#[pymethods]
impl FileSystem {
    /// Writes the send stream of a read-only subvolume to a file object or descriptor. Returns the
    /// numbers of commands and bytes.
    #[pyo3(signature = (
        subvolume, out, *, parent = None, clone_sources = Vec::new(), no_data = false, protocol = 1,
        compressed_data = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keyword arguments in Python")]
    fn send(
        &self,
        py: Python<'_>,
        subvolume: SubvolumeArg,
        out: &Bound<'_, PyAny>,
        parent: Option<SubvolumeArg>,
        clone_sources: Vec<SubvolumeArg>,
        no_data: bool,
        protocol: u32,
        compressed_data: bool,
    ) -> PyResult<(u64, u64)> {
        let protocol = match protocol {
            1 => SendProtocol::V1,
            2 => SendProtocol::V2,
            _ => return Err(PyValueError::new_err("protocol: expected 1 or 2")),
        };
        let stream = Stream::new(out)?;
        let sent = self.run(py, move |fs| {
            let id = subvolume_id(fs, &subvolume)?;
            let parent = parent.map(|parent| subvolume_id(fs, &parent)).transpose()?;
            let mut options = SendOptions::new()
                .parent(parent)
                .no_data(no_data)
                .protocol(protocol)
                .compressed_data(compressed_data);
            for source in &clone_sources {
                options = options.clone_source(subvolume_id(fs, source)?);
            }
            let mut out = BufWriter::with_capacity(BUFFER, stream);
            let sent = options.send(fs, id, &mut out, &mut ())?;
            let flushed = out.flush();
            flushed.map_err(|source| Error::Host { path: "send stream".into(), source })?;
            Ok::<_, Error>(sent)
        })?;
        let sent = sent.raise()?;
        Ok((sent.commands, sent.bytes))
    }

    /// Applies the send streams of a file object or descriptor to the directory at path. Returns
    /// the name of each subvolume and whether it is complete.
    #[pyo3(signature = (stream, path = None, *, stop_at_end = false, max_errors = 1))]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        stream: &Bound<'_, PyAny>,
        path: Option<PathArg>,
        stop_at_end: bool,
        max_errors: u64,
    ) -> PyResult<Vec<(Bound<'py, PyAny>, bool)>> {
        let path = path.unwrap_or_else(|| PathArg::text(b"/".to_vec()));
        let stream = Stream::new(stream)?;
        let received = self.run(py, |fs| {
            let mut received = Vec::new();
            let receive = Receive::new().stop_at_end(stop_at_end).max_errors(max_errors);
            // With an end inside the stream, the rest stays unread.
            let capacity = if stop_at_end { 0 } else { BUFFER };
            let mut input = BufReader::with_capacity(capacity, stream);
            receive.receive(fs, &path.bytes, &mut input, &mut received, &mut ())?;
            Ok::<_, Error>(received)
        })?;
        names_of(py, received.raise()?)
    }

    /// Returns the paths that differ between two read-only snapshots.
    fn _changes(&self, py: Python<'_>, old: SubvolumeArg, new: SubvolumeArg) -> PyResult<Vec<ChangeRow>> {
        let changes = self.run(py, |fs| {
            let (old, new) = (subvolume_id(fs, &old)?, subvolume_id(fs, &new)?);
            papilio::snapshot_changes(fs, old, new)
        })?;
        let absolute = |path: &[u8]| decode(py, &[b"/", path].concat()).map(Bound::unbind);
        let row = |change: SnapshotChange| {
            let (kind, old) = match &change.name {
                NameChange::Added => ("added", None),
                NameChange::Deleted => ("removed", None),
                NameChange::Renamed(old) => ("renamed", Some(absolute(old)?)),
                _ => ("modified", None),
            };
            Ok((kind, absolute(&change.path)?, old, change.content || kind == "added"))
        };
        changes.raise()?.into_iter().map(row).collect()
    }

    /// Copies the content of a host directory, or of a tar archive, into the directory at path.
    #[pyo3(signature = (source, path = None, *, keep_attributes = true))]
    fn copy_in(
        &self,
        py: Python<'_>,
        source: PathArg,
        path: Option<PathArg>,
        keep_attributes: bool,
    ) -> PyResult<()> {
        let path = path.unwrap_or_else(|| PathArg::text(b"/".to_vec()));
        let (owner, umask) = (self.handle.owner, self.handle.umask);
        let copied = self.run(py, |fs| {
            let from = host_path(&source);
            let into = fs.inode(&path.bytes)?;
            let populate =
                Populate::new().keep_attributes(keep_attributes).owner(owner.0, owner.1).umask(umask);
            let host = |source| Error::Host { path: from.clone(), source };
            if from.metadata().map_err(host)?.is_dir() {
                populate.directory(&from, &into, &mut Interruptible::default())
            } else {
                let archive = std::fs::File::open(&from).map_err(host)?;
                populate.tar(&from, archive, &into, &mut Interruptible::default())
            }
        })?;
        copied.raise_at(&source).map(drop)
    }

    /// Copies a directory's content, or a file, into a directory of the host.
    #[pyo3(signature = (
        path, directory, *, keep_attributes = true, one_subvolume = false, keep_existing = false
    ))]
    fn copy_out(
        &self,
        py: Python<'_>,
        path: PathArg,
        directory: PathArg,
        keep_attributes: bool,
        one_subvolume: bool,
        keep_existing: bool,
    ) -> PyResult<()> {
        let export = Export::new()
            .keep_attributes(keep_attributes)
            .one_subvolume(one_subvolume)
            .keep_existing(keep_existing);
        let to = host_path(&directory);
        let copied = self.run(py, |fs| {
            let from = fs.inode_nofollow(&path.bytes)?;
            let problems = Interruptible::default();
            let copied = match from.file_type() {
                FileKind::Directory => export.to_directory(&from, &to, &problems),
                _ => export.to_entry(
                    &from,
                    &to,
                    ImagePath::unnamed(path.bytes.clone()).base_name().unwrap_or_default(),
                    &problems,
                ),
            };
            Ok::<_, Error>((copied, problems.problems))
        })?;
        let (copied, problems) = copied.raise_at(&path)?;
        exported(py, copied, &problems)
    }

    /// Shares the data of equal blocks of all files below path. Returns the numbers of files, of
    /// bytes read and of bytes that share the data of others now.
    #[pyo3(signature = (path = None, *, block_size = 128 << 10, dry_run = false))]
    fn dedupe(
        &self,
        py: Python<'_>,
        path: Option<PathArg>,
        block_size: u64,
        dry_run: bool,
    ) -> PyResult<(u64, u64, u64)> {
        let path = path.unwrap_or_else(|| PathArg::text(b"/".to_vec()));
        let done = self.run(py, |fs| {
            let root = WalkRoot::in_file_system(fs, &path.bytes)?;
            let (mut report, mut watch) = (DedupeReport::default(), DedupeWatch::default());
            let dedupe = Dedupe::new().block_size(block_size).dry_run(dry_run);
            let done = dedupe.run(vec![root], &mut report, &mut watch);
            Ok::<_, Error>((done, report, watch.left_out))
        })?;
        let (done, report, left_out) = done.raise_at(&path)?;
        done.map_err(|error| of_dedupe(py, error))?;
        match left_out.is_empty() {
            true => Ok((report.files, report.read_bytes, report.shared_bytes)),
            false => Err(incomplete(py, left_out)),
        }
    }

    /// Shares equal extents, found by the checksums that are stored, in the whole file system or
    /// below path. Returns the numbers of extents looked at, of extents and bytes that became free,
    /// and of bytes written anew.
    #[pyo3(signature = (path = None, *, shortest_run = 16 << 10, memory = 256 << 20, state = None, copies = true, dry_run = false))]
    #[expect(clippy::too_many_arguments, reason = "they are keyword arguments in Python")]
    fn dedupe_by_checksums(
        &self,
        py: Python<'_>,
        path: Option<PathArg>,
        shortest_run: u64,
        memory: usize,
        state: Option<std::path::PathBuf>,
        copies: bool,
        dry_run: bool,
    ) -> PyResult<(u64, u64, u64, u64)> {
        let dedupe = ChecksumDedupe::new()
            .shortest_run(shortest_run)
            .memory_bytes(memory)
            .state(state)
            .copies(copies)
            .dry_run(dry_run);
        let place = path.unwrap_or_else(|| PathArg::text(b"/".to_vec()));
        let done = self.run(py, |fs| {
            let root = WalkRoot::in_file_system(fs, &place.bytes)?;
            let roots = if place.bytes.iter().all(|byte| *byte == b'/') { None } else { Some(vec![root]) };
            let mut watch = DedupeWatch::default();
            let done = dedupe.run(fs, roots, &mut watch);
            Ok::<_, Error>((done, watch.left_out))
        })?;
        let (done, left_out) = done.raise_at(&place)?;
        let report = done.map_err(|error| of_dedupe(py, error))?;
        match left_out.is_empty() {
            true => Ok((report.extents, report.freed_extents, report.freed_bytes, report.copied_bytes)),
            false => Err(incomplete(py, left_out)),
        }
    }

    /// Writes a directory or a file as a tar archive to a file object or descriptor.
    #[pyo3(signature = (path, out, *, one_subvolume = false))]
    fn write_tar(
        &self,
        py: Python<'_>,
        path: PathArg,
        out: &Bound<'_, PyAny>,
        one_subvolume: bool,
    ) -> PyResult<()> {
        let stream = Stream::new(out)?;
        let copied = self.run(py, |fs| {
            let from = fs.inode_nofollow(&path.bytes)?;
            let problems = Interruptible::default();
            let mut out = BufWriter::with_capacity(BUFFER, stream);
            let export = Export::new().one_subvolume(one_subvolume);
            let copied = export.to_tar(
                &from,
                ImagePath::unnamed(path.bytes.clone()).base_name().unwrap_or_default(),
                &mut out,
                &problems,
            );
            // Bytes that a failed copy left must not be written after it.
            drop(out.into_parts());
            Ok::<_, Error>((copied, problems.problems))
        })?;
        let (copied, problems) = copied.raise_at(&path)?;
        exported(py, copied, &problems)
    }
}

/// Applies the send streams of a file object or descriptor to a directory of the host. Returns the
/// name of each subvolume and whether it is complete.
#[cfg(target_os = "linux")]
#[pyfunction]
#[pyo3(signature = (stream, directory, *, stop_at_end = false, max_errors = 1))]
pub fn receive<'py>(
    py: Python<'py>,
    stream: &Bound<'_, PyAny>,
    directory: PathArg,
    stop_at_end: bool,
    max_errors: u64,
) -> PyResult<Vec<(Bound<'py, PyAny>, bool)>> {
    let directory = host_path(&directory);
    let stream = Stream::new(stream)?;
    let received = py.detach(|| {
        let mut received = Vec::new();
        let receive = Receive::new().stop_at_end(stop_at_end).max_errors(max_errors);
        let capacity = if stop_at_end { 0 } else { BUFFER };
        let mut input = BufReader::with_capacity(capacity, stream);
        let mut target = papilio::HostDirectory::open(&directory)?;
        receive.receive_into(&mut target, &mut input, &mut received, &mut ())?;
        Ok::<_, Error>(received)
    });
    names_of(py, received.raise()?)
}

fn names_of(py: Python<'_>, received: Vec<ReceivedSubvolume>) -> PyResult<Vec<(Bound<'_, PyAny>, bool)>> {
    received.into_iter().map(|one| Ok((decode(py, &one.name)?, one.complete))).collect()
}

/// Raises what ended a copy, or what it lacks.
fn exported(py: Python<'_>, copied: Result<(), ExportError>, problems: &ExportProblems) -> PyResult<()> {
    copied.map_err(|error| of_export(py, &error))?;
    let problems: Vec<String> = problems.take().iter().map(ToString::to_string).collect();
    if problems.is_empty() { Ok(()) } else { Err(incomplete(py, problems)) }
}
