//! Reads and direct writes that are in flight while no thread waits for them.
//!
//! Owns [`DataQueue`]. A thread of a transport that receives such a request begins it here, and
//! goes on to the next request. The queue's thread hands it to the devices and ends it when they
//! have answered; the transport sends the reply. Only file systems on devices that answer later
//! have a queue.
//!
//! While many requests are in flight, the queue's thread also receives them, from a [`Source`]. In
//! turn it begins some, hands them to the devices, and replies to some that have ended. No other
//! thread takes part, and it rarely sleeps.
//!
//! **Invariants**
//! - A message in the queue is lent to the devices: nothing else touches its buffer.
//! - Each message that was accepted is answered exactly once, also if the mount ends meanwhile.
//!
//! **Locks**: `state`, for beginning requests and for collecting those that have ended. Replies are
//! made and sent without it.
//!
//! Kernel counterpart: `fuse_direct_io`, which keeps requests in flight (`fs/fuse/file.c`).

use crate::dispatch::{Aftermath, DataRequest, Dispatcher, Message, QueuedData};
use papilio::{IoCompletion, IoOperation, IoQueue, IoRequest, StableBuffer};
use papilio_locks::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{read, write};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

/// The most requests in flight. A transport's thread answers those beyond by itself.
const DEPTH: usize = 128;
/// Threads for requests that have to wait for more than their own data.
const WAITING: usize = 8;
/// Replies that are sent before the devices get what has begun meanwhile.
const REPLIES: usize = 8;
/// Messages that are received before the devices get them.
const RECEIVED: usize = 8;
/// Requests in flight from which on the queue's thread receives the messages.
const MANY: usize = 4;
/// How long the queue's thread waits for messages before it gives the source back.
const LINGER: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// Of so many messages, at least half have to be for the queue, or it gives the source back.
const WINDOW: u32 = 64;

/// A message whose buffer may be lent to a device.
///
/// # Safety
/// The buffer of [`Message::open`] stays in place until the message is dropped or answered, also
/// while the message is moved.
pub(crate) unsafe trait LentMessage: Message + Send + 'static {}

/// A message that a thread must answer, and what was decoded of it.
pub(crate) struct Unbegun<M> {
    pub(crate) message: M,
    /// For [`Dispatcher::answer_decoded`].
    pub(crate) decoded: Option<DataRequest>,
    /// Dropped when it is answered.
    pub(crate) alone: Option<Alone>,
}

impl<M> Unbegun<M> {
    /// A message that nothing is known of.
    pub(crate) fn new(message: M) -> Self {
        Self { message, decoded: None, alone: None }
    }
}

/// The only direct read of the moment, which a thread answers by itself: that takes fewer switches
/// between threads, and the host's page cache gets the data. Those beside it are for the queue.
pub(crate) struct Alone(Arc<AtomicBool>);

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Where the queue's thread receives messages itself.
pub(crate) trait Source<M>: Send {
    /// Returns a descriptor that is readable when a message may wait; `None` if the thread can
    /// receive none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
    /// Has the thread receive all messages from now on, in place of others.
    fn take_over(&mut self);
    /// Ends [`Source::take_over`].
    fn give_back(&mut self);
    /// Notes that the thread goes on. Returns whether it still receives the messages.
    fn step(&mut self) -> bool;
    /// Returns the next message without waiting. Hands those over that the queue is not for.
    fn receive(&mut self) -> Taken<M>;
    /// Hands a message over to a thread that may wait.
    fn hand_over(&mut self, message: Unbegun<M>);
}

/// The result of [`Source::receive`].
pub(crate) enum Taken<M> {
    /// A message for the queue.
    Data(M),
    /// A message that was handed over.
    Other,
    /// There is none.
    Nothing,
    /// There will be none any more.
    Closed,
}

/// Sends the reply of a message, after what the kernel must drop first.
type Finish<M> = Box<dyn Fn(M, Aftermath) + Send + Sync>;

