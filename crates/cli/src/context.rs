//! The resolved arguments that every command works with, and what a run has come to so far.
//!
//! Owns [`Context`]: how file systems are opened (each once a run), whether anything failed, and the
//! one place that writes to standard error. Invariant: an error is one line, whatever the bytes of
//! the names in it.

use crate::args::GlobalArgs;
use crate::holder;
use crate::output::escaped;
use crate::path::ImagePath;
use anyhow::Context as _;
use papilio::format::TreeId;
use papilio::{Error, FileSystem, Inode, OpenOptions, PathError, SubvolumeChoice};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// What all commands share.
pub struct Context {
    arguments: GlobalArgs,
    options: OpenOptions,
    /// How much is said: 0 is normal, negative says less, positive says more.
    pub verbosity: i16,
    opened: RefCell<Vec<(PathBuf, FileSystem)>>,
    /// Those that are open for writing.
    changing: RefCell<Vec<(PathBuf, FileSystem)>>,
    failed: Cell<bool>,
    progress: RefCell<Option<indicatif::ProgressBar>>,
}

impl Context {
    /// Makes sense of the options that all commands share.
    pub fn resolve(arguments: GlobalArgs) -> Self {
        let mut options =
            OpenOptions::new().degraded(arguments.degraded).use_backup_root(arguments.backup_root);
        for device in &arguments.device {
            options = options.device(device);
        }
        if let Some(copy) = arguments.superblock {
            options = options.superblock_mirror(usize::from(copy));
        }
        if let Some(path) = &arguments.subvol {
            options = options.subvolume(SubvolumeChoice::Path(path.clone().into_vec()));
        } else if let Some(id) = arguments.subvolid {
            options = options.subvolume(SubvolumeChoice::Id(TreeId(id)));
        } else if arguments.default_subvol {
            options = options.subvolume(SubvolumeChoice::Default);
        }
        Self {
            verbosity: i16::from(arguments.verbose) - i16::from(arguments.quiet),
            arguments,
            options,
            opened: RefCell::default(),
            changing: RefCell::default(),
            failed: Cell::new(false),
            progress: RefCell::default(),
        }
    }

    /// The arguments of all commands as they were typed.
    pub fn arguments(&self) -> &GlobalArgs {
        &self.arguments
    }

    /// The options that file systems are opened with, for commands that open them in their own way.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// Opens the file system on `image`, or returns it where this run has opened it already.
    pub fn open(&self, image: &Path) -> anyhow::Result<FileSystem> {
        for known in [&self.changing, &self.opened] {
            if let Some((_, known)) = known.borrow().iter().find(|(path, _)| path == image) {
                return Ok(known.clone());
            }
        }
        let system = FileSystem::open_with(image, &self.options).map_err(holder::explain)?;
        if system.has_log() {
            self.warning(format_args!(
                "{}: a log tree is present: changes fsynced since the last commit are not shown",
                image.display()
            ));
        }
        self.opened.borrow_mut().push((image.to_path_buf(), system.clone()));
        Ok(system)
    }

    /// Opens the file system on `image` for changes, once a run. To be called before it is opened for
    /// reading, which then gives the same.
    pub fn change(&self, image: &Path) -> anyhow::Result<FileSystem> {
        if let Some((_, known)) = self.changing.borrow().iter().find(|(path, _)| path == image) {
            return Ok(known.clone());
        }
        let options = self.options.clone().write(true).commit_interval(None);
        let system = FileSystem::open_with(image, &options).map_err(|error| of_image(image, error))?;
        self.changing.borrow_mut().push((image.to_path_buf(), system.clone()));
        Ok(system)
    }

    /// Saves all changes; what cannot be saved is reported.
    pub fn close(&self) {
        for (image, system) in self.changing.take() {
            if let Err(error) = system.close() {
                self.error(of_image(&image, error));
            }
        }
    }

    /// The inode that `path` names. A symbolic link as the last component is followed where
    /// `follow` or the path's form (`link/`) says so.
    pub fn inode(&self, path: &ImagePath, follow: bool) -> anyhow::Result<Inode> {
        let system = self.open(&path.image)?;
        let found = match follow || path.wants_directory() {
            true => system.inode(&path.path),
            false => system.inode_nofollow(&path.path),
        };
        let inode = found.map_err(|error| self.at(path, &error))?;
        if path.wants_directory() && inode.metadata().kind() != papilio::FileKind::Directory {
            anyhow::bail!("{path}: {}", PathError::NotADirectory);
        }
        Ok(inode)
    }

    /// `error` with the operand that it is about; a path's own error says the path only once.
    pub fn at(&self, path: &ImagePath, error: &Error) -> anyhow::Error {
        anyhow::Error::msg(describe(path, error))
    }

    /// Reports a failure; the run goes on and will end with exit code 1.
    pub fn error(&self, text: impl fmt::Display) {
        self.failed.set(true);
        self.line(format_args!("papilio: {text}"));
    }

    /// Reports an error; where a device is in use, by whom.
    pub fn failure(&self, error: &anyhow::Error) {
        match error.downcast_ref().and_then(holder::told) {
            Some(told) => self.error(told),
            None => self.error(format_args!("{error:#}")),
        }
    }

    /// Notes a failure that another process has reported.
    pub fn fail_silently(&self) {
        self.failed.set(true);
    }

    /// Reports something that is no failure.
    pub fn warning(&self, text: impl fmt::Display) {
        if self.verbosity >= 0 {
            self.line(format_args!("papilio: warning: {text}"));
        }
    }

    /// Says what is done, where that was asked for.
    pub fn note(&self, text: impl fmt::Display) {
        self.line(format_args!("{text}"));
    }

    /// Whether anything was reported as failed.
    pub fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// Lines on standard error are from now on kept apart from `bar`; `None` ends that.
    pub fn set_progress(&self, bar: Option<indicatif::ProgressBar>) {
        *self.progress.borrow_mut() = bar;
    }

    fn line(&self, text: fmt::Arguments<'_>) {
        let mut line = escaped_controls(&text.to_string());
        line.push('\n');
        // A failure to report has nowhere to be reported.
        let print = || drop(std::io::stderr().lock().write_all(line.as_bytes()));
        match &*self.progress.borrow() {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

/// `error` with the image that it is about, where it does not say so itself.
pub fn of_image(image: &Path, error: Error) -> anyhow::Error {
    match error {
        Error::ReadOnlyFileSystem { .. } | Error::NoSpace { .. } | Error::Path { .. } | Error::Invalid(_) => {
            anyhow::Error::msg(format!("{}: {error}", image.display()))
        }
        other => holder::explain(other),
    }
}

/// `error` with the operand that it is about.
pub fn describe(path: &ImagePath, error: &Error) -> String {
    match error {
        Error::Path { kind, .. } => format!("{path}: {kind}"),
        other => format!("{path}: {other}"),
    }
}

/// A file of the host, with its name in the error.
pub fn create_host_file(path: &Path) -> anyhow::Result<std::fs::File> {
    std::fs::File::create(path).with_context(|| format!("{}: cannot create", path.display()))
}

fn escaped_controls(text: &str) -> String {
    match text.chars().any(char::is_control) {
        false => text.to_owned(),
        true => String::from_utf8_lossy(&escaped(text.as_bytes())).into_owned(),
    }
}
