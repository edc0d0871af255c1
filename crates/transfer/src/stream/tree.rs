//! The tree that the commands of a stream make.
//!
//! Owns [`SentTree`]: it applies commands as a receiver does, but keeps where the data of files
//! lies in the streams in place of the data.
//!
//! **Invariants**
//! - No path leaves the tree: each name is looked up in its directory, and no link is followed.
//! - A directory has one name, and is not below itself.
//! - A file's extents end within its size.

use super::budget::Budget;
use super::fault::StreamFault;
use super::node::{ENTRY_BYTES, NodeKind, NodeNumber, Origin, StreamContent, StreamNode, Times, XATTR_BYTES};
use super::table::Table;
use papilio_format::items::inode::{FileKind, MODE_PERMISSION_MASK};
use papilio_format::send_stream::Command;
use std::collections::BTreeMap;

/// The most bytes of a name.
const NAME_MAX: usize = 255;
/// `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE`, `FALLOC_FL_ZERO_RANGE`.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

pub(super) const ROOT: NodeNumber = 0;

type Result<T> = std::result::Result<T, StreamFault>;

/// A tree.
#[derive(Clone, Debug)]
pub(super) struct SentTree {
    nodes: Table<StreamNode>,
    budget: Budget,
}

/// The place of a name: its directory, and the name.
type Place<'p> = (NodeNumber, &'p [u8]);

impl SentTree {
    /// Returns an empty tree: a root directory as receivers make it.
    pub(super) fn new(budget: &Budget) -> Self {
        let mut nodes = Table::new(budget);
        let kind = NodeKind::Directory { entries: BTreeMap::new(), parent: ROOT };
        nodes.push(StreamNode::new(kind, 256, 0o755, budget));
        Self { nodes, budget: budget.clone() }
    }

    pub(super) fn node(&self, number: NodeNumber) -> &StreamNode {
        self.nodes.get(number).expect("an entry leads to a node")
    }

    fn node_mut(&mut self, number: NodeNumber) -> &mut StreamNode {
        self.nodes.get_mut(number).expect("an entry leads to a node")
    }

    /// Returns the entries of a directory; of another node, none.
    pub(super) fn entries(&self, number: NodeNumber) -> impl Iterator<Item = (&[u8], NodeNumber)> {
        let entries = match &self.node(number).kind {
            NodeKind::Directory { entries, .. } => Some(entries),
            _ => None,
        };
        entries.into_iter().flatten().map(|(name, number)| (&name[..], *number))
    }

    /// Returns the node at a path; an empty path means the root.
    pub(super) fn look_up(&self, path: &[u8]) -> Result<NodeNumber> {
        let mut at = ROOT;
        if path.is_empty() {
            return Ok(at);
        }
        for name in path.split(|byte| *byte == b'/') {
            check_name(name, path)?;
            at = self.entry(at, name, path)?.ok_or_else(|| StreamFault::NotFound(path.to_vec()))?;
        }
        Ok(at)
    }

    /// Gives a range of a file the data of a command.
    pub(super) fn write(&mut self, path: &[u8], offset: u64, size: u64, origin: Origin) -> Result<()> {
        fits(offset, size)?;
        self.change(path, |content| content.write(offset, size, origin))
    }

    fn entry(&self, directory: NodeNumber, name: &[u8], path: &[u8]) -> Result<Option<NodeNumber>> {
        match &self.node(directory).kind {
            NodeKind::Directory { entries, .. } => Ok(entries.get(name).copied()),
            _ => Err(StreamFault::NotADirectory(path.to_vec())),
        }
    }

