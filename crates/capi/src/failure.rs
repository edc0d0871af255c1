//! Errors that a program gets: negative errnos, and the message of the last one.
//!
//! Owns the border between C and Rust: [`guard`], which every exported function runs in, and
//! [`Failure`].
//!
//! **Invariants**
//! - No panic passes the border: it becomes `-EIO` with its message.
//! - A child of a process that used the library gets `-EBADF` before any lock is touched: the
//!   threads that may have held it do not exist there.
//! - A message belongs to its thread, and stays until the thread's next failure.

use libc::{c_char, c_int};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: c_int,
    message: String,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with an errno, which is above 0.
    pub(crate) fn new(errno: c_int, message: impl Into<String>) -> Self {
        Self { errno, message: message.into() }
    }

    /// An argument that the call does not accept.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, message)
    }

    /// The number that the call returns: a negative errno.
    pub(crate) fn code(&self) -> c_int {
        -self.errno
    }

    /// Makes this the thread's last message.
    pub(crate) fn remember(&self) {
        // A message has no NUL, except in a name of a hostile image.
        let text = CString::new(self.message.replace('\0', "\\0")).unwrap_or_default();
        // A thread that ends has no message any more.
        let _ = LAST.try_with(|last| last.replace(text));
    }
}

impl From<papilio::Error> for Failure {
    fn from(error: papilio::Error) -> Self {
        Self::new(error.errno(), error.to_string())
    }
}

impl From<papilio::SuperblockError> for Failure {
    fn from(error: papilio::SuperblockError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.raw_os_error().filter(|errno| *errno > 0).unwrap_or(libc::EIO), error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// A type that a function of the interface returns.
pub(crate) trait Returned {
    /// The value for a failure.
    fn failed(code: c_int) -> Self;
}

impl Returned for c_int {
    fn failed(code: c_int) -> Self {
        code
    }
}

impl Returned for i64 {
    fn failed(code: c_int) -> Self {
        code.into()
    }
}

/// Runs the body of an exported function. A failure, or a panic, becomes a negative errno and the
/// thread's last message.
pub(crate) fn guard<T: Returned>(body: impl FnOnce() -> Result<T>) -> T {
    let result = if FORKED.load(Ordering::Relaxed) {
        let message = "the process is a child of one that used libpapilio: it has to call exec first";
        Err(Failure::new(libc::EBADF, message))
    } else {
        // A panic can leave an object half changed only behind the library's own locks.
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(of_panic(&*panic)))
    };
    result.unwrap_or_else(|failure| {
        failure.remember();
        T::failed(failure.code())
    })
}

/// As [`guard`], for functions that return nothing on success.
pub(crate) fn guard_unit(body: impl FnOnce() -> Result<()>) -> c_int {
    guard(|| body().map(|()| 0))
}

fn of_panic(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    Failure::new(libc::EIO, format!("internal error of libpapilio: {text}"))
}

/// Whether this process is a child of one that had used the library.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Notes that the library has threads or handles from now on, which a forked child will not have.
pub(crate) fn used() {
    extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only stores to an atomic, which a child of a process with several
        // threads may do. Without memory for it, forked children are not noticed.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Returns the message of the calling thread's last failed call. It stays valid until the thread's
/// next failed call, is empty before the first one, and never NULL. It is one line of text; paths
/// in it are converted to UTF-8.
///
/// A successful call leaves the message as it is: test the result first.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the version of the library, such as "0.1.0". The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: the text is this thread's, which fails in no other call meanwhile.
        unsafe { CStr::from_ptr(papilio_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn panic_becomes_eio_with_its_text() {
        let code: c_int = guard(|| panic!("out of {}", "luck"));
        assert_eq!(code, -libc::EIO);
        assert_eq!(last(), "internal error of libpapilio: out of luck");
        let code: i64 = guard(|| Err(Failure::invalid("a\0b")));
        assert_eq!(code, -i64::from(libc::EINVAL));
        assert_eq!(last(), "a\\0b");
    }

    #[test]
    fn message_belongs_to_its_thread() {
        assert_eq!(guard::<c_int>(|| Err(Failure::invalid("mine"))), -libc::EINVAL);
        std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
        assert_eq!(guard(|| Ok(7)), 7);
        assert_eq!(last(), "mine");
    }
}
