//! The files and directories that a treemap shows.
//!
//! Owns [`Nodes`]: the heaviest entries of a tally, down from the top. A directory's entries that
//! are too many become one node, so that every node has the sum of those in it.

use crate::commands::filesystem::usage_tree::tally::{Entry, Tally};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The things that nodes stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A directory.
    Directory,
    /// A file, or anything else without entries.
    File,
    /// Smaller entries of the directory, this many.
    Others(u64),
    /// The whole: the top directory, and space of no file.
    Whole,
    /// Parts of extents that no file uses.
    Unreachable,
    /// Data of files that cannot be read.
    Unread,
    /// Tree blocks.
    Metadata,
}

/// A rectangle.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its path from the top level, with a slash in front.
    pub path: Vec<u8>,
    /// Its kind.
    pub kind: NodeKind,
    /// Its bytes.
    pub bytes: u64,
    /// The bytes by which they may be wrong.
    pub error: u64,
    /// The nodes in it, the largest first.
    pub below: Vec<usize>,
    /// The colour.
    pub colour: usize,
}

impl Node {
    /// Returns the last name of the path.
    pub fn name(&self) -> &[u8] {
        self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }
}

/// The nodes, of which the first is the whole.
#[derive(Debug)]
pub struct Nodes(pub Vec<Node>);

/// An entry that may become a node: its weight, its name, and the node above. The heaviest comes
/// first, and of equals the first by name.
type Candidate<'t> = (u64, Reverse<&'t [u8]>, usize);

fn add<'t>(candidates: &mut BinaryHeap<Candidate<'t>>, entry: &'t Entry, above: usize) {
    let heavy = entry.below.iter().filter(|(_, below)| below.weight > 0);
    candidates.extend(heavy.map(|(name, below)| (below.weight, Reverse(&name[..]), above)));
}

fn node(path: &[u8], kind: NodeKind, (bytes, error): (u64, u64)) -> Node {
    Node { path: path.to_vec(), kind, bytes, error, below: Vec::new(), colour: 0 }
}

impl Nodes {
    /// Chooses about `most` nodes.
    pub fn choose(tally: &Tally, most: usize) -> Self {
        let mut nodes = vec![node(b"/", NodeKind::Whole, tally.bytes(tally.root.weight))];
        let mut entries: Vec<&Entry> = vec![&tally.root];
        let mut candidates = BinaryHeap::new();
        add(&mut candidates, &tally.root, 0);
        while nodes.len() < most
            && let Some((_, Reverse(name), above)) = candidates.pop()
        {
            let Some(entry) = entries[above].below.get(name) else { continue };
            let prefix = if above == 0 { &[][..] } else { &nodes[above].path };
            let path = [prefix, b"/", name].concat();
            let kind = if entry.below.is_empty() { NodeKind::File } else { NodeKind::Directory };
            let number = nodes.len();
            nodes.push(node(&path, kind, tally.bytes(entry.weight)));
            nodes[above].below.push(number);
            entries.push(entry);
            add(&mut candidates, entry, number);
        }
        // The rest of each directory: entries that were not chosen, and files of the past that have
        // become directories.
        let mut others = vec![0_u64; nodes.len()];
        candidates.into_iter().for_each(|(_, _, above)| others[above] += 1);
        for number in 0..entries.len() {
            let entry = entries[number];
            let shown: u64 = nodes[number].below.iter().map(|below| entries[*below].weight).sum();
            let rest = entry.weight.saturating_sub(shown);
            if rest > 0 && !entry.below.is_empty() {
                let path = [&nodes[number].path[..], b"/"].concat();
                let at = nodes.len();
                nodes.push(node(&path, NodeKind::Others(others[number]), tally.bytes(rest)));
                nodes[number].below.push(at);
            }
        }
        let mut whole = nodes[0].bytes;
        let beside = [
            (NodeKind::Unreachable, tally.bytes(tally.unreachable)),
            (NodeKind::Unread, tally.bytes(tally.unread)),
            (NodeKind::Metadata, (tally.metadata, 0)),
        ];
        for (kind, sizes) in beside.into_iter().filter(|(_, (bytes, _))| *bytes > 0) {
            let at = nodes.len();
            nodes.push(node(b"", kind, sizes));
            nodes[0].below.push(at);
            whole = whole.saturating_add(sizes.0);
        }
        nodes[0].bytes = whole;
        let bytes: Vec<u64> = nodes.iter().map(|node| node.bytes).collect();
        for node in &mut nodes {
            node.below.sort_by_key(|below| (Reverse(bytes[*below]), *below));
        }
        Self(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally() -> Tally {
        let mut tally = Tally { data: 1000, metadata: 60, exact: true, ..Tally::default() };
        for (path, weight) in [("/a/x", 400), ("/a/y", 50), ("/a/z", 30), ("/b", 300), ("/c/d/e", 20)] {
            tally.add(Some(path.as_bytes()), weight);
        }
        tally.add(None, 7);
        tally
    }

    #[test]
    fn every_directory_has_the_sum_of_its_nodes() {
        for most in [1, 2, 4, 100] {
            let nodes = Nodes::choose(&tally(), most).0;
            assert_eq!(nodes[0].bytes, 800 + 7 + 60);
            for node in nodes.iter().filter(|node| !node.below.is_empty()) {
                let below: Vec<u64> = node.below.iter().map(|below| nodes[*below].bytes).collect();
                assert_eq!(below.iter().sum::<u64>(), node.bytes, "{most}: {node:?}");
                assert!(below.is_sorted_by(|one, other| one >= other));
            }
        }
    }

    #[test]
    fn the_heaviest_are_chosen_and_the_others_counted() {
        let nodes = Nodes::choose(&tally(), 4).0;
        let found = |path: &[u8]| nodes.iter().find(|node| node.path == path);
        assert_eq!(found(b"/a/x").unwrap().bytes, 400);
        assert!(found(b"/b").unwrap().kind == NodeKind::File && found(b"/a/y").is_none());
        let others = found(b"/a/").unwrap();
        assert_eq!((others.kind, others.bytes, others.name()), (NodeKind::Others(2), 80, &b""[..]));
        let all = Nodes::choose(&tally(), 100).0;
        assert!(all.iter().all(|node| !matches!(node.kind, NodeKind::Others(_))));
        assert_eq!(all.iter().find(|node| node.path == b"/c/d/e").unwrap().name(), b"e");
        let empty = Nodes::choose(&Tally::default(), 9).0;
        assert_eq!((empty.len(), empty[0].bytes), (1, 0));
    }
}