    /// Returns the directory and the last name of a path.
    fn place<'p>(&self, path: &'p [u8]) -> Result<Place<'p>> {
        let (directory, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (self.look_up(&path[..at])?, &path[at + 1..]),
            None => (ROOT, path),
        };
        check_name(name, path)?;
        if !self.node(directory).is_directory() || path.starts_with(b"/") {
            return Err(StreamFault::NotADirectory(path.to_vec()));
        }
        Ok((directory, name))
    }

    fn insert(&mut self, (directory, name): Place<'_>, number: NodeNumber) {
        let node = self.node_mut(directory);
        if let NodeKind::Directory { entries, .. } = &mut node.kind {
            entries.insert(name.into(), number);
            node.charge.add(ENTRY_BYTES + name.len() as u64);
        }
    }

    fn take(&mut self, (directory, name): Place<'_>) {
        let node = self.node_mut(directory);
        if let NodeKind::Directory { entries, .. } = &mut node.kind
            && entries.remove(name).is_some()
        {
            node.charge.subtract(ENTRY_BYTES + name.len() as u64);
        }
    }

    fn create(&mut self, path: &[u8], kind: NodeKind, inode: u64, mode: u32) -> Result<()> {
        let place = self.place(path)?;
        if self.entry(place.0, place.1, path)?.is_some() {
            return Err(StreamFault::Exists);
        }
        let mut node = StreamNode::new(kind, inode, mode, &self.budget);
        match &mut node.kind {
            NodeKind::Directory { parent, .. } => *parent = place.0,
            NodeKind::Symlink(target) => node.charge.add(target.len() as u64),
            _ => {}
        }
        let number = self.nodes.push(node);
        self.insert(place, number);
        Ok(())
    }

    /// Takes a name away from an inode that is not a directory, or removes an empty directory.
    fn remove(&mut self, path: &[u8], directory: bool) -> Result<()> {
        let place = self.place(path)?;
        let number = self.entry(place.0, place.1, path)?;
        let number = number.ok_or_else(|| StreamFault::NotFound(path.to_vec()))?;
        match (&self.node(number).kind, directory) {
            (NodeKind::Directory { .. }, false) => return Err(StreamFault::IsADirectory),
            (NodeKind::Directory { entries, .. }, true) if !entries.is_empty() => {
                return Err(StreamFault::NotEmpty);
            }
            (NodeKind::Directory { .. }, true) | (_, false) => {}
            (_, true) => return Err(StreamFault::NotADirectory(path.to_vec())),
        }
        self.take(place);
        self.drop_link(number);
        Ok(())
    }

    fn drop_link(&mut self, number: NodeNumber) {
        let node = self.node_mut(number);
        node.links -= 1;
        if node.links == 0 {
            self.nodes.remove(number);
        }
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let source = self.place(from)?;
        let number = self.entry(source.0, source.1, from)?;
        let number = number.ok_or_else(|| StreamFault::NotFound(from.to_vec()))?;
        let target = self.place(to)?;
        let moves_directory = self.node(number).is_directory();
        if moves_directory && self.is_at_or_below(target.0, number) {
            return Err(StreamFault::IntoItself);
        }
        match self.entry(target.0, target.1, to)? {
            // The kernel does nothing then.
            Some(replaced) if replaced == number => return Ok(()),
            Some(replaced) => {
                match (&self.node(replaced).kind, moves_directory) {
                    (NodeKind::Directory { .. }, false) => return Err(StreamFault::IsADirectory),
                    (NodeKind::Directory { entries, .. }, true) if !entries.is_empty() => {
                        return Err(StreamFault::NotEmpty);
                    }
                    (NodeKind::Directory { .. }, true) | (_, false) => {}
                    (_, true) => return Err(StreamFault::NotADirectory(to.to_vec())),
                }
                self.take(target);
                self.drop_link(replaced);
            }
            None => {}
        }
        self.take(source);
        self.insert(target, number);
        if let NodeKind::Directory { parent, .. } = &mut self.node_mut(number).kind {
            *parent = target.0;
        }
        Ok(())
    }

    fn is_at_or_below(&self, mut at: NodeNumber, above: NodeNumber) -> bool {
        loop {
            if at == above {
                return true;
            }
            match self.node(at).kind {
                NodeKind::Directory { parent, .. } if at != ROOT => at = parent,
                _ => return false,
            }
        }
    }

    fn link(&mut self, existing: &[u8], path: &[u8]) -> Result<()> {
        let place = self.place(existing)?;
        let number = self.entry(place.0, place.1, existing)?;
        let number = number.ok_or_else(|| StreamFault::NotFound(existing.to_vec()))?;
        if self.node(number).is_directory() {
            return Err(StreamFault::IsADirectory);
        }
        let place = self.place(path)?;
        if self.entry(place.0, place.1, path)?.is_some() {
            return Err(StreamFault::Exists);
        }
        self.node_mut(number).links += 1;
        self.insert(place, number);
        Ok(())
    }

    /// Returns the content of a file.
    pub(super) fn content(&self, path: &[u8]) -> Result<&StreamContent> {
        match &self.node(self.look_up(path)?).kind {
            NodeKind::File(content) => Ok(content),
            _ => Err(StreamFault::NotAFile(path.to_vec())),
        }
    }

    /// Changes the content of a file.
    pub(super) fn change<R>(
        &mut self,
        path: &[u8],
        change: impl FnOnce(&mut StreamContent) -> R,
    ) -> Result<R> {
        let number = self.look_up(path)?;
        let changed = self.node_mut(number).change_content(change);
        changed.ok_or_else(|| StreamFault::NotAFile(path.to_vec()))
    }

    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> Result<()> {
        let number = self.look_up(path)?;
        let node = self.node_mut(number);
        let bytes = |value: &[u8]| XATTR_BYTES + (name.len() + value.len()) as u64;
        let before = match value {
            Some(value) => {
                node.charge.add(bytes(value));
                node.xattrs.insert(name.into(), value.into())
            }
            // A receiver may have inherited it from the directory; the tree does not.
            None => node.xattrs.remove(name),
        };
        if let Some(before) = before {
            node.charge.subtract(bytes(&before));
        }
        Ok(())
    }

    /// Applies a command that needs nothing but this tree. `origin` is that of the command's data.
    ///
    /// # Errors
    /// The command cannot be carried out on this tree.
    pub(super) fn apply(&mut self, command: &Command, origin: Origin) -> Result<()> {
        match command {
            Command::Mkfile { path, inode } => {
                self.create(path, NodeKind::File(StreamContent::default()), *inode, 0o600)
            }
            Command::Mkdir { path, inode } => {
                let kind = NodeKind::Directory { entries: BTreeMap::new(), parent: ROOT };
                self.create(path, kind, *inode, 0o700)
            }
            Command::Mkfifo { path, inode, mode, .. } => {
                self.create(path, NodeKind::Fifo, *inode, bits(*mode))
            }
            Command::Mksock { path, inode, mode, .. } => {
                self.create(path, NodeKind::Socket, *inode, bits(*mode))
            }
            Command::Mknod { path, inode, rdev, mode } => {
                self.create(path, device(*rdev, *mode)?, *inode, bits(*mode))
            }
            Command::Symlink { path, inode, target } => {
                self.create(path, NodeKind::Symlink(target[..].into()), *inode, 0o777)
            }
            Command::Rename { from, to } => self.rename(from, to),
            Command::Link { path, existing } => self.link(existing, path),
            Command::Unlink { path } => self.remove(path, false),
            Command::Rmdir { path } => self.remove(path, true),
            Command::SetXattr { path, name, value } => self.set_xattr(path, name, Some(value)),
            Command::RemoveXattr { path, name } => self.set_xattr(path, name, None),
            Command::Chmod { path, mode } => {
                let number = self.look_up(path)?;
                self.node_mut(number).mode = bits(*mode);
                Ok(())
            }
            Command::Chown { path, uid, gid } => {
                let (number, uid, gid) = (self.look_up(path)?, narrow(*uid)?, narrow(*gid)?);
                let node = self.node_mut(number);
                (node.uid, node.gid) = (uid, gid);
                Ok(())
            }
            Command::Utimes { path, atime, mtime, ctime, otime } => {
                let times = Times { atime: *atime, mtime: *mtime, ctime: *ctime, otime: *otime };
                let number = self.look_up(path)?;
                self.node_mut(number).times = Some(times);
                Ok(())
            }
            // Receivers leave flags as they are.
            Command::Fileattr { path, .. } => self.look_up(path).map(drop),
            other => self.apply_data(other, origin),
        }
    }

    /// As [`Self::apply`], for commands about data.
    fn apply_data(&mut self, command: &Command, origin: Origin) -> Result<()> {
        match command {
            Command::Write { path, offset, data } => {
                let length = data.len() as u64;
                fits(*offset, length)?;
                self.change(path, |content| content.write(*offset, length, origin))
            }
            Command::EncodedWrite(write) => {
                fits(write.offset, write.file_length)?;
                self.change(&write.path, |content| {
                    content.write(write.offset, write.file_length, origin);
                })
            }
            Command::UpdateExtent { path, offset, size } => self.write(path, *offset, *size, Origin::Unsent),
            Command::Truncate { path, size } => {
                fits(*size, 0)?;
                self.change(path, |content| content.truncate(*size))
            }
            Command::Fallocate { path, mode, offset, size } => {
                fits(*offset, *size)?;
                let (end, keeps) = (offset + size, mode & KEEP_SIZE != 0);
                let clears = match mode & !KEEP_SIZE {
                    0 => false,
                    PUNCH_HOLE if keeps => true,
                    ZERO_RANGE => true,
                    _ => return Err(StreamFault::FallocateMode(*mode)),
                };
                self.change(path, |content| {
                    if clears {
                        content.clear(*offset, end);
                    }
                    if !keeps {
                        content.size = content.size.max(end);
                    }
                })
            }
            _ => Err(StreamFault::NoSubvolume),
        }
    }
}

