//! The C library's functions behind those of this library.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function that is looked up once.
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<libc::c_void>,
}

impl Next {
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns the address of the function.
    pub fn address(&self) -> *mut libc::c_void {
        let known = self.found.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        assert!(!found.is_null(), "the C library has {:?}", self.name);
        self.found.store(found, Ordering::Release);
        found
    }
}
