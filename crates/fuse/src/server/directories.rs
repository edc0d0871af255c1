//! Listing directories.
//!
//! A listing goes by the directory's index, as the kernel's does: an entry's place in a listing is its index,
//! which no other entry ever has, so that a listing goes on rightly while entries come and go. `.` and `..` are at 0
//! and 1; indexes start at 2. Entries that came after the listing began are left out, so that a listing ends
//! even if each entry is renamed as it is read.
//!
//! Owns [`Listings`], the directories that are open. Locks: the table's, for one look-up.

use super::Server;
use crate::Errno;
use crate::nodes::{Node, stale};
use crate::transport::{DirectoryHandle, DirectorySink, Entry, ListedEntry, NodeId};
use papilio::{DirEntry, EntryTarget, ErrorKind, FileKind, Inode, PathError};
use papilio_locks::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The index of a directory's first entry.
const FIRST_INDEX: u64 = 2;

/// Directories that are open.
#[derive(Debug, Default)]
pub(super) struct Listings {
    next: AtomicU64,
    /// The last index of interest of each.
    open: Mutex<HashMap<DirectoryHandle, Arc<AtomicU64>>>,
}

impl Listings {
    fn open(&self, last: u64) -> DirectoryHandle {
        let handle = DirectoryHandle(self.next.fetch_add(1, Ordering::Relaxed));
        self.open.lock().insert(handle, Arc::new(AtomicU64::new(last)));
        handle
    }

    fn get(&self, handle: DirectoryHandle) -> Result<Arc<AtomicU64>, Errno> {
        self.open.lock().get(&handle).cloned().ok_or(Errno(libc::EBADF))
    }

    pub(super) fn close(&self, handle: DirectoryHandle) {
        self.open.lock().remove(&handle);
    }
}

impl Server {
    pub(super) fn open_listing(&self, node: NodeId) -> Result<DirectoryHandle, Errno> {
        let node = self.node(node)?;
        Ok(self.listings.open(node.inode.last_entry_index().map_err(stale)?))
    }

    pub(super) fn list_directory(
        &self,
        node: NodeId,
        handle: DirectoryHandle,
        offset: u64,
        attributes: bool,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        let node = self.node(node)?;
        let last = self.listings.get(handle)?;
        if offset == 0 {
            // Also after rewinding, when what came meanwhile is to be seen.
            last.store(node.inode.last_entry_index().map_err(stale)?, Ordering::Release);
        }
        self.note_read(&node, 0);
        if offset < FIRST_INDEX && !self.list_dots(&node, offset, attributes, sink)? {
            return Ok(());
        }
        let entries = node.inode.entries()?.starting_at(offset.max(FIRST_INDEX));
        for entry in entries.up_to(last.load(Ordering::Acquire)) {
            let entry = entry.map_err(stale)?;
            match self.list_entry(&node, &entry, attributes, sink) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // It went since.
                Err(error) if error.kind() == ErrorKind::Path(PathError::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn list_dots(
        &self,
        node: &Node,
        offset: u64,
        attributes: bool,
        sink: &mut dyn DirectorySink,
    ) -> Result<bool, Errno> {
        let inode = node.current(&self.fs)?;
        let number = self.nodes.number_of_node(node);
        let entry = attributes.then(|| self.entry_of(node, &inode));
        let mut dot = ListedEntry { name: b".", number, kind: FileKind::Directory, next: 1, entry };
        if offset == 0 && !sink.add(&dot) {
            return Ok(false);
        }
        // The kernel passes the number on and looks at nothing else.
        let parent = if node.id == NodeId::ROOT { None } else { inode.parent().ok() };
        dot.number = parent.map_or(number, |(tree, inode)| self.nodes.number(tree, inode));
        if let Some(entry) = &mut dot.entry {
            entry.attributes.number = dot.number;
        }
        (dot.name, dot.next) = (b"..", FIRST_INDEX);
        Ok(sink.add(&dot))
    }

    fn list_entry(
        &self,
        node: &Node,
        entry: &DirEntry,
        attributes: bool,
        sink: &mut dyn DirectorySink,
    ) -> papilio::Result<bool> {
        let (name, kind, next) = (entry.name(), entry.kind(), entry.index().saturating_add(1));
        if !attributes && let EntryTarget::Inode(inode) = entry.target() {
            let number = self.nodes.number(node.inode.tree(), inode);
            return Ok(sink.add(&ListedEntry { name, number, kind, next, entry: None }));
        }
        let inode = entry.inode()?;
        let number = self.nodes.number_of(&node.inode, name, &inode);
        if !attributes {
            return Ok(sink.add(&ListedEntry { name, number, kind, next, entry: None }));
        }
        let known = self.learn_listed(node, name, &inode);
        let added = sink.add(&ListedEntry { name, number, kind, next, entry: Some(known) });
        if !added {
            self.nodes.forget(known.node, 1);
        }
        Ok(added)
    }

    fn learn_listed(&self, node: &Node, name: &[u8], inode: &Inode) -> Entry {
        let known = self.nodes.learn(&node.inode, name, inode);
        self.entry_of(&known, inode)
    }
}
