//! A tree that is taken when something of it is first asked for.
//!
//! Owns [`LazyTree`]. To take a tree of an open file system is to count references that all threads share; who
//! mostly finds what it wants elsewhere in memory takes it only where it does not. What is taken is pinned, as
//! of the time it is taken. Takes the tree's lock and the pin's, once.

use super::Transactions;
use crate::btree::{LiveTree, Tree};
use std::cell::OnceCell;

/// A tree, or where it can be had.
#[derive(Debug)]
pub(crate) struct LazyTree<'a> {
    transactions: &'a Transactions,
    live: &'a LiveTree,
    taken: OnceCell<Tree>,
}

impl<'a> LazyTree<'a> {
    /// `live` as it will be when it is asked for.
    pub(crate) fn new(transactions: &'a Transactions, live: &'a LiveTree) -> Self {
        Self { transactions, live, taken: OnceCell::new() }
    }

    /// The tree as it was when it was first asked for.
    pub(crate) fn get(&self) -> &Tree {
        self.taken.get_or_init(|| {
            // The pin first: a tree that is older than its pin could reach what is free again.
            let pin = self.transactions.pin();
            self.live.tree().pinned(pin)
        })
    }

    /// The tree that it is of.
    pub(crate) fn live(&self) -> &'a LiveTree {
        self.live
    }
}
