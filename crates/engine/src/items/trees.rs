//! The trees of a file system, looked up by id in the root tree.
//!
//! Owns [`Trees`] and [`OpenTree`].
//!
//! **Invariants**
//! - If the file system is open for reading, all trees come from one root tree and show one
//!   committed state.
//! - If it is open for writing, a tree shows its state at the look-up and holds a pin. Nothing that
//!   it reaches is reused while it lives, so callers must not keep it.
//!
//! **Locks**: the map of open trees, for one look-up or insertion at a time.
//!
//! Kernel counterparts: `btrfs_read_tree_root`, `btrfs_get_fs_root` (`fs/btrfs/disk-io.c`),
//! `btrfs_find_root` (`fs/btrfs/root-tree.c`).

use crate::btree::{Forest, LiveTree, RootPointer, RootRecord, Tree};
use crate::errors::{Error, PathError, Result};
use crate::items::item_error;
use crate::items::sound_items::is_mistyped_root;
use crate::options::rescue::{ItemFault, ItemUse};
use crate::transaction::Transactions;
use papilio_format::items::root::{RawRootItem, RootItem};
use papilio_format::{InodeNumber, ItemType, Key, TreeId, objectid};
use papilio_locks::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// Most open trees that are kept. Beyond that, a tree is looked up each time.
const KEPT_TREES: usize = 4096;

/// A tree with its root item.
#[derive(Debug)]
pub struct OpenTree {
    /// The tree.
    pub tree: Tree,
    root_directory: InodeNumber,
    has_references: bool,
    is_held: bool,
    item: ItemSource,
}

/// Where a root item is. It is large beside the rest, and most look-ups do not need it.
#[derive(Debug)]
enum ItemSource {
    Committed(Box<RootItem>),
    /// The tree, and its version at the look-up or before.
    Live(Arc<LiveTree>, u64),
}

impl OpenTree {
    fn new(tree: Tree, item: RootItem) -> Self {
        Self {
            tree,
            root_directory: root_directory(&item),
            has_references: item.refs > 0,
            is_held: false,
            item: ItemSource::Committed(Box::new(item)),
        }
    }

    /// The root item; of a file system that is open for writing, as it is now.
    pub fn item(&self) -> RootItem {
        match &self.item {
            ItemSource::Committed(item) => **item,
            ItemSource::Live(live, _) => {
                RootItem::new(live.record().expect("it had a record when it was looked up").item)
            }
        }
    }

    /// Whether the tree has not changed since the look-up.
    pub fn is_current(&self) -> bool {
        match &self.item {
            ItemSource::Committed(_) => true,
            ItemSource::Live(live, version) => live.version() == *version,
        }
    }

    /// The inode number of a subvolume's root directory.
    pub fn root_directory(&self) -> InodeNumber {
        self.root_directory
    }
}

fn root_directory(item: &RawRootItem) -> InodeNumber {
    match item.root_dirid {
        // Root items from before 2010 leave it at 0.
        InodeNumber(0) => objectid::FIRST_INODE,
        number => number,
    }
}

/// All trees of a file system.
#[derive(Debug)]
pub struct Trees {
    forest: Arc<Forest>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// The trees of one commit.
    Committed { root_tree: Tree, chunk_tree: Tree, open: RwLock<HashMap<TreeId, Arc<OpenTree>>> },
    /// The trees as they are now.
    Live(Arc<Transactions>),
}

impl Trees {
    /// The trees below the roots `root` and `chunk_root`.
    pub fn new(forest: &Arc<Forest>, root: RootPointer, chunk_root: RootPointer) -> Self {
        let source = Source::Committed {
            root_tree: forest.tree(objectid::ROOT_TREE, root),
            chunk_tree: forest.tree(objectid::CHUNK_TREE, chunk_root),
            open: RwLock::default(),
        };
        Self { forest: Arc::clone(forest), source }
    }

    /// Shows the subvolume `id` with its root block at `root` as the top level, whatever the root
    /// tree says.
    pub(crate) fn show_as_top(&self, id: TreeId, root: RootPointer) {
        let Source::Committed { open, .. } = &self.source else { return };
        let known = self.find(id).ok().flatten().map(|found| found.item().into_raw());
        let empty = RawRootItem::parse(&[0; RawRootItem::SIZE]).expect("all zeros are fields");
        let item = RootItem::new(RawRootItem {
            root_dirid: objectid::FIRST_INODE,
            address: root.address,
            level: root.level,
            generation: root.generation.unwrap_or_default(),
            refs: 1,
            ..known.unwrap_or(empty)
        });
        let shown = OpenTree::new(self.forest.tree(id, root), item);
        open.write().insert(objectid::FS_TREE, Arc::new(shown));
    }

    /// The trees of a file system that is open for writing.
    pub(crate) fn live(transactions: &Arc<Transactions>) -> Self {
        let forest = Arc::clone(transactions.live().forest());
        Self { forest, source: Source::Live(Arc::clone(transactions)) }
    }

    /// The transactions, if the file system is open for writing.
    pub fn transactions(&self) -> Option<&Arc<Transactions>> {
        match &self.source {
            Source::Committed { .. } => None,
            Source::Live(transactions) => Some(transactions),
        }
    }

    /// The root tree.
    pub fn root_tree(&self) -> Tree {
        match &self.source {
            Source::Committed { root_tree, .. } => root_tree.clone(),
            Source::Live(transactions) => now(transactions, transactions.live().root_tree()),
        }
    }

