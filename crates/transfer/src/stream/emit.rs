//! A tree as the commands of one full stream.
//!
//! Owns [`Emit`]. Each inode is made under its final name, in the order of paths.
//!
//! **Order**
//! - A directory's attributes follow its entries, which would inherit some of them and change its
//!   times.
//! - An inode's attributes follow its data: owner, then mode, then capabilities, then times, since
//!   each may change those after it.
//!
//! Data that several files share in the streams is written once and cloned for the others.

use super::chain::StreamChain;
use super::data::DataReader;
use super::fault::StreamError;
use super::node::{NodeKind, NodeNumber, Origin, StreamContent, StreamNode, StreamPiece};
use super::tree::SentTree;
use super::walk::Walk;
use crate::receive::SentSubvolume;
use papilio_format::send_stream::{Command, EncodedWrite, WRITE_SIZE};
use std::collections::HashMap;

/// The attribute that holds a program's capabilities.
const CAPABILITIES: &[u8] = b"security.capability";
/// Bytes that ranges of clones and of encoded writes are multiples of.
const SECTOR: u64 = 4096;
/// A receiver that compresses may store the start of a file in its inode, from where it cannot be
/// cloned to another offset. The largest sector.
const INLINE: u64 = 64 << 10;
/// Most bytes of data in a command of protocol 2.
const WRITE_SIZE_V2: usize = 128 << 10;

/// The receiver of commands.
pub(super) type Put<'p> = dyn FnMut(&Command) -> Result<(), StreamError> + 'p;

/// The form of an emitted stream, and the part of the tree.
#[derive(Clone, Debug)]
pub(super) struct EmitOptions<'o> {
    pub(super) name: Vec<u8>,
    pub(super) identity: SentSubvolume,
    /// Whether encoded writes may stay, and writes be large: protocol 2.
    pub(super) second_protocol: bool,
    /// Whether encoded writes stay as they are.
    pub(super) encoded: bool,
    /// Whether owners are sent.
    pub(super) owners: bool,
    /// Only these paths and all below them, with the directories above; empty means all.
    pub(super) within: &'o [Vec<u8>],
}

/// The first file that got the data of a command.
#[derive(Clone, Copy, Debug)]
struct First {
    node: NodeNumber,
    /// Where the range starts in the file and in the command's data, and its length, in bytes.
    offset: u64,
    skip: u64,
    length: u64,
}

/// A clone that the next one may extend.
#[derive(Clone, Copy, Debug)]
struct PendingClone {
    node: NodeNumber,
    from: u64,
    to: u64,
    length: u64,
}

/// A tree on its way.
pub(super) struct Emit<'a, 'p> {
    tree: &'a SentTree,
    options: EmitOptions<'a>,
    reader: DataReader<'a>,
    put: &'a mut Put<'p>,
    /// The first name of each inode that has several or may be cloned from.
    names: HashMap<NodeNumber, Vec<u8>>,
    /// Commands whose data several ranges have.
    shared: HashMap<(u32, u64), Option<First>>,
    plain: Vec<u8>,
    /// Where `plain` goes.
    plain_at: u64,
    clone: Option<PendingClone>,
}

impl<'a, 'p> Emit<'a, 'p> {
    pub(super) fn new(
        chain: &'a StreamChain,
        part: usize,
        options: EmitOptions<'a>,
        put: &'a mut Put<'p>,
    ) -> Result<Self, StreamError> {
        let tree = chain.tree(part)?;
        Ok(Self {
            tree,
            options,
            reader: DataReader::new(chain.inputs(), &chain.absent),
            put,
            names: HashMap::new(),
            shared: HashMap::new(),
            plain: Vec::new(),
            plain_at: 0,
            clone: None,
        })
    }

