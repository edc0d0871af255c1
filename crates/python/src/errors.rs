//! The exceptions that errors of the library become.
//!
//! Owns [`CorruptError`], [`UnsupportedError`], [`ForkError`], [`IncompleteError`] and [`Raise`].
//! Every error becomes an `OSError` with errno, text and, where one is known, the path. Python
//! chooses the subclass by errno, such as `FileNotFoundError`.

use crate::older_file::OlderFile;
use crate::paths::PathArg;
use papilio::{DedupeError, Error, ErrorKind, ExportError};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

pyo3::create_exception!(
    papilio,
    CorruptError,
    PyOSError,
    "The image contradicts its format or its checksums. The text says what was found where."
);
pyo3::create_exception!(
    papilio,
    UnsupportedError,
    PyOSError,
    "The file system uses a feature that Papilio does not support."
);
pyo3::create_exception!(
    papilio,
    ForkError,
    PyRuntimeError,
    "A file system or a file was used in a process that was forked after it was opened."
);

pyo3::create_exception!(
    papilio,
    IncompleteError,
    PyOSError,
    "A copy out of a file system lacks something; `problems` lists it. The rest was copied."
);

/// Makes the exception of a copy that lacks something: each problem is a line of text.
pub fn incomplete(py: Python<'_>, problems: Vec<String>) -> PyErr {
    let text = format!("{} problems; the first: {}", problems.len(), problems[0]);
    let made = IncompleteError::new_err((rustix::io::Errno::IO.raw_os_error(), text));
    // An exception that happens here takes the place of the attribute, not of the error.
    let _ = made.value(py).setattr("problems", problems);
    made
}

/// Makes the exception of a copy out of a file system that ended early.
pub fn of_export(py: Python<'_>, error: &ExportError) -> PyErr {
    if let Some(raised) = error.host_error().and_then(|error| python_error(py, error)) {
        return raised;
    }
    let errno = match error {
        ExportError::NotADirectory => rustix::io::Errno::NOTDIR.raw_os_error(),
        ExportError::Refused(_) => rustix::io::Errno::INVAL.raw_os_error(),
        ExportError::Full => rustix::io::Errno::NOSPC.raw_os_error(),
        other => {
            let host = other.host_error().and_then(std::io::Error::raw_os_error);
            host.unwrap_or(rustix::io::Errno::IO.raw_os_error())
        }
    };
    let text = match (error, error.host_error()) {
        (ExportError::Archive { .. }, Some(cause)) => format!("{error}: {cause}"),
        _ => error.to_string(),
    };
    PyOSError::new_err((errno, text))
}

/// Makes the exception of a deduplication that ended early.
pub fn of_dedupe(py: Python<'_>, error: DedupeError) -> PyErr {
    if let DedupeError::Stopped(cause) = &error
        && let Some(raised) = python_error(py, cause)
    {
        return raised;
    }
    if let DedupeError::BlockSize(_) = &error {
        return PyValueError::new_err(error.to_string());
    }
    let errno = error.image_error().map_or(rustix::io::Errno::IO.raw_os_error(), Error::errno);
    PyOSError::new_err((errno, error.to_string()))
}

/// Turns results of the library into those of Python.
pub trait Raise<T> {
    /// Raises the error without a path.
    fn raise(self) -> PyResult<T>;
    /// Raises the error with `path` as its `filename`.
    fn raise_at(self, path: &PathArg) -> PyResult<T>;
    /// Raises the error with both paths of a rename, a link or the like.
    fn raise_between(self, from: &PathArg, to: &PathArg) -> PyResult<T>;
}

impl<T> Raise<T> for papilio::Result<T> {
    fn raise(self) -> PyResult<T> {
        self.map_err(of_library)
    }

    fn raise_at(self, path: &PathArg) -> PyResult<T> {
        self.map_err(|error| Python::attach(|py| exception(py, error, Some(path), None)))
    }

    fn raise_between(self, from: &PathArg, to: &PathArg) -> PyResult<T> {
        self.map_err(|error| Python::attach(|py| exception(py, error, Some(from), Some(to))))
    }
}

/// Makes the exception of an error of the library.
pub fn of_library(error: Error) -> PyErr {
    Python::attach(|py| exception(py, error, None, None))
}

/// Whether the error tells of bytes on disk that contradict the format or their checksum.
fn is_corruption(error: &Error) -> bool {
    match error {
        Error::TreeBlock { .. }
        | Error::MissingItem { .. }
        | Error::Item { .. }
        | Error::LogReplay { .. }
        | Error::Unreplayed { .. }
        | Error::DataChecksum { .. }
        | Error::MissingChecksum { .. }
        | Error::Decompress { .. }
        | Error::Truncated { .. }
        | Error::DeviceCut { .. }
        | Error::Unmapped { .. } => error.kind() == ErrorKind::Io,
        Error::Superblock { .. } => error.kind() == ErrorKind::Io,
        Error::Receive { source, .. } => is_corruption(source),
        _ => false,
    }
}

/// Makes the exception. An exception that Python code raised inside the library's call, such as
/// that of a file object that a stream goes to, is the result itself or its cause.
fn exception(py: Python<'_>, error: Error, path: Option<&PathArg>, other: Option<&PathArg>) -> PyErr {
    let raised = match &error {
        Error::Host { source, .. } | Error::Device { source, .. } => python_error(py, source),
        _ => None,
    };
    if let (Error::Host { .. }, Some(raised)) = (&error, &raised) {
        return raised.clone_ref(py);
    }
    let errno = error.errno();
    let text = match &error {
        // The path is in `filename`.
        Error::Path { kind, .. } => kind.to_string(),
        other => other.to_string(),
    };
    let own = match &error {
        Error::Path { path, .. } => Some(PathArg::text(path.clone())),
        Error::Open(open) => Some(PathArg::text(open.path.as_os_str().as_encoded_bytes().to_vec())),
        Error::Host { path, .. } => Some(PathArg::text(path.as_os_str().as_encoded_bytes().to_vec())),
        _ => None,
    };
    let filename = path.or(own.as_ref()).and_then(|path| path.to_object(py).ok()).map(Bound::unbind);
    let filename2 = other.and_then(|path| path.to_object(py).ok()).map(Bound::unbind);
    let made = if is_corruption(&error) {
        CorruptError::new_err((errno, text, filename))
    } else if error.kind() == ErrorKind::Incompatible {
        UnsupportedError::new_err((errno, text, filename))
    } else {
        // The third argument is Windows' error number.
        match filename2 {
            Some(filename2) => PyOSError::new_err((errno, text, filename, py.None(), filename2)),
            None => PyOSError::new_err((errno, text, filename)),
        }
    };
    if raised.is_some() {
        made.set_cause(py, raised);
    }
    if let Error::Unreplayed { older, .. } = &error {
        let files: PyResult<Vec<_>> = older.iter().map(|file| OlderFile::new(py, file)).collect();
        // An exception that happens here takes the place of the attribute, not of the error.
        let _ = files.and_then(|files| made.value(py).setattr("older", files));
    }
    made
}

/// Returns the exception inside an I/O error.
fn python_error(py: Python<'_>, error: &std::io::Error) -> Option<PyErr> {
    error.get_ref()?.downcast_ref::<PyErr>().map(|raised| raised.clone_ref(py))
}
