//! The choice among root blocks of the root tree.
//!
//! Owns [`RootChoice`] and [`ChosenRoot`]. A commit may write a root block, change the tree again
//! and write another one: both have its generation and a good checksum. The superblock names the
//! last one, and so do its backup roots. Without them, the trees below tell: the later block names
//! the newer trees.
//!
//! **Invariant**: where the trees do not tell either, the choice is [`RootChoice::Unclear`].
//!
//! Kernel counterpart: none.

use super::block_scan::BlockScan;
use super::tree_roots::{FoundRoot, count_blocks, pointer, roots_of};
use crate::dump::{TreeBlocks, TreeRoot};
use papilio_engine::btree::{Forest, RootPointer, Tree};
use papilio_engine::items::trees::Trees;
use papilio_format::items::root::RootItem;
use papilio_format::{Generation, ItemType, LogicalAddress, TreeId, objectid};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// Root trees that are walked before the best of them is taken.
const MOST_ROOTS: usize = 200;

/// Why one of several root blocks of a generation was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RootChoice {
    /// A superblock copy or one of its backup roots names it.
    Named,
    /// Only this tree is whole and leads to files.
    Whole,
    /// It names the newest trees.
    NewestTrees,
    /// Nothing tells which of them is the last one.
    Unclear,
}

impl fmt::Display for RootChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Named => "a superblock or a backup root names it",
            Self::Whole => "only this one is whole",
            Self::NewestTrees => "its trees are the newest",
            Self::Unclear => "nothing tells which of them is the last one",
        })
    }
}

/// A root tree that was chosen, and the others of its generation.
#[derive(Clone, Debug)]
pub(super) struct ChosenRoot {
    pub(super) root: FoundRoot,
    /// The addresses of the other root blocks of the same generation.
    pub(super) rivals: Vec<LogicalAddress>,
    pub(super) choice: RootChoice,
}

/// A root block, and what the trees below it say.
struct Judged {
    root: FoundRoot,
    leads_to_files: bool,
    named: bool,
    /// Subvolumes whose root blocks cannot be read.
    unreadable: usize,
    trees: BTreeMap<TreeId, RootItem>,
}

impl Judged {
    /// How much of a file system it leads to.
    fn rank(&self) -> (bool, bool, bool, std::cmp::Reverse<(u64, usize)>) {
        let lacks = std::cmp::Reverse((self.root.missing, self.unreadable));
        (self.leads_to_files, self.root.is_whole(), self.named, lacks)
    }

    /// Compares the trees with those of another root of the same generation: `Greater` if they are
    /// newer; `None` if each has something newer, or the same subvolumes are in different places.
    fn newer_than(&self, other: &Self) -> Option<Ordering> {
        let mut verdict = Ordering::Equal;
        let ids: BTreeSet<&TreeId> = self.trees.keys().chain(other.trees.keys()).collect();
        for id in ids {
            let own = self.compare_tree(other, *id);
            verdict = match (verdict, own) {
                (known, Some(Ordering::Equal)) => known,
                (Ordering::Equal, Some(own)) => own,
                (known, Some(own)) if known == own => known,
                _ => return None,
            };
        }
        Some(verdict)
    }

    fn compare_tree(&self, other: &Self, id: TreeId) -> Option<Ordering> {
        // A tree that this commit made is there later; one that is older has been removed later.
        let only = |item: &RootItem| match item.otransid.0 < self.root.generation.0 {
            true => Ordering::Less,
            false => Ordering::Greater,
        };
        match (self.trees.get(&id), other.trees.get(&id)) {
            (Some(a), Some(b)) => {
                let order = |item: &RootItem| (item.generation, item.ctransid, item.ctime);
                match order(a).cmp(&order(b)) {
                    Ordering::Equal if a.address != b.address && objectid::is_subvolume(id) => None,
                    found => Some(found),
                }
            }
            (Some(a), None) => Some(only(a)),
            (None, Some(b)) => Some(only(b).reverse()),
            (None, None) => Some(Ordering::Equal),
        }
    }
}

/// Chooses root trees among the blocks of a scan.
pub(super) struct RootSearch<'a> {
    pub(super) forest: Arc<Forest>,
    pub(super) scan: &'a BlockScan,
    /// Whether scanned leaves take the place of lost blocks.
    pub(super) orphans: bool,
}

