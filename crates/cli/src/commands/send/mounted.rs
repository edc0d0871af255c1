//! Sending from a mounted file system.
//!
//! Owns [`MountedSend`]. The kernel, or the server of the mount, writes the stream to a pipe, and a
//! thread copies it to the output. So the output may be anything, also a file on the same mount.

use super::candidate::{Candidate, nearest, sent_uuid};
use crate::mounted::{Mounted, Target};
use crate::usage_error::UsageError;
use papilio::format::TreeId;
use papilio::{Generation, PathError, ResumeToken, Uuid, pass_rest};
use papilio_ioctl::SendRequest;
use papilio_ioctl::client::MountedPath;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;

/// Bytes that are copied at once.
const STEP: usize = 64 << 10;

/// A subvolume that is sent, or that the receiver has.
pub struct MountedSend {
    place: Mounted,
    root: MountedPath,
    sent_uuid: Uuid,
    candidate: Candidate,
    /// The name that the operand gives it, for the message.
    operand: String,
}

impl MountedSend {
    /// Opens the subvolume that an argument names.
    ///
    /// # Errors
    /// The argument names no subvolume in a mount, or one that is not read-only.
    pub fn open(argument: &OsStr) -> anyhow::Result<Self> {
        let Target::Mounted(place) = Target::parse(argument)? else {
            let text = format!("{}: all snapshots must be in the same mount", argument.display());
            return Err(UsageError::new(text).into());
        };
        let root = place.open()?;
        let at = |error: io::Error| place.at(&error);
        if !root.is_subvolume_root().map_err(at)? {
            anyhow::bail!("{place}: {}", PathError::NoSubvolume);
        }
        if !root.is_subvolume_read_only().map_err(at)? {
            anyhow::bail!("{place}: the subvolume is not read-only, which send needs");
        }
        let info = root.subvolume_info().map_err(at)?;
        let candidate = Candidate {
            id: TreeId(info.tree),
            uuid: Uuid::from_bytes(info.uuid),
            parent_uuid: Uuid::from_bytes(info.parent_uuid),
            changed: Generation(info.changed),
        };
        let sent_uuid = sent_uuid(Uuid::from_bytes(info.received_uuid), candidate.uuid);
        Ok(Self { place, root, sent_uuid, candidate, operand: argument.display().to_string() })
    }

    /// Returns the operand.
    pub fn operand(&self) -> &str {
        &self.operand
    }

    /// Returns the UUID by which streams name it.
    pub fn sent_uuid(&self) -> Uuid {
        self.sent_uuid
    }

    /// Returns whether both are in the same file system.
    pub fn is_beside(&self, other: &Self) -> bool {
        self.place.mount.device == other.place.mount.device
    }

    /// Sends the subvolume to `out`. The parent is `parent`, or the nearest one of `sources`.
    /// `progress` gets the bytes so far. With a token, only what follows it is sent.
    ///
    /// # Errors
    /// As [`MountedPath::send`]; the output cannot be written.
    pub fn send(
        &self,
        request: SendRequest,
        parent: Option<&Self>,
        sources: &[&Self],
        token: Option<ResumeToken>,
        out: &mut (dyn Write + Send),
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> anyhow::Result<()> {
        let candidates: Vec<Candidate> = sources.iter().map(|source| source.candidate).collect();
        let parent = parent.map(|parent| parent.candidate.id);
        let request = SendRequest {
            parent: parent.or_else(|| nearest(&self.candidate, &candidates)),
            clone_sources: candidates.iter().map(|source| source.id).chain(parent).collect(),
            ..request
        };
        self.pass_on(&request, token, out, progress)
    }

    /// Returns the root of the subvolume.
    pub fn root(&self) -> &MountedPath {
        &self.root
    }

    /// Sends the difference from the subvolume `parent` of the same file system, or all.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_difference(
        &self,
        parent: Option<TreeId>,
        out: &mut (dyn Write + Send),
    ) -> anyhow::Result<()> {
        let clone_sources = parent.into_iter().collect();
        let request = SendRequest { protocol: 2, parent, clone_sources, ..SendRequest::default() };
        self.pass_on(&request, None, out, &mut |_| {})
    }

    /// Has the kernel or the server write the stream, and copies it to `out`.
    fn pass_on(
        &self,
        request: &SendRequest,
        token: Option<ResumeToken>,
        out: &mut (dyn Write + Send),
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> anyhow::Result<()> {
        let (mut reader, writer) = io::pipe()?;
        let (sent, copied) = std::thread::scope(|scope| {
            // Dropped at its end, so that a send whose output fails ends with EPIPE.
            let copier = scope.spawn(move || match token {
                Some(token) => {
                    let passed = pass_rest(&mut reader, token, &mut Counted { out, all: 0, progress });
                    passed.map_err(anyhow::Error::from)
                }
                None => copy(&mut reader, out, progress).map_err(anyhow::Error::from),
            });
            let sent = self.root.send(writer.as_fd(), request);
            drop(writer);
            (sent, copier.join().expect("the copying thread does not panic"))
        });
        copied?;
        sent.map_err(|error| match rustix::io::Errno::from_io_error(&error) {
            Some(rustix::io::Errno::NOTTY) if self.place.mount.is_papilio() => anyhow::anyhow!(
                "{}: the server of the mount must run as root, or as the same user with \
                 kernel.yama.ptrace_scope=0",
                self.place
            ),
            Some(rustix::io::Errno::PROTO) => {
                anyhow::anyhow!("{}: the kernel does not know this protocol", self.place)
            }
            _ => self.place.at(&error),
        })
    }
}

/// An output whose bytes are counted.
struct Counted<'a> {
    out: &'a mut dyn Write,
    /// Bytes so far.
    all: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.all += written as u64;
        (self.progress)(self.all);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn copy(reader: &mut io::PipeReader, out: &mut dyn Write, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
    let mut bytes = vec![0; STEP];
    let mut all = 0;
    loop {
        let read = match reader.read(&mut bytes) {
            Ok(0) => return out.flush(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        };
        out.write_all(&bytes[..read])?;
        all += read as u64;
        progress(all);
    }
}