    /// Emits the subvolume from its first command to its last.
    pub(super) fn run(mut self) -> Result<(), StreamError> {
        self.find_shared()?;
        let SentSubvolume { uuid, ctransid } = self.options.identity;
        let path = self.options.name.clone();
        (self.put)(&Command::Subvol { path, uuid, ctransid: ctransid.0 })?;
        let mut directories = Vec::new();
        let mut walk = Walk::whole(self.tree);
        while let Some((path, number)) = walk.step()? {
            if !is_within(&path, self.options.within) {
                continue;
            }
            let node = self.tree.node(number);
            if node.is_directory() {
                if !path.is_empty() {
                    (self.put)(&Command::Mkdir { path: path.clone(), inode: node.inode })?;
                }
                directories.push((path, number));
            } else if let Some(existing) = self.names.get(&number).cloned().filter(|_| node.links > 1) {
                (self.put)(&Command::Link { path, existing })?;
            } else {
                self.emit_inode(path, number)?;
            }
        }
        for (path, number) in directories.iter().rev() {
            self.emit_attributes(path, self.tree.node(*number))?;
        }
        (self.put)(&Command::End)
    }

    /// Finds the commands whose data several ranges have.
    fn find_shared(&mut self) -> Result<(), StreamError> {
        let mut uses: HashMap<(u32, u64), bool> = HashMap::new();
        let mut seen = std::collections::HashSet::new();
        let mut walk = Walk::whole(self.tree);
        while let Some((path, number)) = walk.step()? {
            let node = self.tree.node(number);
            let again = node.links > 1 && !seen.insert(number);
            let NodeKind::File(content) = &node.kind else { continue };
            if again || !is_within(&path, self.options.within) {
                continue;
            }
            for piece in content.extents.values() {
                if let Origin::Written { stream, at, .. } = piece.origin {
                    uses.entry((stream, at)).and_modify(|shared| *shared = true).or_insert(false);
                }
            }
        }
        self.shared =
            uses.into_iter().filter(|(_, shared)| *shared).map(|(place, _)| (place, None)).collect();
        Ok(())
    }

    fn emit_inode(&mut self, path: Vec<u8>, number: NodeNumber) -> Result<(), StreamError> {
        let node = self.tree.node(number);
        let inode = node.inode;
        let create = |path: Vec<u8>| match &node.kind {
            NodeKind::Directory { .. } => Command::Mkdir { path, inode },
            NodeKind::File(_) => Command::Mkfile { path, inode },
            NodeKind::Symlink(target) => Command::Symlink { path, inode, target: target.to_vec() },
            NodeKind::Fifo => {
                Command::Mkfifo { path, inode, rdev: 0, mode: 0o010_000 | u64::from(node.mode) }
            }
            NodeKind::Socket => {
                Command::Mksock { path, inode, rdev: 0, mode: 0o140_000 | u64::from(node.mode) }
            }
            NodeKind::Character { major, minor } => {
                let mode = 0o020_000 | u64::from(node.mode);
                Command::Mknod { path, inode, rdev: device_number(*major, *minor), mode }
            }
            NodeKind::Block { major, minor } => {
                let mode = 0o060_000 | u64::from(node.mode);
                Command::Mknod { path, inode, rdev: device_number(*major, *minor), mode }
            }
        };
        (self.put)(&create(path.clone()))?;
        let lends = matches!(&node.kind, NodeKind::File(content) if self.lends(content));
        if node.links > 1 || lends {
            self.names.insert(number, path.clone());
        }
        self.emit_xattrs(&path, node)?;
        if let NodeKind::File(content) = &node.kind {
            self.emit_content(&path, number, content)?;
        }
        self.emit_owner_and_times(&path, node)
    }

    /// Whether another range may be cloned from a file.
    fn lends(&self, content: &StreamContent) -> bool {
        content.extents.values().any(|piece| match piece.origin {
            Origin::Written { stream, at, .. } => self.shared.contains_key(&(stream, at)),
            _ => false,
        })
    }

    fn emit_attributes(&mut self, path: &[u8], node: &StreamNode) -> Result<(), StreamError> {
        self.emit_xattrs(path, node)?;
        self.emit_owner_and_times(path, node)
    }

