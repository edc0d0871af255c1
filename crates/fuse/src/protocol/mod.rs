//! The FUSE protocol: bytes to types and back. Nothing here does I/O.
//!
//! Both transports use it. `layout` has the kernel's structures, `request` decodes requests,
//! `reply` encodes answers, `init` negotiates at the start of a mount, and `notification` encodes
//! messages that answer no request.

pub(crate) mod init;
pub(crate) mod layout;
pub(crate) mod notification;
pub(crate) mod reply;
pub(crate) mod request;

#[cfg(test)]
mod tests;
