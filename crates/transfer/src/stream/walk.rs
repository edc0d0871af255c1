//! The entries of a subvolume that streams describe.
//!
//! Owns [`SentEntry`] and [`Walk`], which lists a tree in the order of names, each directory before
//! its entries.

use super::fault::StreamError;
use super::node::{NodeKind, NodeNumber, StreamNode};
use super::tree::{ROOT, SentTree};
use papilio_format::items::inode::{FileKind, Timespec};
use std::rc::Rc;

/// The longest path in bytes: `PATH_MAX` without the NUL.
const LONGEST_PATH: usize = 4095;

/// An entry of a subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SentEntry {
    /// The path from the subvolume's root, without a leading slash. That of the root is empty.
    pub path: Vec<u8>,
    /// The kind.
    pub kind: FileKind,
    /// The inode's number at the sender.
    pub inode: u64,
    /// Names of the inode.
    pub links: u32,
    /// The twelve permission bits.
    pub mode: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Bytes of a file or of a symbolic link's target; 0 for other kinds.
    pub size: u64,
    /// Bytes of a file that lie in the streams or are cloned; the rest are holes.
    pub data: u64,
    /// The time of the last modification, if the streams have it.
    pub mtime: Option<Timespec>,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Major and minor number of a device.
    pub device: Option<(u32, u32)>,
    /// Names of the extended attributes.
    pub xattrs: Vec<Vec<u8>>,
}

impl SentEntry {
    pub(super) fn new(path: Vec<u8>, node: &StreamNode) -> Self {
        let (mut size, mut data, mut target, mut device) = (0, 0, None, None);
        match &node.kind {
            NodeKind::File(content) => {
                size = content.size;
                data = content.extents.values().map(|piece| piece.length).sum();
            }
            NodeKind::Symlink(to) => {
                size = to.len() as u64;
                target = Some(to.to_vec());
            }
            NodeKind::Character { major, minor } | NodeKind::Block { major, minor } => {
                device = Some((*major, *minor));
            }
            NodeKind::Directory { .. } | NodeKind::Fifo | NodeKind::Socket => {}
        }
        Self {
            path,
            kind: node.file_kind(),
            inode: node.inode,
            links: node.links,
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            size,
            data,
            mtime: node.times.map(|times| times.mtime),
            target,
            device,
            xattrs: node.xattrs.keys().map(|name| name.to_vec()).collect(),
        }
    }
}

/// An entry that is still to be listed: directory, name, node.
type Waiting<'a> = (Rc<[u8]>, &'a [u8], NodeNumber);

/// Lists a tree.
pub(super) struct Walk<'a> {
    tree: &'a SentTree,
    /// The entries that are still to be listed, the next one last.
    waiting: Vec<Waiting<'a>>,
}

impl<'a> Walk<'a> {
    /// Lists the node at a path and all below it.
    pub(super) fn new(tree: &'a SentTree, path: &'a [u8], number: NodeNumber) -> Self {
        Self { tree, waiting: vec![(Rc::from(&b""[..]), path, number)] }
    }

    /// Lists the whole tree.
    pub(super) fn whole(tree: &'a SentTree) -> Self {
        Self::new(tree, b"", ROOT)
    }

    /// Returns the next path and node.
    ///
    /// # Errors
    /// A path that is too long for any receiver. Directories that were moved into one another can
    /// have such.
    pub(super) fn step(&mut self) -> Result<Option<(Vec<u8>, NodeNumber)>, StreamError> {
        let Some((directory, name, number)) = self.waiting.pop() else { return Ok(None) };
        let path = join(&directory, name);
        if path.len() > LONGEST_PATH {
            let text = "a path has more than the 4,095 bytes that receivers take";
            let start = String::from_utf8_lossy(&path[..80]).into_owned();
            return Err(StreamError::Invalid(format!("{text}: {start}...")));
        }
        let (first, directory) = (self.waiting.len(), Rc::from(&path[..]));
        let entries = self.tree.entries(number);
        self.waiting.extend(entries.map(|(name, child)| (Rc::clone(&directory), name, child)));
        self.waiting[first..].reverse();
        Ok(Some((path, number)))
    }
}

pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        b"" => name.to_vec(),
        directory => [directory, b"/", name].concat(),
    }
}
