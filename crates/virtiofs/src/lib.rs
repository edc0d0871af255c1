//! A virtiofs device for virtual machines: the machine mounts a file system of Papilio as its own.
//!
//! [`Server`] listens on a Unix socket. A virtual machine monitor (QEMU, crosvm, Cloud Hypervisor)
//! connects there by the vhost-user protocol and lends the memory of its guest.
//! The guest's kernel puts FUSE requests into queues in that memory, and
//! [`GuestSession`](papilio_fuse::guest::GuestSession) answers them.
//!
//! - One monitor is served at a time; others wait. When it disconnects, the next one may connect.
//! - There is no DAX window: the guest reads and writes through its own page cache.
//! - The guest's memory changes while it is used, so each request is copied before it is read.
//!
//! The device: Virtual I/O Device (VIRTIO) 1.2, section 5.11. The protocol to the monitor:
//! <https://qemu-project.gitlab.io/qemu/interop/vhost-user.html>. Kernel counterpart of the other
//! side: `fs/fuse/virtio_fs.c`.

#![cfg(target_os = "linux")]

mod chain;
mod device;
mod server;
mod tag;
mod threads;

pub use server::{Listening, ServeError, Server};
pub use tag::{TAG_BYTES, Tag};
