//! The inodes of a tree that a stream describes.
//!
//! Owns [`StreamNode`], its kinds, and [`StreamContent`]: the extents of a file, which name
//! commands of the streams in place of bytes.

use super::budget::{Budget, Charge};
use papilio_format::items::inode::{FileKind, Timespec};
use papilio_format::send_stream::Protocol;
use std::collections::BTreeMap;

/// Estimates of bytes in memory: a node, an entry of a directory, an attribute, an extent.
const NODE_BYTES: u64 = 320;
pub(super) const ENTRY_BYTES: u64 = 64;
pub(super) const XATTR_BYTES: u64 = 96;
const EXTENT_BYTES: u64 = 72;

/// The number of a node in its tree. The root has 0.
pub(super) type NodeNumber = u32;

/// An inode.
#[derive(Clone, Debug)]
pub(super) struct StreamNode {
    pub(super) kind: NodeKind,
    /// The inode's number at the sender, which creating commands name.
    pub(super) inode: u64,
    /// Names. The root has none.
    pub(super) links: u32,
    /// The twelve permission bits.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// The last times that were sent.
    pub(super) times: Option<Times>,
    pub(super) xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    pub(super) charge: Charge,
}

/// The times of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) atime: Timespec,
    pub(super) mtime: Timespec,
    pub(super) ctime: Timespec,
    /// Only protocol 2 has it.
    pub(super) otime: Option<Timespec>,
}

/// The kind of an inode, with what only that kind has.
#[derive(Clone, Debug)]
pub(super) enum NodeKind {
    Directory { entries: BTreeMap<Box<[u8]>, NodeNumber>, parent: NodeNumber },
    File(StreamContent),
    Symlink(Box<[u8]>),
    Fifo,
    Socket,
    Character { major: u32, minor: u32 },
    Block { major: u32, minor: u32 },
}

impl StreamNode {
    pub(super) fn new(kind: NodeKind, inode: u64, mode: u32, budget: &Budget) -> Self {
        let charge = budget.charge(NODE_BYTES);
        let (uid, gid, times, xattrs) = (0, 0, None, BTreeMap::new());
        Self { kind, inode, links: 1, mode, uid, gid, times, xattrs, charge }
    }

    pub(super) fn file_kind(&self) -> FileKind {
        match self.kind {
            NodeKind::Directory { .. } => FileKind::Directory,
            NodeKind::File(_) => FileKind::Regular,
            NodeKind::Symlink(_) => FileKind::Symlink,
            NodeKind::Fifo => FileKind::Fifo,
            NodeKind::Socket => FileKind::Socket,
            NodeKind::Character { .. } => FileKind::CharacterDevice,
            NodeKind::Block { .. } => FileKind::BlockDevice,
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        matches!(self.kind, NodeKind::Directory { .. })
    }

    /// Changes the content of a file, and adapts the charge. Returns `None` for another kind.
    pub(super) fn change_content<R>(&mut self, change: impl FnOnce(&mut StreamContent) -> R) -> Option<R> {
        let NodeKind::File(content) = &mut self.kind else { return None };
        let before = content.extents.len() as u64;
        let result = change(content);
        let after = content.extents.len() as u64;
        self.charge.add(after.saturating_sub(before) * EXTENT_BYTES);
        self.charge.subtract(before.saturating_sub(after) * EXTENT_BYTES);
        Some(result)
    }
}

/// The content of a regular file. Ranges without an extent are zeros.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamContent {
    /// Bytes.
    pub(super) size: u64,
    /// By the file offset of the first byte. They do not overlap, and end within `size`.
    pub(super) extents: BTreeMap<u64, StreamPiece>,
}

/// A range of a file with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamPiece {
    /// Bytes.
    pub(super) length: u64,
    pub(super) origin: Origin,
}

/// Where the bytes of a range are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Origin {
    /// In a write.
    Written {
        /// The stream's index in the chain.
        stream: u32,
        /// Where the command starts in the stream, in bytes.
        at: u64,
        protocol: Protocol,
        /// Bytes of the write, decompressed, before the range.
        skip: u64,
    },
    /// In a subvolume that the chain lacks, by its index in the list of those.
    Absent(u32),
    /// Nowhere: the sender left data out.
    Unsent,
}