fn check_name(name: &[u8], path: &[u8]) -> Result<()> {
    if matches!(name, b"" | b"." | b"..") || name.len() > NAME_MAX {
        return Err(StreamFault::InvalidName(path.to_vec()));
    }
    Ok(())
}

fn bits(mode: u64) -> u32 {
    mode as u32 & MODE_PERMISSION_MASK
}

fn narrow(number: u64) -> Result<u32> {
    u32::try_from(number).map_err(|_| StreamFault::Number(number))
}

/// Decodes a device number as `new_decode_dev` of the kernel does.
fn device(rdev: u64, mode: u64) -> Result<NodeKind> {
    let rdev = narrow(rdev)?;
    let (major, minor) = ((rdev & 0xf_ff00) >> 8, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00));
    match FileKind::from_mode(mode as u32) {
        Some(FileKind::CharacterDevice) => Ok(NodeKind::Character { major, minor }),
        Some(FileKind::BlockDevice) => Ok(NodeKind::Block { major, minor }),
        _ => Err(StreamFault::Number(mode)),
    }
}

/// Refuses ranges that no file can have.
pub(super) fn fits(offset: u64, length: u64) -> Result<()> {
    match offset.checked_add(length) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(StreamFault::Range { offset, length, source_file: false }),
    }
}
