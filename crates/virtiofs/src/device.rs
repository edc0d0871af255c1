//! The device that a monitor sees: its queues, features and configuration.
//!
//! Owns [`FsDevice`]. It takes requests from the queues, answers quick ones at once, and leaves
//! slow ones to [`Threads`].
//!
//! **Invariants**
//! - A request that was taken is given back to its queue exactly once.
//! - While `in_flight` is 0, nothing touches the guest's memory but the thread of the queues.
//!
//! **Locks**, in this order:
//! 1. The lock of a queue (in its crate), to take a request or to give one back.
//! 2. `in_flight`, for an instant, and to wait for 0 without any other lock.

use crate::chain::{self, Chain, Memory};
use crate::tag::Tag;
use crate::threads::Threads;
use papilio_fuse::guest::{GuestMessage, GuestSession};
use papilio_locks::{Condvar, Mutex};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{VhostUserBackend, VringMutex, VringT};
use virtio_bindings::bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::QueueT;
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

/// Entries of a queue: enough for a request of 1 MiB in single pages.
const QUEUE_ENTRIES: usize = 1024;
/// Most queues for requests; one more is for requests that must not wait.
const MOST_QUEUES: usize = 8;
/// Messages that are kept for later requests.
const SPARE: usize = 64;

/// A device for one connection of a monitor.
pub(crate) struct FsDevice {
    session: Arc<GuestSession>,
    threads: Arc<Threads>,
    tag: Tag,
    /// Queues for requests, without the one of high priority.
    queues: usize,
    /// The guest and the device tell each other from which entry on they want to be woken.
    event_index: AtomicBool,
    memory: Mutex<Option<GuestMemoryAtomic<GuestMemoryMmap>>>,
    /// Requests that were taken and not yet given back.
    in_flight: Mutex<usize>,
    /// It is 0.
    idle: Condvar,
    spare: Mutex<Vec<GuestMessage>>,
    /// Descriptors that end the threads of the queues. Their crate does not close them.
    exits: Mutex<Vec<RawFd>>,
}

impl FsDevice {
    pub(crate) fn new(session: Arc<GuestSession>, threads: Arc<Threads>, tag: Tag) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            session,
            threads,
            tag,
            queues: processors.min(MOST_QUEUES),
            event_index: AtomicBool::new(false),
            memory: Mutex::default(),
            in_flight: Mutex::default(),
            idle: Condvar::new(),
            spare: Mutex::default(),
            exits: Mutex::default(),
        }
    }

    /// Waits until every request that was taken is given back.
    pub(crate) fn drain(&self) {
        let mut in_flight = self.in_flight.lock();
        while *in_flight > 0 {
            self.idle.wait(&mut in_flight);
        }
    }

    /// Closes what the threads of the queues leave open.
    ///
    /// # Safety
    /// No thread of the queues is left.
    pub(crate) unsafe fn close(&self) {
        for exit in self.exits.lock().drain(..) {
            // SAFETY: the descriptor was given to the crate of the queues, which keeps it only as a
            // number in an epoll. Its threads have ended, by the contract of this function.
            drop(unsafe { OwnedFd::from_raw_fd(exit) });
        }
    }

    fn memory(&self) -> Option<Memory> {
        self.memory.lock().as_ref().map(|memory| memory.memory().into_inner())
    }

    /// Takes a request from a queue.
    fn take(&self, queue: &VringMutex, memory: &Memory) -> Option<Chain> {
        let mut state = queue.get_mut();
        if !state.get_queue().ready() {
            return None;
        }
        let chain = state.get_queue_mut().pop_descriptor_chain(Arc::clone(memory))?;
        // Under the lock of the queue: a queue that was stopped has no request without a count.
        *self.in_flight.lock() += 1;
        Some(chain)
    }

    /// Takes all requests of a queue. Returns whether there were any.
    fn take_all(self: &Arc<Self>, queue: &VringMutex) -> bool {
        let Some(memory) = self.memory() else { return false };
        let mut any = false;
        while let Some(chain) = self.take(queue, &memory) {
            any = true;
            let spare = self.spare.lock().pop();
            let mut taken = Taken {
                device: Arc::clone(self),
                queue: queue.clone(),
                memory: Arc::clone(&memory),
                head: chain.head_index(),
                message: Some(spare.unwrap_or_default()),
                written: 0,
            };
            let message = taken.message.as_mut().expect("it was just set");
            if !chain::receive(&chain, &memory, message) {
                tracing::warn!("the guest's request is malformed");
                continue;
            }
            if self.session.is_slow(message) {
                self.threads.run(move || taken.answer(&chain));
            } else {
                taken.answer(&chain);
            }
        }
        any
    }
}

