//! Copies trees out of a file system.
//!
//! Owns [`export`] and [`Export`]. Two threads share a bounded queue, so that reading overlaps with
//! writing, for one large file as well as for many small ones. The reader ([`source`]) walks the
//! file system, verifies checksums and sends [`event::Event`]s. The writer, a [`Sink`], turns them
//! into files of the host ([`host`]) or members of an archive ([`tar`]). Unreadable sectors of a
//! file are left out and reported. The queue holds at most [`QUEUED_BATCHES`] batches of about 1
//! MiB.
//!
//! **Locks:** those of the public methods.

pub mod event;
pub mod host;
mod host_attributes;
pub mod problem;
pub mod sink;
pub mod source;
pub mod tar;

use crate::image_path::ImagePath;
use event::{BufferPool, Event};
use host::{HostOptions, HostSink, Place};
use papilio_format::items::inode::FileKind;
use papilio_fs::Inode;
use problem::{ExportError, ExportObserver, ExportProblem};
use sink::Sink;
use source::{Source, SourceOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use tar::TarSink;

/// The capacity of the queue between the two threads, in batches.
const QUEUED_BATCHES: usize = 8;

/// Copies all `sources` into `sink`.
///
/// # Errors
/// An error that ends the copy. Everything else that the copy lacks goes to the observer.
pub fn export(
    sources: Vec<Source>,
    options: SourceOptions,
    sink: &mut dyn Sink,
    observer: &dyn ExportObserver,
) -> Result<(), ExportError> {
    let pool = Arc::new(BufferPool::default());
    std::thread::scope(|scope| {
        let (send, batches) = sync_channel(QUEUED_BATCHES);
        let reader_pool = Arc::clone(&pool);
        scope.spawn(move || source::read(sources, options, &send, &reader_pool));
        for batch in batches {
            for event in batch {
                observer.proceed().map_err(ExportError::Stopped)?;
                match event {
                    Event::Begin { source } => sink.begin(source)?,
                    Event::Problem(problem) => observer.problem(*problem),
                    Event::Missing(missing) => observer.problem(ExportProblem::Range(missing)),
                    Event::Data { offset, bytes } => {
                        observer.bytes(bytes.len() as u64);
                        sink.data(offset, &bytes)?;
                        pool.put(bytes);
                    }
                    event => {
                        if let Event::Link { size, .. } = event {
                            observer.bytes(size);
                        }
                        sink.take(event)?;
                    }
                }
            }
        }
        // An early return drops the receiving end, which stops the reader.
        Ok(())
    })
}

/// Copies a file or a tree out of a file system, to a directory of the host or a tar archive.
///
/// By default it keeps owners, modes, times, extended attributes, access control lists, hard links
/// and holes, enters other subvolumes, and replaces existing files of the host. Owners on the host
/// can be set by root only; for another user they are those of the process, without an error.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let (image, directory) = (folder.path().join("new.img"), folder.path().join("out"));
/// # papilio::mkfs(&image, &papilio::MkfsOptions::new().size(256 << 20))?;
/// # let fs = papilio::FileSystem::open_with(&image, &papilio::OpenOptions::new().write(true))?;
/// # std::fs::create_dir(&directory)?;
/// fs.write("/file", b"content")?;
/// let problems = papilio::ExportProblems::default();
/// papilio::Export::new().to_directory(&fs.inode("/")?, &directory, &problems)?;
/// assert!(problems.take().is_empty(), "the copy is complete");
/// assert_eq!(std::fs::read(directory.join("file"))?, b"content");
///
/// let mut archive = Vec::new();
/// papilio::Export::new().to_tar(&fs.inode("/")?, b"top", &mut archive, &problems)?;
/// assert!(problems.take().is_empty() && archive.windows(4).any(|name| name == b"top/"));
/// # fs.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Export {
    keep_attributes: bool,
    one_subvolume: bool,
    keep_existing: bool,
    unverified: bool,
}

impl Default for Export {
    fn default() -> Self {
        Self { keep_attributes: true, one_subvolume: false, keep_existing: false, unverified: false }
    }
}