/// A handle for the threads of a transport. Dropping the last one ends the queue's thread, once all
/// requests are answered.
pub(crate) struct DataQueue<M: LentMessage> {
    shared: Arc<QueueShared<M>>,
    /// Tells the queue's thread where to wait. Dropped before, it ends the thread.
    start: Mutex<Option<Sender<OwnedFd>>>,
    /// Wakes the queue's thread, once that waits.
    signal: OnceLock<OwnedFd>,
}

struct QueueShared<M: LentMessage> {
    state: Mutex<DataQueueState<M>>,
    dispatcher: Arc<Dispatcher>,
    finish: Finish<M>,
    /// Whether a thread answers a direct read by itself.
    alone: Arc<AtomicBool>,
}

struct DataQueueState<M: LentMessage> {
    queue: IoQueue<Lent<M>>,
    /// The requests in flight, by token.
    begun: Vec<Option<DataRequest>>,
    free: Vec<usize>,
    closed: bool,
}

/// The part of a message's buffer that is lent.
struct Lent<M> {
    message: M,
    bytes: *mut u8,
    length: usize,
}

// SAFETY: the bytes belong to the message, which may be moved to another thread.
unsafe impl<M: LentMessage> Send for Lent<M> {}

// SAFETY: a `LentMessage` keeps its buffer in place. Nothing opens the message until the buffer is
// taken back, so the pointer is the only way to the bytes.
unsafe impl<M: LentMessage> StableBuffer for Lent<M> {
    fn stable(&self) -> &[u8] {
        // SAFETY: see above; `DataQueue::begin` took address and length from a slice.
        unsafe { std::slice::from_raw_parts(self.bytes, self.length) }
    }

    fn stable_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `stable`.
        unsafe { std::slice::from_raw_parts_mut(self.bytes, self.length) }
    }
}

impl<M: LentMessage> DataQueueState<M> {
    /// Moves completions to `ended`, with their requests.
    fn take(&mut self, done: &mut Vec<IoCompletion<Lent<M>>>, ended: &mut impl Extend<Ended<M>>) {
        ended.extend(done.drain(..).map(|completion| {
            let token = completion.token as usize;
            let begun = self.begun[token].take().expect("each request ends once");
            self.free.push(token);
            (completion, begun)
        }));
    }
}

impl<M: LentMessage> DataQueue<M> {
    /// Creates a queue, and appends the handle of its thread to `threads`. `finish` sends a reply.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn start(
        dispatcher: Arc<Dispatcher>,
        threads: &mut Vec<JoinHandle<()>>,
        finish: impl Fn(M, Aftermath) + Send + Sync + 'static,
        source: Option<Box<dyn Source<M>>>,
    ) -> io::Result<Self> {
        let state = DataQueueState {
            queue: IoQueue::with_threads(DEPTH, WAITING)?,
            begun: Vec::with_capacity(DEPTH),
            free: Vec::with_capacity(DEPTH),
            closed: false,
        };
        let (state, alone) = (Mutex::new(state), Arc::default());
        let shared = QueueShared { state, dispatcher, finish: Box::new(finish), alone };
        let (shared, (sender, receiver)) = (Arc::new(shared), channel());
        let of_thread = Arc::clone(&shared);
        let serve = move || of_thread.serve(&receiver, source);
        threads.push(Builder::new().name("papilio-data".to_owned()).spawn(serve)?);
        Ok(Self { shared, start: Mutex::new(Some(sender)), signal: OnceLock::new() })
    }

    /// Begins a read or a write that can be in flight, and answers it later.
    ///
    /// # Errors
    /// The message itself, if a thread must answer it.
    pub(crate) fn begin(&self, message: M) -> Result<(), Unbegun<M>> {
        let mut state = self.shared.begin(message)?;
        if !self.wake(&state.queue) {
            // Without descriptors left the request is waited for here.
            let (mut done, mut ended) = (Vec::new(), Vec::new());
            state.queue.wait(usize::MAX, &mut done);
            state.take(&mut done, &mut ended);
            drop(state);
            ended.into_iter().for_each(|(completion, begun)| self.shared.end(completion, begun));
        }
        Ok(())
    }

    /// Wakes the queue's thread. With the first request, tells it where to wait. Returns whether
    /// the thread is there.
    fn wake(&self, queue: &IoQueue<Lent<M>>) -> bool {
        if let Some(signal) = self.signal.get() {
            return write(signal, &1u64.to_ne_bytes()).is_ok();
        }
        let Ok(Some(fd)) = queue.event_fd() else { return false };
        let Ok(own) = fd.try_clone() else { return false };
        let Some(start) = self.start.lock().take() else { return false };
        let _ = write(&own, &1u64.to_ne_bytes());
        self.signal.set(own).is_ok() && start.send(fd).is_ok()
    }
}

