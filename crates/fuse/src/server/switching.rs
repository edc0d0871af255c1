//! Whether a mount may switch from reading to writing.
//!
//! Owns [`Switching`]: the options of opening, and the count of ioctls that work for long. They
//! keep the file system that they began with, so none is under way during a switch.
//!
//! **Locks**
//! - The counter, which an ioctl waits for while a switch is under way.
//! - `alone`, held while the file system is opened anew and put in its place.

use papilio::OpenOptions;
use papilio_locks::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

/// The count while a switch is under way.
const UNDER_WAY: isize = -1;
/// Time between two looks of an ioctl that waits for a switch.
const LOOK: Duration = Duration::from_millis(1);

/// The way from reading to writing.
#[derive(Debug)]
pub(super) struct Switching {
    /// Options of opening, with all devices.
    open: OpenOptions,
    /// The ioctls that work for long, or [`UNDER_WAY`].
    long: AtomicIsize,
    alone: Mutex<()>,
}

/// An ioctl that works for long.
#[derive(Debug)]
pub(super) struct LongIoctl<'a>(&'a Switching);

impl Drop for LongIoctl<'_> {
    fn drop(&mut self) {
        self.0.long.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Switching {
    pub(super) fn new(open: &OpenOptions) -> Self {
        Self { open: open.clone(), long: AtomicIsize::new(0), alone: Mutex::new(()) }
    }

    /// The options of opening, with all devices.
    pub(super) fn options(&self) -> &OpenOptions {
        &self.open
    }

    /// Keeps others from putting another file system in the place of this one.
    pub(super) fn alone(&self) -> MutexGuard<'_, ()> {
        self.alone.lock()
    }

    /// Counts an ioctl that works for long. Waits for the end of a switch.
    pub(super) fn begin_long(&self) -> LongIoctl<'_> {
        let count = |long| (long >= 0).then_some(long + 1);
        while self.long.fetch_update(Ordering::AcqRel, Ordering::Acquire, count).is_err() {
            std::thread::sleep(LOOK);
        }
        LongIoctl(self)
    }

    /// Begins a switch, by the only long ioctl that is under way.
    pub(super) fn begin(&self) -> bool {
        self.long.compare_exchange(1, UNDER_WAY, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Ends a switch.
    pub(super) fn end(&self) {
        self.long.store(1, Ordering::Release);
    }
}
