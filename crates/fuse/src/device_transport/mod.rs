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
//! - `SYNCFS`: the kernel does not send it to servers in user space. `sync` writes the kernel's
//!   cache to the server, and the next commit makes it durable. `fsync` reaches the server at once.
//!
//! Some requests need the kernel's help before the server can answer them: writeback of the
//! kernel's dirty data, or invalidation of caches after an ioctl. The kernel may in turn send
//! requests to the server. Threads that serve therefore hand such requests to the [`Assistant`].

mod channel;
mod message;
mod pending;

pub(crate) use channel::Channel;
pub use channel::HandshakeError;
pub(crate) use message::DeviceMessage;

use crate::assistant::Assistant;
use crate::dispatch::{Dispatcher, Lane};
use crate::transport::Operations;
use crate::unmount::Unmounter;
use channel::Received;
use pending::Pending;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// State that the threads of a mount share.
pub(crate) struct DeviceTransport<O> {
    pub(crate) dispatcher: Arc<Dispatcher<O>>,
    pub(crate) assistant: Assistant,
    pub(crate) channel: Arc<Channel>,
    /// Ends the mount if `/dev/fuse` fails: no thread would answer further requests.
    pub(crate) unmounter: Unmounter,
}

impl<O> Clone for DeviceTransport<O> {
    fn clone(&self) -> Self {
        Self {
            dispatcher: Arc::clone(&self.dispatcher),
            assistant: self.assistant.clone(),
            channel: Arc::clone(&self.channel),
            unmounter: self.unmounter.clone(),
        }
    }
}

impl<O: Operations> DeviceTransport<O> {
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
        let mut message = self.channel.message();
        loop {
            match self.channel.receive(&mut message) {
                Ok(Received::Request) => message = self.handle(message),
                Ok(Received::Closed) => return,
                Err(error) => {
                    tracing::error!("reading /dev/fuse: {error}");
                    let _ = self.unmounter.detach();
                    return;
                }
            }
        }
    }

    /// Answers a request on a thread of its own; without one it gets EIO.
    fn answer_alone(&self, message: DeviceMessage) {
        let mut pending = Pending::new(message, Arc::clone(&self.channel));
        let dispatcher = Arc::clone(&self.dispatcher);
        let answer = move || {
            // Such requests leave nothing stale.
            let _ = dispatcher.answer(pending.message());
            pending.answered();
        };
        if let Err(error) = Builder::new().name("papilio-alone".to_owned()).spawn(answer) {
            tracing::warn!("starting a thread for a long request: {error}");
        }
    }

    /// Answers a request; returns a message for the next one.
    fn handle(&self, mut message: DeviceMessage) -> DeviceMessage {
        let lane = self.dispatcher.lane(&mut message);
        if self.dispatcher.forget(&mut message) {
            return message;
        }
        let (pending, lane) = match lane {
            Lane::Here | Lane::Aside => {
                let aftermath = self.dispatcher.answer(&mut message);
                let stale = aftermath.before_reply;
                if stale.is_empty() {
                    self.channel.send(&message);
                    self.assistant.forget_later(aftermath.after_reply);
                    return message;
                }
                let mut pending = Pending::new(message, Arc::clone(&self.channel));
                pending.answered();
                let dispatcher = Arc::clone(&self.dispatcher);
                self.assistant.run(move |kernel| {
                    dispatcher.drop_stale(&stale, kernel);
                    drop(pending);
                });
                return self.channel.message();
            }
            Lane::Alone => {
                self.answer_alone(message);
                return DeviceMessage::new();
            }
            Lane::AfterWriteBack(nodes) => (Pending::new(message, Arc::clone(&self.channel)), nodes),
        };
        let (mut pending, dispatcher) = (pending, Arc::clone(&self.dispatcher));
        self.assistant.run(move |kernel| {
            lane.iter().for_each(|node| kernel.write_back(*node));
            let stale = dispatcher.answer(pending.message());
            pending.answered();
            dispatcher.drop_stale(&stale.before_reply, kernel);
        });
        self.channel.message()
    }
}