impl<M: LentMessage> QueueShared<M> {
    /// Begins a request, and returns the locked state. The devices get it when the queue is polled.
    fn begin(&self, mut message: M) -> Result<MutexGuard<'_, DataQueueState<M>>, Unbegun<M>> {
        let Some(begun) = self.dispatcher.data_request(&mut message) else {
            return Err(Unbegun::new(message));
        };
        let decoded = Some(begun);
        let Some(file) = self.dispatcher.begin(&begun) else {
            return Err(Unbegun { decoded, ..Unbegun::new(message) });
        };
        let (_, buffer) = message.open();
        let Some(buffer) = buffer.get_mut(..begun.length()) else {
            return Err(Unbegun { decoded, ..Unbegun::new(message) });
        };
        let (bytes, length) = (buffer.as_mut_ptr(), buffer.len());
        let mut state = self.state.lock();
        if state.queue.in_flight() == 0
            && self.dispatcher.queued_data() == QueuedData::DirectReads
            && !self.alone.swap(true, Ordering::AcqRel)
        {
            let alone = Some(Alone(Arc::clone(&self.alone)));
            return Err(Unbegun { message, decoded, alone });
        }
        let buffer = Lent { message, bytes, length };
        let offset = begun.offset();
        let operation = match begun.is_write() {
            true => IoOperation::Write { buffer, offset },
            false => IoOperation::Read { buffer, offset },
        };
        let token = state.free.pop().unwrap_or_else(|| {
            state.begun.push(None);
            state.begun.len() - 1
        });
        state.begun[token] = Some(begun);
        match state.queue.begin(IoRequest { file, operation, token: token as u64 }) {
            Ok(()) => Ok(state),
            Err(request) => {
                state.begun[token] = None;
                state.free.push(token);
                drop(state);
                match request.operation {
                    IoOperation::Read { buffer, .. } | IoOperation::Write { buffer, .. } => {
                        Err(Unbegun { decoded, ..Unbegun::new(buffer.message) })
                    }
                    _ => unreachable!("it is a read or a write"),
                }
            }
        }
    }

    /// Ends requests until the handle is dropped; the main function of the thread.
    fn serve(&self, receiver: &Receiver<OwnedFd>, source: Option<Box<dyn Source<M>>>) {
        let Ok(signal) = receiver.recv() else { return };
        let mut intake = Intake::new(source);
        let mut done = Vec::with_capacity(DEPTH);
        let mut ended = VecDeque::with_capacity(DEPTH);
        // Whether the signal was read since the thread did anything. A completion that arrives
        // later signals again.
        let mut quiet = false;
        loop {
            let taken = intake.take(self);
            let (finished, in_flight) = self.collect(&mut done, &mut ended);
            intake.adapt(in_flight);
            let replies = ended.len().min(REPLIES);
            for (completion, begun) in ended.drain(..replies) {
                self.end(completion, begun);
            }
            if taken || replies > 0 {
                quiet = false;
                continue;
            }
            if finished {
                return;
            }
            if !std::mem::replace(&mut quiet, true) {
                let _ = read(&signal, &mut [0; 8]);
                continue;
            }
            intake.wait(&signal);
            quiet = false;
        }
    }

    /// Takes the requests that have ended. Returns whether the queue is closed and empty, and the
    /// number of requests in flight.
    fn collect(
        &self,
        done: &mut Vec<IoCompletion<Lent<M>>>,
        ended: &mut VecDeque<Ended<M>>,
    ) -> (bool, usize) {
        let mut state = self.state.lock();
        state.queue.poll(done);
        state.take(done, ended);
        let in_flight = state.queue.in_flight();
        (state.closed && in_flight == 0, in_flight)
    }

    fn end(&self, completion: IoCompletion<Lent<M>>, begun: DataRequest) {
        let mut message = completion.buffer.expect("reads and writes return their buffers").message;
        let aftermath = self.dispatcher.end(&mut message, &begun, completion.result);
        (self.finish)(message, aftermath);
    }
}

