//! A tree that is taken at its first use.
//!
//! Owns [`LazyTree`]. Taking a tree of an open file system increments reference counts that all
//! threads share. A caller that usually finds its answer in memory uses this type and takes the
//! tree only if it has to. The tree is then pinned.
//!
//! Locks: the tree's and the pin's, once, at the first use.

use super::transaction::Transactions;
use crate::btree::{LiveTree, Tree};
use std::cell::OnceCell;

/// A live tree, and its state once that was taken.
#[derive(Debug)]
pub struct LazyTree<'a> {
    transactions: &'a Transactions,
    live: &'a LiveTree,
    taken: OnceCell<Tree>,
}

impl<'a> LazyTree<'a> {
    /// A handle to `live` that takes nothing yet.
    pub(crate) fn new(transactions: &'a Transactions, live: &'a LiveTree) -> Self {
        Self { transactions, live, taken: OnceCell::new() }
    }

    /// Returns the tree as it was at the first call.
    pub(crate) fn get(&self) -> &Tree {
        self.taken.get_or_init(|| {
            // The pin comes first: a tree older than its pin could reach space that is already
            // free.
            let pin = self.transactions.pin();
            self.live.tree().pinned(pin)
        })
    }

    /// The live tree.
    pub(crate) fn live(&self) -> &'a LiveTree {
        self.live
    }
}
