//! A draft: the changes of one operation on a tree, collected before any of them is made.
//!
//! Owns [`Draft`] and [`edit`]. An operation reads through its draft and so sees its own changes: a
//! rename within one directory may change the same item three times.
//!
//! **Invariant**: the tree does not change before every check has passed. Then all changes are
//! applied in one pass, sorted by key.
//!
//! Kernel counterpart: none. There each item is searched for and changed at once, and an error
//! half-way aborts the transaction.
//!
//! Locks: none; [`edit`] runs under the editor's.

use crate::btree::{Change, Cursor, Tree, TreeEditor};
use crate::errors::{Error, Result};
use papilio_format::features::IncompatFeatures;
use papilio_format::node::{ItemHeader, NodeHeader};
use papilio_format::{Corrupt, Generation, Geometry, Key, TreeId};

/// One changed item.
#[derive(Debug)]
struct Pending {
    key: Key,
    /// `None` removes the item.
    data: Option<Vec<u8>>,
    /// Whether the tree has the item.
    existed: bool,
}

/// The changes of one operation, and a view of the tree with them applied.
#[derive(Debug)]
pub(crate) struct Draft<'t> {
    tree: &'t Tree,
    cursor: Cursor<'t>,
    generation: Generation,
    geometry: Geometry,
    /// The changed items, sorted by key.
    pending: Vec<Pending>,
}

/// Prepares changes and, if that succeeds, applies them in one pass.
///
/// # Errors
/// Errors of `prepare`, with the tree unchanged; or a block that cannot be changed.
pub(crate) fn edit<R>(
    editor: &mut TreeEditor<'_>,
    prepare: impl FnOnce(&mut Draft<'_>) -> Result<R>,
) -> Result<R> {
    let tree = editor.tree();
    let mut draft = Draft::new(editor, &tree);
    let result = prepare(&mut draft)?;
    let changes = draft.into_changes();
    // A root held here would make the change copy its path.
    drop(tree);
    if !changes.is_empty() {
        editor.apply(&changes)?;
    }
    Ok(result)
}

impl<'t> Draft<'t> {
    /// An empty draft over `tree`, the editor's current tree.
    pub(crate) fn new(editor: &TreeEditor<'_>, tree: &'t Tree) -> Self {
        let (generation, geometry) = (editor.generation(), *editor.geometry());
        Self { tree, cursor: Cursor::new(tree), generation, geometry, pending: Vec::new() }
    }

    /// The tree without the changes.
    pub(crate) fn tree(&self) -> &'t Tree {
        self.tree
    }

    /// The generation of the running transaction.
    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    /// The file system's parameters.
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Whether an incompatible feature is on.
    pub(crate) fn has(&self, feature: IncompatFeatures) -> bool {
        self.geometry.incompat.contains(feature)
    }

    /// The largest size of an item in bytes: that of a leaf with nothing else in it.
    pub(crate) fn max_item_size(&self) -> usize {
        self.geometry.node_size as usize - NodeHeader::SIZE - ItemHeader::SIZE
    }

    /// Returns the bytes of an item, with the changes applied.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub(crate) fn get(&mut self, key: &Key) -> Result<Option<&[u8]>> {
        if let Ok(at) = self.find(key) {
            return Ok(self.pending[at].data.as_deref());
        }
        self.cursor.seek(key)?;
        Ok(if self.cursor.key() == Some(*key) { self.cursor.data() } else { None })
    }

    /// Returns the first key at or after `key` in the tree, without the changes.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub(crate) fn next_key(&mut self, key: &Key) -> Result<Option<Key>> {
        self.cursor.seek(key)?;
        Ok(self.cursor.key())
    }

    /// Adds an item that the tree does not have.
    pub(crate) fn insert(&mut self, key: Key, data: Vec<u8>) {
        match self.find(&key) {
            Ok(at) => {
                assert!(self.pending[at].data.is_none(), "inserting an item that exists");
                self.pending[at].data = Some(data);
            }
            Err(at) => self.pending.insert(at, Pending { key, data: Some(data), existed: false }),
        }
    }

    /// Replaces the bytes of an item that the tree has.
    pub(crate) fn replace(&mut self, key: Key, data: Vec<u8>) {
        match self.find(&key) {
            Ok(at) => {
                assert!(self.pending[at].data.is_some(), "replacing an item that does not exist");
                self.pending[at].data = Some(data);
            }
            Err(at) => self.pending.insert(at, Pending { key, data: Some(data), existed: true }),
        }
    }

    /// Removes an item that the tree has.
    pub(crate) fn remove(&mut self, key: Key) {
        match self.find(&key) {
            Ok(at) => {
                assert!(self.pending[at].data.is_some(), "removing an item that does not exist");
                if self.pending[at].existed {
                    self.pending[at].data = None;
                } else {
                    self.pending.remove(at);
                }
            }
            Err(at) => self.pending.insert(at, Pending { key, data: None, existed: true }),
        }
    }

    /// The error for an item of this tree that contradicts other items.
    pub(crate) fn fault(&self, key: Key, reason: Corrupt) -> Error {
        Error::Item { tree: self.tree.id(), key, reason }
    }

    /// The error for a missing item that must exist.
    pub(crate) fn missing(&self, key: Key, what: &'static str) -> Error {
        Error::MissingItem { tree: self.tree.id(), key, what }
    }

    /// The id of the tree.
    pub(crate) fn id(&self) -> TreeId {
        self.tree.id()
    }

    fn find(&self, key: &Key) -> Result<usize, usize> {
        self.pending.binary_search_by_key(key, |pending| pending.key)
    }

    fn into_changes(self) -> Vec<Change> {
        self.pending
            .into_iter()
            .map(|Pending { key, data, .. }| match data {
                Some(data) => Change::Put { key, data },
                None => Change::Remove { key },
            })
            .collect()
    }
}
