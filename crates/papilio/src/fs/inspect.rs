//! A file system as a whole: its usage, its trees and their blocks.
//!
//! Owns nothing; adds the methods of the jobs of `maintenance` to [`FileSystem`].

use crate::errors::Result;
use crate::fs::file_system::FileSystem;
use crate::maintenance::dump::{self, TreeBlocks, TreeRoot};
use crate::maintenance::tree_stats::{self, TreeStats};
use crate::maintenance::usage::{self, Usage};
use papilio_format::{LogicalAddress, TreeId};

impl FileSystem {
    /// How the space is used, by type, profile and device.
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

    /// All trees: the root tree, the chunk tree, those that the root tree names in its order, and
    /// the logs where there are any.
    ///
    /// # Errors
    /// A tree block or root item that cannot be read.
    pub fn tree_roots(&self) -> Result<Vec<TreeRoot>> {
        dump::tree_roots(&self.info.trees)
    }

    /// The roots of the trees with id `id`: one, but for logs and relocation trees, of which each
    /// subvolume may have one.
    ///
    /// # Errors
    /// [`crate::Error::MissingItem`] where there is none, or as [`FileSystem::tree_roots`].
    pub fn tree_roots_of(&self, id: TreeId) -> Result<Vec<TreeRoot>> {
        dump::roots_of(&self.info.trees, id)
    }

    /// The blocks of a tree, each before those below it. A block that cannot be read is an error in
    /// its place, and the walk goes on behind it.
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
    pub fn tree_blocks(&self, root: &TreeRoot) -> TreeBlocks {
        TreeBlocks::of_tree(self.info.trees.forest(), root)
    }

    /// The tree block at `address`, of whatever tree, and with `follow` all that are below it.
    pub fn tree_blocks_at(&self, address: LogicalAddress, follow: bool) -> TreeBlocks {
        TreeBlocks::at(self.info.trees.forest(), address, follow)
    }

    /// What the trees with id `id` are made of; several for logs and relocation trees.
    ///
    /// # Errors
    /// As [`FileSystem::tree_roots_of`]. Blocks that cannot be read are part of the answer.
    pub fn tree_stats(&self, id: TreeId) -> Result<Vec<TreeStats>> {
        tree_stats::tree_stats(&self.info.trees, id)
    }
}
