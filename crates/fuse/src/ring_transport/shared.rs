//! State that the threads of a mount's queues share.

use super::aside::{Nudge, Workers};
use super::home::Held;
use crate::assistant::Assistant;
use crate::data_queue::DataQueue;
use crate::dispatch::Dispatcher;
use crate::unmount::Unmounter;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// State that the threads of all queues share.
pub(super) struct Shared {
    pub(super) dispatcher: Arc<Dispatcher>,
    /// For reads and direct writes, where devices answer later.
    pub(super) data: Option<DataQueue<Held>>,
    pub(super) assistant: Assistant,
    pub(super) workers: Workers,
    pub(super) nudge: Nudge,
    pub(super) device: Arc<OwnedFd>,
    /// Ends the mount if a ring fails: no thread would answer requests in it.
    pub(super) unmounter: Unmounter,
}
