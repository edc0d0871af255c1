//! A message that another thread answers.
//!
//! Owns [`Pending`].
//!
//! **Invariants**
//! - Each pending message is answered: with EIO if the task that should answer it never ran.

use super::channel::Channel;
use super::message::DeviceMessage;
use crate::dispatch::Message;
use std::sync::Arc;

/// A message that another thread answers. Dropping it sends the reply.
#[derive(Debug)]
pub(super) struct Pending {
    /// `None` once it is dropped.
    message: Option<DeviceMessage>,
    answered: bool,
    channel: Arc<Channel>,
}

impl Pending {
    pub(super) fn new(message: DeviceMessage, channel: Arc<Channel>) -> Self {
        Self { message: Some(message), answered: false, channel }
    }

    /// Returns the message, to answer it.
    pub(super) fn message(&mut self) -> &mut DeviceMessage {
        self.message.as_mut().expect("it is not dropped")
    }

    /// Notes that the message has its reply.
    pub(super) fn answered(&mut self) {
        self.answered = true;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(mut message) = self.message.take() else { return };
        if !self.answered {
            message.reply(libc::EIO, 0);
        }
        self.channel.send(&message);
        self.channel.recycle(message);
    }
}
