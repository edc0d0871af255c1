//! A sender of messages in batches, from a thread that reads ahead to one that writes.
//!
//! Owns [`Batches`]. The queue between the threads is bounded, so a reader waits for a slow writer.

use std::sync::mpsc::SyncSender;

/// The bytes of messages at which a batch is sent.
const BATCH_BYTES: usize = 1 << 20;

/// The writer has stopped, so there is nothing left to do.
pub(crate) struct HungUp;

/// The messages that are not sent yet, and their receiver.
pub(crate) struct Batches<'a, T> {
    sender: &'a SyncSender<Vec<T>>,
    batch: Vec<T>,
    bytes: usize,
}

impl<'a, T> Batches<'a, T> {
    pub(crate) fn new(sender: &'a SyncSender<Vec<T>>) -> Self {
        Self { sender, batch: Vec::new(), bytes: 0 }
    }

    /// Adds a message that counts as `weight` bytes, and sends the batch if it is large enough.
    pub(crate) fn send(&mut self, message: T, weight: usize) -> Result<(), HungUp> {
        self.bytes += weight;
        self.batch.push(message);
        match self.bytes >= BATCH_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Sends the batch.
    pub(crate) fn flush(&mut self) -> Result<(), HungUp> {
        self.bytes = 0;
        self.sender.send(std::mem::take(&mut self.batch)).map_err(|_| HungUp)
    }
}
