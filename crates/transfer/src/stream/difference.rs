//! The differences of two subvolumes that lie in streams.
//!
//! Owns [`StreamDifference`] and [`compare`]. Entries are matched by path. Bytes are compared, not
//! extents, since two streams may cut the same data in different ways.

use super::chain::StreamChain;
use super::data::DataReader;
use super::fault::StreamError;
use super::node::{NodeKind, StreamContent, StreamNode};
use super::walk::{SentEntry, Walk};

/// Bytes that are compared at once.
const STEP: u64 = 1 << 20;

/// A path that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamDifference {
    /// Only the new subvolume has the path.
    Added(SentEntry),
    /// Only the old subvolume has it.
    Deleted(SentEntry),
    /// Both have it, and they differ. A change of kind is one of content.
    Changed {
        /// The new entry.
        entry: SentEntry,
        /// Whether data, target or kind differ.
        content: bool,
        /// Whether owner, mode, time of modification, device or extended attributes differ.
        metadata: bool,
    },
}

impl StreamDifference {
    /// Returns the entry: the new one, unless it was deleted.
    pub fn entry(&self) -> &SentEntry {
        match self {
            Self::Added(entry) | Self::Deleted(entry) | Self::Changed { entry, .. } => entry,
        }
    }
}

/// Calls `each` for every path that differs, in the order of paths.
///
/// # Errors
/// A chain that lacks a parent or data; a stream that cannot be read; those of `each`.
pub fn compare<E: From<StreamError>>(
    old: (&StreamChain, usize),
    new: (&StreamChain, usize),
    mut each: impl FnMut(StreamDifference) -> Result<(), E>,
) -> Result<(), E> {
    let (old_tree, new_tree) = (old.0.tree(old.1)?, new.0.tree(new.1)?);
    let (mut old_walk, mut new_walk) = (Walk::whole(old_tree), Walk::whole(new_tree));
    let mut readers = Readers {
        old: DataReader::new(old.0.inputs(), &old.0.absent),
        new: DataReader::new(new.0.inputs(), &new.0.absent),
        one_chain: std::ptr::eq(old.0, new.0),
    };
    let (mut left, mut right) = (old_walk.step()?, new_walk.step()?);
    loop {
        let order = match (&left, &right) {
            (None, None) => return Ok(()),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((left, _)), Some((right, _))) => names(left).cmp(names(right)),
        };
        if order.is_lt() {
            let (path, number) = left.take().expect("it is the lesser one");
            each(StreamDifference::Deleted(SentEntry::new(path, old_tree.node(number))))?;
        } else if order.is_gt() {
            let (path, number) = right.take().expect("it is the lesser one");
            each(StreamDifference::Added(SentEntry::new(path, new_tree.node(number))))?;
        } else if let (Some((path, before)), Some((_, after))) = (left.take(), right.take()) {
            let (before, after) = (old_tree.node(before), new_tree.node(after));
            let (content, metadata) =
                (readers.contents_differ(before, after)?, metadata_differs(before, after));
            if content || metadata {
                let entry = SentEntry::new(path, after);
                each(StreamDifference::Changed { entry, content, metadata })?;
            }
        }
        if left.is_none() && !order.is_gt() {
            left = old_walk.step()?;
        }
        if right.is_none() && !order.is_lt() {
            right = new_walk.step()?;
        }
    }
}

/// Returns the names of a path. A walk lists paths in their order.
fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}

fn metadata_differs(before: &StreamNode, after: &StreamNode) -> bool {
    let mtime = |node: &StreamNode| node.times.map(|times| times.mtime);
    let device = |node: &StreamNode| match node.kind {
        NodeKind::Character { major, minor } | NodeKind::Block { major, minor } => Some((major, minor)),
        _ => None,
    };
    (before.mode, before.uid, before.gid) != (after.mode, after.uid, after.gid)
        || mtime(before) != mtime(after)
        || device(before) != device(after)
        || before.xattrs != after.xattrs
}

struct Readers<'a> {
    old: DataReader<'a>,
    new: DataReader<'a>,
    /// Whether both are of one chain, where equal origins mean equal data.
    one_chain: bool,
}

impl Readers<'_> {
    fn contents_differ(&mut self, before: &StreamNode, after: &StreamNode) -> Result<bool, StreamError> {
        match (&before.kind, &after.kind) {
            (NodeKind::File(before), NodeKind::File(after)) => self.data_differs(before, after),
            (NodeKind::Symlink(before), NodeKind::Symlink(after)) => Ok(before != after),
            _ => Ok(before.file_kind() != after.file_kind()),
        }
    }

    fn data_differs(&mut self, before: &StreamContent, after: &StreamContent) -> Result<bool, StreamError> {
        if before.size != after.size {
            return Ok(true);
        }
        if self.one_chain && before.extents == after.extents {
            return Ok(false);
        }
        let (mut left, mut right) = (Vec::new(), Vec::new());
        let mut at = 0;
        // Ranges that are holes in both are passed over.
        let next =
            |content: &StreamContent, at: u64| content.pieces(at, content.size).next().map(|(at, _)| at);
        while let Some(start) = next(before, at).into_iter().chain(next(after, at)).min() {
            let length = (before.size - start).min(STEP);
            left.resize(length as usize, 0);
            right.resize(length as usize, 0);
            self.old.read(before, start, &mut left)?;
            self.new.read(after, start, &mut right)?;
            if left != right {
                return Ok(true);
            }
            at = start + length;
        }
        Ok(false)
    }
}
