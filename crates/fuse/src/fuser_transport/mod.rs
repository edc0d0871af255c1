//! The transport over `/dev/fuse`, based on the fuser crate.
//!
//! Owns [`FuserTransport`], an implementation of fuser's `Filesystem`, and the agreement with the
//! kernel at the start of a mount. fuser runs several threads, each of which reads a request, calls
//! the server and replies. A panic in an operation is caught and answered with EIO, and the thread
//! continues.
//!
//! fuser 0.18 answers requests that it does not know with ENOSYS, and the kernel does without them:
//!
//! - `STATX`: the kernel asks for ordinary attributes instead, and `statx` shows no birth time.
//! - `TMPFILE`: `open` with `O_TMPFILE` fails with EOPNOTSUPP.
//! - `SYNCFS`: the kernel does not send it to servers in user space. `sync` writes the kernel's
//!   cache to the server, and the next commit makes it durable. `fsync` reaches the server at once.
//! - `COPY_FILE_RANGE_64`: copies of more than 4 GiB come in pieces.
//!
//! Some requests need the kernel's help before the server can answer them: writeback of the
//! kernel's dirty data, or invalidation of caches after an ioctl. The kernel may in turn send
//! requests to the server. Threads that serve therefore hand such requests to the [`Assistant`].

mod agreement;
mod assistant;
mod convert;
mod filesystem;

pub(crate) use agreement::{Agreed, MAX_WRITE};
pub(crate) use assistant::{Assistant, Kernel};
pub(crate) use filesystem::FuserTransport;