/// A request that was taken. Dropping it gives it back to its queue.
struct Taken {
    device: Arc<FsDevice>,
    queue: VringMutex,
    memory: Memory,
    head: u16,
    message: Option<GuestMessage>,
    /// Bytes of the reply.
    written: u32,
}

impl Taken {
    fn answer(mut self, chain: &Chain) {
        let message = self.message.as_mut().expect("it is taken at the end");
        if self.device.session.answer(message) {
            self.written = chain::send(chain, &self.memory, message.reply());
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let given_back = self.queue.add_used(self.head, self.written);
        match given_back.and_then(|()| self.queue.needs_notification()) {
            Ok(true) => {
                if let Err(error) = self.queue.signal_used_queue() {
                    tracing::warn!("waking the guest: {error}");
                }
            }
            Ok(false) => {}
            Err(error) => tracing::warn!("the guest's queue: {error}"),
        }
        if let Some(message) = self.message.take() {
            let mut spare = self.device.spare.lock();
            if spare.len() < SPARE {
                spare.push(message);
            }
        }
        let mut in_flight = self.device.in_flight.lock();
        *in_flight -= 1;
        if *in_flight == 0 {
            self.device.idle.notify_all();
        }
    }
}

/// The device as the crate of the queues calls it.
#[derive(Clone)]
pub(crate) struct Backend(pub(crate) Arc<FsDevice>);

impl VhostUserBackend for Backend {
    type Bitmap = ();
    type Vring = VringMutex;

    fn num_queues(&self) -> usize {
        self.0.queues + 1
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_ENTRIES
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_F_VERSION_1
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | 1 << VIRTIO_RING_F_EVENT_IDX
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }

    fn set_event_idx(&self, enabled: bool) {
        self.0.event_index.store(enabled, Ordering::Relaxed);
    }

    /// `struct virtio_fs_config`: the tag, and the number of queues for requests.
    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let mut config = self.0.tag.bytes().to_vec();
        config.extend((self.0.queues as u32).to_le_bytes());
        let (first, size) = (offset as usize, size as usize);
        config.into_iter().skip(first).chain(std::iter::repeat(0)).take(size).collect()
    }

    fn update_memory(&self, memory: GuestMemoryAtomic<GuestMemoryMmap>) -> io::Result<()> {
        *self.0.memory.lock() = Some(memory);
        Ok(())
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        let made = new_event_consumer_and_notifier(EventFlag::CLOEXEC);
        let made = made.inspect_err(|error| tracing::error!("a descriptor for events: {error}")).ok()?;
        self.0.exits.lock().push(made.0.as_raw_fd());
        Some(made)
    }

    fn stop_vring(&self, _queue: u32) -> io::Result<()> {
        self.0.drain();
        Ok(())
    }

    fn handle_event(
        &self,
        queue: u16,
        events: EventSet,
        queues: &[VringMutex],
        _thread: usize,
    ) -> io::Result<()> {
        let Some(queue) = queues.get(usize::from(queue)).filter(|_| events == EventSet::IN) else {
            return Ok(());
        };
        let woken = || {
            self.0.take_all(queue);
            if !self.0.event_index.load(Ordering::Relaxed) {
                return;
            }
            // A request that came before this asked to be woken may have woken nobody. A ring that
            // lies has more entries, of which none can be taken. An error would end the thread.
            while queue.enable_notification().unwrap_or(false) && self.0.take_all(queue) {}
        };
        if catch_unwind(AssertUnwindSafe(woken)).is_err() {
            tracing::error!("taking requests panicked");
        }
        Ok(())
    }
}
