//! A device that a test can hold, to see which threads go on meanwhile.

use papilio_device::{Access, Device, MemoryDevice, PhysicalAddress, StartedOp};
use std::io;
use std::sync::{Arc, Condvar, Mutex};

/// The calls that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    Nothing,
    /// Writes, with those in flight.
    #[allow(dead_code, reason = "each crate that includes this file uses a part of it")]
    Writes,
    /// All calls that wait for the device, such as reads of tree blocks and flushes. Requests in
    /// flight pass.
    #[allow(dead_code, reason = "each crate that includes this file uses a part of it")]
    Everything,
}

#[derive(Debug)]
struct State {
    hold: Hold,
    waiting: usize,
}

/// A memory device that lets no call through that it holds.
#[derive(Debug)]
pub struct HeldDevice {
    inner: Arc<MemoryDevice>,
    state: Mutex<State>,
    changed: Condvar,
}

/// Releases the device at the end of a test, also of one that failed.
pub struct Release<'d>(pub &'d HeldDevice);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.set(Hold::Nothing);
    }
}

impl HeldDevice {
    /// Returns a device with the bytes of `inner`. It holds nothing yet.
    pub fn new(inner: Arc<MemoryDevice>) -> Arc<Self> {
        let state = State { hold: Hold::Nothing, waiting: 0 };
        Arc::new(Self { inner, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Sets which calls wait.
    pub fn set(&self, hold: Hold) {
        self.state.lock().unwrap().hold = hold;
        self.changed.notify_all();
    }

    /// Waits until a call waits.
    #[allow(dead_code, reason = "each crate that includes this file uses a part of it")]
    pub fn wait_for_a_call(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.waiting == 0).unwrap());
    }

    fn pass(&self, held_by: &[Hold]) {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |state| held_by.contains(&state.hold)).unwrap();
        state.waiting -= 1;
    }
}

impl Device for HeldDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn access(&self) -> Access {
        self.inner.access()
    }

    fn waits(&self) -> bool {
        true
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        self.pass(&[Hold::Everything]);
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.pass(&[Hold::Writes, Hold::Everything]);
        self.inner.write_at(buffer, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.pass(&[Hold::Everything]);
        self.inner.flush()
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        self.inner.discard(offset, length)
    }

    fn start(self: Arc<Self>, op: StartedOp) {
        op.run(&*self.inner);
    }
}