impl RootSearch<'_> {
    fn trees(&self, root: RootPointer) -> Trees {
        let chunk_root = RootPointer { address: LogicalAddress(0), level: 0, generation: None };
        Trees::new(&self.forest, root, chunk_root)
    }

    /// Returns whether the top level can be read.
    pub(super) fn leads_to_files(&self, root: RootPointer) -> bool {
        // Scanned leaves may take the place of the root block.
        let found = self.trees(root).find(objectid::FS_TREE);
        matches!(found, Ok(Some(top)) if self.orphans || top.tree.root_block().is_ok())
    }

    /// Returns the blocks of subvolumes that can be read below a root tree.
    pub(super) fn blocks_of_files(&self, root: RootPointer) -> u64 {
        let tree = self.forest.tree(objectid::ROOT_TREE, root);
        let subvolumes = root_items(&tree).into_iter().filter(|(id, _)| objectid::is_subvolume(*id));
        let count = |(id, item): (TreeId, RootItem)| {
            let root = TreeRoot::of(id, item.address, item.level, item.generation);
            TreeBlocks::of_tree(&self.forest, &root).filter(Result::is_ok).count() as u64
        };
        subvolumes.map(count).sum()
    }

    /// Returns whether a superblock copy, good or torn, names a root block or has it as a backup.
    fn is_named(&self, root: &FoundRoot) -> bool {
        let own = |fsid| fsid == Some(self.scan.fsid);
        let copies = self.scan.superblocks.iter();
        copies.filter(|copy| own(copy.identity().map(|(fsid, ..)| fsid))).any(|copy| {
            let raw = &copy.raw;
            let backups = raw.super_roots.iter();
            let mut named = backups.map(|backup| (backup.tree_root, backup.tree_root_generation));
            (raw.root, raw.generation) == (root.address, root.generation)
                || named.any(|named| named == (root.address, root.generation))
        })
    }

    fn judge(&self, root: &FoundRoot) -> Judged {
        let counted = count_blocks(&self.forest, root);
        let tree = self.forest.tree(objectid::ROOT_TREE, pointer(root));
        let trees = root_items(&tree);
        let is_unreadable = |(id, item): &(&TreeId, &RootItem)| {
            let root =
                RootPointer { address: item.address, level: item.level, generation: Some(item.generation) };
            objectid::is_subvolume(**id)
                && item.refs > 0
                && self.forest.tree(**id, root).root_block().is_err()
        };
        let unreadable = trees.iter().filter(is_unreadable).count();
        let leads_to_files = counted.blocks > 0 && self.leads_to_files(pointer(root));
        Judged { root: counted, leads_to_files, named: self.is_named(root), unreadable, trees }
    }

    /// Returns the best root block of one generation; `None` if none can be read.
    fn best_of(&self, roots: &[FoundRoot]) -> Option<(ChosenRoot, bool)> {
        let judged: Vec<Judged> =
            roots.iter().map(|root| self.judge(root)).filter(|judged| judged.root.blocks > 0).collect();
        let best = judged.iter().reduce(|best, other| {
            let order = other.rank().cmp(&best.rank());
            match order.then(other.newer_than(best).unwrap_or(Ordering::Equal)) {
                Ordering::Greater => other,
                _ => best,
            }
        })?;
        let rivals: Vec<&Judged> =
            judged.iter().filter(|other| other.root.address != best.root.address).collect();
        let lesser = |other: &&Judged| {
            (other.leads_to_files, other.root.is_whole()) < (best.leads_to_files, best.root.is_whole())
        };
        let choice = if best.named && !rivals.iter().any(|other| other.named) {
            RootChoice::Named
        } else if rivals.iter().all(lesser) {
            RootChoice::Whole
        } else if rivals
            .iter()
            .filter(|other| !lesser(other))
            .all(|other| best.newer_than(other).is_some_and(Ordering::is_ge))
        {
            RootChoice::NewestTrees
        } else {
            RootChoice::Unclear
        };
        let rivals = rivals.iter().map(|other| other.root.address).collect();
        Some((ChosenRoot { root: best.root, rivals, choice }, best.leads_to_files))
    }

    /// Returns the best root block of a generation.
    pub(super) fn of_generation(&self, generation: Generation) -> Option<ChosenRoot> {
        let mut roots = roots_of(self.scan, objectid::ROOT_TREE);
        roots.retain(|root| root.generation == generation);
        self.best_of(&roots).map(|(chosen, _)| chosen)
    }

    /// Returns the newest root tree that is whole and leads to files; without one, the most
    /// complete.
    pub(super) fn newest(&self) -> Option<ChosenRoot> {
        let roots = roots_of(self.scan, objectid::ROOT_TREE);
        let mut best: Option<(ChosenRoot, bool)> = None;
        let mut walked = 0;
        for group in roots.chunk_by(|a, b| a.generation == b.generation) {
            if walked >= MOST_ROOTS {
                break;
            }
            walked += group.len();
            let Some((chosen, leads_to_files)) = self.best_of(group) else { continue };
            if chosen.root.is_whole() && leads_to_files {
                return Some(chosen);
            }
            let is_better = |(known, leads): &(ChosenRoot, bool)| {
                leads_to_files && (!leads || chosen.root.missing < known.root.missing)
            };
            if best.as_ref().is_none_or(is_better) {
                best = Some((chosen, leads_to_files));
            }
        }
        best.map(|(chosen, _)| chosen)
    }

    /// Returns the newest generation of a root tree that is whole and leads to files.
    pub(super) fn newest_whole(&self) -> Option<Generation> {
        self.newest().map(|chosen| chosen.root).filter(FoundRoot::is_whole).map(|root| root.generation)
    }
}

/// Returns the root items that can be read.
fn root_items(tree: &Tree) -> BTreeMap<TreeId, RootItem> {
    let mut items = BTreeMap::new();
    for item in tree.items() {
        // Behind a fault the order of the walk is lost; the rest counts as missing.
        let Ok(item) = item else { break };
        if item.key.item_type == ItemType::ROOT_ITEM
            && let Ok(root) = RootItem::parse(item.data())
        {
            items.insert(TreeId(item.key.objectid), root);
        }
    }
    items
}
