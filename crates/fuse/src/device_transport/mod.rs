//! The transport over `/dev/fuse`.
//!
//! Owns the threads that serve it. Each reads a request, calls the server and writes the reply, so
//! a slow request delays none behind it while threads are left. A panic in an operation is caught
//! and answered with EIO, and the thread continues.
//!
//! The kernel does without requests that the server does not implement, after one ENOSYS:
//!
//! - `FLUSH`: the kernel writes back its cache before it sends this on close.
//! - `INTERRUPT`: no operation of the server waits for long without an end.
//!
//! Linux 6.18 sends `SYNCFS` only to servers of block devices (file system type `fuseblk`) and to
//! virtiofs. For all others `sync` writes the kernel's cache to the server, and the next commit
//! makes it durable. `fsync` reaches the server at once.
//!
//! Some requests need the kernel's help before the server can answer them: writeback of the
//! kernel's dirty data, or invalidation of caches after an ioctl. The kernel may in turn send
//! requests to the server. Threads that serve therefore hand such requests to the [`Assistant`].

mod channel;
mod message;
mod pending;
mod readers;
mod second;

pub use channel::HandshakeError;
pub(crate) use channel::{Channel, DEVICE};
pub(crate) use message::DeviceMessage;

use crate::assistant::{Assistant, Kernel};
use crate::data_queue::{DataQueue, LentMessage, Source, Unbegun};
use crate::dispatch::{Aftermath, Dispatcher, Lane, QueuedData};
use crate::protocol::layout::opcode;
use crate::unmount::Unmounter;
use channel::Received;
use pending::Pending;
use readers::{Readers, Turn};
use second::{Handed, Second};
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// Threads that wait for requests at a time, where others wait for devices: one takes requests
/// while another wakes.
const READERS: usize = 2;

// SAFETY: the bytes are in a vector that is never reallocated, and only the message opens it.
unsafe impl LentMessage for DeviceMessage {}

/// Sends replies, after the kernel has dropped what they make stale.
struct Finisher {
    dispatcher: Arc<Dispatcher>,
    channel: Arc<Channel>,
    assistant: Assistant,
}

impl Clone for Finisher {
    fn clone(&self) -> Self {
        Self {
            dispatcher: Arc::clone(&self.dispatcher),
            channel: Arc::clone(&self.channel),
            assistant: self.assistant.clone(),
        }
    }
}

impl Finisher {
    /// Sends a reply. Returns the message, unless the assistant sends it.
    fn finish(&self, message: DeviceMessage, aftermath: Aftermath) -> Option<DeviceMessage> {
        let stale = aftermath.before_reply;
        if stale.is_empty() {
            self.channel.send(&message);
            self.assistant.forget_later(aftermath.after_reply);
            return Some(message);
        }
        let mut pending = Pending::new(message, Arc::clone(&self.channel));
        pending.answered();
        let dispatcher = Arc::clone(&self.dispatcher);
        let assistant = self.assistant.clone();
        let later = aftermath.after_reply;
        let task = move |kernel: &Kernel| {
            dispatcher.drop_stale(&stale, kernel);
            drop(pending);
            assistant.forget_later(later);
        };
        match aftermath.apart {
            true => self.assistant.run_apart(task),
            false => self.assistant.run(task),
        }
        None
    }
}

/// State that the threads of a mount share.
pub(crate) struct DeviceTransport {
    finisher: Finisher,
    /// For reads and direct writes, where devices answer later.
    data: Option<Arc<DataQueue<DeviceMessage>>>,
    /// Limits the threads that wait for requests, where others wait for devices.
    readers: Option<Arc<Readers<Handed>>>,
    /// Ends the mount if `/dev/fuse` fails: no thread would answer further requests.
    unmounter: Unmounter,
}

impl Clone for DeviceTransport {
    fn clone(&self) -> Self {
        Self {
            finisher: self.finisher.clone(),
            data: self.data.clone(),
            readers: self.readers.clone(),
            unmounter: self.unmounter.clone(),
        }
    }
}

