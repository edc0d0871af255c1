//! The switch of a read-only mount to a writable file system.
//!
//! Owns [`Server::switch`]. A mount with `ro` has its file system open for
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
//! **Locks**: those of [`super::switching`].

use super::state::Server;
use crate::ioctl::{IoctlReply, Switch};
use papilio::FileSystem;
use papilio::device::{Access, DeviceOptions, ImageOptions};
use papilio_ioctl::Errno;
use std::path::Path;

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
        let _alone = self.switching.alone();
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
        let open = self.switching.options().clone().cached_by_default();
        FileSystem::open_over_readers(&self.mount.source, &open)
    }

    /// Makes a file system on a device that builds on the seed.
    fn sprouted(&self, device: &Path, force: bool) -> papilio::Result<FileSystem> {
        let options = DeviceOptions::new(Access::ReadWrite);
        let device = options.open_target(device, &ImageOptions::default())?.into_device();
        self.fs().sprout_from_this(&device, force, self.switching.options())
    }
}
