//! The rule that no thread does data I/O while it holds a transaction handle.
//!
//! Owns [`HandleHeld`] and [`assert_no_handle`]. A handle keeps a commit waiting; a slow device
//! must not. Debug builds check the rule at every read and write of file data, release builds do
//! nothing here. With the feature `lock-order`, data I/O also counts as a lock of the class
//! `data-io`: `make locks` shows every lock that a thread held across it, and allows none but those
//! of a list.

use papilio_locks::Class;
use std::cell::Cell;

static DATA_IO: Class = Class::several("data-io", "no thread waits for data I/O of another one here");

thread_local! {
    /// Handles that this thread holds.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// Counts one handle of this thread until it is dropped.
#[derive(Debug)]
pub(super) struct HandleHeld(());

impl HandleHeld {
    pub(super) fn new() -> Self {
        if cfg!(debug_assertions) {
            HELD.set(HELD.get() + 1);
        }
        Self(())
    }
}

impl Drop for HandleHeld {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            HELD.set(HELD.get() - 1);
        }
    }
}

/// Panics in debug builds if this thread holds a transaction handle.
#[inline]
pub(crate) fn assert_no_handle() {
    if cfg!(debug_assertions) {
        assert_eq!(HELD.get(), 0, "data I/O inside a transaction handle");
    }
    DATA_IO.might_wait(&DATA_IO);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_io_inside_a_handle_panics() {
        assert_no_handle();
        let held = HandleHeld::new();
        assert!(std::panic::catch_unwind(assert_no_handle).is_err());
        drop(held);
        assert_no_handle();
    }
}