    fn emit_xattrs(&mut self, path: &[u8], node: &StreamNode) -> Result<(), StreamError> {
        for (name, value) in node.xattrs.iter().filter(|(name, _)| &name[..] != CAPABILITIES) {
            let (path, name, value) = (path.to_vec(), name.to_vec(), value.to_vec());
            (self.put)(&Command::SetXattr { path, name, value })?;
        }
        Ok(())
    }

    fn emit_owner_and_times(&mut self, path: &[u8], node: &StreamNode) -> Result<(), StreamError> {
        let path = || path.to_vec();
        if self.options.owners {
            (self.put)(&Command::Chown { path: path(), uid: node.uid.into(), gid: node.gid.into() })?;
        }
        if !matches!(node.kind, NodeKind::Symlink(_)) {
            (self.put)(&Command::Chmod { path: path(), mode: node.mode.into() })?;
        }
        if let Some(value) = node.xattrs.get(CAPABILITIES) {
            let (name, value) = (CAPABILITIES.to_vec(), value.to_vec());
            (self.put)(&Command::SetXattr { path: path(), name, value })?;
        }
        if let Some(times) = node.times {
            let otime = times.otime.or_else(|| self.options.second_protocol.then_some(times.ctime));
            let (atime, mtime, ctime) = (times.atime, times.mtime, times.ctime);
            (self.put)(&Command::Utimes { path: path(), atime, mtime, ctime, otime })?;
        }
        Ok(())
    }

    fn emit_content(
        &mut self,
        path: &[u8],
        number: NodeNumber,
        content: &StreamContent,
    ) -> Result<(), StreamError> {
        let mut size = 0;
        for (&at, piece) in &content.extents {
            self.emit_piece(path, number, content, at, *piece)?;
            size = at + piece.length;
        }
        self.flush_plain(path)?;
        self.flush_clone(path)?;
        if size != content.size {
            (self.put)(&Command::Truncate { path: path.to_vec(), size: content.size })?;
        }
        Ok(())
    }

    fn emit_piece(
        &mut self,
        path: &[u8],
        number: NodeNumber,
        content: &StreamContent,
        at: u64,
        piece: StreamPiece,
    ) -> Result<(), StreamError> {
        if let Some((node, from)) = self.cloneable(number, content, at, piece) {
            self.flush_plain(path)?;
            return self.add_clone(path, PendingClone { node, from, to: at, length: piece.length });
        }
        self.flush_clone(path)?;
        match self.encoded(content, at, piece)? {
            Some(write) => {
                self.flush_plain(path)?;
                (self.put)(&Command::EncodedWrite(EncodedWrite { path: path.to_vec(), ..write }))?;
            }
            None => self.add_plain(path, at, piece)?,
        }
        if let Origin::Written { stream, at: place, skip, .. } = piece.origin
            && let Some(first) = self.shared.get_mut(&(stream, place))
            && first.is_none()
        {
            *first = Some(First { node: number, offset: at, skip, length: piece.length });
        }
        Ok(())
    }

    /// Returns a file that has the data already, and its offset there.
    fn cloneable(
        &self,
        number: NodeNumber,
        content: &StreamContent,
        at: u64,
        piece: StreamPiece,
    ) -> Option<(NodeNumber, u64)> {
        let Origin::Written { stream, at: place, skip, .. } = piece.origin else { return None };
        let first = (*self.shared.get(&(stream, place))?)?;
        let within = skip.checked_sub(first.skip)?;
        let end = within.checked_add(piece.length)?;
        let from = first.offset + within;
        let size = match &self.tree.node(first.node).kind {
            NodeKind::File(content) => content.size,
            _ => return None,
        };
        // A clone ends at a sector boundary, or at the end of both files.
        let ends = from + piece.length == size && at + piece.length == content.size && first.node != number;
        let aligned = from.is_multiple_of(SECTOR)
            && at.is_multiple_of(SECTOR)
            && (piece.length.is_multiple_of(SECTOR) || ends);
        let inline = from == 0 && at != 0 && piece.length <= INLINE;
        // A range cannot be cloned onto itself.
        let apart = first.node != number || from.abs_diff(at) >= piece.length;
        (end <= first.length && aligned && !inline && apart).then_some((first.node, from))
    }

