//! Reads and direct writes that are in flight while no thread waits for them.
//!
//! Owns [`DataQueue`]. A thread of a transport that receives such a request begins it here, and
//! goes on to the next request. The queue's thread hands it to the devices and ends it when they
//! have answered; the transport sends the reply. Only file systems on devices that answer later
//! have a queue.
//!
//! **Invariants**
//! - A message in the queue is lent to the devices: nothing else touches its buffer.
//! - Each message that was accepted is answered exactly once, also if the mount ends meanwhile.
//!
//! **Locks**: `state`, for beginning requests and for collecting those that have ended. Replies are
//! made and sent without it.
//!
//! Kernel counterpart: `fuse_direct_io`, which keeps requests in flight (`fs/fuse/file.c`).

use crate::dispatch::{Aftermath, DataRequest, Dispatcher, Message};
use crate::transport::Operations;
use papilio::{IoCompletion, IoOperation, IoQueue, IoRequest, StableBuffer};
use papilio_locks::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{read, write};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

/// The most requests in flight. A transport's thread answers those beyond by itself.
const DEPTH: usize = 128;
/// Threads for requests that have to wait for more than their own data.
const WAITING: usize = 8;

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
}

/// Sends the reply of a message, after what the kernel must drop first.
type Finish<M> = Box<dyn Fn(M, Aftermath) + Send + Sync>;

/// A handle for the threads of a transport. Dropping the last one ends the queue's thread, once all
/// requests are answered.
pub(crate) struct DataQueue<M: LentMessage, O> {
    shared: Arc<Shared<M, O>>,
    /// Tells the queue's thread where to wait. Dropped before, it ends the thread.
    start: Mutex<Option<Sender<OwnedFd>>>,
    /// Wakes the queue's thread, once that waits.
    signal: OnceLock<OwnedFd>,
}

struct Shared<M: LentMessage, O> {
    state: Mutex<State<M>>,
    dispatcher: Arc<Dispatcher<O>>,
    finish: Finish<M>,
}

struct State<M: LentMessage> {
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

impl<M: LentMessage> State<M> {
    /// Moves completions to `ended`, with their requests.
    fn take(&mut self, done: &mut Vec<IoCompletion<Lent<M>>>, ended: &mut Vec<Ended<M>>) {
        for completion in done.drain(..) {
            let token = completion.token as usize;
            let begun = self.begun[token].take().expect("each request ends once");
            self.free.push(token);
            ended.push((completion, begun));
        }
    }
}

impl<M: LentMessage, O: Operations> DataQueue<M, O> {
    /// Creates a queue, and appends the handle of its thread to `threads`. `finish` sends a reply.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn start(
        dispatcher: Arc<Dispatcher<O>>,
        threads: &mut Vec<JoinHandle<()>>,
        finish: impl Fn(M, Aftermath) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let state = State {
            queue: IoQueue::with_threads(DEPTH, WAITING)?,
            begun: Vec::with_capacity(DEPTH),
            free: Vec::with_capacity(DEPTH),
            closed: false,
        };
        let shared = Shared { state: Mutex::new(state), dispatcher, finish: Box::new(finish) };
        let (shared, (sender, receiver)) = (Arc::new(shared), channel());
        let of_thread = Arc::clone(&shared);
        threads
            .push(Builder::new().name("papilio-data".to_owned()).spawn(move || of_thread.serve(&receiver))?);
        Ok(Self { shared, start: Mutex::new(Some(sender)), signal: OnceLock::new() })
    }

    /// Begins a read or a write that can be in flight, and answers it later.
    ///
    /// # Errors
    /// The message itself, if a thread must answer it.
    pub(crate) fn begin(&self, mut message: M) -> Result<(), Unbegun<M>> {
        let Some(begun) = self.shared.dispatcher.data_request(&mut message) else {
            return Err(Unbegun { message, decoded: None });
        };
        let decoded = Some(begun);
        let Some(file) = self.shared.dispatcher.begin(&begun) else {
            return Err(Unbegun { message, decoded });
        };
        let (_, buffer) = message.open();
        let Some(buffer) = buffer.get_mut(..begun.length()) else {
            return Err(Unbegun { message, decoded });
        };
        let (bytes, length) = (buffer.as_mut_ptr(), buffer.len());
        let buffer = Lent { message, bytes, length };
        let offset = begun.offset();
        let operation = match begun.is_write() {
            true => IoOperation::Write { buffer, offset },
            false => IoOperation::Read { buffer, offset },
        };
        let mut state = self.shared.state.lock();
        let token = state.free.pop().unwrap_or_else(|| {
            state.begun.push(None);
            state.begun.len() - 1
        });
        state.begun[token] = Some(begun);
        match state.queue.begin(IoRequest { file, operation, token: token as u64 }) {
            Ok(()) => {
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
            Err(request) => {
                state.begun[token] = None;
                state.free.push(token);
                drop(state);
                match request.operation {
                    IoOperation::Read { buffer, .. } | IoOperation::Write { buffer, .. } => {
                        Err(Unbegun { message: buffer.message, decoded })
                    }
                    _ => unreachable!("it is a read or a write"),
                }
            }
        }
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

impl<M: LentMessage, O: Operations> Shared<M, O> {
    /// Ends requests until the handle is dropped; the main function of the thread.
    fn serve(&self, receiver: &Receiver<OwnedFd>) {
        let Ok(signal) = receiver.recv() else { return };
        let mut done = Vec::with_capacity(DEPTH);
        let mut ended = Vec::with_capacity(DEPTH);
        loop {
            // Read first: a completion that arrives after the poll signals again.
            let _ = read(&signal, &mut [0; 8]);
            let finished = self.collect(&mut done, &mut ended);
            for (completion, begun) in ended.drain(..) {
                self.end(completion, begun);
            }
            if finished {
                return;
            }
            let mut fds = [PollFd::new(&signal, PollFlags::IN)];
            let _ = poll(&mut fds, None);
        }
    }

    /// Takes the requests that have ended. Returns whether the queue is closed and empty.
    fn collect(&self, done: &mut Vec<IoCompletion<Lent<M>>>, ended: &mut Vec<Ended<M>>) -> bool {
        let mut state = self.state.lock();
        state.queue.poll(done);
        state.take(done, ended);
        state.closed && state.queue.in_flight() == 0
    }

    fn end(&self, completion: IoCompletion<Lent<M>>, begun: DataRequest) {
        let mut message = completion.buffer.expect("reads and writes return their buffers").message;
        let aftermath = self.dispatcher.end(&mut message, &begun, completion.result);
        (self.finish)(message, aftermath);
    }
}

/// A request that has ended.
type Ended<M> = (IoCompletion<Lent<M>>, DataRequest);

impl<M: LentMessage, O> Drop for DataQueue<M, O> {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        if let Some(signal) = self.signal.get() {
            let _ = write(signal, &1u64.to_ne_bytes());
        }
    }
}

impl<M: LentMessage, O> fmt::Debug for DataQueue<M, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataQueue").finish_non_exhaustive()
    }
}
