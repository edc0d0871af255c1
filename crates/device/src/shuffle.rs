//! `ShuffleDevice`: a decorator that completes started requests late and out of order, by seed.
//!
//! It owns the requests that were started and not carried out. Some of them are carried out when a
//! driver has nothing else to do ([`Device::advance`]). A run in one thread is therefore the same
//! each time.
//!
//! **Invariants**
//! - A request reaches the inner device once. Until then it has not happened: a power loss that is
//!   recorded below has lost it.
//! - A flush carries out nothing: it covers the writes that have completed.
//!
//! **Locks**
//! - `state`: held for one choice, never across a call to the inner device.

use crate::device::{Access, Advice, Device, ReadRequest, WriteRequest};
use crate::started::StartedOp;
use papilio_format::PhysicalAddress;
use papilio_locks::Mutex;
use std::io;
use std::sync::Arc;

/// A decorator that completes started requests late and out of order.
#[derive(Debug)]
pub struct ShuffleDevice {
    inner: Arc<dyn Device>,
    state: Mutex<ShuffleState>,
}

#[derive(Debug)]
struct ShuffleState {
    waiting: Vec<StartedOp>,
    /// The state of the generator, xorshift64*.
    random: u64,
}

impl ShuffleState {
    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}

impl ShuffleDevice {
    /// Shuffles the requests to `inner`.
    pub fn new(inner: Arc<dyn Device>, seed: u64) -> Self {
        // The generator needs a state other than 0.
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { inner, state: Mutex::new(ShuffleState { waiting: Vec::new(), random }) }
    }

    /// Returns the number of requests that were started and not carried out.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }
}

impl Device for ShuffleDevice {
    fn name(&self) -> &str {
        self.inner.name()
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
        self.inner.read_at(buffer, offset)
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        self.inner.read_many(requests);
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.inner.write_at(buffer, offset)
    }

    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        self.inner.write_many(requests);
    }

    fn write_fua(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.inner.write_fua(buffer, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        self.inner.discard(offset, length)
    }

    fn start(self: Arc<Self>, op: StartedOp) {
        self.state.lock().waiting.push(op);
    }

    fn advance(&self) -> bool {
        let mut state = self.state.lock();
        let mut left = match state.waiting.len() {
            0 => return false,
            waiting => 1 + state.below(waiting),
        };
        while left > 0 && !state.waiting.is_empty() {
            let waiting = state.waiting.len();
            let chosen = state.below(waiting);
            let op = state.waiting.swap_remove(chosen);
            drop(state);
            op.run(&*self.inner);
            state = self.state.lock();
            left -= 1;
        }
        true
    }

    fn advise(&self, offset: PhysicalAddress, length: u64, advice: Advice) {
        self.inner.advise(offset, length, advice);
    }
}
