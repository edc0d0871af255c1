//! Directory listings.
//!
//! Like the kernel's Btrfs, a listing follows the directory's index. The offset of an entry is its
//! index, which no other entry ever has, so a listing continues correctly while entries come and
//! go. `.` and `..` have offsets 0 and 1; indexes start at 2. A listing omits entries that were
//! added after its start, so it ends even if a program renames each entry it reads. On a read-only
//! mount the kernel opens directories without the server.
//!
//! With the writeback cache the kernel forgets a file's number of blocks at each close
//! (`fuse_flush` in `fs/fuse/file.c`). A program that lists a directory and looks at each file then
//! asks once for each closed file, unless the listing brings the attributes. So where many files
//! were closed since a directory was listed, the kernel may not use the listing that it has cached.

use super::data::NO_NEED;
use super::state::Server;
use crate::nodes::{Node, stale};
use crate::options::Atime;
use crate::transport::{DirectoryHandle, DirectorySink, Entry, KeptListing, ListedEntry, NodeId};
use papilio::{DirEntry, EntryTarget, ErrorKind, FileKind, Inode, PathError};
use papilio_ioctl::Errno;
use std::sync::atomic::Ordering;

/// Entries that a reply of a listing with attributes holds, roughly.
const ENTRIES_IN_REPLY: u64 = 32;
/// Index of a directory's first entry.
const FIRST_INDEX: u64 = 2;

impl Server {
    /// Opens a directory, and says what the kernel may do with its listing.
    pub(crate) fn open_directory(&self, node: NodeId) -> Result<(DirectoryHandle, KeptListing), Errno> {
        if self.lists_by_kernel {
            return Err(NO_NEED);
        }
        let node = self.node(node)?;
        let last = self.used(&node)?.inode.last_entry_index().map_err(stale)?;
        Ok((self.listings.open(last), self.kept_listing(&node, last)))
    }

    /// Returns what the kernel may do with a listing whose last entry has index `last`.
    fn kept_listing(&self, node: &Node, last: u64) -> KeptListing {
        if self.access_times == Some(Atime::Strict) {
            // Every listing updates the access time.
            return KeptListing::Never;
        }
        if !self.writeback_cache {
            return KeptListing::Use;
        }
        let closes = self.closes.load(Ordering::Relaxed);
        let since = closes.wrapping_sub(node.listed.load(Ordering::Relaxed));
        if since <= last / ENTRIES_IN_REPLY {
            return KeptListing::Use;
        }
        node.listed.store(closes, Ordering::Relaxed);
        KeptListing::Renew
    }

