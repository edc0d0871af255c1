//! Those who wait for the log to be durable: one of them writes it for all who are there.
//!
//! Owns [`LogQueue`] and [`LogTicket`]. Invariants: at most one leads, and while anybody waits somebody leads or
//! has been woken to; who is woken is either done or to lead, so that a sync costs each of those whom it serves
//! one sleep and one waking. Lock: a leaf, held by nobody who waits. Kernel counterparts: `join_running_log_trans`,
//! `wait_log_commit` (`fs/btrfs/tree-log.c`).

use papilio_format::Generation;
use parking_lot::Mutex;
use std::thread::{self, Thread};

/// What was entered into the log and waits to be durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogTicket {
    /// The transaction whose log it is.
    pub(super) generation: Generation,
    /// How many changes the log has with it.
    pub(super) entered: u64,
}

impl LogTicket {}

impl LogTicket {
    /// The transaction whose log it is.
    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }
}

/// Those who wait.
#[derive(Debug, Default)]
pub(super) struct LogQueue {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last transaction that is known to be committed.
    committed: Generation,
    /// The transaction whose log was synced last, and how many of its changes.
    generation: Generation,
    synced: u64,
    leading: bool,
    waiting: Vec<(LogTicket, Thread)>,
}

impl State {
    fn has(&self, ticket: &LogTicket) -> bool {
        self.committed >= ticket.generation
            || self.generation == ticket.generation && self.synced >= ticket.entered
    }

    /// Those to be woken: who has what he waits for, and one to lead if nobody does.
    fn wake(&mut self) -> Vec<Thread> {
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut woken = Vec::with_capacity(waiting.len());
        let mut leads = self.leading;
        waiting.retain(|(ticket, thread)| {
            let done = self.has(ticket);
            if !done && std::mem::replace(&mut leads, true) {
                return true;
            }
            woken.push(thread.clone());
            false
        });
        self.waiting = waiting;
        woken
    }
}

/// The right to write the log, until it is dropped.
pub(super) struct Lead<'q> {
    queue: &'q LogQueue,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.queue.update(|state| state.leading = false);
    }
}

impl LogQueue {
    fn update(&self, change: impl FnOnce(&mut State)) {
        let woken = {
            let mut state = self.state.lock();
            change(&mut state);
            state.wake()
        };
        woken.iter().for_each(Thread::unpark);
    }

    /// Waits until what the ticket stands for is durable, or it is the caller's turn to make it so.
    pub(super) fn wait(&self, ticket: LogTicket) -> Option<Lead<'_>> {
        let mut state = self.state.lock();
        loop {
            if state.has(&ticket) {
                return None;
            }
            if !state.leading {
                state.leading = true;
                return Some(Lead { queue: self });
            }
            let current = thread::current();
            // Parking may end for no reason.
            state.waiting.retain(|(_, thread)| thread.id() != current.id());
            state.waiting.push((ticket, current));
            drop(state);
            thread::park();
            state = self.state.lock();
        }
    }

    /// All that was entered up to this is durable.
    pub(super) fn synced(&self, upto: LogTicket) {
        let mut state = self.state.lock();
        (state.generation, state.synced) = (upto.generation, upto.entered);
    }

    /// A transaction is committed.
    pub(super) fn committed(&self, generation: Generation) {
        self.update(|state| state.committed = generation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    const GENERATION: Generation = Generation(7);

    /// Threads that enter and wait; every `commit_every`th sync is refused, and is a commit.
    fn all_get_what_they_wait_for(threads: u64, rounds: u64, commit_every: u64) {
        let (queue, entered, generation) = (LogQueue::default(), Mutex::new(0), AtomicU64::new(GENERATION.0));
        let (syncs, leading) = (AtomicU64::new(0), AtomicU64::new(0));
        let sync = || {
            let ticket = {
                let mut entered = entered.lock();
                *entered += 1;
                LogTicket { generation: Generation(generation.load(Ordering::SeqCst)), entered: *entered }
            };
            if let Some(lead) = queue.wait(ticket) {
                assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "one leads");
                let number = syncs.fetch_add(1, Ordering::SeqCst);
                if number % 3 == 0 {
                    thread::yield_now();
                }
                {
                    let mut entered = entered.lock();
                    let now = Generation(generation.load(Ordering::SeqCst));
                    if commit_every > 0 && number % commit_every == 0 {
                        *entered = 0;
                        generation.fetch_add(1, Ordering::SeqCst);
                        queue.committed(now);
                    } else {
                        queue.synced(LogTicket { generation: now, entered: *entered });
                    }
                }
                leading.fetch_sub(1, Ordering::SeqCst);
                drop(lead);
            }
            assert!(queue.state.lock().has(&ticket), "it is durable");
        };
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| (0..rounds).for_each(|_| sync()));
            }
        });
        let state = queue.state.lock();
        assert!(state.waiting.is_empty() && !state.leading);
        assert!(syncs.into_inner() <= threads * rounds);
    }

    #[test]
    fn nobody_waits_for_ever_and_one_leads() {
        all_get_what_they_wait_for(1, 100, 0);
        all_get_what_they_wait_for(2, 2000, 0);
        all_get_what_they_wait_for(8, 2000, 5);
    }

    #[test]
    fn who_leads_and_fails_leaves_the_lead_to_another() {
        let queue = LogQueue::default();
        let ticket = |entered| LogTicket { generation: GENERATION, entered };
        let lead = queue.wait(ticket(1)).expect("nobody leads");
        thread::scope(|scope| {
            let other = scope.spawn(|| queue.wait(ticket(2)).is_some());
            while queue.state.lock().waiting.is_empty() {
                thread::yield_now();
            }
            drop(lead);
            assert!(other.join().unwrap(), "nothing was synced");
        });
        queue.synced(ticket(2));
        assert!(queue.wait(ticket(1)).is_none());
    }
}
