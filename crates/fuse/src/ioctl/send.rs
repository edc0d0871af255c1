//! Sending a snapshot to one of the caller's descriptors.
//!
//! Owns [`send`] and [`Trimmed`], which leaves out the parts of a stream that the caller does not
//! want. The send runs on a thread of its own, because the program that reads the stream may work
//! on this mount.
//!
//! Kernel counterpart: `btrfs_ioctl_send` (`fs/btrfs/send.c`).

use super::call::{IoctlCall, IoctlReply, Result, done};
use super::caller_memory::BlockedCaller;
use papilio::SendOptions;
use papilio::format::TreeId;
use papilio::format::send_stream::Protocol;
use papilio_ioctl::Errno;
use papilio_ioctl::layout::SendArgs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, Write};

const NO_FILE_DATA: u64 = 1 << 0;
const OMIT_STREAM_HEADER: u64 = 1 << 1;
const OMIT_END_CMD: u64 = 1 << 2;
const VERSION: u64 = 1 << 3;
const COMPRESSED: u64 = 1 << 4;
const KNOWN: u64 = NO_FILE_DATA | OMIT_STREAM_HEADER | OMIT_END_CMD | VERSION | COMPRESSED;

/// Bytes that a pipe takes at once.
const PIPE_BUF: usize = 4096;
/// How long a write waits before it looks whether the caller still lives.
const TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Most clone sources of a call.
const SOURCE_LIMIT: u64 = 1 << 16;
/// Size of a stream's header in bytes.
const STREAM_HEADER: usize = 17;
/// Size of the command that ends a stream.
const END_COMMAND: usize = 10;

pub(super) fn send(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let arguments = call.argument::<SendArgs>()?;
    must_be_read_only(call, call.inode.tree())?;
    if arguments.flags & !KNOWN != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let has = |flag| arguments.flags & flag != 0;
    let protocol = match arguments.version {
        _ if !has(VERSION) => Protocol::V1,
        1 => Protocol::V1,
        // 0 asks for the newest.
        0 | 2 => Protocol::V2,
        _ => return Err(Errno(libc::EPROTO)),
    };
    if has(COMPRESSED) && protocol < Protocol::V2 || arguments.source_count > SOURCE_LIMIT {
        return Err(Errno(libc::EINVAL));
    }
    let caller = BlockedCaller::of(call)?;
    let out = caller.descriptor(arguments.fd)?;
    let mode = rustix::fs::fcntl_getfl(&out).map_err(|_| Errno(libc::EBADF))?;
    if mode & OFlags::RWMODE == OFlags::RDONLY {
        return Err(Errno(libc::EBADF));
    }
    let parent = (arguments.parent != 0).then_some(TreeId(arguments.parent));
    let mut options = SendOptions::new().parent(parent).protocol(protocol);
    options = options.no_data(has(NO_FILE_DATA)).compressed_data(has(COMPRESSED));
    let sources = sources(&caller, &arguments)?;
    for source in sources.iter().chain(&parent) {
        must_be_read_only(call, *source)?;
    }
    for source in sources {
        options = options.clone_source(source);
    }
    let skipped = if has(OMIT_STREAM_HEADER) { STREAM_HEADER } else { 0 };
    let held_back = if has(OMIT_END_CMD) { END_COMMAND } else { 0 };
    let mut out = Trimmed {
        inner: Watched { file: File::from(out), caller: &caller },
        skip: skipped,
        held_back,
        held: Vec::new(),
    };
    options.send(call.fs, call.inode.tree(), &mut out, &mut ())?;
    done(Vec::new())
}

/// Reads the ids of the clone sources from the caller's memory.
fn sources(caller: &BlockedCaller, arguments: &SendArgs) -> Result<Vec<TreeId>> {
    let mut bytes = vec![0; arguments.source_count as usize * size_of::<u64>()];
    if !bytes.is_empty() {
        caller.memory()?.read(arguments.sources, &mut bytes)?;
    }
    let ids = bytes.chunks_exact(size_of::<u64>());
    Ok(ids.map(|id| TreeId(u64::from_ne_bytes(id.try_into().expect("a chunk has eight bytes")))).collect())
}

/// Refuses subvolumes that may change while they are sent, as the kernel does.
fn must_be_read_only(call: &IoctlCall<'_>, tree: TreeId) -> Result<()> {
    let read_only = call.fs.subvolume(tree)?.is_read_only();
    if read_only { Ok(()) } else { Err(Errno(libc::EPERM)) }
}

/// A writer that gives up once the caller is killed. The caller stays until the ioctl ends, and
/// with it the pipe that it would have read: a write that waits for room would wait for ever.
struct Watched<'a> {
    file: File,
    caller: &'a BlockedCaller,
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let mut polled = [PollFd::new(&self.file, PollFlags::OUT)];
            if poll(&mut polled, Some(&TIMEOUT))? > 0 {
                break;
            }
            if self.caller.is_killed() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        // A pipe that is ready takes this much without a wait.
        self.file.write(&bytes[..bytes.len().min(PIPE_BUF)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A writer that leaves out the first bytes, and the last ones.
struct Trimmed<W> {
    inner: W,
    skip: usize,
    held_back: usize,
    held: Vec<u8>,
}

impl<W: Write> Write for Trimmed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        let wanted = &bytes[skipped..];
        if self.held_back == 0 {
            self.inner.write_all(wanted)?;
            return Ok(bytes.len());
        }
        self.held.extend_from_slice(wanted);
        let ready = self.held.len().saturating_sub(self.held_back);
        self.inner.write_all(&self.held[..ready])?;
        self.held.drain(..ready);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_lose_their_ends() {
        for step in 1..9 {
            let mut out = Trimmed { inner: Vec::new(), skip: 3, held_back: 2, held: Vec::new() };
            for part in b"abcdefgh".chunks(step) {
                out.write_all(part).unwrap();
            }
            assert_eq!(out.inner, b"def", "{step}");
            let mut whole = Trimmed { inner: Vec::new(), skip: 0, held_back: 0, held: Vec::new() };
            whole.write_all(b"abc").unwrap();
            assert_eq!(whole.inner, b"abc");
        }
    }
}