    /// Lists a directory from `offset`: 0, or the `next` of an entry. With `attributes`, each
    /// listed entry counts as a look-up.
    pub(crate) fn list(
        &self,
        node: NodeId,
        handle: DirectoryHandle,
        offset: u64,
        attributes: bool,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        let node = self.node(node)?;
        let last = self.last_of_interest(&node, handle, offset)?;
        self.note_read(&node, 0);
        if offset < FIRST_INDEX && !self.list_dots(&node, offset, attributes, sink)? {
            return Ok(());
        }
        let directory = self.used(&node)?;
        let directory = &directory.inode;
        let entries = directory.read_dir()?.starting_at(offset.max(FIRST_INDEX));
        let entries = if attributes { entries.with_inodes() } else { entries };
        let mut added = false;
        for entry in entries.up_to(last) {
            let listed = match entry.map(|entry| self.list_entry(directory, &entry, attributes, sink)) {
                // The entry was removed meanwhile.
                Ok(Err(error)) if error.kind() == ErrorKind::Path(PathError::NotFound) => continue,
                Ok(listed) => listed.map_err(Errno::from),
                Err(error) => Err(stale(error)),
            };
            match listed {
                Ok(true) => added = true,
                Ok(false) => return Ok(()),
                // The kernel counts look-ups only from replies without an error. Return the entries
                // listed so far; the next call fails.
                Err(_) if added => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the index of the last entry that a listing shows.
    fn last_of_interest(&self, node: &Node, handle: DirectoryHandle, offset: u64) -> Result<u64, Errno> {
        if self.lists_by_kernel {
            return self.last_without_handle(node, offset);
        }
        let last = self.listings.get(handle)?;
        if offset == 0 {
            // A rewound listing shows entries that were added meanwhile.
            last.store(self.used(node)?.inode.last_entry_index().map_err(stale)?, Ordering::Release);
        }
        Ok(last.load(Ordering::Acquire))
    }

    /// As [`Server::last_of_interest`], where the kernel opens directories without the server. A
    /// mount that became writable remembers the end of the last listing that began.
    fn last_without_handle(&self, node: &Node, offset: u64) -> Result<u64, Errno> {
        if self.mount.opened_read_only() {
            return Ok(u64::MAX);
        }
        if offset == 0 {
            let last = self.used(node)?.inode.last_entry_index().map_err(stale)?;
            node.listed.store(last, Ordering::Release);
            return Ok(last);
        }
        match node.listed.load(Ordering::Acquire) {
            // It began before.
            0 => Ok(u64::MAX),
            last => Ok(last),
        }
    }

    fn list_dots(
        &self,
        node: &Node,
        offset: u64,
        attributes: bool,
        sink: &mut dyn DirectorySink,
    ) -> Result<bool, Errno> {
        let inode = node.current(&self.fs())?;
        let number = self.nodes.number_of_node(node);
        let entry = attributes.then(|| self.entry_of(node, &inode));
        let mut dot = ListedEntry { name: b".", number, kind: FileKind::Directory, next: 1, entry };
        if offset == 0 && !sink.add(&dot) {
            return Ok(false);
        }
        // The kernel reads only the number of this entry.
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
        directory: &Inode,
        entry: &DirEntry,
        attributes: bool,
        sink: &mut dyn DirectorySink,
    ) -> papilio::Result<bool> {
        let (name, kind, next) = (entry.file_name(), entry.file_type(), entry.index().saturating_add(1));
        if !attributes && let EntryTarget::Inode(inode) = entry.target() {
            let number = self.nodes.number(directory.tree(), inode);
            return Ok(sink.add(&ListedEntry { name, number, kind, next, entry: None }));
        }
        let inode = entry.inode()?;
        let number = self.nodes.number_of(directory, name, &inode);
        if !attributes {
            return Ok(sink.add(&ListedEntry { name, number, kind, next, entry: None }));
        }
        let known = self.learn_listed(directory, name, &inode);
        let added = sink.add(&ListedEntry { name, number, kind, next, entry: Some(known) });
        if !added {
            self.nodes.forget(known.node, 1);
        }
        Ok(added)
    }

    fn learn_listed(&self, directory: &Inode, name: &[u8], inode: &Inode) -> Entry {
        let known = self.nodes.learn(&self.served, directory, name, inode);
        self.entry_of(&known, inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ioctl::MountInfo;
    use crate::options::MountOptions;
    use papilio::{FileSystem, MkfsOptions, OpenOptions};
    use papilio_device::{Device, FaultDevice, MemoryDevice};
    use std::path::Path;
    use std::sync::Arc;

    /// A reply with space for some entries.
    struct Reply {
        space: usize,
        known: Vec<NodeId>,
        next: u64,
    }

    impl DirectorySink for Reply {
        fn add(&mut self, entry: &ListedEntry<'_>) -> bool {
            let fits = self.space > 0;
            if fits {
                self.space -= 1;
                self.next = entry.next;
                let dots = matches!(entry.name, b"." | b"..");
                self.known.extend(entry.entry.filter(|_| !dots).map(|entry| entry.node));
            }
            fits
        }
    }

    /// Lists everything as the kernel does, which counts look-ups from each reply without an error.
    /// Returns the nodes and whether a call failed.
    fn list_all(server: &Server, directory: NodeId, handle: DirectoryHandle) -> (Vec<NodeId>, bool) {
        let (mut known, mut next) = (Vec::new(), 0);
        loop {
            let mut reply = Reply { space: 70, known: Vec::new(), next };
            if server.list(directory, handle, next, true, &mut reply).is_err() {
                return (known, true);
            }
            if reply.next == next {
                return (known, false);
            }
            next = reply.next;
            known.extend(reply.known);
        }
    }

    /// Lets the device fail from each point of a listing on.
    #[test]
    fn failing_listing_reports_each_node_it_counted() {
        const FILES: usize = 1500;
        let device = Arc::new(MemoryDevice::new(256 << 20)) as Arc<dyn Device>;
        papilio::mkfs_device(&device, &MkfsOptions::new()).unwrap();
        let fs = FileSystem::from_devices(vec![device.clone()], &OpenOptions::new().write(true)).unwrap();
        fs.create_dir("/d").unwrap();
        for number in 0..FILES {
            fs.create_file(format!("/d/{number}")).unwrap();
        }
        fs.close().unwrap();
        let options = MountOptions::parse("ro").unwrap();
        let info = MountInfo::new(Path::new("image"), Path::new("/"), &options);
        for number in 0.. {
            let failing = Arc::new(FaultDevice::new(device.clone()));
            let devices = vec![failing.clone() as Arc<dyn Device>];
            let fs = FileSystem::from_devices(devices, &OpenOptions::new()).unwrap();
            let server = Server::new(fs, info.clone(), &options).unwrap();
            let directory = server.lookup(NodeId::ROOT, b"d").unwrap().node;
            assert_eq!(server.open_directory(directory), Err(NO_NEED));
            let handle = DirectoryHandle(0);
            failing.reset_counts();
            failing.fail_all_from(number);
            let (known, failed) = list_all(&server, directory, handle);
            known.iter().chain([&directory]).for_each(|node| server.nodes.forget(*node, 1));
            assert_eq!(server.nodes.lookups(), 0, "the device failed from call {number} on");
            if !failed {
                assert!(number > 10 && known.len() == FILES, "{number} calls, {} files", known.len());
                break;
            }
        }
    }

    /// The kernel lacks attributes of files that were closed, so a listing brings them.
    #[test]
    fn listing_is_renewed_after_many_closes() {
        const FILES: u64 = 100;
        let device = Arc::new(MemoryDevice::new(256 << 20)) as Arc<dyn Device>;
        papilio::mkfs_device(&device, &MkfsOptions::new()).unwrap();
        for (options, expected) in [
            ("", [KeptListing::Use, KeptListing::Use, KeptListing::Renew, KeptListing::Use]),
            ("nowriteback_cache", [KeptListing::Use; 4]),
            ("strictatime", [KeptListing::Never; 4]),
        ] {
            let opened = OpenOptions::new().write(true);
            let fs = FileSystem::from_devices(vec![device.clone()], &opened).unwrap();
            let name = format!("directory {options}");
            fs.create_dir(format!("/{name}")).unwrap();
            for number in 0..FILES {
                fs.create_file(format!("/{name}/{number}")).unwrap();
            }
            let options = MountOptions::parse(options).unwrap();
            let info = MountInfo::new(Path::new("image"), Path::new("/"), &options);
            let server = Server::new(fs.clone(), info, &options).unwrap();
            let directory = server.lookup(NodeId::ROOT, name.as_bytes()).unwrap().node;
            let file = server.lookup(directory, b"7").unwrap().node;
            let kept = [0, FILES / ENTRIES_IN_REPLY, 1, 0].map(|closes| {
                for _ in 0..closes {
                    server.open(file, libc::O_RDONLY).unwrap();
                    server.release(file, libc::O_RDONLY);
                }
                server.open_directory(directory).unwrap().1
            });
            assert_eq!(kept, expected, "{options:?}");
            drop(server);
            fs.close().unwrap();
        }
    }
}
