//! State that the threads of a mount's queues share.

use super::answer::Server;
use super::aside::{Nudge, Workers};
use crate::fuser_transport::Assistant;
use crate::unmount::Unmounter;
use std::os::fd::OwnedFd;

/// State that the threads of all queues share.
pub(super) struct Shared<O> {
    pub(super) server: Server<O>,
    pub(super) assistant: Assistant,
    pub(super) workers: Workers,
    pub(super) nudge: Nudge,
    pub(super) device: OwnedFd,
    /// Ends the mount if a ring fails: no thread would answer requests in it.
    pub(super) unmounter: Unmounter,
}
