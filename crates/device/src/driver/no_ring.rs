//! `Ring` where the host has no io_uring: there is none, so that no request goes through it.

use crate::started::Direction;
use std::io;
use std::os::fd::BorrowedFd;

/// No ring.
#[derive(Debug)]
pub(super) enum Ring {}

impl Ring {
    pub(super) fn new(_depth: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn register_eventfd(&self, _fd: BorrowedFd<'_>) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn in_flight(&self) -> usize {
        match *self {}
    }

    /// # Safety
    /// None is needed: there is no ring.
    pub(super) unsafe fn push_transfer(
        &mut self,
        _direction: Direction,
        _file: BorrowedFd<'_>,
        _memory: (*mut u8, usize),
        _offset: u64,
        _data: u64,
    ) -> bool {
        match *self {}
    }

    pub(super) fn push_poll(&mut self, _fd: BorrowedFd<'_>, _data: u64) -> bool {
        match *self {}
    }

    pub(super) fn submit(&mut self, _wait: usize) {
        match *self {}
    }

    pub(super) fn next(&mut self) -> Option<(u64, i32)> {
        match *self {}
    }

    pub(super) fn take_unsubmitted(&mut self) -> Option<u64> {
        match *self {}
    }
}
