//! Keeps idle processors from sleeping while requests stream in.
//!
//! A round trip has two wake-ups: that of a server thread and that of the caller. An idle processor
//! of a virtual machine sleeps in its host, and waking it takes some 20 µs, more than the rest of a
//! small request. Linux lets a program ask for a short wake-up (PM QoS,
//! Documentation/power/pm_qos_interface.rst): while `/dev/cpu_dma_latency` is held open with the
//! value 0, idle processors poll instead of sleeping.
//!
//! Owns [`CpuLatency`]. Its thread holds the device only while requests come faster than
//! [`STREAM`] in each period, and releases it a period after the last one. Polling costs a busy
//! machine nothing, because only idle processors poll. It is off on machines with more than
//! [`MAX_PROCESSORS`], where most processors would poll for nothing, and where this process may not
//! open the device.
//!
//! **Invariants**
//! - The request path takes no lock: it adds to a counter, and wakes the thread when a stream may
//!   have begun.
//!
//! **Locks**
//! - `ended`, by the thread while it waits, and for an instant by others.

use papilio_locks::{Condvar, Mutex};
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const DEVICE: &str = "/dev/cpu_dma_latency";
/// Length of a period.
const PERIOD: Duration = Duration::from_millis(2);
/// Number of requests in a period from which on they are a stream: one in 200 µs.
const STREAM: u64 = 10;
/// Number of processors up to which polling is worthwhile.
const MAX_PROCESSORS: usize = 8;

/// A handle to the thread. The thread ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub(crate) struct CpuLatency(Option<Arc<Handle>>);

#[derive(Debug)]
struct Handle(Arc<LatencyShared>);

#[derive(Debug, Default)]
struct LatencyShared {
    /// Number of requests so far.
    requests: AtomicU64,
    /// The thread waits for a stream.
    asleep: AtomicBool,
    ended: Mutex<bool>,
    wake: Condvar,
}

impl CpuLatency {
    /// Returns a handle that does nothing.
    pub(crate) fn off() -> Self {
        Self(None)
    }

    /// Starts the thread, if this process may influence how processors idle and the machine is
    /// small.
    pub(crate) fn start(threads: &mut Vec<JoinHandle<()>>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        if processors > MAX_PROCESSORS {
            tracing::debug!("idle processors may sleep: there are {processors}");
            return Self::off();
        }
        if let Err(error) = File::options().write(true).open(DEVICE) {
            tracing::debug!("{DEVICE}: {error}; each request may wait for a sleeping processor");
            return Self::off();
        }
        let shared = Arc::new(LatencyShared { asleep: AtomicBool::new(true), ..LatencyShared::default() });
        let own = Arc::clone(&shared);
        match std::thread::Builder::new().name("papilio-wakeful".to_owned()).spawn(move || own.run()) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                tracing::warn!("starting a thread: {error}");
                return Self::off();
            }
        }
        Self(Some(Arc::new(Handle(shared))))
    }

    /// Notes a request.
    pub(crate) fn note(&self) {
        let Some(handle) = &self.0 else { return };
        let shared = &handle.0;
        let before = shared.requests.fetch_add(1, Ordering::Relaxed);
        // A single request wakes nobody; ten more may be a stream.
        if before % STREAM == STREAM - 1 && shared.asleep.swap(false, Ordering::AcqRel) {
            let _ended = shared.ended.lock();
            shared.wake.notify_one();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        *self.0.ended.lock() = true;
        self.0.wake.notify_one();
    }
}

impl LatencyShared {
    fn run(&self) {
        let mut last = 0;
        let mut began = Instant::now();
        let mut held = None;
        loop {
            {
                let mut ended = self.ended.lock();
                if held.is_none() {
                    self.asleep.store(true, Ordering::Release);
                    while !*ended && self.asleep.load(Ordering::Acquire) {
                        self.wake.wait(&mut ended);
                    }
                }
                if *ended {
                    return;
                }
            }
            let requests = self.requests.load(Ordering::Relaxed);
            let stream = is_stream(requests - last, began.elapsed());
            (last, began) = (requests, Instant::now());
            match (stream, &held) {
                (true, None) => match poll_when_idle() {
                    Ok(device) => held = Some(device),
                    Err(error) => tracing::debug!("{DEVICE}: {error}"),
                },
                (false, Some(_)) => held = None,
                _ => {}
            }
            if held.is_some() {
                std::thread::sleep(PERIOD);
            }
        }
    }
}

/// Returns whether so many requests in this time are a stream.
fn is_stream(requests: u64, time: Duration) -> bool {
    let periods = time.as_secs_f64() / PERIOD.as_secs_f64();
    requests as f64 >= STREAM as f64 * periods.max(0.5)
}

/// Asks for processors that poll when they are idle, until the file is closed.
fn poll_when_idle() -> io::Result<File> {
    let mut device = File::options().write(true).open(DEVICE)?;
    device.write_all(&0_i32.to_ne_bytes())?;
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frequent_requests_are_a_stream() {
        assert!(is_stream(10, PERIOD) && is_stream(100, PERIOD));
        assert!(!is_stream(9, PERIOD) && !is_stream(10, Duration::from_millis(5)));
        assert!(!is_stream(0, Duration::ZERO));
    }

    #[test]
    fn thread_ends_with_its_last_handle() {
        let mut threads = Vec::new();
        let cpu_latency = CpuLatency::start(&mut threads);
        let other = cpu_latency.clone();
        for _ in 0..10_000 {
            other.note();
        }
        drop((cpu_latency, other));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        CpuLatency::off().note();
    }
}
