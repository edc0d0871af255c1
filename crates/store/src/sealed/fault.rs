//! Faults of encrypted objects.

use object_store::path::Path;
use slatedb_common::retry::NonRetryable;
use std::error::Error;
use std::fmt;
use std::io;

/// An object that is not what was written under its name, or that cannot be written.
#[derive(Debug)]
pub(crate) struct SealFault {
    path: Path,
    reason: String,
}

impl SealFault {
    pub(super) fn new(path: &Path, reason: impl Into<String>) -> Self {
        Self { path: path.clone(), reason: reason.into() }
    }

    /// A chunk that the key does not authenticate.
    pub(super) fn chunk(path: &Path, chunk: u64) -> Self {
        Self::new(
            path,
            format!("the encrypted object is damaged, cut, or that of another name, at chunk {chunk}"),
        )
    }

    /// A length that no encrypted object has.
    pub(super) fn length(path: &Path, length: u64) -> Self {
        Self::new(path, format!("the encrypted object is damaged or cut: it has {length} bytes"))
    }

    pub(super) fn random(path: &Path, error: &io::Error) -> Self {
        Self::new(path, format!("no random numbers: {error}"))
    }

    /// Returns the fault without the object's name.
    pub(crate) fn reason(&self) -> &str {
        &self.reason
    }

    /// Finds the fault that an error stems from.
    pub(crate) fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        NonRetryable::find(error)?.0.downcast_ref()
    }
}

impl fmt::Display for SealFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

impl Error for SealFault {}

impl From<SealFault> for object_store::Error {
    /// Nobody repeats the request: the object stays as it is.
    fn from(fault: SealFault) -> Self {
        Self::Generic { store: "encryption", source: Box::new(NonRetryable(Box::new(fault))) }
    }
}
