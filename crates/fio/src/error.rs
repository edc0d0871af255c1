//! Errors of the engine.
//!
//! Owns [`EngineError`], whose text is one line that says what to change.

/// A refused request or a failed operation.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// This version of fio is not supported.
    #[error("fio version {version}: {reason}")]
    Version {
        /// fio's version string.
        version: String,
        /// The part that is missing or different.
        reason: String,
    },
    /// The program that loaded the library is not fio.
    #[error(
        "this is an I/O engine for fio, but the program that loaded it is not fio (it has no symbol {0})"
    )]
    NotFio(&'static str),
    /// The job runs in its own process.
    #[error(
        "job {job} runs in its own process, but all jobs share one mount: add thread=1 (create_serialize=0 \
         requires it)"
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
        /// Purpose of the option, or why it is needed.
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
        /// Reason for the refusal.
        reason: String,
    },
    /// Two jobs ask for different mounts of one image.
    #[error("{image}: an earlier job mounted it with other options; all jobs of a run share one mount")]
    OtherMount {
        /// The image.
        image: String,
    },
    /// The file system could not be made or opened.
    #[error("{image}: {source}")]
    Mount {
        /// The image.
        image: String,
        /// The library's error.
        source: Box<papilio::Error>,
    },
    /// The mount failed for an earlier job, which has printed the reason.
    #[error("{image}: not mounted")]
    MountFailed {
        /// The image.
        image: String,
    },
    /// The host could not start the threads.
    #[error("job {job}: queue_threads={threads}: {source}")]
    Threads {
        /// The job's name.
        job: String,
        /// Number of threads requested.
        threads: usize,
        /// The host's error.
        source: std::io::Error,
    },
    /// An operation on a file failed.
    #[error("{what} {file}: {source}")]
    File {
        /// The operation, such as `opening`.
        what: &'static str,
        /// The file's path in the file system.
        file: String,
        /// The library's error.
        source: Box<papilio::Error>,
    },
}

impl EngineError {
    /// Returns the errno for fio.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Mount { source, .. } | Self::File { source, .. } => source.errno(),
            _ => libc::EINVAL,
        }
    }
}
