//! System error numbers, and their derivation from the library's errors.
//!
//! Owns [`Errno`], and for each thread the reason of its last `EIO`: a number says nothing of what
//! failed, so a server takes the reason and logs it.

use papilio_engine::errors::Error;
use std::cell::RefCell;
use std::fmt::Display;

thread_local! {
    /// The reason of the last `EIO` that this thread derived.
    static REASON: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A system error number such as `libc::ENOENT`, always positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Returns the number.
    pub fn code(self) -> i32 {
        self.0
    }

    /// Returns `EIO`, for a reason that [`Errno::take_reason`] returns.
    pub fn io(reason: &dyn Display) -> Self {
        REASON.with(|kept| *kept.borrow_mut() = Some(reason.to_string()));
        Self(libc::EIO)
    }

    /// Takes the reason of the last `EIO` that this thread derived from an error.
    pub fn take_reason() -> Option<String> {
        REASON.with(RefCell::take)
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for Errno {
    fn from(error: &Error) -> Self {
        match error.errno() {
            libc::EIO => Self::io(error),
            number => Self(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_input_error_leaves_its_reason() {
        let failed = |source| Error::Device {
            device: "disk".to_owned(),
            operation: "read",
            offset: papilio_format::PhysicalAddress(4096),
            length: 512,
            source,
        };
        assert_eq!(Errno::from(failed(std::io::Error::from_raw_os_error(libc::ENOSPC))), Errno(libc::EIO));
        let reason = Errno::take_reason().unwrap();
        assert!(reason.starts_with("disk: read of 512 bytes at ") && reason.contains("No space"), "{reason}");
        assert_eq!(Errno::take_reason(), None);
        assert_eq!(Errno::from(Error::Invalid("a name".to_owned())), Errno(libc::EINVAL));
        assert_eq!(Errno::take_reason(), None);
    }
}
