//! A draft: the changes of one operation on a tree, collected before the first of them is made.
//!
//! Owns [`Draft`] and [`edit`]. What an operation reads it reads through its draft, so that it sees what it
//! has changed itself: a rename within one directory may change the same item three times. Invariant:
//! nothing in the tree changes before every check has passed; then all changes go in, sorted by key, in
//! one pass. Kernel counterpart: none; there each item is searched for and changed at once, and an error
//! half way aborts the transaction.
//!
//! Takes no lock; [`edit`] works under the editor's.

use crate::btree::{Change, Cursor, Tree, TreeEditor};
use crate::errors::{Error, Result};
use papilio_format::features::IncompatFeatures;
use papilio_format::node::{ItemHeader, NodeHeader};
use papilio_format::{Corrupt, Generation, Geometry, Key, TreeId};

/// One changed item.
#[derive(Debug)]
struct Pending {
    key: Key,
    /// `None` where the item goes.
    data: Option<Vec<u8>>,
    /// Whether the tree has the item.
    existed: bool,
}

/// The changes of one operation, and the tree as it will be with them.
#[derive(Debug)]
pub(crate) struct Draft<'t> {
    tree: &'t Tree,
    cursor: Cursor<'t>,
    generation: Generation,
    geometry: Geometry,
    /// Sorted by key.
    pending: Vec<Pending>,
}

/// Prepares changes and, if that succeeds, makes them in one pass.
///
/// # Errors
/// What `prepare` returns, with the tree as it was; or a block that could not be changed.
pub(crate) fn edit<R>(
    editor: &mut TreeEditor<'_>,
    prepare: impl FnOnce(&mut Draft<'_>) -> Result<R>,
) -> Result<R> {
    let tree = editor.tree();
    let mut draft = Draft::new(editor, &tree);
    let result = prepare(&mut draft)?;
    let changes = draft.into_changes();
    // A root that is held would make the change copy its path.
    drop(tree);
    if !changes.is_empty() {
        editor.apply(&changes)?;
    }
    Ok(result)
}

impl<'t> Draft<'t> {
    /// An empty draft over `tree`, which is the editor's as of now.
    pub(crate) fn new(editor: &TreeEditor<'_>, tree: &'t Tree) -> Self {
        let (generation, geometry) = (editor.generation(), *editor.geometry());
        Self { tree, cursor: Cursor::new(tree), generation, geometry, pending: Vec::new() }
    }

    /// The tree without the changes.
    pub(crate) fn tree(&self) -> &'t Tree {
        self.tree
    }

    /// The running transaction.
    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    /// The file system's parameters.
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Whether a feature is on.
    pub(crate) fn has(&self, feature: IncompatFeatures) -> bool {
        self.geometry.incompat.contains(feature)
    }

    /// The most bytes that an item can have: those of a leaf with nothing else in it.
    pub(crate) fn max_item_size(&self) -> usize {
        self.geometry.node_size as usize - NodeHeader::SIZE - ItemHeader::SIZE
    }

    /// The item's bytes, changes included.
    ///
    /// # Errors
    /// A block on the way that cannot be read.
    pub(crate) fn get(&mut self, key: &Key) -> Result<Option<&[u8]>> {
        if let Ok(at) = self.find(key) {
            return Ok(self.pending[at].data.as_deref());
        }
        self.cursor.seek(key)?;
        Ok(if self.cursor.key() == Some(*key) { self.cursor.data() } else { None })
    }

    /// The first key from `key` on that the tree has, without the changes.
    ///
    /// # Errors
    /// A block on the way that cannot be read.
    pub(crate) fn next_key(&mut self, key: &Key) -> Result<Option<Key>> {
        self.cursor.seek(key)?;
        Ok(self.cursor.key())
    }

    /// Adds an item that the tree does not have.
    pub(crate) fn insert(&mut self, key: Key, data: Vec<u8>) {
        match self.find(&key) {
            Ok(at) => {
                assert!(self.pending[at].data.is_none(), "an item is inserted where there is none");
                self.pending[at].data = Some(data);
            }
            Err(at) => self.pending.insert(at, Pending { key, data: Some(data), existed: false }),
        }
    }

    /// Gives an item that the tree has other bytes.
    pub(crate) fn replace(&mut self, key: Key, data: Vec<u8>) {
        match self.find(&key) {
            Ok(at) => {
                assert!(self.pending[at].data.is_some(), "what is replaced is there");
                self.pending[at].data = Some(data);
            }
            Err(at) => self.pending.insert(at, Pending { key, data: Some(data), existed: true }),
        }
    }

    /// Removes an item that the tree has.
    pub(crate) fn remove(&mut self, key: Key) {
        match self.find(&key) {
            Ok(at) => {
                assert!(self.pending[at].data.is_some(), "what is removed is there");
                if self.pending[at].existed {
                    self.pending[at].data = None;
                } else {
                    self.pending.remove(at);
                }
            }
            Err(at) => self.pending.insert(at, Pending { key, data: None, existed: true }),
        }
    }

    /// The error of an item of this tree that contradicts what else is known.
    pub(crate) fn fault(&self, key: Key, reason: Corrupt) -> Error {
        Error::Item { tree: self.tree.id(), key, reason }
    }

    /// The error of an item that must be there and is not.
    pub(crate) fn missing(&self, key: Key, what: &'static str) -> Error {
        Error::MissingItem { tree: self.tree.id(), key, what }
    }

    /// The tree's id.
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
