//! Error numbers of the system, and which one each error of the library is.

use papilio::Error;

/// An error number, such as `libc::ENOENT`; above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The number.
    pub fn code(self) -> i32 {
        self.0
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for Errno {
    fn from(error: &Error) -> Self {
        Self(error.errno())
    }
}
