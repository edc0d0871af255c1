//! Opening and closing a file system, and its background threads.

mod closer;
mod committer;
mod open;
mod roots;

pub(crate) use closer::Closer;
pub(crate) use open::{from_devices, open_devices, open_path};