    /// The chunk tree.
    pub fn chunk_tree(&self) -> Tree {
        match &self.source {
            Source::Committed { chunk_tree, .. } => chunk_tree.clone(),
            Source::Live(transactions) => now(transactions, transactions.live().chunk_tree()),
        }
    }

    /// The forest that the trees belong to.
    pub fn forest(&self) -> &Arc<Forest> {
        &self.forest
    }

    /// Returns the tree `id`, or `None` if the root tree has none.
    ///
    /// # Errors
    /// A tree block or a root item that cannot be read.
    pub fn find(&self, id: TreeId) -> Result<Option<Arc<OpenTree>>> {
        let (root_tree, open) = match &self.source {
            Source::Committed { root_tree, open, .. } => (root_tree, open),
            Source::Live(transactions) => {
                let Some(live) = transactions.live().find(id)? else { return Ok(None) };
                let of = |record: &RootRecord| root_directory(&record.item);
                let Some(root_directory) = live.with_record(of) else { return Ok(None) };
                // In this order: a deletion holds the tree before it takes the references.
                let (has_references, is_held) = (live.is_referenced(), live.is_held());
                // In this order: a change in between makes the tree seem older than it is.
                let version = live.version();
                let tree = now(transactions, &live);
                let item = ItemSource::Live(live, version);
                return Ok(Some(Arc::new(OpenTree { tree, root_directory, has_references, is_held, item })));
            }
        };
        if let Some(found) = open.read().get(&id) {
            return Ok(Some(Arc::clone(found)));
        }
        let Some(found) = self.look_up(root_tree, id)?.map(Arc::new) else { return Ok(None) };
        let mut kept = open.write();
        if kept.len() < KEPT_TREES {
            kept.insert(id, Arc::clone(&found));
        }
        Ok(Some(found))
    }

    /// Reads the last root item of `id`. The offsets of root keys tell the generations of snapshots
    /// apart.
    fn look_up(&self, root_tree: &Tree, id: TreeId) -> Result<Option<OpenTree>> {
        let last = Key::new(id.0, ItemType::ROOT_ITEM, u64::MAX);
        let found = root_tree.last_up_to(&last)?;
        let found =
            found.filter(|item| item.key.objectid == id.0 && item.key.item_type == ItemType::ROOT_ITEM);
        let Some(item) = found else { return self.look_up_mistyped(root_tree, id) };
        let root = RootItem::parse(item.data()).map_err(|reason| item_error(root_tree, &item, reason))?;
        let tree = self.forest().tree(id, root_pointer(&root));
        Ok(Some(OpenTree::new(tree, root)))
    }

    /// Returns the tree of a root item whose key has one wrong bit in its type, if the sound items
    /// of bad leaves are read.
    fn look_up_mistyped(&self, root_tree: &Tree, id: TreeId) -> Result<Option<OpenTree>> {
        if !self.forest.has_sound_leaves() {
            return Ok(None);
        }
        for item in root_tree.range(Key::first_of(id.0)..=Key::last_of(id.0)) {
            let item = item?;
            if !is_mistyped_root(&item.key, item.data()) {
                continue;
            }
            let Ok(root) = RootItem::parse(item.data()) else { continue };
            let tree = self.forest.tree(id, root_pointer(&root));
            if tree.root_block().is_ok() {
                self.forest.faults().add(vec![ItemFault {
                    tree: objectid::ROOT_TREE,
                    block: item.leaf_address(),
                    key: Some(item.key),
                    used: ItemUse::Guessed,
                    reason: "used as a root item: one bit of its key's type is wrong".to_owned(),
                }]);
                return Ok(Some(OpenTree::new(tree, root)));
            }
        }
        Ok(None)
    }

    /// Returns a tree that must exist.
    ///
    /// # Errors
    /// As [`Trees::find`], and [`Error::MissingItem`] if there is none.
    pub fn get(&self, id: TreeId, what: &'static str) -> Result<Arc<OpenTree>> {
        self.find(id)?.ok_or(Error::MissingItem {
            tree: objectid::ROOT_TREE,
            key: Key::new(id.0, ItemType::ROOT_ITEM, 0),
            what,
        })
    }

    /// Returns a subvolume, unless it was deleted.
    ///
    /// # Errors
    /// [`PathError::NoSubvolume`] if there is none; as [`Trees::find`].
    pub fn subvolume(&self, id: TreeId) -> Result<Arc<OpenTree>> {
        self.subvolume_if(id, |open| open.has_references)
    }

    /// Returns the subvolume of an inode that may be in use, also if it was deleted since.
    ///
    /// # Errors
    /// As [`Trees::subvolume`].
    pub fn subvolume_in_use(&self, id: TreeId) -> Result<Arc<OpenTree>> {
        self.subvolume_if(id, |open| open.has_references || open.is_held)
    }

    fn subvolume_if(&self, id: TreeId, is_there: impl Fn(&OpenTree) -> bool) -> Result<Arc<OpenTree>> {
        let missing = || Error::path(format!("subvolume {id}").as_bytes(), PathError::NoSubvolume);
        if !objectid::is_subvolume(id) {
            return Err(missing());
        }
        self.find(id)?.filter(|open| is_there(open)).ok_or_else(missing)
    }
}

/// The tree as it is now, pinned.
fn now(transactions: &Transactions, live: &LiveTree) -> Tree {
    // The pin comes first: a tree older than its pin could reach space that is already free.
    let pin = transactions.pin();
    live.tree().pinned(pin)
}

/// The pointer to a tree's root block, from its root item.
pub fn root_pointer(item: &RootItem) -> RootPointer {
    RootPointer { address: item.address, level: item.level, generation: Some(item.generation) }
}
