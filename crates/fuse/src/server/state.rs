//! The state of a mount's server.
//!
//! Owns [`Server`]. The other files of this directory add its operations.

use super::labels::has_labels;
use super::listings::Listings;
use super::lost::LostWrites;
use super::promises::Promises;
use super::room::{ForgetAttributes, Room};
use super::switching::Switching;

use crate::ioctl::MountInfo;
use crate::jobs::Report;
use crate::nodes::{Node, Nodes, Used};
use crate::options::{Atime, MountOptions, Opens};
use crate::ownership::Ownership;
use crate::served::ServedFileSystem;
use crate::transport::NodeId;
use arc_swap::Guard;
use papilio::FileSystem;
use papilio_ioctl::Errno;
use papilio_ioctl::job::JobKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// The server of a mounted file system.
pub(crate) struct Server {
    pub(super) served: ServedFileSystem,
    pub(super) nodes: Nodes,
    pub(super) listings: Listings,
    pub(super) mount: MountInfo,
    /// The rule for access times; `None` if reads never update them.
    pub(super) access_times: Option<Atime>,
    /// Number of changes to names. They change times of inodes whose nodes the server does not look
    /// up.
    pub(super) name_changes: AtomicU64,
    /// SELinux labels matter here; `server/labels.rs` says when.
    pub(super) labelled: AtomicBool,
    pub(super) valid_for: Duration,
    pub(super) room: Room,
    /// Space that is kept for writes in the kernel's cache.
    pub(super) promises: Promises,
    /// Writes of the kernel's cache that could not be stored.
    pub(super) lost: LostWrites,
    pub(super) sector_size: u32,
    /// The kernel opens and closes regular files without the server.
    pub(super) opens_by_kernel: bool,
    /// The kernel opens and closes directories without the server.
    pub(super) lists_by_kernel: bool,
    /// Number of regular files that were closed, as far as the server hears of it.
    pub(super) closes: AtomicU64,
    /// The kernel gathers writes, and after each close no longer knows how much space a file has.
    pub(super) writeback_cache: bool,
    /// The one user beside root that may use the mount (`allow_root`), unless the kernel decides.
    pub(super) owner_beside_root: Option<u32>,
    /// A stored balance stays paused.
    pub(super) skip_balance: bool,
    /// The way from reading to writing.
    pub(super) switching: Switching,
}

impl Server {
    /// Creates a server of `fs`, whose root is the mounted subvolume.
    ///
    /// # Errors
    /// The root directory cannot be read.
    pub(crate) fn new(fs: FileSystem, mount: MountInfo, options: &MountOptions) -> papilio::Result<Self> {
        let root = fs.root()?;
        let labelled = AtomicBool::new(has_labels(&root));
        let nodes = Nodes::new(&mount.root(&fs)?, root.tree());
        let noted = options.noatime != Atime::Noatime;
        let writeback_cache = options.gathers_writes();
        let usual = if options.read_only { Opens::Kernel } else { Opens::Server };
        let opens = options.opens.unwrap_or(usual);
        let sector_size = fs.superblock().raw.sector_size;
        let room = Room::new(writeback_cache);
        room.look(&fs);
        Ok(Self {
            served: ServedFileSystem::new(fs),
            nodes,
            listings: Listings::default(),
            mount,
            access_times: noted.then_some(options.noatime),
            name_changes: AtomicU64::new(1),
            labelled,
            valid_for: options.attr_timeout,
            room,
            promises: Promises::default(),
            lost: LostWrites::default(),
            sector_size,
            opens_by_kernel: opens == Opens::Kernel,
            lists_by_kernel: options.read_only && opens == Opens::Kernel,
            closes: AtomicU64::new(0),
            writeback_cache,
            owner_beside_root: options.allow_root.then(|| rustix::process::getuid().as_raw()),
            skip_balance: options.skip_balance,
            switching: Switching::new(&options.open),
        })
    }

    /// Returns a handle to the file system, to close it after the server is gone.
    pub(crate) fn file_system(&self) -> FileSystem {
        FileSystem::clone(&self.fs())
    }

    /// Returns the file system.
    pub(crate) fn fs(&self) -> Guard<Arc<FileSystem>> {
        self.served.current()
    }

    /// Says how the kernel is told that room is short.
    pub(crate) fn tell_with(&self, tell: ForgetAttributes) {
        self.room.tell_with(tell);
    }

    /// Resumes the work that an earlier mount has left, in the background.
    pub(crate) fn resume_jobs(&self) {
        self.resume_replace();
        if !self.skip_balance {
            self.resume_balance();
        }
    }

    fn resume_balance(&self) {
        let resume =
            |fs: &FileSystem, report: &Report<'_>| fs.resume_balance(|moved| report.moved(moved)).map(drop);
        match self.fs().stored_balance() {
            Ok(None) => {}
            Ok(Some(_)) => {
                tracing::info!("resuming a balance");
                if let Err(error) = self.mount.jobs.start(JobKind::Balance, self.file_system(), resume) {
                    tracing::warn!("a balance is not resumed: {error}");
                }
            }
            Err(error) => tracing::warn!("a balance is not resumed: {error}"),
        }
    }

    fn resume_replace(&self) {
        let resume = |fs: &FileSystem, report: &Report<'_>| {
            fs.resume_replace(|copied| report.copied(copied)).map(drop)
        };
        match self.fs().replace_status().map(|last| last.is_some_and(|last| last.is_under_way())) {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!("resuming the replacement of a device");
                if let Err(error) = self.mount.jobs.start(JobKind::ReplaceDevice, self.file_system(), resume)
                {
                    tracing::warn!("the replacement of a device is not resumed: {error}");
                }
            }
            Err(error) => tracing::warn!("the last replacement of a device is not known: {error}"),
        }
    }

    /// Ends the work in the background.
    pub(crate) fn stop_jobs(&self) {
        self.mount.jobs.stop();
    }

    /// Returns the owners and permissions that the mount shows.
    pub(super) fn ownership(&self) -> &Ownership {
        &self.mount.ownership
    }

    pub(super) fn node(&self, id: NodeId) -> Result<Arc<Node>, Errno> {
        self.nodes.get(id)
    }

    /// Returns the inode and the file of a node.
    pub(super) fn used(&self, node: &Node) -> Result<Arc<Used>, Errno> {
        self.nodes.used(&self.served, node)
    }

    /// Returns the inode and the file of a node that the kernel knows by this id.
    pub(super) fn used_node(&self, id: NodeId) -> Result<Arc<Used>, Errno> {
        self.used(&*self.node(id)?)
    }
}