    fn add_clone(&mut self, path: &[u8], next: PendingClone) -> Result<(), StreamError> {
        if let Some(clone) = &mut self.clone
            && clone.node == next.node
            && clone.from + clone.length == next.from
            && clone.to + clone.length == next.to
            // A clone inside one file must not reach its own target.
            && clone.from.abs_diff(clone.to) >= clone.length + next.length
        {
            clone.length += next.length;
            return Ok(());
        }
        self.flush_clone(path)?;
        self.clone = Some(next);
        Ok(())
    }

    fn flush_clone(&mut self, path: &[u8]) -> Result<(), StreamError> {
        let Some(clone) = self.clone.take() else { return Ok(()) };
        let SentSubvolume { uuid, ctransid } = self.options.identity;
        (self.put)(&Command::Clone {
            offset: clone.to,
            length: clone.length,
            path: path.to_vec(),
            clone_uuid: uuid,
            clone_ctransid: ctransid.0,
            clone_path: self.names[&clone.node].clone(),
            clone_offset: clone.from,
        })
    }

    /// Returns the encoded write of a piece, if it came from one that a receiver can take.
    fn encoded(
        &mut self,
        content: &StreamContent,
        at: u64,
        piece: StreamPiece,
    ) -> Result<Option<EncodedWrite>, StreamError> {
        let Origin::Written { skip, .. } = piece.origin else { return Ok(None) };
        if !self.options.encoded {
            return Ok(None);
        }
        let Some(write) = self.reader.encoded(piece.origin)? else { return Ok(None) };
        let unencoded_offset = write.unencoded_offset + skip;
        let aligned = |number: u64| number.is_multiple_of(SECTOR);
        let ends = aligned(piece.length) || at + piece.length == content.size;
        let fits = write.data.len() as u64 <= piece.length;
        if write.compression == 0 || !fits || !aligned(at) || !aligned(unencoded_offset) || !ends {
            return Ok(None);
        }
        Ok(Some(EncodedWrite { offset: at, file_length: piece.length, unencoded_offset, ..write.clone() }))
    }

    fn add_plain(&mut self, path: &[u8], at: u64, piece: StreamPiece) -> Result<(), StreamError> {
        let limit = if self.options.second_protocol { WRITE_SIZE_V2 } else { WRITE_SIZE };
        let mut done = 0;
        while done < piece.length {
            if self.plain.len() == limit || self.plain_at + self.plain.len() as u64 != at + done {
                self.flush_plain(path)?;
                self.plain_at = at + done;
            }
            let length = (piece.length - done).min((limit - self.plain.len()) as u64);
            let bytes = self.reader.bytes(piece.origin.advanced(done), length);
            let bytes = bytes.map_err(|error| match error {
                StreamError::Invalid(text) => {
                    StreamError::Invalid(format!("/{}: {text}", String::from_utf8_lossy(path)))
                }
                other => other,
            })?;
            self.plain.extend_from_slice(bytes);
            done += length;
        }
        Ok(())
    }

    fn flush_plain(&mut self, path: &[u8]) -> Result<(), StreamError> {
        if self.plain.is_empty() {
            return Ok(());
        }
        let data = std::mem::take(&mut self.plain);
        (self.put)(&Command::Write { path: path.to_vec(), offset: self.plain_at, data })
    }
}

/// Whether a path is one of `within`, below one, or above one.
pub(super) fn is_within(path: &[u8], within: &[Vec<u8>]) -> bool {
    let below = |path: &[u8], above: &[u8]| {
        above.is_empty() || path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    };
    within.is_empty() || within.iter().any(|wanted| below(path, wanted) || below(wanted, path))
}

/// Packs a device number as `new_encode_dev` does, which is how streams hold it.
fn device_number(major: u32, minor: u32) -> u64 {
    u64::from((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
}
