//! The channel to the kernel: a descriptor of `/dev/fuse` that belongs to a mount.
//!
//! Owns [`Channel`]: the handshake, reading requests and writing replies. One read returns one
//! request; one write takes one reply.
//!
//! A second descriptor of the same mount, a clone, is for a thread that must not sleep in a read.
//! Both take from the same requests. The kernel accepts a reply only from the descriptor that the
//! request came from.

use super::message::DeviceMessage;
use crate::dispatch::Message;
use crate::options::MountOptions;
use crate::protocol::init::{Agreement, Negotiated, negotiate};
use crate::protocol::layout::opcode;
use papilio_locks::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use zerocopy::IntoBytes;

/// Reasons why kernel and server do not agree.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// Reading or writing `/dev/fuse` failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The kernel closed the channel before its first request.
    #[error("the mount was ended")]
    Closed,
    /// The kernel's protocol is older than the server's structures.
    #[error("the kernel's FUSE protocol {major}.{minor} is too old (7.23 or newer, Linux 3.15)")]
    TooOld {
        /// The kernel's major version.
        major: u32,
        /// The kernel's minor version.
        minor: u32,
    },
    /// The first request is not the kernel's offer.
    #[error("the kernel's first request is operation {0}, not its offer")]
    NoOffer(u32),
}

/// The device of FUSE.
pub(crate) const DEVICE: &str = "/dev/fuse";
/// `_IOR(229, 0, uint32_t)` (include/uapi/linux/fuse.h).
const FUSE_DEV_IOC_CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;
/// Messages that are kept for later requests.
const SPARE: usize = 128;

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    Request,
    /// The mount is gone.
    Closed,
}

/// A mount's descriptor of `/dev/fuse`.
#[derive(Debug)]
pub(crate) struct Channel {
    device: Arc<OwnedFd>,
    /// The clone, which never blocks. It is made once a thread asks for it.
    second: OnceLock<OwnedFd>,
    /// Messages for later requests: making one takes longer than answering many a request.
    spare: Mutex<Vec<DeviceMessage>>,
}

impl Channel {
    pub(crate) fn new(device: Arc<OwnedFd>) -> Self {
        Self { device, second: OnceLock::new(), spare: Mutex::default() }
    }

    /// Returns a message for the next request.
    pub(super) fn message(&self) -> DeviceMessage {
        self.spare.lock().pop().unwrap_or_else(DeviceMessage::new)
    }

    /// Takes back a message that was answered.
    pub(super) fn recycle(&self, message: DeviceMessage) {
        let mut spare = self.spare.lock();
        if spare.len() < SPARE {
            spare.push(message);
        }
    }

    /// Negotiates the features of the mount with the kernel. `ring` asks for requests over
    /// io_uring.
    ///
    /// # Errors
    /// [`HandshakeError`]; the mount is of no use then.
    pub(crate) fn shake_hands(
        &self,
        options: &MountOptions,
        ring: bool,
    ) -> Result<Agreement, HandshakeError> {
        let mut message = DeviceMessage::new();
        loop {
            if self.receive(&mut message)? == Received::Closed {
                return Err(HandshakeError::Closed);
            }
            let head = message.head().map_err(|error| io::Error::other(error.to_string()))?;
            if head.general.opcode != opcode::INIT {
                return Err(HandshakeError::NoOffer(head.general.opcode));
            }
            let offer = head.offer().map_err(|error| io::Error::other(error.to_string()))?;
            let (out, agreement) = match negotiate(&offer, options, ring) {
                Negotiated::Agreed(out, agreement) => (out, Some(agreement)),
                Negotiated::Again(out) => (out, None),
                Negotiated::TooOld(major, minor) => {
                    message.reply(libc::EPROTO, 0);
                    self.send(&message);
                    return Err(HandshakeError::TooOld { major, minor });
                }
            };
            let out = out.as_bytes();
            message.open().1[..out.len()].copy_from_slice(out);
            message.reply(0, out.len());
            self.send(&message);
            if let Some(agreement) = agreement {
                return Ok(agreement);
            }
        }
    }

    /// Waits for a request.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn receive(&self, message: &mut DeviceMessage) -> io::Result<Received> {
        loop {
            match rustix::io::read(&*self.device, message.space()) {
                Ok(length) => {
                    message.received(length);
                    return Ok(Received::Request);
                }
                // ENOENT: the caller was killed before its request was read.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::NOENT | rustix::io::Errno::AGAIN) => {}
                Err(rustix::io::Errno::NODEV | rustix::io::Errno::CONNABORTED) => {
                    return Ok(Received::Closed);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Makes the second descriptor, unless it is there.
    ///
    /// # Errors
    /// The system's error: `/dev/fuse` cannot be opened, or the kernel does not clone it.
    pub(super) fn second(&self) -> io::Result<BorrowedFd<'_>> {
        if self.second.get().is_none() {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let made = rustix::fs::open(DEVICE, flags, Mode::empty())?;
            let number = self.device.as_raw_fd() as u32;
            // SAFETY: FUSE_DEV_IOC_CLONE reads one u32, the number of an open descriptor.
            if unsafe { libc::ioctl(made.as_raw_fd(), FUSE_DEV_IOC_CLONE, &raw const number) } != 0 {
                return Err(io::Error::last_os_error());
            }
            // Another thread may have been faster; the mount does not mind a third descriptor.
            let _ = self.second.set(made);
        }
        Ok(self.second.get().expect("it was just made").as_fd())
    }

    /// Takes a request from the second descriptor. Returns `false` if there is none.
    ///
    /// # Errors
    /// The system's error; ENODEV or ECONNABORTED if the mount is gone.
    pub(super) fn take_from_second(&self, message: &mut DeviceMessage) -> io::Result<bool> {
        let Some(second) = self.second.get() else { return Ok(false) };
        match rustix::io::read(second, message.space()) {
            Ok(length) => {
                message.received_from_second(length);
                Ok(true)
            }
            // ENOENT: the caller was killed before its request was read.
            Err(Errno::AGAIN | Errno::INTR | Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the reply in a message.
    pub(super) fn send(&self, message: &DeviceMessage) {
        let device = match self.second.get() {
            Some(second) if message.is_from_second() => second,
            _ => &*self.device,
        };
        match rustix::io::write(device, message.reply_bytes()) {
            // ENOENT: the caller was killed meanwhile. ENODEV: the mount is gone.
            Ok(_) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV) => {}
            Err(error) => tracing::error!("the kernel refused a reply: {error}"),
        }
    }
}