impl Export {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether owners, modes, times, extended attributes, access control lists and hard links
    /// are kept (default true). Without it files get their mode less the umask, and each hard link
    /// becomes a file. An archive always has all.
    pub fn keep_attributes(mut self, keep: bool) -> Self {
        self.keep_attributes = keep;
        self
    }

    /// Sets whether directories of other subvolumes stay empty (default false).
    pub fn one_subvolume(mut self, one: bool) -> Self {
        self.one_subvolume = one;
        self
    }

    /// Sets whether existing files of the host stay as they are (default false: they are replaced).
    /// Directories always merge.
    pub fn keep_existing(mut self, keep: bool) -> Self {
        self.keep_existing = keep;
        self
    }

    /// Sets whether data without a checksum to verify it by is copied where the checksum is lost
    /// (default false). Each such range is a problem all the same.
    pub fn unverified(mut self, unverified: bool) -> Self {
        self.unverified = unverified;
        self
    }

    /// Copies the content of the directory `from` into the existing directory `to` of the host,
    /// which gets the attributes of `from` if attributes are kept. Below `to` no link of the host
    /// is followed.
    ///
    /// # Errors
    /// `from` is no directory, or the destination is full or read-only. Everything else that the
    /// copy lacks goes to the observer: the copy is complete only if there is no problem.
    pub fn to_directory(
        &self,
        from: &Inode,
        to: impl AsRef<Path>,
        observer: &dyn ExportObserver,
    ) -> Result<(), ExportError> {
        if from.file_type() != FileKind::Directory {
            return Err(ExportError::NotADirectory);
        }
        self.copy_to_place(from, Place::Content(to.as_ref().to_path_buf()), observer)
    }

    /// Copies `from` into the existing directory `parent` of the host, as `name`.
    ///
    /// # Errors
    /// As [`Self::to_directory`].
    pub fn to_entry(
        &self,
        from: &Inode,
        parent: impl AsRef<Path>,
        name: &[u8],
        observer: &dyn ExportObserver,
    ) -> Result<(), ExportError> {
        let parent = parent.as_ref().to_path_buf();
        if !source::is_safe_name(name) {
            let path = parent.join("").display().to_string() + &String::from_utf8_lossy(name);
            return Err(ExportError::Destination { path, error: std::io::ErrorKind::InvalidInput.into() });
        }
        self.copy_to_place(from, Place::Named { parent, name: name.to_vec(), in_place: false }, observer)
    }

    fn copy_to_place(
        &self,
        from: &Inode,
        place: Place,
        observer: &dyn ExportObserver,
    ) -> Result<(), ExportError> {
        let source = self.source(from, b"");
        let options = HostOptions { archive: self.keep_attributes, no_clobber: self.keep_existing };
        let mut sink = HostSink::new(observer, options, vec![(source.path.clone(), place)])?;
        let copied = export(vec![source], self.source_options(false), &mut sink, observer);
        sink.finish();
        copied
    }

    /// Writes `from` as a tar archive in pax format, with everything below it. The members' paths
    /// begin with `name`, or with `.` if that is empty.
    ///
    /// # Errors
    /// The archive cannot be written. Everything that it lacks goes to the observer, as for
    /// [`Self::to_directory`].
    pub fn to_tar(
        &self,
        from: &Inode,
        name: &[u8],
        archive: impl Write,
        observer: &dyn ExportObserver,
    ) -> Result<(), ExportError> {
        let source = self.source(from, name);
        let paths = vec![source.path.clone()];
        let mut sink = TarSink::new(observer, archive, "archive".to_owned(), paths);
        export(vec![source], self.source_options(true), &mut sink, observer)?;
        sink.finish()
    }

    fn source(&self, from: &Inode, name: &[u8]) -> Source {
        Source { path: ImagePath::unnamed([b"/", name].concat()), inode: from.clone() }
    }

    fn source_options(&self, is_archive: bool) -> SourceOptions {
        let kept = self.keep_attributes || is_archive;
        SourceOptions {
            recursive: true,
            one_subvolume: self.one_subvolume,
            links: kept,
            xattrs: kept,
            segments: is_archive,
            unverified: self.unverified,
            ..SourceOptions::default()
        }
    }
}
