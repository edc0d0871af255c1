//! How many threads wait for requests at a time.
//!
//! Owns [`Readers`]. The kernel wakes a thread for each request that arrives while one waits. Many
//! waiting threads so take turns at a stream of requests that one or two could serve without
//! sleeping. Where requests may wait for a device, there must be many threads, but few of them need
//! to wait for requests.
//!
//! While many reads and writes are in flight, the thread of [`crate::data_queue`] takes the
//! requests itself, *in place* of the readers, and hands those over that it cannot begin.
//!
//! **Invariants**
//! - While a thread is left, one waits for requests, or is about to, or the queue's thread takes
//!   them.
//! - A request that was handed over is taken by the next thread that is idle.
//! - While threads are idle, one of them watches that the queue's thread goes on. If it is stuck
//!   for [`STUCK`], threads wait for requests again.
//!
//! **Locks**: `state`, a leaf.

use papilio_locks::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The queue's thread counts as stuck after this time without a step.
const STUCK: Duration = Duration::from_millis(5);

/// The threads of a transport that wait for requests, and those that wait to. `R` is a request that
/// was handed over.
#[derive(Debug)]
pub(super) struct Readers<R> {
    /// The most that wait for requests.
    limit: usize,
    state: Mutex<ReaderCounts<R>>,
    /// Steps of the thread that takes requests in place of the readers.
    steps: AtomicU64,
    /// Notified when an idle thread should wait for requests, or end.
    wanted: Condvar,
}

#[derive(Debug)]
struct ReaderCounts<R> {
    reading: usize,
    idle: usize,
    /// The queue's thread takes the requests.
    replaced: bool,
    /// An idle thread watches the queue's thread.
    watched: bool,
    handed: VecDeque<R>,
    closed: bool,
}

/// The next work of a thread of the transport.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn<R> {
    /// Wait for a request.
    Read,
    /// Answer a request that was handed over.
    Answer(R),
    /// The mount has ended.
    End,
}

impl<R> Readers<R> {
    /// Lets `limit` threads wait for requests at a time, at least one.
    pub(super) fn new(limit: usize) -> Self {
        let state = ReaderCounts {
            reading: 0,
            idle: 0,
            replaced: false,
            watched: false,
            handed: VecDeque::new(),
            closed: false,
        };
        let (state, steps) = (Mutex::new(state), AtomicU64::new(0));
        Self { limit: limit.max(1), state, steps, wanted: Condvar::new() }
    }

    /// Waits until there is something to do. A caller that is to read calls [`Readers::leave`] once
    /// it has a request.
    pub(super) fn enter(&self) -> Turn<R> {
        let mut state = self.state.lock();
        loop {
            if let Some(request) = state.handed.pop_front() {
                return Turn::Answer(request);
            }
            if state.closed {
                return Turn::End;
            }
            if state.reading < self.limit && !state.replaced {
                state.reading += 1;
                return Turn::Read;
            }
            state.idle += 1;
            if state.replaced && !state.watched {
                state.watched = true;
                let steps = self.steps.load(Ordering::Relaxed);
                let timed_out = self.wanted.wait_for(&mut state, STUCK).timed_out();
                state.watched = false;
                if timed_out && self.steps.load(Ordering::Relaxed) == steps {
                    state.replaced = false;
                }
                if state.idle > 1 {
                    // Another one watches, or reads.
                    self.wanted.notify_one();
                }
            } else {
                self.wanted.wait(&mut state);
            }
            state.idle -= 1;
        }
    }

    /// Ends the caller's turn: it has a request.
    pub(super) fn leave(&self) {
        self.state.lock().reading -= 1;
    }

    /// Has another thread wait for requests, unless one does. Called before the caller answers a
    /// request that may take long.
    pub(super) fn replace(&self) {
        let state = self.state.lock();
        if state.reading == 0 && state.idle > 0 && !state.replaced {
            drop(state);
            self.wanted.notify_one();
        }
    }

    /// Lets the caller take the requests from now on, in place of the readers. It calls
    /// [`Readers::step`] at least every [`STUCK`].
    pub(super) fn take_over(&self) {
        self.state.lock().replaced = true;
        self.wanted.notify_one();
    }

    /// Ends [`Readers::take_over`].
    pub(super) fn give_back(&self) {
        self.state.lock().replaced = false;
        self.wanted.notify_all();
    }

    /// Notes a step of the thread that took over. Returns whether it still has the requests.
    pub(super) fn step(&self) -> bool {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.state.lock().replaced
    }

    /// Hands a request over to a thread that is or becomes idle.
    pub(super) fn hand_over(&self, request: R) {
        self.state.lock().handed.push_back(request);
        self.wanted.notify_one();
    }

    /// Ends the waits of all threads.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.wanted.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    #[test]
    fn few_threads_read_and_none_starves() {
        const REQUESTS: usize = 2000;
        let readers = Readers::<()>::new(2);
        let (reading, taken) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while readers.enter() == Turn::Read {
                        assert!(reading.fetch_add(1, Ordering::SeqCst) < 2, "more than two read");
                        let number = taken.fetch_add(1, Ordering::SeqCst);
                        reading.fetch_sub(1, Ordering::SeqCst);
                        readers.leave();
                        if number >= REQUESTS {
                            return readers.close();
                        }
                        if number % 3 == 0 {
                            // A request that takes long.
                            readers.replace();
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        assert!(taken.into_inner() > REQUESTS);
        assert_eq!(readers.state.lock().reading, 0);
    }

    #[test]
    fn another_thread_reads_while_all_readers_answer() {
        let readers = Readers::<()>::new(1);
        assert_eq!(readers.enter(), Turn::Read);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| readers.enter());
            while readers.state.lock().idle == 0 {
                std::thread::yield_now();
            }
            readers.leave();
            readers.replace();
            assert_eq!(other.join().unwrap(), Turn::Read);
        });
    }

    #[test]
    fn handed_over_requests_are_answered_and_a_stuck_thread_is_replaced() {
        let readers = Readers::new(1);
        readers.take_over();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| readers.enter())).collect();
            readers.hand_over(7);
            readers.hand_over(8);
            // No step: the thread that gets no request reads, be it before the others or after.
            let mut turns: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            turns.sort_unstable_by_key(|turn| match turn {
                Turn::Answer(number) => *number,
                _ => 9,
            });
            assert_eq!(turns, [Turn::Answer(7), Turn::Answer(8), Turn::Read]);
        });
        assert!(!readers.step(), "it was replaced");
        readers.take_over();
        assert!(readers.step());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| readers.enter());
            readers.leave();
            let begun = Instant::now();
            let mut previous = begun;
            while begun.elapsed() < STUCK * 4 {
                let now = Instant::now();
                if !readers.step() {
                    // Only a busy machine can have kept this thread from a step for so long.
                    assert!(previous.elapsed() >= STUCK, "it goes on");
                    break;
                }
                previous = now;
                std::thread::yield_now();
            }
            readers.give_back();
            assert_eq!(waiting.join().unwrap(), Turn::Read);
        });
    }
}
