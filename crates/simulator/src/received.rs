//! Receiving of mutated streams: [`ReceiveTargets`].
//!
//! Owns the prepared targets: file systems in memory with the parents of incremental streams and a
//! bystander. Each run receives into a copy that shares unchanged parts, and is dropped without a
//! commit unless it is a thorough one.
//!
//! **What a run asserts**
//! - No subvolume that was there has other properties afterwards, and new ones lie in the directory
//!   that receives.
//! - At most as many subvolumes are complete as the intact part of the stream ends. No other new
//!   subvolume is read-only or has a received UUID.
//! - A thorough run commits, checks the file system, and compares everything outside of the new
//!   subvolumes with its state before.

use crate::random::{Generator, Scope};
use crate::session::Session;
use crate::stream_mutation::{RawStream, ends_of};
use papilio::{
    CheckOptions, Compression, CompressionChoice, Error, FileKind, FileSystem, MkfsOptions, OpenOptions,
    Receive, ReceiveObserver, ReceivedSubvolume, SendObserver, SendOptions, SendProtocol, Subvolume,
};
use papilio_device::{Device, MemoryDevice, OverlayDevice};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Bytes of each device.
const SIZE: u64 = 128 << 20;
/// Bytes that a run may write.
const OVERLAY: u64 = 64 << 20;
/// Histories whose snapshots are sent.
const HISTORIES: u64 = 4;
/// Bytes of a plan in front of its changes.
const HEAD: usize = 4;

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedStream {
    /// Subvolumes that are complete.
    pub complete: usize,
    /// Subvolumes that are incomplete.
    pub incomplete: usize,
    /// Commands that failed while the run went on.
    pub failed: usize,
    /// Whether the run ended with an error.
    pub error: bool,
}

/// Targets to receive into, and streams to mutate.
pub struct ReceiveTargets {
    targets: Vec<Target>,
    streams: Vec<RawStream>,
}

struct Target {
    device: Arc<dyn Device>,
    open: OpenOptions,
    subvolumes: Vec<Subvolume>,
    content: BTreeMap<Vec<u8>, u64>,
}

#[derive(Default)]
struct Quiet {
    failed: usize,
}

impl SendObserver for Quiet {
    fn progress(&mut self, _: u64, _: u64, _: u64) {}
}

impl ReceiveObserver for Quiet {
    fn begins(&mut self, _: &[u8], _: bool) {}
    fn progress(&mut self, _: u64) {}
    fn failed(&mut self, _: &Error) {
        self.failed += 1;
    }
}

fn options() -> OpenOptions {
    OpenOptions::new().write(true).commit_interval(None)
}

fn open(device: Arc<dyn Device>, options: &OpenOptions) -> FileSystem {
    FileSystem::from_devices(vec![device], options).expect("the file system was just made")
}

/// Makes pairs of snapshots. `copyN` is another snapshot of the state of `firstN`.
fn source() -> FileSystem {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(2 * SIZE));
    papilio::mkfs_device(&device, &MkfsOptions::new()).expect("an empty device");
    let fs = open(device, &options().compress(CompressionChoice::new(Compression::Zstd)));
    for history in 0..HISTORIES {
        let scope = Scope {
            inodes: 24,
            file_bytes: 30_000,
            names: 12,
            moves: history % 2 == 1,
            remount_every: 0,
            wide_links: false,
            ..Scope::default()
        };
        let base = format!("/work{history}");
        fs.create_subvolume(&base).expect("a new name");
        let mut session = Session::shared(fs.clone(), base.as_bytes());
        let mut generator = Generator::new(history + 1, scope);
        let mut run = |operations| {
            session.run(&mut generator, operations).unwrap_or_else(|failure| panic!("{failure}"));
        };
        run(90);
        for name in ["first", "copy"] {
            fs.snapshot(&base, format!("/{name}{history}"), true).expect("a new name");
        }
        run(60);
        fs.snapshot(&base, format!("/second{history}"), true).expect("a new name");
    }
    fs.sync().expect("a device in memory");
    fs
}

fn send(
    fs: &FileSystem,
    name: &str,
    parent: Option<&str>,
    protocol: SendProtocol,
    compressed: bool,
) -> Vec<u8> {
    let id = |name: &str| fs.inode(format!("/{name}")).expect("the snapshot was made").tree();
    let options = SendOptions::new().protocol(protocol).compressed_data(compressed);
    let mut bytes = Vec::new();
    let options = options.parent(parent.map(id));
    options.send(fs, id(name), &mut bytes, &mut Quiet::default()).expect("a new snapshot");
    bytes
}