/// The queue's thread as a receiver of messages.
struct Intake<M> {
    source: Option<Box<dyn Source<M>>>,
    /// Whether the thread receives the messages.
    receives: bool,
    /// Messages of the last window, and those of them that were handed over.
    window: (u32, u32),
}

impl<M: LentMessage> Intake<M> {
    fn new(source: Option<Box<dyn Source<M>>>) -> Self {
        let source = source.filter(|source| source.descriptor().is_some());
        Self { source, receives: false, window: (0, 0) }
    }

    /// Receives some messages and begins them. Returns whether there were any.
    fn take(&mut self, shared: &QueueShared<M>) -> bool {
        let Some(source) = self.source.as_mut().filter(|_| self.receives) else { return false };
        self.receives = source.step();
        for number in 0..RECEIVED {
            let is_data = match source.receive() {
                Taken::Data(message) => match shared.begin(message) {
                    Ok(_) => true,
                    Err(unbegun) => {
                        source.hand_over(unbegun);
                        false
                    }
                },
                Taken::Other => false,
                Taken::Nothing => return number > 0,
                Taken::Closed => {
                    source.give_back();
                    (self.source, self.receives) = (None, false);
                    return true;
                }
            };
            self.window.0 += 1;
            self.window.1 += u32::from(!is_data);
        }
        true
    }

    /// Begins to receive where much is in flight. Ends it where most messages were not for the
    /// queue.
    fn adapt(&mut self, in_flight: usize) {
        let Some(source) = &mut self.source else { return };
        if self.window.0 >= WINDOW {
            let (all, others) = std::mem::take(&mut self.window);
            if self.receives && others * 2 > all {
                self.receives = false;
                source.give_back();
            }
        } else if !self.receives && in_flight >= MANY {
            self.receives = true;
            source.take_over();
        }
    }

    /// Waits for a message or for the signal that requests have ended.
    fn wait(&mut self, signal: &OwnedFd) {
        let Some(source) = self.source.as_mut().filter(|_| self.receives) else {
            let _ = poll(&mut [PollFd::new(signal, PollFlags::IN)], None);
            return;
        };
        let waited = {
            let descriptor = source.descriptor().expect("it has one");
            let mut fds = [PollFd::new(signal, PollFlags::IN), PollFd::new(&descriptor, PollFlags::IN)];
            poll(&mut fds, Some(&LINGER))
        };
        if waited == Ok(0) {
            self.receives = false;
            source.give_back();
        }
    }
}

/// A request that has ended.
type Ended<M> = (IoCompletion<Lent<M>>, DataRequest);

impl<M: LentMessage> Drop for DataQueue<M> {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        if let Some(signal) = self.signal.get() {
            let _ = write(signal, &1u64.to_ne_bytes());
        }
    }
}

impl<M: LentMessage> fmt::Debug for DataQueue<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataQueue").finish_non_exhaustive()
    }
}
