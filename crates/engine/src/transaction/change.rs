//! Making a change in the running transaction.
//!
//! Owns [`Transactions::change`], the one entry: it reserves metadata, joins the transaction with a
//! [`Handle`], and aborts it if a change fails half done.
//!
//! **Locks**, in this order: `reserve_tickets`; `commit`, if a commit is due; the gate, shared,
//! while the change runs.
//!
//! Kernel counterpart: `start_transaction`, `btrfs_end_transaction` (`fs/btrfs/transaction.c`).

use super::handle::Handle;
use super::start::{Order, Start};
use super::transaction::Transactions;
use crate::errors::{Error, Result};
use crate::space::Reservation;
use papilio_locks::RwLockReadGuard;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Tree blocks reserved for each changed item: a path of copies and the blocks that it splits into.
const BLOCKS_PER_ITEM: u64 = 4;
/// Tree blocks reserved for any change besides.
const BLOCKS_PER_CHANGE: u64 = 8;
/// Commits for one change that finds no space, at most.
const COMMITS: usize = 4;
/// The least time between two commits for the sizes that `statfs` shows.
const REMOVALS_PAUSE: Duration = Duration::from_secs(1);
/// Pinned bytes from which on a further commit is worth its time.
const WORTH_A_COMMIT: u64 = 1 << 20;

impl Transactions {
    /// Makes a change in a transaction, on the terms of `start`. If there is no space, it commits,
    /// which may free some, and tries the change again. A change that fails half done aborts the
    /// transaction.
    ///
    /// # Errors
    /// Errors of `change`; [`Error::NoSpace`]; [`Error::ReadOnlyFileSystem`] after a failure;
    /// errors of the commits that [`Start::last`] and its like ask for.
    pub fn change<'r, R>(
        &self,
        start: impl Into<Start<'r>>,
        mut change: impl FnMut(&Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        let start = start.into();
        let change: &mut dyn FnMut(&Handle<'_>) -> Result<R> = &mut change;
        self.might_change();
        self.retry_after_commits(|| match start.order {
            Order::Any => self.attempt(start, change),
            Order::First => self.change_first(start, change),
            Order::Last => self.change_last(start, change),
        })
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

    /// Commits if that frees much data, at most once in [`REMOVALS_PAUSE`]: only a commit knows the
    /// space that removed files give back.
    ///
    /// # Errors
    /// As [`Transactions::commit`].
    pub fn commit_removals(&self) -> Result<()> {
        if self.refs.dropped_bytes() < WORTH_A_COMMIT {
            return Ok(());
        }
        {
            let mut last = self.removals_committed.lock();
            if last.is_some_and(|last| last.elapsed() < REMOVALS_PAUSE) {
                return Ok(());
            }
            *last = Some(Instant::now());
        }
        self.commit()
    }

    /// Whether a commit may free space: data extents are removed by the commit only.
    fn commit_may_free(&self) -> bool {
        !self.refs.is_empty() || self.space.pinned_bytes() >= WORTH_A_COMMIT
    }

    fn attempt<R>(&self, start: Start<'_>, change: &mut dyn FnMut(&Handle<'_>) -> Result<R>) -> Result<R> {
        self.check_running()?;
        self.commit_if_full()?;
        let gate = self.gate.read();
        self.check_running()?;
        self.with_handle(Some(gate), start, change)
    }

    /// Runs `change` while the caller holds the gate exclusively.
    pub(super) fn run_alone<R>(
        &self,
        start: Start<'_>,
        change: &mut dyn FnMut(&Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        self.with_handle(None, start, change)
    }

    fn with_handle<R>(
        &self,
        gate: Option<RwLockReadGuard<'_, ()>>,
        start: Start<'_>,
        change: &mut dyn FnMut(&Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        let bytes = (start.items * BLOCKS_PER_ITEM + BLOCKS_PER_CHANGE) * self.node_size();
        let reservation = self.reserve_beside(bytes, start)?;
        let handle = Handle::new(self, gate, Some(reservation), self.now());
        let result = change(&handle);
        if let Some(own) = start.own
            && let Some(rest) = handle.take_reservation()
        {
            *own.borrow_mut() = Some(rest);
        }
        if let Err(error) = &result
            && handle.is_changed()
        {
            self.abort(error);
        }
        result
    }

    /// Takes the caller's own metadata, and reserves more where that is less than `bytes`.
    fn reserve_beside(&self, bytes: u64, start: Start<'_>) -> Result<Reservation> {
        let own_bytes =
            |own: &RefCell<Option<Reservation>>| own.borrow().as_ref().map_or(0, Reservation::bytes);
        let lacking = bytes.saturating_sub(start.own.map_or(0, own_bytes));
        let more = self.space.reserve_metadata(lacking, start.steals)?;
        Ok(match start.own.and_then(RefCell::take) {
            Some(mut own) => {
                own.merge(more);
                own
            }
            None => more,
        })
    }
}