impl Target {
    fn new(mkfs: &MkfsOptions, open_options: OpenOptions, parents: &[Vec<u8>]) -> Self {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE));
        papilio::mkfs_device(&device, mkfs).expect("an empty device");
        let fs = open(Arc::clone(&device), &open_options);
        for stream in parents {
            let mut received = Vec::new();
            let result =
                Receive::new().receive(&fs, "/", &mut &stream[..], &mut received, &mut Quiet::default());
            result.expect("the stream is good");
        }
        fs.snapshot("/first0", "/bystander", false).expect("a new name");
        fs.clone().close().expect("a device in memory");
        drop(fs);
        let fs = open(Arc::clone(&device), &OpenOptions::new());
        let subvolumes = fs.subvolumes().expect("the file system was just made");
        let content = content(&fs, &[]).expect("the file system was just made");
        assert!(content.len() > 40, "{} entries", content.len());
        drop(fs);
        Self { device, open: open_options, subvolumes, content }
    }
}

/// Returns a hash of each inode by its path, without the top directory and what is below `names`.
fn content(fs: &FileSystem, names: &[&[u8]]) -> papilio::Result<BTreeMap<Vec<u8>, u64>> {
    let mut content = BTreeMap::new();
    for entry in fs.walk("/")? {
        let entry = entry?;
        let first = entry.path.split(|byte| *byte == b'/').next().unwrap_or_default();
        if entry.path.is_empty() || names.contains(&first) {
            continue;
        }
        let mut hasher = DefaultHasher::new();
        format!("{:?}", entry.inode.metadata()).hash(&mut hasher);
        for xattr in entry.inode.xattrs()? {
            format!("{xattr:?}").hash(&mut hasher);
        }
        match entry.inode.file_type() {
            FileKind::Symlink => entry.inode.read_link()?.hash(&mut hasher),
            FileKind::Regular => entry.inode.open()?.read_all()?.hash(&mut hasher),
            _ => {}
        }
        content.insert(entry.path, hasher.finish());
    }
    Ok(content)
}

impl Default for ReceiveTargets {
    fn default() -> Self {
        Self::new()
    }
}

impl ReceiveTargets {
    /// Makes histories, their streams, and file systems that have the parents.
    ///
    /// # Panics
    /// If a fault of Papilio keeps it from making them.
    pub fn new() -> Self {
        let fs = source();
        let mut parents = Vec::new();
        let mut streams = Vec::new();
        for history in 0..HISTORIES {
            let [first, copy, second] = ["first", "copy", "second"].map(|name| format!("{name}{history}"));
            parents.push(send(&fs, &first, None, SendProtocol::V2, true));
            for (protocol, compressed) in
                [(SendProtocol::V1, false), (SendProtocol::V2, false), (SendProtocol::V2, true)]
            {
                for (name, parent) in [(&copy, None), (&second, Some(&first))] {
                    let stream = send(&fs, name, parent.map(String::as_str), protocol, compressed);
                    let raw = RawStream::parse(&stream);
                    assert!(raw.to_bytes() == stream, "{name}: the stream is written as it was read");
                    streams.push(raw);
                }
            }
        }
        let zstd = CompressionChoice::new(Compression::Zstd);
        let targets = vec![
            Target::new(&MkfsOptions::new(), options(), &parents),
            Target::new(&MkfsOptions::new().node_size(4096), options().compress(zstd), &parents),
        ];
        Self { targets, streams }
    }

    /// Returns the number of streams, which the first byte of a plan chooses from.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns the average number of commands of a stream.
    pub fn commands(&self) -> usize {
        self.streams.iter().map(RawStream::len).sum::<usize>() / self.streams.len()
    }

