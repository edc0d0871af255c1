//! The queue of threads that wait for the log to be durable. One of them, the leader, writes it for
//! all.
//!
//! Owns [`LogQueue`] and [`LogTicket`].
//!
//! **Invariants**
//! - At most one thread leads.
//! - While any thread waits, one leads, has been woken to lead, or is polling.
//! - A woken thread is either done or leads.
//!
//! Where several threads sync, threads about to enter something should share the sync:
//! - On a device in memory the leader yields first. A waiter yields some times before it sleeps,
//!   because sleeping and waking cost as much as the sync. This pays off while a yield takes
//!   microseconds. Where yields hand the processor to other work for long, no thread yields during
//!   the next syncs ([`AdaptiveWait`]).
//! - On a device that waits the leader *gathers*: it sleeps until those threads have come back that
//!   shared the last sync, for at most a part of the time that a sync takes. A waiter sleeps at
//!   once. Where gathering was in vain, the next leaders do not gather.
//!
//! **Locks**: one, a leaf, never held while waiting or yielding.
//!
//! Kernel counterparts: `join_running_log_trans`, `wait_log_commit`, `BTRFS_ROOT_MULTI_LOG_TASKS`
//! and the waits of `btrfs_sync_log` (`fs/btrfs/tree-log.c`).

use papilio_format::Generation;
use papilio_locks::{Class, Held, Mutex};
use std::thread::{self, Thread, ThreadId};
use std::time::{Duration, Instant};

/// Yields of a leader, before it settles what it syncs.
const LEADING_YIELDS: u32 = 2;
/// Yields of a waiter, before it sleeps.
const WAITING_YIELDS: u32 = 30;
/// A leader gathers for at most one in so many parts of the time that the last sync took.
const GATHERING_PART: u32 = 2;
/// The longest time of gathering.
const GATHERING_MOST: Duration = Duration::from_millis(5);
/// A yield counts as long from here on. Entering something takes much less, a time slice more.
const LONG: Duration = Duration::from_millis(1);
/// Syncs without a yield after a long one: fewest and most.
const SKIPPED: (u32, u32) = (16, 4096);
/// Syncs without gathering after it was in vain: fewest and most.
const UNGATHERED: (u32, u32) = (4, 256);

/// A position in the log that a caller waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogTicket {
    /// The transaction whose log it is.
    pub(in crate::transaction) generation: Generation,
    /// The number of changes in the log, up to and including the caller's.
    pub(in crate::transaction) entered: u64,
}

impl LogTicket {
    /// The transaction whose log it is.
    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }
}

/// How long a sync takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transaction) enum Pace {
    /// About as long as a thread takes to wake: the image is in memory.
    Memory,
    /// Much longer: requests wait for a device.
    Device,
}

/// The threads that wait for log syncs.
#[derive(Debug, Default)]
pub(in crate::transaction) struct LogQueue {
    state: Mutex<SyncQueueState>,
}

#[derive(Debug, Default)]
struct SyncQueueState {
    /// The last transaction that is known to be committed.
    committed: Generation,
    /// The transaction whose log was synced last, and the number of its changes that were.
    generation: Generation,
    synced: u64,
    leading: bool,
    waiting: Vec<(LogTicket, Thread)>,
    /// The last thread that led.
    led: Option<ThreadId>,
    patience: AdaptiveWait,
    /// Threads that shared the last sync and have not come back.
    away: usize,
    /// The leader, while it gathers.
    gathering: Option<Thread>,
    /// The time that the last sync took.
    took: Duration,
    gathers: AdaptiveWait,
}

/// Whether waiting for others pays off, by yielding or gathering.
#[derive(Debug, Default)]
struct AdaptiveWait {
    /// Remaining syncs that do not wait.
    skip: u32,
    /// Syncs that did not wait after the last time in vain.
    skipped: u32,
}

impl AdaptiveWait {
    /// Starts a sync; returns whether to wait in it.
    fn starts(&mut self) -> bool {
        let waits = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        waits
    }

    /// Records that waiting paid off.
    fn paid_off(&mut self) {
        self.skipped = self.skipped.saturating_sub(1);
    }

    /// Records that waiting was in vain. The fewest and the most syncs that do not wait are given.
    fn did_not_pay_off(&mut self, (fewest, most): (u32, u32)) {
        self.skipped = (self.skipped * 2).clamp(fewest, most);
        self.skip = self.skipped;
    }

    /// Records how long the yields of a sync took.
    fn took(&mut self, time: Duration) {
        if time < LONG { self.paid_off() } else { self.did_not_pay_off(SKIPPED) }
    }
}

impl SyncQueueState {
    fn has(&self, ticket: &LogTicket) -> bool {
        self.committed >= ticket.generation
            || self.generation == ticket.generation && self.synced >= ticket.entered
    }

