//! System error numbers, and their derivation from the library's errors.

use papilio::Error;

/// A system error number such as `libc::ENOENT`, always positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Returns the number.
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
