//! The switch of a read-only mount to a writable file system.
//!
//! Owns [`Switching`] and [`Server::switch`]. A mount with `ro` has its file system open for
//! reading, so that others may read it, too. When changes are allowed, the server opens the same
//! files for writing, replays the log of fsyncs, and serves that file system from then on. A mount
//! of a seed gets a new file system that builds on it, once a device is added. Nodes, handles and
//! the kernel's caches stay.
//!
//! **Invariants**
//! - Nothing changes unless the whole succeeds: a failure leaves the mount as it was.
//! - No ioctl that works for long, and no job, is under way: each would go on with the earlier file
//!   system, whose blocks are no longer kept.
//!
//! **Locks**: a counter, which an ioctl waits for while a switch is under way.

use super::state::Server;
use crate::ioctl::{IoctlReply, Switch};
use papilio::device::{Access, DeviceOptions, ImageOptions};
use papilio::{FileSystem, OpenOptions};
use papilio_ioctl::Errno;
use std::path::Path;
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
        Self { open: open.clone(), long: AtomicIsize::new(0) }
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
    fn begin(&self) -> bool {
        self.long.compare_exchange(1, UNDER_WAY, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn end(&self) {
        self.long.store(1, Ordering::Release);
    }
}

impl Server {
    /// Makes the file system writable. The calling ioctl counts as one that works for long.
    ///
    /// # Errors
    /// EBUSY while other work is under way; the error of opening, whose text the state of the mount
    /// has then.
    pub(super) fn switch(&self, switch: Switch) -> Result<IoctlReply, Errno> {
        let busy = || {
            self.mount.refuse_writing("other work on the mount is under way".to_owned());
            Errno(libc::EBUSY)
        };
        if !self.switching.begin() {
            return Err(busy());
        }
        let switched = if self.mount.jobs.is_busy() { Err(busy()) } else { self.open_for_writing(&switch) };
        self.switching.end();
        switched?;
        self.resume_jobs();
        Ok(IoctlReply::default())
    }

    fn open_for_writing(&self, switch: &Switch) -> Result<(), Errno> {
        if !self.mount.opened_read_only() {
            // Another call was first.
            return Ok(());
        }
        let opened = match switch {
            Switch::Writable => self.reopened(),
            Switch::Sprout { device, force } => self.sprouted(device, *force),
        };
        let fs = opened.map_err(|error| {
            self.mount.refuse_writing(error.to_string());
            Errno::from(error)
        })?;
        self.room.look(&fs);
        self.served.replace(fs);
        self.nodes.renew(&self.served);
        // The kernel refuses changes of a file system that has sprouted, until a remount.
        self.mount.set_read_only(matches!(switch, Switch::Sprout { .. }));
        self.mount.refuse_writing(String::new());
        self.mount.set_opened_for_writing();
        Ok(())
    }

    /// Opens the file system of a read-only mount for writing.
    fn reopened(&self) -> papilio::Result<FileSystem> {
        let refuse = |why: &str| Err(papilio::Error::ReadOnlyFileSystem { cause: why.to_owned() });
        if let Some(option) = self.mount.needs_read_only {
            return refuse(&format!("the mount option {option} requires ro"));
        }
        if self.fs().is_seed() {
            return refuse("it is a seed: add a device first");
        }
        if self.fs().used_backup_root() || !self.fs().older_states().is_empty() {
            return refuse("the mount shows an older state");
        }
        // Threads that wait for devices begin with the mount, so the page cache of the host stays.
        let open = self.switching.open.clone().direct_io_unless_chosen(false);
        FileSystem::open_over_readers(&self.mount.source, &open)
    }

    /// Makes a file system on a device that builds on the seed.
    fn sprouted(&self, device: &Path, force: bool) -> papilio::Result<FileSystem> {
        let options = DeviceOptions::new(Access::ReadWrite);
        let device = options.open_target(device, &ImageOptions::default())?.into_device();
        self.fs().sprout_from_this(&device, force, &self.switching.open)
    }
}
