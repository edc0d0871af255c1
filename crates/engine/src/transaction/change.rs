//! Making a change in the running transaction.
//!
//! Owns [`Transactions::change`] and [`Transactions::change_to_free`], which reserve metadata, join
//! the transaction with a [`Handle`], and abort it if a change fails half done.
//!
//! **Locks**, in this order: `reserve_tickets`; `commit`, if a commit is due; the gate, shared,
//! while the change runs.
//!
//! Kernel counterpart: `start_transaction`, `btrfs_end_transaction` (`fs/btrfs/transaction.c`).

use super::handle::Handle;
use super::transaction::Transactions;
use crate::errors::{Error, Result};
use crate::space::Reservation;
use papilio_locks::RwLockReadGuard;
use std::cell::RefCell;

/// Tree blocks reserved for each changed item: a path of copies and the blocks that it splits into.
const BLOCKS_PER_ITEM: u64 = 4;
/// Tree blocks reserved for any change besides.
const BLOCKS_PER_CHANGE: u64 = 8;
/// Commits for one change that finds no space, at most.
const COMMITS: usize = 4;
/// Pinned bytes from which on a further commit is worth its time.
const WORTH_A_COMMIT: u64 = 1 << 20;

/// The metadata of a change.
#[derive(Clone, Copy)]
enum Metadata<'a> {
    /// Reserved, and the global reserve stays.
    Ordinary,
    /// Reserved, out of the global reserve as well.
    Emergency,
    /// Reserved earlier; any more that is needed as in an emergency.
    Own(&'a RefCell<Option<Reservation>>),
}

impl Transactions {
    /// Makes a change of about `items` items in the running transaction. If there is no space, it
    /// commits, which may free some, and tries the change again. A change that fails half done
    /// aborts the transaction.
    ///
    /// # Errors
    /// Errors of `change`; [`Error::NoSpace`]; [`Error::ReadOnlyFileSystem`] after a failure.
    pub fn change<R>(&self, items: u64, mut change: impl FnMut(&Handle<'_>) -> Result<R>) -> Result<R> {
        self.run(items, Metadata::Ordinary, &mut change)
    }

    /// Like [`Transactions::change`], for a change that frees space: it may use the global reserve.
    ///
    /// # Errors
    /// As [`Transactions::change`].
    pub(crate) fn change_to_free<R>(
        &self,
        items: u64,
        mut change: impl FnMut(&Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        self.run(items, Metadata::Emergency, &mut change)
    }

    /// As [`Transactions::change_to_free`], with the metadata of `own`, which may be less than the
    /// change needs. The rest that the change does not spend goes back there.
    ///
    /// # Errors
    /// As [`Transactions::change`].
    pub(crate) fn change_reserved<R>(
        &self,
        items: u64,
        own: &RefCell<Option<Reservation>>,
        mut change: impl FnMut(&Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        self.might_change();
        self.retry_after_commits(|| self.attempt(items, Metadata::Own(own), &mut change))
    }

    /// Runs `attempt`, and again after a commit where it found no space. The caller holds no
    /// handle, and `attempt` calls nothing that does the same.
    ///
    /// # Errors
    /// Errors of `attempt` and of the commits.
    pub fn retry_after_commits<R>(&self, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
        self.reserve_tickets.wait();
        match attempt() {
            Err(Error::NoSpace { .. }) => {}
            result => return result,
        }
        let _first = self.reserve_tickets.queue();
        let mut commits = 0;
        loop {
            // Space that a transaction freed is available once the commit's superblocks are on
            // disk.
            self.commit()?;
            self.wait_for_readers()?;
            commits += 1;
            match attempt() {
                Err(Error::NoSpace { .. }) if commits < COMMITS && self.commit_may_free() => {}
                result => return result,
            }
        }
    }

    /// Whether a commit may free space: data extents are removed by the commit only.
    fn commit_may_free(&self) -> bool {
        !self.refs.is_empty() || self.space.pinned_bytes() >= WORTH_A_COMMIT
    }

    fn run<R>(
        &self,
        items: u64,
        metadata: Metadata<'_>,
        change: &mut dyn FnMut(&Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        self.might_change();
        self.retry_after_commits(|| self.attempt(items, metadata, change))
    }

    fn attempt<R>(
        &self,
        items: u64,
        metadata: Metadata<'_>,
        change: &mut dyn FnMut(&Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        self.check_running()?;
        self.commit_if_full()?;
        let gate = self.gate.read();
        self.check_running()?;
        self.with_handle(Some(gate), items, metadata, change)
    }

    /// Runs `change` while the caller holds the gate exclusively.
    pub(super) fn run_alone<R>(
        &self,
        items: u64,
        change: &mut dyn FnMut(&Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        self.with_handle(None, items, Metadata::Ordinary, change)
    }

    fn with_handle<R>(
        &self,
        gate: Option<RwLockReadGuard<'_, ()>>,
        items: u64,
        metadata: Metadata<'_>,
        change: &mut dyn FnMut(&Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        let bytes = (items * BLOCKS_PER_ITEM + BLOCKS_PER_CHANGE) * self.node_size();
        let reservation = self.reserve_for_change(bytes, metadata)?;
        let handle = Handle::new(self, gate, Some(reservation), self.now());
        let result = change(&handle);
        if let (Metadata::Own(own), Some(rest)) = (metadata, handle.take_reservation()) {
            *own.borrow_mut() = Some(rest);
        }
        if let Err(error) = &result
            && handle.is_changed()
        {
            self.abort(error);
        }
        result
    }

    /// Reserves the metadata of a change: the caller's own, and as much more as that lacks.
    fn reserve_for_change(&self, bytes: u64, metadata: Metadata<'_>) -> Result<Reservation> {
        let own = match metadata {
            Metadata::Ordinary => return self.space.reserve_metadata(bytes, false),
            Metadata::Emergency => return self.space.reserve_metadata(bytes, true),
            Metadata::Own(own) => own,
        };
        let lacking = bytes.saturating_sub(own.borrow().as_ref().map_or(0, Reservation::bytes));
        let more = self.space.reserve_metadata(lacking, true)?;
        Ok(match own.take() {
            Some(mut own) => {
                own.merge(more);
                own
            }
            None => more,
        })
    }
}
