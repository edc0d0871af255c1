//! A seeded tree with everything that a Btrfs can hold, written through a kernel mount.
//!
//! The same [`TreeSpec`] writes the same tree, byte for byte and name for name, except for change
//! times, creation times and extent layout. The parts:
//!
//! - `many/`: one directory of many small files;
//! - `tree/`: the rest of the small files, in nested directories;
//! - `big/`: the bulk of the bytes;
//! - `extents/`: holes, preallocation, overwrites, shared extents;
//! - `links/`, `names/`, `attributes/`: links and special inodes, odd names, modes and xattrs;
//! - `subvolumes/`: subvolumes, and snapshots whose origin changed afterwards.
//!
//! A last pass sets the modification times of all entries from the seed.

mod attributes;
mod bulk;
mod content;
mod extents;
mod links;
pub mod names;
mod subvolumes;
mod times;
mod tree_spec;

use std::path::Path;

use anyhow::Context;

use self::content::sync;
use self::times::set_times;

pub use content::{Data, Populated, Writer};
pub use tree_spec::TreeSpec;

impl TreeSpec {
    /// Writes the tree into the empty folder `root`, the root of a mounted file system.
    ///
    /// # Errors
    /// The file system's, with the part that was being written.
    pub fn populate(&self, root: &Path) -> anyhow::Result<Populated> {
        let mut writer = Writer::new(root, self.seed);
        let parts: [(&str, Part); 6] = [
            ("many", bulk::many),
            ("tree", bulk::tree),
            ("extents", extents::write),
            ("links", links::write),
            ("names", names::write),
            ("attributes", attributes::write),
        ];
        for (name, write) in parts {
            let folder = root.join(name);
            writer.directory(&folder)?;
            write(&mut writer, &folder, self).with_context(|| format!("populate {name}"))?;
            // Each part gets its own generation.
            sync(root)?;
        }
        let big = root.join("big");
        writer.directory(&big)?;
        bulk::big(&mut writer, &big, self).context("populate big")?;
        if self.subvolumes {
            let folder = root.join("subvolumes");
            writer.directory(&folder)?;
            subvolumes::write(&mut writer, &folder, self).context("populate subvolumes")?;
        }
        set_times(root, self.seed)?;
        sync(root)?;
        Ok(writer.done())
    }
}

type Part = fn(&mut Writer, &Path, &TreeSpec) -> anyhow::Result<()>;
