//! `DelayDevice`: a decorator that answers after a fixed time, as a disk or a network would.
//!
//! It owns a thread that carries out started requests when their time has come. Any number of
//! requests is in flight at once, and each takes the same time; or, as on a disk with one head, the
//! device works on one at a time. Calls that wait sleep.
//!
//! The thread sleeps until shortly before a request ends, then spins. A processor that wakes from
//! idle is up to 50 µs late, which is not the delay that was asked for.
//!
//! **Locks**
//! - `queue`: held for one operation on the heap, never across a call to the inner device.

use crate::device::{Access, Advice, Device, ReadRequest, WriteRequest};
use crate::started::StartedOp;
use papilio_format::PhysicalAddress;
use papilio_locks::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
#[cfg(target_os = "linux")]
use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The thread spins, and does not sleep, for the last part of a delay.
const SPIN: Duration = Duration::from_micros(60);

/// A decorator that answers each request after a fixed time.
#[derive(Debug)]
pub struct DelayDevice {
    inner: Arc<dyn Device>,
    delay: Duration,
    one_at_a_time: bool,
    name: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    added: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// By time: all requests take the same.
    waiting: VecDeque<(Instant, StartedOp)>,
    /// When the last accepted request ends, if the device works on one at a time.
    busy_until: Option<Instant>,
    closed: bool,
}

impl DelayDevice {
    /// Puts a delay before each request to `inner`.
    ///
    /// # Errors
    /// The host has no thread left.
    pub fn new(inner: Arc<dyn Device>, delay: Duration) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let (queue, device) = (Arc::clone(&shared), Arc::clone(&inner));
        let thread = std::thread::Builder::new().name("papilio-delay".into());
        let thread = Some(thread.spawn(move || queue.carry_out(&*device))?);
        let name = format!("{} delayed by {delay:?}", inner.name());
        Ok(Self { inner, delay, one_at_a_time: false, name, shared, thread })
    }

    /// Makes the device work on one request at a time.
    #[must_use]
    pub fn one_at_a_time(mut self) -> Self {
        self.one_at_a_time = true;
        self
    }

    /// Returns when `count` more requests have ended.
    fn due(&self, queue: &mut Queue, count: u32) -> Instant {
        let now = Instant::now();
        if !self.one_at_a_time {
            return now + self.delay;
        }
        let begin = queue.busy_until.map_or(now, |busy| busy.max(now));
        let due = begin + self.delay * count;
        queue.busy_until = Some(due);
        due
    }

    /// Sleeps until `count` requests have ended.
    fn sleep(&self, count: usize) {
        let due = self.due(&mut self.shared.queue.lock(), u32::try_from(count).unwrap_or(u32::MAX));
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

impl Shared {
    /// Carries out requests when their time has come; the main function of the thread.
    fn carry_out(&self, device: &dyn Device) {
        // A thread may else wake some 50 µs late.
        #[cfg(target_os = "linux")]
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut ended = Vec::new();
        let mut queue = self.queue.lock();
        loop {
            let now = Instant::now();
            while queue.waiting.front().is_some_and(|&(due, _)| due <= now) {
                ended.extend(queue.waiting.pop_front().map(|(_, op)| op));
            }
            if !ended.is_empty() {
                drop(queue);
                ended.drain(..).for_each(|op: StartedOp| op.run(device));
                queue = self.queue.lock();
                continue;
            }
            match queue.waiting.front() {
                Some(&(due, _)) if due - now <= SPIN => {
                    drop(queue);
                    while Instant::now() < due {
                        std::hint::spin_loop();
                    }
                    queue = self.queue.lock();
                }
                Some(&(due, _)) => {
                    self.added.wait_for(&mut queue, due - now - SPIN);
                }
                None if queue.closed => return,
                None => self.added.wait(&mut queue),
            }
        }
    }
}

impl Drop for DelayDevice {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.added.notify_one();
        if let Some(thread) = self.thread.take()
            // A driver that drops the last handle in the thread itself cannot wait for it.
            && thread.thread().id() != std::thread::current().id()
        {
            drop(thread.join());
        }
    }
}

impl Device for DelayDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn access(&self) -> Access {
        self.inner.access()
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn waits(&self) -> bool {
        true
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        self.sleep(1);
        self.inner.read_at(buffer, offset)
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        self.sleep(requests.len());
        self.inner.read_many(requests);
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.sleep(1);
        self.inner.write_at(buffer, offset)
    }

    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        self.sleep(requests.len());
        self.inner.write_many(requests);
    }

    fn write_fua(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.sleep(1);
        self.inner.write_fua(buffer, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.sleep(1);
        self.inner.flush()
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        self.inner.discard(offset, length)
    }

    fn start(self: Arc<Self>, op: StartedOp) {
        let mut queue = self.shared.queue.lock();
        let due = self.due(&mut queue, 1);
        queue.waiting.push_back((due, op));
        let first = queue.waiting.len() == 1;
        drop(queue);
        if first {
            self.shared.added.notify_one();
        }
    }

    fn advise(&self, offset: PhysicalAddress, length: u64, advice: Advice) {
        self.inner.advise(offset, length, advice);
    }
}
