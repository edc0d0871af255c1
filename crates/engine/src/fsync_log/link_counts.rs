//! Link counts after a replay.
//!
//! Part of [`Replay`]. Every inode that was logged, or that gained or lost a name, gets as many
//! links as it has names. An inode without a name becomes an orphan, which is later deleted like
//! any other. A directory without a name loses its entries first.
//!
//! **Locks**: the tree's editor, for one inode at a time.
//!
//! Kernel counterpart: `fixup_inode_link_counts` (`fs/btrfs/tree-log.c`).

use super::replay::Replay;
use crate::errors::{Error, Result};
use crate::items::draft::edit;
use crate::items::inode::for_each_name;
use crate::items::{inode_edit, orphan};
use papilio_format::items::inode::{FileKind, InodeItem, inode_key};
use papilio_format::{Corrupt, InodeNumber};
use std::collections::BTreeSet;

impl Replay<'_> {
    /// Recounts the links of all inodes whose names may have changed.
    pub(super) fn count_links(&mut self) -> Result<()> {
        // Emptying a directory adds to the set, and may remove one of another directory's two
        // names. So directories with several names are recounted last.
        let mut with_many = BTreeSet::new();
        while let Some(number) = self.recount.pop_last() {
            let Some(item) = self.inode(number)? else { continue };
            let links = self.names_of(number)?;
            if links > 1 && item.kind() == Some(FileKind::Directory) {
                with_many.insert(number);
            } else {
                self.count_links_of(number, &item, links)?;
            }
        }
        for number in with_many {
            let Some(item) = self.inode(number)? else { continue };
            let links = self.names_of(number)?;
            self.count_links_of(number, &item, links)?;
        }
        Ok(())
    }

    fn names_of(&self, number: InodeNumber) -> Result<u32> {
        let mut links: u32 = 0;
        for_each_name(&self.live.tree(), number, |_| {
            links = links.saturating_add(1);
            true
        })?;
        Ok(links)
    }

    fn count_links_of(&mut self, number: InodeNumber, item: &InodeItem, links: u32) -> Result<()> {
        let is_directory = item.kind() == Some(FileKind::Directory);
        if is_directory && links > 1 {
            let reason = Corrupt::field("inode", "nlink", links.into(), "a directory has more than one name");
            return Err(Error::Item { tree: self.id(), key: inode_key(number), reason });
        }
        if is_directory && links == 0 {
            for (_, entry) in self.entries(number, 0..=u64::MAX)? {
                self.drop_entry(number, &entry)?;
            }
        }
        edit(&mut self.live.edit(self.handle), |draft| {
            if links == 0 {
                orphan::insert(draft, number)?;
            } else {
                orphan::remove(draft, number)?;
            }
            let item = inode_edit::load(draft, number)?;
            if item.nlink != links {
                inode_edit::store(draft, number, &InodeItem { nlink: links, ..item });
            }
            Ok(())
        })
    }
}
