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
use papilio_locks::RwLockReadGuard;
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
    /// Makes a change of about `items` items in the running transaction. If there is no space, it
    /// commits, which may free some, and tries the change again. A change that fails half done
    /// aborts the transaction.
    ///
    /// # Errors
    /// Errors of `change`; [`Error::NoSpace`]; [`Error::ReadOnlyFileSystem`] after a failure.
    pub fn change<R>(&self, items: u64, mut change: impl FnMut(&Handle<'_>) -> Result<R>) -> Result<R> {
        self.run(items, false, &mut change)
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
        self.run(items, true, &mut change)
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

    fn run<R>(
        &self,
        items: u64,
        emergency: bool,
        change: &mut dyn FnMut(&Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        self.might_change();
        self.retry_after_commits(|| self.attempt(items, emergency, change))
    }

    fn attempt<R>(
        &self,
        items: u64,
        emergency: bool,
        change: &mut dyn FnMut(&Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        self.check_running()?;
        self.commit_if_full()?;
        let gate = self.gate.read();
        self.check_running()?;
        self.with_handle(Some(gate), items, emergency, change)
    }

    /// Runs `change` while the caller holds the gate exclusively.
    pub(super) fn run_alone<R>(
        &self,
        items: u64,
        change: &mut dyn FnMut(&Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        self.with_handle(None, items, false, change)
    }

    fn with_handle<R>(
        &self,
        gate: Option<RwLockReadGuard<'_, ()>>,
        items: u64,
        emergency: bool,
        change: &mut dyn FnMut(&Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        let bytes = (items * BLOCKS_PER_ITEM + BLOCKS_PER_CHANGE) * self.node_size();
        let reservation = self.space.reserve_metadata(bytes, emergency)?;
        let handle = Handle::new(self, gate, Some(reservation), self.now());
        let result = change(&handle);
        if let Err(error) = &result
            && handle.is_changed()
        {
            self.abort(error);
        }
        result
    }
}