impl DeviceTransport {
    /// Creates the transport, with a queue for data if devices answer later. Appends the handle of
    /// the queue's thread to `beside`.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn new(
        dispatcher: Arc<Dispatcher>,
        (channel, assistant): (Arc<Channel>, Assistant),
        unmounter: Unmounter,
        beside: &mut Vec<JoinHandle<()>>,
    ) -> io::Result<Self> {
        let finisher = Finisher { dispatcher, channel, assistant };
        let mut transport = Self { finisher, data: None, readers: None, unmounter };
        if transport.finisher.dispatcher.queued_data() != QueuedData::Nothing {
            let finisher = transport.finisher.clone();
            let finish = move |message, aftermath| {
                if let Some(message) = finisher.finish(message, aftermath) {
                    finisher.channel.recycle(message);
                }
            };
            let dispatcher = Arc::clone(&transport.finisher.dispatcher);
            let readers = Arc::new(Readers::new(READERS));
            let channel = Arc::clone(&transport.finisher.channel);
            let second = Second::new(Arc::clone(&dispatcher), channel, Arc::clone(&readers));
            let second: Option<Box<dyn Source<DeviceMessage>>> = second.map(|second| Box::new(second) as _);
            transport.readers = Some(readers);
            transport.data = Some(Arc::new(DataQueue::start(dispatcher, beside, finish, second)?));
        }
        Ok(transport)
    }

    /// Starts `count` threads that serve until the kernel closes the channel.
    ///
    /// # Errors
    /// No thread can be started. With fewer threads than wanted the mount works.
    pub(crate) fn start(&self, count: usize) -> io::Result<Vec<JoinHandle<()>>> {
        let mut threads = Vec::with_capacity(count);
        for _ in 0..count {
            let transport = self.clone();
            match Builder::new().name("papilio-fuse".to_owned()).spawn(move || transport.serve()) {
                Ok(thread) => threads.push(thread),
                Err(error) if threads.is_empty() => return Err(error),
                Err(error) => tracing::warn!("starting a thread for /dev/fuse: {error}"),
            }
        }
        Ok(threads)
    }

    fn serve(&self) {
        let channel = &self.finisher.channel;
        let mut message = channel.message();
        loop {
            match self.readers.as_ref().map_or(Turn::Read, |readers| readers.enter()) {
                Turn::Read => {}
                Turn::Answer(handed) => {
                    let (mut unbegun, lane) = match handed {
                        Handed::Whole(message, lane) => (Unbegun::new(message), lane),
                        Handed::Unbegun(unbegun) => (unbegun, Lane::Aside),
                    };
                    let message = match self.finisher.dispatcher.forget(&mut unbegun.message) {
                        true => unbegun.message,
                        false => self.answer_in(unbegun, lane),
                    };
                    channel.recycle(message);
                    continue;
                }
                Turn::End => break,
            }
            let received = channel.receive(&mut message);
            if let Some(readers) = &self.readers {
                readers.leave();
            }
            match received {
                Ok(Received::Request) => message = self.handle(message),
                Ok(Received::Closed) => break,
                Err(error) => {
                    tracing::error!("reading /dev/fuse: {error}");
                    let _ = self.unmounter.detach();
                    break;
                }
            }
        }
        if let Some(readers) = &self.readers {
            readers.close();
        }
    }

    /// Answers a request; returns a message for the next one.
    fn handle(&self, mut message: DeviceMessage) -> DeviceMessage {
        let lane = self.finisher.dispatcher.lane(&mut message);
        if self.finisher.dispatcher.forget(&mut message) {
            return message;
        }
        let mut unbegun = Unbegun::new(message);
        if lane == Lane::Aside
            && let Some(data) = &self.data
        {
            // Beginning a write may wait for space.
            if let (Some(readers), Ok(head)) = (&self.readers, unbegun.message.head())
                && head.general.opcode == opcode::WRITE
            {
                readers.replace();
            }
            match data.begin(unbegun.message) {
                Ok(()) => return self.finisher.channel.message(),
                Err(other) => unbegun = other,
            }
        }
        if let Some(readers) = &self.readers {
            readers.replace();
        }
        self.answer_in(unbegun, lane)
    }

    /// Answers a request in its lane; returns a message for the next one.
    fn answer_in(&self, unbegun: Unbegun<DeviceMessage>, lane: Lane) -> DeviceMessage {
        let Unbegun { mut message, decoded, alone } = unbegun;
        let (dirty, is_alone) = match lane {
            Lane::Here | Lane::Aside => {
                let aftermath = self.finisher.dispatcher.answer_decoded(&mut message, decoded.as_ref());
                drop(alone);
                let sent = self.finisher.finish(message, aftermath);
                return sent.unwrap_or_else(|| self.finisher.channel.message());
            }
            Lane::Alone(nodes) => (nodes, true),
            Lane::AfterWriteBack(nodes) => (nodes, false),
        };
        // Without a thread the request gets EIO.
        let mut pending = Pending::new(message, Arc::clone(&self.finisher.channel));
        let dispatcher = Arc::clone(&self.finisher.dispatcher);
        let answer = move |kernel: &Kernel| {
            dirty.iter().for_each(|node| kernel.write_back(*node));
            let stale = dispatcher.answer(pending.message());
            pending.answered();
            dispatcher.drop_stale(&stale.before_reply, kernel);
        };
        match is_alone {
            true => self.finisher.assistant.run_apart(answer),
            false => self.finisher.assistant.run(answer),
        }
        self.finisher.channel.message()
    }
}
