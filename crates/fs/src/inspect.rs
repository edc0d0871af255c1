//! Inspection of a file system: its usage, its trees and their blocks.
//!
//! Owns the methods of [`FileSystem`] that call the jobs of `papilio_engine::jobs` and of
//! `papilio_progs`.

use crate::file_system::FileSystem;
use papilio_engine::errors::{Error, Result};
#[cfg(feature = "unstable")]
use papilio_engine::fsync_log::{LogUsage, log_usage};
use papilio_engine::jobs::extent_owners::{self, AddressUse};
use papilio_engine::jobs::shared_extents::SharedExtents;
use papilio_engine::jobs::usage::{self, Usage};
use papilio_format::{LogicalAddress, TreeId};
use papilio_progs::dump::{self, TreeBlocks, TreeRoot};
use papilio_progs::image::{self, ImageDumpOptions, ImageDumped};
use papilio_progs::space_sharing::{SharingOptions, SharingProgress, SpaceSharing};
use papilio_progs::tree_stats::{self, TreeStats};

impl FileSystem {
    /// Returns how the space is used, by type, profile and device.
    ///
    /// ```no_run
    /// # fn main() -> papilio::Result<()> {
    /// let usage = papilio::FileSystem::open("backup.img")?.usage()?;
    /// println!("{} of {} bytes allocated", usage.allocated(), usage.device_size());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A tree block or item that cannot be read.
    pub fn usage(&self) -> Result<Usage> {
        usage::usage(&self.info.trees)
    }

    /// Returns the sizes that `statfs` shows, as of now: data and trees that were written since the
    /// last commit count as used.
    ///
    /// # Errors
    /// As [`FileSystem::usage`].
    pub fn statfs(&self) -> Result<papilio_engine::jobs::statfs::Statfs> {
        Ok(usage::live_usage(&self.info.trees)?.statfs())
    }