    /// Receives a stream with the changes that `plan` encodes. Its first four bytes choose the
    /// stream, the target and the options, and a command where the first of two runs is cut.
    ///
    /// # Errors
    /// A sentence that says which assertion of this module does not hold.
    pub fn run(&self, plan: &[u8], thorough: bool) -> Result<ReceivedStream, String> {
        let mut head = [0; HEAD];
        let given = plan.len().min(HEAD);
        head[..given].copy_from_slice(&plan[..given]);
        let stream = &self.streams[usize::from(head[0]) % self.streams.len()];
        let bytes = stream.mutated(&self.streams, &plan[given..]);
        let target = &self.targets[usize::from(head[1] & 1)];
        let receive = Receive::new()
            .max_errors(u64::from(head[1] & 2 == 0))
            .force_decompress(head[1] & 12 == 12)
            .stop_at_end(head[1] & 48 == 48);
        let overlay: Arc<dyn Device> = Arc::new(OverlayDevice::new(Arc::clone(&target.device), OVERLAY));
        let fs = open(Arc::clone(&overlay), &target.open);
        let mut received = Vec::new();
        let mut ends = ends_of(&bytes);
        let mut quiet = Quiet::default();
        let mut receive = receive;
        if head[1] & 192 == 192 {
            let cut = &bytes[..(usize::from(head[2]) * 256 + usize::from(head[3])) % (bytes.len() + 1)];
            drop(receive.receive(&fs, "/", &mut &cut[..], &mut received, &mut quiet));
            ends += ends_of(cut);
            receive = receive.resume(true);
        }
        let result = receive.receive(&fs, "/", &mut &bytes[..], &mut received, &mut quiet);
        let after = fs.subvolumes().map_err(|error| format!("the subvolumes cannot be listed: {error}"))?;
        let complete = target.judge(&received, &after, ends)?;
        let summary = ReceivedStream {
            complete,
            incomplete: after.len() - target.subvolumes.len() - complete,
            failed: quiet.failed,
            error: result.is_err(),
        };
        match thorough {
            true => target.judge_all(fs, overlay, &after)?,
            false => fs.abandon(),
        }
        Ok(summary)
    }
}

/// Returns what no receive may change. A snapshot changes the generation of its source.
fn properties(subvolume: &Subvolume) -> impl PartialEq + use<> {
    let s = subvolume.clone();
    (s.id, s.parent, s.directory, s.name, s.path, s.uuid, s.received_uuid, s.sent, s.flags, s.refs)
}

impl Target {
    /// Judges the subvolumes, and returns the number of complete ones.
    fn judge(
        &self,
        received: &[ReceivedSubvolume],
        after: &[Subvolume],
        ends: usize,
    ) -> Result<usize, String> {
        for old in &self.subvolumes {
            let new = after.iter().find(|new| new.id == old.id);
            if new.is_none_or(|new| properties(new) != properties(old)) {
                return Err(format!("a subvolume changed: {old:?} is {new:?}"));
            }
        }
        let mut complete = 0;
        let old = |id| self.subvolumes.iter().any(|old| old.id == id);
        for new in after.iter().filter(|new| !old(new.id)) {
            let place = (new.parent, new.directory);
            let top = self.subvolumes.iter().find(|old| old.name == b"bystander");
            if top.is_some_and(|top| (top.parent, top.directory) != place) {
                return Err(format!("a subvolume lies elsewhere: {new:?}"));
            }
            let said = received.iter().any(|entry| entry.name == new.name && entry.complete);
            let whole = new.is_read_only() && !new.received_uuid.is_nil();
            if said != whole || new.is_read_only() != whole || new.received_uuid.is_nil() == whole {
                return Err(format!("said to be complete: {said}, but {new:?}"));
            }
            complete += usize::from(whole);
        }
        if complete > ends {
            return Err(format!("{complete} subvolumes are complete, the stream ends {ends}"));
        }
        Ok(complete)
    }

    /// Commits, checks, and compares everything that was there.
    fn judge_all(&self, fs: FileSystem, device: Arc<dyn Device>, after: &[Subvolume]) -> Result<(), String> {
        fs.close().map_err(|error| format!("the commit failed: {error}"))?;
        let options = CheckOptions::new().data_csum(true);
        let report = papilio::check_devices(vec![Arc::clone(&device)], &OpenOptions::new(), &options);
        let report = report.map_err(|error| format!("the check failed: {error}"))?;
        if let Some(finding) = report.findings.first() {
            return Err(format!("{} findings, the first: {finding:?}", report.findings.len()));
        }
        let fs = open(device, &OpenOptions::new());
        let old = |id| self.subvolumes.iter().any(|old| old.id == id);
        let names: Vec<&[u8]> = after.iter().filter(|new| !old(new.id)).map(|new| &new.name[..]).collect();
        let now = content(&fs, &names).map_err(|error| format!("the content cannot be read: {error}"))?;
        if now == self.content {
            return Ok(());
        }
        let paths = now.keys().chain(self.content.keys());
        let changed = paths.filter(|path| now.get(*path) != self.content.get(*path));
        let changed: Vec<String> = changed.take(5).map(|path| path.escape_ascii().to_string()).collect();
        Err(format!("changed outside of the new subvolumes: {changed:?}"))
    }
}
