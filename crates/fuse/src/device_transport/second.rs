//! Requests for the queue's thread, from a second descriptor of the mount.
//!
//! Owns [`Second`]. Reads and writes go to the queue. All other requests are handed over to the
//! transport's threads, and so are those that the queue cannot begin.
//!
//! **Locks**: those of [`Readers`].

use super::channel::Channel;
use super::message::DeviceMessage;
use super::readers::Readers;
use crate::data_queue::{Source, Taken, Unbegun};
use crate::dispatch::{Dispatcher, Lane};
use crate::protocol::layout::opcode;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A request that a thread of the transport answers.
pub(super) enum Handed {
    /// One that the queue is not for.
    Whole(DeviceMessage, Lane),
    /// One that the queue could not begin.
    Unbegun(Unbegun<DeviceMessage>),
}

/// The second descriptor, as a source of messages.
pub(super) struct Second {
    dispatcher: Arc<Dispatcher>,
    channel: Arc<Channel>,
    readers: Arc<Readers<Handed>>,
}

impl Second {
    /// Makes the descriptor. Returns `None` where it cannot be had; the mount works without it.
    pub(super) fn new(
        dispatcher: Arc<Dispatcher>,
        channel: Arc<Channel>,
        readers: Arc<Readers<Handed>>,
    ) -> Option<Self> {
        if let Err(error) = channel.second() {
            tracing::debug!("cloning /dev/fuse: {error}");
            return None;
        }
        Some(Self { dispatcher, channel, readers })
    }
}

impl Source<DeviceMessage> for Second {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.channel.second().ok()
    }

    fn take_over(&mut self) {
        self.readers.take_over();
    }

    fn give_back(&mut self) {
        self.readers.give_back();
    }

    fn step(&mut self) -> bool {
        self.readers.step()
    }

    fn receive(&mut self) -> Taken<DeviceMessage> {
        let mut message = self.channel.message();
        match self.channel.take_from_second(&mut message) {
            Ok(true) => {}
            Ok(false) => {
                self.channel.recycle(message);
                return Taken::Nothing;
            }
            Err(_) => return Taken::Closed,
        }
        let lane = self.dispatcher.lane(&mut message);
        let is_data = |operation| matches!(operation, opcode::READ | opcode::WRITE);
        if lane == Lane::Aside && message.head().is_ok_and(|head| is_data(head.general.opcode)) {
            return Taken::Data(message);
        }
        self.readers.hand_over(Handed::Whole(message, lane));
        Taken::Other
    }

    fn hand_over(&mut self, message: Unbegun<DeviceMessage>) {
        self.readers.hand_over(Handed::Unbegun(message));
    }
}
