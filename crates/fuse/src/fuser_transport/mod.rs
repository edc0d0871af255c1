//! The transport over `/dev/fuse`, by the fuser crate. (`ring_transport` is the other one.)
//!
//! Owns [`FuserTransport`] (fuser's `Filesystem`, in `filesystem.rs`) and what is agreed with the kernel when a
//! mount begins. fuser calls from several threads, each of which reads a request, has it answered and
//! replies; a panic in an operation is caught and answered with EIO, and the thread goes on.
//!
//! What fuser 0.18 has no operation for is answered with ENOSYS, and the kernel does without:
//! - `STATX`: the kernel asks for ordinary attributes instead, and `statx` shows no birth time;
//! - `TMPFILE`: `open` with `O_TMPFILE` is EOPNOTSUPP;
//! - `SYNCFS`: the kernel sends it to a server that was mounted by a user in no case. `sync` writes the kernel's cache
//!   to the server, and the next commit makes it durable; `fsync` asks the server at once;
//! - `COPY_FILE_RANGE_64`: copies of more than 4 GiB come in pieces.
//!
//! Some requests need the kernel's help before they can be answered (data that it has not written yet, caches
//! that an ioctl made untrue). The kernel may turn to the server to help, so such requests are moved from the
//! threads that serve to the [`Assistant`]'s.

mod agreement;
mod assistant;
mod convert;
mod filesystem;

pub(crate) use agreement::{Agreed, MAX_WRITE};
pub(crate) use assistant::{Assistant, Kernel};
pub(crate) use filesystem::FuserTransport;