impl Origin {
    /// Returns the origin of the bytes that start `bytes` later.
    pub(super) fn advanced(self, bytes: u64) -> Self {
        match self {
            Self::Written { stream, at, protocol, skip } => {
                Self::Written { stream, at, protocol, skip: skip + bytes }
            }
            other => other,
        }
    }
}

impl StreamContent {
    /// Returns the pieces that overlap a range, cut to it, with their file offsets.
    pub(super) fn pieces(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, StreamPiece)> + '_ {
        let first = self.extents.range(..=start).next_back().map_or(start, |(at, _)| *at);
        self.extents.range(first..end.max(first)).filter_map(move |(&at, piece)| {
            let (from, until) = (at.max(start), (at + piece.length).min(end));
            let origin = piece.origin.advanced(from.saturating_sub(at));
            (from < until).then(|| (from, StreamPiece { length: until - from, origin }))
        })
    }

    /// Makes a range a hole. The size stays.
    pub(super) fn clear(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.extents.range(..start).next_back().map_or(start, |(at, _)| *at);
        let touched: Vec<(u64, StreamPiece)> =
            self.extents.range(first..end).map(|(at, piece)| (*at, *piece)).collect();
        for (at, piece) in touched {
            let until = at + piece.length;
            if until <= start {
                continue;
            }
            self.extents.remove(&at);
            if at < start {
                self.extents.insert(at, StreamPiece { length: start - at, ..piece });
            }
            if until > end {
                let rest = StreamPiece { length: until - end, origin: piece.origin.advanced(end - at) };
                self.extents.insert(end, rest);
            }
        }
    }

    /// Puts data into a range.
    pub(super) fn write(&mut self, start: u64, length: u64, origin: Origin) {
        if length == 0 {
            return;
        }
        self.clear(start, start + length);
        self.extents.insert(start, StreamPiece { length, origin });
        self.size = self.size.max(start + length);
    }

    pub(super) fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.clear(size, self.size);
        }
        self.size = size;
    }

    /// Returns the ranges with data as (offset, length); adjacent ones are one.
    pub(super) fn segments(&self) -> Vec<(u64, u64)> {
        let mut segments: Vec<(u64, u64)> = Vec::new();
        for (&at, piece) in &self.extents {
            match segments.last_mut() {
                Some((start, length)) if *start + *length == at => *length += piece.length,
                _ => segments.push((at, piece.length)),
            }
        }
        segments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(at: u64) -> Origin {
        Origin::Written { stream: 0, at, protocol: Protocol::V1, skip: 0 }
    }

    /// Compares with a plain array of bytes, in which each byte holds its command.
    #[test]
    fn ranges_replace_one_another_as_bytes_do() {
        let mut random = 7_u64;
        let mut below = move |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % limit
        };
        let (mut content, mut model) = (StreamContent::default(), Vec::<Option<(u64, u64)>>::new());
        for command in 1..3000 {
            let (start, length) = (below(200), 1 + below(60));
            let end = start + length;
            match below(4) {
                0 => {
                    content.truncate(start);
                    model.resize(start as usize, None);
                }
                1 => {
                    content.clear(start, end);
                    let until = (end as usize).min(model.len());
                    model.get_mut(start as usize..until).unwrap_or_default().fill(None);
                }
                _ => {
                    content.write(start, length, written(command));
                    model.resize(model.len().max(end as usize), None);
                    (start..end).for_each(|at| model[at as usize] = Some((command, at - start)));
                }
            }
            let mut bytes = vec![None; content.size as usize];
            let (from, until) = (below(100), 100 + below(200));
            for (at, piece) in content.pieces(from, until) {
                assert!(at >= from && at + piece.length <= until);
                for index in 0..piece.length {
                    let Origin::Written { at: command, skip, .. } = piece.origin.advanced(index) else {
                        panic!("only writes")
                    };
                    bytes[(at + index) as usize] = Some((command, skip));
                }
            }
            assert_eq!(content.size as usize, model.len());
            let range = |length: usize| (from as usize).min(length)..(until as usize).min(length);
            assert_eq!(bytes[range(bytes.len())], model[range(model.len())]);
        }
    }
}
