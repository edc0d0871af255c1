//! Why the engine cannot do what a job asks.
//!
//! Owns [`EngineError`]. Invariant: its text is one line that says what to change.

/// A refusal or a failure.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// This fio cannot be served.
    #[error("fio version {version}: {reason}")]
    Version {
        /// As fio gives it.
        version: String,
        /// What is missing or different.
        reason: String,
    },
    /// What loaded the library is not fio.
    #[error("this is an I/O engine for fio, and what loaded it is not fio (it has no {0})")]
    NotFio(&'static str),
    /// The job runs in a process of its own.
    #[error(
        "job {job}: it runs in a process of its own, but all jobs share one mount: add thread=1 (this comes of \
         create_serialize=0)"
    )]
    Forked {
        /// The job's name.
        job: String,
    },
    /// An option of the engine is missing.
    #[error("job {job}: {option}= is missing: {what}")]
    Missing {
        /// The job's name.
        job: String,
        /// The option.
        option: &'static str,
        /// What it is for.
        what: &'static str,
    },
    /// An option has a value that cannot be used.
    #[error("job {job}: {option}={value}: {reason}")]
    Value {
        /// The job's name.
        job: String,
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// Why not.
        reason: String,
    },
    /// Jobs share a mount and cannot ask for different ones.
    #[error("{image}: an earlier job mounts it with other options; all jobs of one run share one mount")]
    OtherMount {
        /// The image.
        image: String,
    },
    /// The file system could not be made or opened.
    #[error("{image}: {source}")]
    Mount {
        /// The image.
        image: String,
        /// What the library says.
        source: Box<papilio::Error>,
    },
    /// The mount failed for an earlier job, which said why.
    #[error("{image}: not mounted")]
    MountFailed {
        /// The image.
        image: String,
    },
    /// The host gives no threads.
    #[error("job {job}: queue_threads={threads}: {source}")]
    Threads {
        /// The job's name.
        job: String,
        /// How many were asked for.
        threads: usize,
        /// What the host says.
        source: std::io::Error,
    },
    /// Something failed on a file.
    #[error("{what} {file}: {source}")]
    File {
        /// What was being done.
        what: &'static str,
        /// The file's path in the file system.
        file: String,
        /// What the library says.
        source: Box<papilio::Error>,
    },
}

impl EngineError {
    /// The errno that fio is told.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Mount { source, .. } | Self::File { source, .. } => source.errno(),
            _ => libc::EINVAL,
        }
    }
}
