//! Those who wait for the log to be durable: one of them writes it for all who are there.
//!
//! Owns [`LogQueue`] and [`LogTicket`]. Invariants: at most one leads, and while anybody waits somebody leads or
//! has been woken to, or looks again without being woken; who is woken is either done or to lead.
//!
//! Where several threads sync, who leads yields first, so that others who are about to enter something are served
//! by the same sync, and who waits yields some times before it sleeps: on a device that is quick, sleeping and waking
//! cost as much as the sync. That is for as long as yielding is a matter of microseconds: where it gives the
//! processor to the work of others for long, nobody yields for some syncs ([`Patience`]).
//!
//! Lock: a leaf, held by nobody who waits or yields. Kernel counterparts: `join_running_log_trans`, `wait_log_commit`,
//! `BTRFS_ROOT_MULTI_LOG_TASKS` and the waits of `btrfs_sync_log` (`fs/btrfs/tree-log.c`).

use papilio_format::Generation;
use papilio_locks::{Class, Held, Mutex};
use std::thread::{self, Thread, ThreadId};
use std::time::{Duration, Instant};

/// Yields of who leads, before what is to be synced is settled.
const LEADING_YIELDS: u32 = 2;
/// Yields of who waits, before it sleeps.
const WAITING_YIELDS: u32 = 30;
/// What others take to enter something is much shorter than this, and a time slice longer.
const LONG: Duration = Duration::from_millis(1);
/// Syncs without a yield after one that was long, at least and at most.
const SKIPPED: (u32, u32) = (16, 4096);

/// What was entered into the log and waits to be durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogTicket {
    /// The transaction whose log it is.
    pub(super) generation: Generation,
    /// How many changes the log has with it.
    pub(super) entered: u64,
}

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
    /// Who led last.
    led: Option<ThreadId>,
    patience: Patience,
}

/// Whether yielding is worth its while.
#[derive(Debug, Default)]
struct Patience {
    /// Syncs still to come without a yield.
    skip: u32,
    /// How many it were after the last long one.
    skipped: u32,
}

impl Patience {
    /// Whether to yield, at the start of a sync.
    fn starts(&mut self) -> bool {
        let yields = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        yields
    }

    /// Yielding took this long.
    fn took(&mut self, time: Duration) {
        if time < LONG {
            self.skipped = self.skipped.saturating_sub(1);
            return;
        }
        self.skipped = (self.skipped * 2).clamp(SKIPPED.0, SKIPPED.1);
        self.skip = self.skipped;
    }
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

/// Who leads, for whom the others wait.
static LEADING: Class = Class::new("log-queue:leading");

/// The right to write the log, until it is dropped.
pub(super) struct Lead<'q> {
    queue: &'q LogQueue,
    _held: Held,
    /// Others sync too.
    several: bool,
}

impl Lead<'_> {
    /// Lets others enter what they are about to, where there are others: to be called before what is to be synced is
    /// settled.
    pub(super) fn let_others_enter(&self) {
        if !self.several || !self.queue.state.lock().patience.starts() {
            return;
        }
        let begun = Instant::now();
        for _ in 0..LEADING_YIELDS {
            thread::yield_now();
        }
        self.queue.state.lock().patience.took(begun.elapsed());
    }
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
        LEADING.might_wait(self);
        let mut yields = 0;
        loop {
            let mut state = self.state.lock();
            if state.has(&ticket) {
                return None;
            }
            let current = thread::current();
            if !state.leading {
                state.leading = true;
                let others = state.led.replace(current.id()) != Some(current.id());
                let several = others || !state.waiting.is_empty();
                return Some(Lead { queue: self, _held: LEADING.tried(self), several });
            }
            if yields < WAITING_YIELDS && state.patience.skip == 0 {
                yields += 1;
                drop(state);
                thread::yield_now();
                continue;
            }
            // Parking may end for no reason.
            state.waiting.retain(|(_, thread)| thread.id() != current.id());
            state.waiting.push((ticket, current));
            drop(state);
            thread::park();
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
    fn who_syncs_alone_does_not_yield() {
        let queue = LogQueue::default();
        let ticket = |entered| LogTicket { generation: GENERATION, entered };
        let leads = |entered| {
            let lead = queue.wait(ticket(entered)).expect("nobody leads");
            queue.synced(ticket(entered));
            lead.several
        };
        leads(1);
        assert!(!leads(2), "it was the last who led");
        let other = thread::scope(|scope| scope.spawn(|| leads(3)).join().unwrap());
        assert!(other, "another led before");
        assert!(leads(4), "and again");
        assert!(!leads(5));
    }

    #[test]
    fn long_yields_are_paused() {
        let mut patience = Patience::default();
        let (short, long) = (LONG / 2, LONG * 2);
        let syncs_until_it_yields = |patience: &mut Patience| (0..10_000).find(|_| patience.starts());
        for _ in 0..3 {
            assert_eq!(syncs_until_it_yields(&mut patience), Some(0));
            patience.took(short);
        }
        for syncs in [16, 32, 64] {
            patience.took(long);
            assert_eq!(syncs_until_it_yields(&mut patience), Some(syncs));
        }
        for _ in 0..40 {
            patience.took(short);
            assert!(patience.starts(), "as long as it is short");
        }
        patience.took(long);
        assert_eq!(syncs_until_it_yields(&mut patience), Some(48), "it was better in between");
        for _ in 0..20 {
            patience.took(long);
        }
        assert_eq!(syncs_until_it_yields(&mut patience), Some(4096));
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