    /// Writes a metadata dump of the last commit, as `btrfs-image` does, from which
    /// [`ImageDump`](papilio_progs::image::ImageDump) restores the file system without its data. It
    /// can include data. Calls `progress` with the parts done and the number of all.
    ///
    /// # Errors
    /// A tree that cannot be read; a block of which no copy can be read; `out` fails.
    pub fn dump_image(
        &self,
        out: &mut dyn std::io::Write,
        options: &ImageDumpOptions,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<ImageDumped> {
        let _pin = self.info.trees.transactions().map(|transactions| transactions.pin());
        image::dump::dump(&self.info.trees, out, options, &mut progress)
    }

    /// Returns all trees: the root tree, the chunk tree, those with an item in the root tree, in
    /// its order, and the logs.
    ///
    /// # Errors
    /// A tree block or root item that cannot be read.
    #[cfg(feature = "unstable")]
    pub fn tree_roots(&self) -> Result<Vec<TreeRoot>> {
        dump::tree_roots(&self.info.trees)
    }

    /// Returns the roots of the trees with an id: one, except for logs and relocation trees, of
    /// which each subvolume may have one.
    ///
    /// # Errors
    /// [`papilio_engine::Error::MissingItem`] if there is none, or as [`FileSystem::tree_roots`].
    #[cfg(feature = "unstable")]
    pub fn tree_roots_of(&self, id: TreeId) -> Result<Vec<TreeRoot>> {
        dump::roots_of(&self.info.trees, id)
    }

    /// Returns an iterator over the blocks of a tree, each before its children. A block that cannot
    /// be read gives an error, and the walk continues after it.
    ///
    /// ```no_run
    /// # fn main() -> papilio::Result<()> {
    /// let fs = papilio::FileSystem::open("backup.img")?;
    /// for root in fs.tree_roots()? {
    ///     for block in fs.tree_blocks(&root) {
    ///         match block {
    ///             Ok(block) => println!("{} level {}", block.address(), block.level()),
    ///             Err(error) => println!("{error}"),
    ///         }
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "unstable")]
    pub fn tree_blocks(&self, root: &TreeRoot) -> TreeBlocks {
        TreeBlocks::of_tree(self.info.trees.forest(), root)
    }

    /// Returns an iterator over the tree block at `address`, of any tree, and with `follow` all
    /// blocks below it.
    #[cfg(feature = "unstable")]
    pub fn tree_blocks_at(&self, address: LogicalAddress, follow: bool) -> TreeBlocks {
        TreeBlocks::at(self.info.trees.forest(), address, follow)
    }

    /// Reads and checks all blocks of the logs that the superblock points to, as a replay does
    /// before it begins. `None` if there is no log: a file system that is open for writing has
    /// replayed it.
    ///
    /// # Errors
    /// A block or an item that cannot be read; blocks or extents that contradict each other.
    #[cfg(feature = "unstable")]
    pub fn log_usage(&self) -> Result<Option<LogUsage>> {
        let superblock = self.current_superblock();
        let Some((address, level)) = superblock.log_root() else { return Ok(None) };
        log_usage(self.info.trees.forest(), address, level, &self.info.volume().geometry()).map(Some)
    }

    /// Returns statistics of the trees with an id; several for logs and relocation trees.
    ///
    /// # Errors
    /// As [`FileSystem::tree_roots_of`]. The statistics count blocks that cannot be read.
    #[cfg(feature = "unstable")]
    pub fn tree_stats(&self, id: TreeId) -> Result<Vec<TreeStats>> {
        tree_stats::tree_stats(&self.info.trees, id)
    }

    /// Finds out which subvolumes share which bytes, and so what each costs and what deleting some
    /// of them frees. Reads each tree block of the subvolumes once; needs no quotas. Commits first.
    /// The file system must not change meanwhile. Returns `None` if `progress` returned `false`.
    ///
    /// ```no_run
    /// # fn main() -> papilio::Result<()> {
    /// let fs = papilio::FileSystem::open("backup.img")?;
    /// let sharing = fs.space_sharing(&papilio::SharingOptions::default(), |_| true)?.unwrap();
    /// for space in sharing.by_subvolume() {
    ///     println!("{}: {} bytes of its own", space.subvolume.id, space.exclusive.bytes.total());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The commit fails, the root tree cannot be read, or no temporary file can be used. Other
    /// blocks that cannot be read are left out, and counted by [`SpaceSharing::bad_blocks`].
    pub fn space_sharing(
        &self,
        options: &SharingOptions,
        mut progress: impl FnMut(SharingProgress) -> bool,
    ) -> Result<Option<SpaceSharing>> {
        if self.info.trees.transactions().is_some() {
            self.sync()?;
        }
        SpaceSharing::measure(&self.info.trees, options, &mut progress)
    }

    /// Returns an object that tells which extents are shared. Commits first, so that no
    /// reference is missed.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn shared_extents(&self) -> Result<SharedExtents> {
        if self.info.trees.transactions().is_some() {
            self.sync()?;
        }
        Ok(self.shared_extents_of_last_commit())
    }

    /// As [`FileSystem::shared_extents`], without the commit: references that are not yet in the
    /// extent tree are missed.
    pub fn shared_extents_of_last_commit(&self) -> SharedExtents {
        SharedExtents::new(self.info.clone())
    }

    /// Returns the files that contain the byte at a logical address, or with `whole` any byte of
    /// the extent there. Commits first, so that no reference is missed.
    ///
    /// # Errors
    /// The commit fails, or a tree block or item cannot be read.
    #[cfg(feature = "unstable")]
    pub fn extent_owners(&self, address: LogicalAddress, whole: bool) -> Result<AddressUse> {
        if self.info.trees.transactions().is_some() {
            self.sync()?;
        }
        extent_owners::extent_owners(&self.info.trees, address, whole)
    }

    /// As [`FileSystem::extent_owners`], and passes each subvolume whose tree cannot be read to
    /// `unread`, with the error. Without an id, it is a leaf that several subvolumes may share. The
    /// files there are left out.
    ///
    /// # Errors
    /// The commit fails, or the extent tree or the root tree cannot be read.
    #[cfg(feature = "unstable")]
    pub fn extent_owners_leaving_out(
        &self,
        address: LogicalAddress,
        whole: bool,
        mut unread: impl FnMut(Option<TreeId>, Error),
    ) -> Result<AddressUse> {
        if self.info.trees.transactions().is_some() {
            self.sync()?;
        }
        let unread = &mut |tree, error| {
            unread(tree, error);
            Ok(())
        };
        extent_owners::extent_owners_leaving_out(&self.info.trees, address, whole, unread)
    }
}