    /// Returns the threads to wake: those whose tickets are durable, and one to lead if none does.
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
            self.away += usize::from(done);
            false
        });
        self.waiting = waiting;
        woken
    }

    /// Notes that a thread waits whose ticket is not durable. Returns the leader if it gathers and
    /// this was the last one that it waits for.
    fn came_back(&mut self) -> Option<Thread> {
        self.away = self.away.saturating_sub(1);
        if self.away == 0 { self.gathering.take() } else { None }
    }
}

/// The lock checker's class of the lead, which others wait for.
static LEADING: Class = Class::new("log-queue:leading");

/// The right to write the log, until it drops.
pub(in crate::transaction) struct Lead<'q> {
    queue: &'q LogQueue,
    _held: Held,
    /// Whether other threads sync too.
    several: bool,
    pace: Pace,
}

impl Lead<'_> {
    /// Waits a moment, if other threads sync too, so that they can enter their changes. Called
    /// before the leader settles what it syncs.
    pub(in crate::transaction) fn let_others_enter(&self) {
        if self.pace == Pace::Device {
            return self.gather();
        }
        if !self.several || !self.queue.state.lock().patience.starts() {
            return;
        }
        let begun = Instant::now();
        for _ in 0..LEADING_YIELDS {
            thread::yield_now();
        }
        self.queue.state.lock().patience.took(begun.elapsed());
    }

    /// Sleeps until the threads that shared the last sync have come back.
    fn gather(&self) {
        let mut state = self.queue.state.lock();
        if state.away == 0 || !state.gathers.starts() {
            state.away = 0;
            return;
        }
        let end = Instant::now() + (state.took / GATHERING_PART).min(GATHERING_MOST);
        state.gathering = Some(thread::current());
        while state.gathering.is_some() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            drop(state);
            thread::park_timeout(left);
            state = self.queue.state.lock();
        }
        match state.gathering.take() {
            None => state.gathers.paid_off(),
            Some(_) => state.gathers.did_not_pay_off(UNGATHERED),
        }
        state.away = 0;
    }

    /// Notes how long the sync took.
    pub(in crate::transaction) fn took(&self, time: Duration) {
        self.queue.state.lock().took = time;
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.queue.update(|state| {
            state.leading = false;
            // The leader itself.
            state.away += 1;
        });
    }
}

impl LogQueue {
    fn update(&self, change: impl FnOnce(&mut SyncQueueState)) {
        let woken = {
            let mut state = self.state.lock();
            change(&mut state);
            state.wake()
        };
        woken.iter().for_each(Thread::unpark);
    }

