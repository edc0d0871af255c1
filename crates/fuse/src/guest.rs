//! A file system for the kernel of another machine, such as a virtual machine's (virtiofs).
//!
//! Owns [`GuestSession`] and [`GuestMessage`]. The protocol is FUSE, without a mount on this
//! machine. A transport of its own brings each request and takes the reply.
//!
//! The rules differ from those of a mount:
//!
//! - The guest cannot be told of stale data, so it does not gather writes. Everything that changes
//!   comes through it.
//! - A guest is not trusted. Its processes are none of this machine: the server looks for none of
//!   them, and ioctls that need the caller's memory, descriptors or devices are refused.
//! - A guest that ends without a word leaves nothing behind: [`GuestSession::disconnect`] drops its
//!   nodes and commits.
//!
//! **Locks:** `current`, for an instant. It is not held while a request is answered.
//!
//! Kernel counterpart of the other side: `fs/fuse/virtio_fs.c`.

use crate::cpu_latency::CpuLatency;
use crate::device_transport::DeviceMessage;
use crate::dispatch::{Dispatcher, Lane, Message};
use crate::ioctl::{MountInfo, table};
use crate::options::MountOptions;
use crate::protocol::init::{Negotiated, negotiate_with_guest};
use crate::protocol::layout::{IoctlIn, opcode};
use crate::server::Server;
use papilio::FileSystem;
use papilio_locks::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A request of a guest, and its reply, in one buffer.
#[derive(Debug)]
pub struct GuestMessage(DeviceMessage);

impl Default for GuestMessage {
    fn default() -> Self {
        Self(DeviceMessage::new())
    }
}

impl GuestMessage {
    /// Returns the space for a request: more than the longest that a guest may send.
    pub fn space(&mut self) -> &mut [u8] {
        self.0.space()
    }

    /// Accepts a request of `length` bytes in [`GuestMessage::space`].
    pub fn received(&mut self, length: usize) {
        self.0.received_from_guest(length);
    }

    /// Returns the reply, once [`GuestSession::answer`] said that there is one.
    pub fn reply(&self) -> &[u8] {
        self.0.reply_bytes()
    }
}

/// A file system that a guest uses.
pub struct GuestSession {
    fs: FileSystem,
    source: PathBuf,
    options: MountOptions,
    /// The server of the guest that is there, from its first request on.
    current: Mutex<Option<Arc<Dispatcher>>>,
}

impl GuestSession {
    /// Serves `fs`, which was opened from `source`. Of the options, those count that say how the
    /// file system looks: `ro`, access times, owners.
    pub fn new(fs: FileSystem, source: &Path, options: &MountOptions) -> Self {
        let options = MountOptions { writeback_cache: Some(false), allow_root: false, ..options.clone() };
        Self { fs, source: source.to_owned(), options, current: Mutex::default() }
    }

    /// Returns whether requests wait for devices, so that many threads should answer them.
    pub fn waits_for_devices(&self) -> bool {
        self.fs.waits_for_devices()
    }

    /// Returns whether a request may take long, so that another thread should answer it.
    pub fn is_slow(&self, message: &mut GuestMessage) -> bool {
        let Ok(head) = message.0.head() else { return false };
        let Some(dispatcher) = self.dispatcher() else { return false };
        dispatcher.lane(&mut message.0) != Lane::Here
            || matches!(head.general.opcode, opcode::READ | opcode::WRITE | opcode::DESTROY)
    }

    /// Answers a request. Returns whether there is a reply.
    pub fn answer(&self, message: &mut GuestMessage) -> bool {
        let message = &mut message.0;
        let Ok(head) = message.head() else {
            message.reply(libc::EIO, 0);
            return true;
        };
        match head.general.opcode {
            opcode::INIT => {
                self.begin(message);
                return true;
            }
            // No operation waits for long without an end.
            opcode::INTERRUPT => return false,
            opcode::DESTROY => {
                let error = match self.disconnect() {
                    Ok(()) => 0,
                    Err(error) => {
                        tracing::error!("the guest's last changes: {error}");
                        libc::EIO
                    }
                };
                message.reply(error, 0);
                return true;
            }
            _ => {}
        }
        let Some(dispatcher) = self.dispatcher() else {
            // The guest must agree first.
            message.reply(libc::EIO, 0);
            return !matches!(head.general.opcode, opcode::FORGET | opcode::BATCH_FORGET);
        };
        if dispatcher.forget(message) {
            return false;
        }
        let refused = head.general.opcode == opcode::IOCTL
            && !head.argument::<IoctlIn>().is_ok_and(|argument| table::serves_guests(argument.command));
        match refused {
            true => message.reply(libc::ENOTTY, 0),
            // The guest's caches are not told of.
            false => drop(dispatcher.answer(message)),
        }
        true
    }

    /// Ends what the guest has begun: files that are open lose what only open files have. Commits.
    ///
    /// # Errors
    /// The commit fails.
    pub fn disconnect(&self) -> papilio::Result<()> {
        let ended = self.current.lock().take();
        let Some(dispatcher) = ended else { return Ok(()) };
        tracing::info!("requests served: {}", dispatcher.counts());
        drop(dispatcher);
        if self.options.read_only { Ok(()) } else { self.fs.sync() }
    }

    /// Ends the session, and closes the file system.
    ///
    /// # Errors
    /// The last commit failed, and the changes since the previous one are lost.
    pub fn close(self) -> papilio::Result<()> {
        self.current.into_inner();
        self.fs.close()
    }

    fn dispatcher(&self) -> Option<Arc<Dispatcher>> {
        self.current.lock().clone()
    }

    /// Answers the guest's offer. A guest that was there before is gone.
    fn begin(&self, message: &mut DeviceMessage) {
        if let Err(error) = self.disconnect() {
            tracing::error!("the last changes of the guest before: {error}");
        }
        let offer = message.head().and_then(|head| head.offer());
        let answer = match offer {
            Ok(offer) => negotiate_with_guest(&offer, &self.options),
            Err(error) => {
                tracing::warn!("the guest's offer: {error}");
                return message.reply(error.errno().code(), 0);
            }
        };
        let out = match answer {
            Negotiated::Again(out) => out,
            Negotiated::TooOld(major, minor) => {
                tracing::warn!("the guest's FUSE protocol {major}.{minor} is too old (7.23 or newer)");
                return message.reply(libc::EPROTO, 0);
            }
            Negotiated::Agreed(out, agreement) => {
                // A guest has no mount point here.
                let info = MountInfo::new(&self.source, Path::new(""), &self.options);
                match Server::new(self.fs.clone(), info, &self.options) {
                    Ok(server) => {
                        let server = Arc::new(server);
                        let dispatcher =
                            Dispatcher::new(server, agreement.parallel_direct, CpuLatency::off());
                        *self.current.lock() = Some(Arc::new(dispatcher));
                    }
                    Err(error) => {
                        tracing::error!("the root directory: {error}");
                        return message.reply(libc::EIO, 0);
                    }
                }
                out
            }
        };
        let out = out.as_bytes();
        message.open().1[..out.len()].copy_from_slice(out);
        message.reply(0, out.len());
    }
}
