//! Objects that an open file system hands out, and takes back when it is closed.
//!
//! Owns [`Slot`], [`Revoke`] and the check for forks.
//!
//! **Invariants**
//! - An object is used in the process that opened it only. A forked child has neither the threads
//!   that write nor a right to the image, so there the object is forgotten instead of dropped.
//! - The lock is held to copy or take the pointer, never during I/O.

use crate::errors::ForkError;
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// Something that can be taken back.
pub trait Revoke: Send + Sync {
    /// Drops the object, after the calls that use it now.
    fn revoke(&self);
}

/// A place for an object of the library.
pub struct Slot<T: Send + Sync> {
    value: Mutex<Option<Arc<T>>>,
    pid: u32,
    /// The kind of object, for messages.
    noun: &'static str,
}

impl<T: Send + Sync> Slot<T> {
    pub fn new(noun: &'static str, value: T) -> Self {
        Self { value: Mutex::new(Some(Arc::new(value))), pid: std::process::id(), noun }
    }

    /// Returns the object.
    ///
    /// # Errors
    /// `ForkError` in a forked child; `ValueError` if it is closed.
    pub fn get(&self) -> PyResult<Arc<T>> {
        self.check_process()?;
        let value = self.value.lock().clone();
        value.ok_or_else(|| PyValueError::new_err(format!("I/O operation on a closed {}", self.noun)))
    }

    /// Fails in a process that was forked after the object was opened.
    pub fn check_process(&self) -> PyResult<()> {
        if std::process::id() == self.pid {
            return Ok(());
        }
        Err(ForkError::new_err(format!(
            "the {} was opened in process {}, before the fork: open the image again in this process",
            self.noun, self.pid
        )))
    }

    /// Whether it is closed. Always false in a forked child, where the lock may be held for ever.
    pub fn is_closed(&self) -> bool {
        std::process::id() == self.pid && self.value.lock().is_none()
    }

    /// Takes the object out; `None` if it is closed, or in a forked child.
    pub fn take(&self) -> Option<Arc<T>> {
        if std::process::id() == self.pid { self.value.lock().take() } else { None }
    }
}

impl<T: Send + Sync> Revoke for Slot<T> {
    fn revoke(&self) {
        drop(self.take());
    }
}

impl<T: Send + Sync> Drop for Slot<T> {
    fn drop(&mut self) {
        let Some(value) = self.value.get_mut().take() else { return };
        if std::process::id() == self.pid {
            // The last handle commits, which may take a while. Without an interpreter, when it is
            // ending, the value is dropped with the closure.
            let _ = Python::try_attach(|py| py.detach(move || drop(value)));
        } else {
            std::mem::forget(value);
        }
    }
}