    /// Waits until the ticket is durable (`None`), or the caller's turn to lead has come.
    pub(in crate::transaction) fn wait(&self, ticket: LogTicket, pace: Pace) -> Option<Lead<'_>> {
        LEADING.might_wait(self);
        let mut yields = if pace == Pace::Device { WAITING_YIELDS } else { 0 };
        let mut counted = false;
        loop {
            let mut state = self.state.lock();
            if state.has(&ticket) {
                return None;
            }
            if !std::mem::replace(&mut counted, true)
                && let Some(leader) = state.came_back()
            {
                leader.unpark();
            }
            let current = thread::current();
            if !state.leading {
                state.leading = true;
                let others = state.led.replace(current.id()) != Some(current.id());
                let several = others || !state.waiting.is_empty();
                return Some(Lead { queue: self, _held: LEADING.tried(self), several, pace });
            }
            if yields < WAITING_YIELDS && state.patience.skip == 0 {
                yields += 1;
                drop(state);
                thread::yield_now();
                continue;
            }
            // Parking may end spuriously, so the thread may be listed already.
            state.waiting.retain(|(_, thread)| thread.id() != current.id());
            state.waiting.push((ticket, current));
            drop(state);
            thread::park();
        }
    }

    /// Notes that everything entered up to `upto` is durable.
    pub(in crate::transaction) fn synced(&self, upto: LogTicket) {
        let mut state = self.state.lock();
        (state.generation, state.synced) = (upto.generation, upto.entered);
    }

    /// Notes that a transaction is committed.
    pub(in crate::transaction) fn committed(&self, generation: Generation) {
        self.update(|state| state.committed = generation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    const GENERATION: Generation = Generation(7);

    /// Runs threads that enter and wait. Every `commit_every`th sync is refused and becomes a
    /// commit.
    fn check_every_ticket_becomes_durable(threads: u64, rounds: u64, commit_every: u64, pace: Pace) {
        let (queue, entered, generation) = (LogQueue::default(), Mutex::new(0), AtomicU64::new(GENERATION.0));
        let (syncs, leading) = (AtomicU64::new(0), AtomicU64::new(0));
        let sync = || {
            let ticket = {
                let mut entered = entered.lock();
                *entered += 1;
                LogTicket { generation: Generation(generation.load(Ordering::SeqCst)), entered: *entered }
            };
            if let Some(lead) = queue.wait(ticket, pace) {
                lead.let_others_enter();
                assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "two threads lead");
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
            assert!(queue.state.lock().has(&ticket), "the ticket is not durable");
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
    fn every_waiter_finishes_and_one_leads() {
        for pace in [Pace::Memory, Pace::Device] {
            check_every_ticket_becomes_durable(1, 100, 0, pace);
            check_every_ticket_becomes_durable(2, 2000, 0, pace);
            check_every_ticket_becomes_durable(8, 2000, 5, pace);
        }
    }

    #[test]
    fn lone_syncer_does_not_yield() {
        let queue = LogQueue::default();
        let ticket = |entered| LogTicket { generation: GENERATION, entered };
        let leads = |entered| {
            let lead = queue.wait(ticket(entered), Pace::Memory).expect("no other thread leads");
            queue.synced(ticket(entered));
            lead.several
        };
        leads(1);
        assert!(!leads(2), "the same thread led last");
        let other = thread::scope(|scope| scope.spawn(|| leads(3)).join().unwrap());
        assert!(other, "another thread led before");
        assert!(leads(4), "another thread led before");
        assert!(!leads(5));
    }

    #[test]
    fn long_yields_pause_yielding() {
        let mut patience = AdaptiveWait::default();
        let (short, long) = (LONG / 2, LONG * 2);
        let syncs_until_yield = |patience: &mut AdaptiveWait| (0..10_000).find(|_| patience.starts());
        for _ in 0..3 {
            assert_eq!(syncs_until_yield(&mut patience), Some(0));
            patience.took(short);
        }
        for syncs in [16, 32, 64] {
            patience.took(long);
            assert_eq!(syncs_until_yield(&mut patience), Some(syncs));
        }
        for _ in 0..40 {
            patience.took(short);
            assert!(patience.starts(), "short yields go on");
        }
        patience.took(long);
        assert_eq!(syncs_until_yield(&mut patience), Some(48), "short yields shorten the pause");
        for _ in 0..20 {
            patience.took(long);
        }
        assert_eq!(syncs_until_yield(&mut patience), Some(4096));
    }

    #[test]
    fn leader_gathers_those_who_shared_the_last_sync() {
        let queue = LogQueue::default();
        let ticket = |entered| LogTicket { generation: GENERATION, entered };
        let lead = |entered| queue.wait(ticket(entered), Pace::Device).expect("no other thread leads");
        // A sync that two threads share.
        let first = lead(1);
        first.let_others_enter();
        thread::scope(|scope| {
            let other = scope.spawn(|| queue.wait(ticket(2), Pace::Device).is_none());
            while queue.state.lock().waiting.is_empty() {
                thread::yield_now();
            }
            first.took(Duration::from_secs(3600));
            queue.synced(ticket(2));
            drop(first);
            assert!(other.join().unwrap(), "it shared the sync");
        });
        assert_eq!(queue.state.lock().away, 2);
        // The next leader waits for the other one to come back.
        let begun = Instant::now();
        let second = lead(3);
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                while queue.state.lock().gathering.is_none() {
                    thread::yield_now();
                }
                queue.wait(ticket(4), Pace::Device).is_none()
            });
            second.let_others_enter();
            let state = queue.state.lock();
            assert!(state.gathers.skip == 0 || begun.elapsed() >= GATHERING_MOST, "the other one came");
            drop(state);
            queue.synced(ticket(4));
            drop(second);
            assert!(other.join().unwrap());
        });
        // It does not come any more: the leader waits in vain once, and then not at all.
        let third = lead(5);
        let begun = Instant::now();
        third.let_others_enter();
        assert!(begun.elapsed() >= GATHERING_MOST, "it gathers for the longest time");
        queue.synced(ticket(5));
        drop(third);
        assert!(!queue.state.lock().gathers.starts());
    }

    #[test]
    fn failed_leader_hands_the_lead_on() {
        let queue = LogQueue::default();
        let ticket = |entered| LogTicket { generation: GENERATION, entered };
        let lead = queue.wait(ticket(1), Pace::Device).expect("no other thread leads");
        thread::scope(|scope| {
            let other = scope.spawn(|| queue.wait(ticket(2), Pace::Device).is_some());
            while queue.state.lock().waiting.is_empty() {
                thread::yield_now();
            }
            drop(lead);
            assert!(other.join().unwrap(), "nothing was synced");
        });
        queue.synced(ticket(2));
        assert!(queue.wait(ticket(1), Pace::Device).is_none());
    }
}
