//! Receiving hostile streams on a prepared file system, and the rules for the result.
//!
//! Owns [`Receiver`]: the file system, the streams that mutations start from, and the state of
//! everything that a stream must not touch.
//!
//! Many streams share one open file system ([`Batch`]), since opening takes longer than receiving.
//! The subvolume that a stream made gets a name that no stream has, so that each stream finds the
//! names of the first.
//!
//! **Invariant:** the prepared device is never written. Each batch gets a snapshot of it.

use super::stream::HostileStream;
use crate::random::{Generator, Scope};
use crate::session::Session;
use crate::verify;
use papilio::{
    Compression, CompressionChoice, Error, FileSystem, Inode, MkfsOptions, OpenOptions, Receive,
    ReceivedSubvolume, SendOptions, SendProtocol,
};
use papilio_device::{Device, MemoryDevice};
use papilio_format::TreeId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes of the device.
const SIZE: u64 = 128 << 20;
/// The directory that receives.
const TARGET: &str = "/target";

/// The results of receiving streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveSummary {
    /// Streams received without an error.
    pub received: u64,
    /// Streams that ended with an error.
    pub failed: u64,
    /// Subvolumes that were begun.
    pub begun: u64,
    /// Subvolumes that were completed.
    pub completed: u64,
}

impl std::ops::AddAssign for ReceiveSummary {
    fn add_assign(&mut self, other: Self) {
        self.received += other.received;
        self.failed += other.failed;
        self.begun += other.begun;
        self.completed += other.completed;
    }
}

/// A prepared file system.
pub struct Receiver {
    device: MemoryDevice,
    streams: Vec<HostileStream>,
    known: BTreeSet<TreeId>,
    outside: BTreeMap<Vec<u8>, String>,
}

/// Streams received one after another on one file system.
pub struct Batch<'a> {
    receiver: &'a Receiver,
    device: Arc<dyn Device>,
    fs: FileSystem,
    /// The subvolumes that streams made, by path, and whether they are complete.
    made: BTreeMap<Vec<u8>, bool>,
}

fn options() -> OpenOptions {
    OpenOptions::new().write(true).commit_interval(None)
}

impl Receiver {
    /// Prepares a file system with two snapshots, whose streams it keeps, with files outside of
    /// the target, and with subvolumes in it.
    ///
    /// # Errors
    /// A failure of the library, which no hostile stream caused.
    pub fn new() -> papilio::Result<Self> {
        let device = Arc::new(MemoryDevice::new(SIZE));
        let shared: Arc<dyn Device> = device.clone();
        papilio::mkfs_device(&shared, &MkfsOptions::new())?;
        let compress = options().compress_force(CompressionChoice::new(Compression::Zstd));
        let fs = FileSystem::from_devices(vec![shared], &compress)?;
        for directory in ["/kept", TARGET] {
            fs.create_dir(directory)?;
        }
        for path in ["/target/old", "/source"] {
            fs.create_subvolume(path)?;
        }
        for path in ["/kept/file", "/target/old/file"] {
            fs.create_file(path)?.write_all_at(&[7; 9000], 0)?;
        }
        let scope = Scope {
            inodes: 14,
            file_bytes: 12_000,
            names: 10,
            remount_every: 0,
            wide_links: false,
            ..Scope::default()
        };
        let mut session = Session::shared(fs.clone(), b"/source");
        let mut generator = Generator::new(11, scope);
        let mut run = |operations| session.run(&mut generator, operations).map_err(Error::Invalid);
        run(90)?;
        // Not known to the model, which is not compared after this.
        let symlink = |target, path: &str| fs.symlink(target, path).map(drop);
        symlink("..", "/source/up")?;
        symlink("/kept", "/source/abs")?;
        fs.create_dir("/source/directory")?;
        fs.create_file("/source/directory/file")?.write_all_at(&[9; 40_000], 0)?;
        fs.create_file("/source/file")?.write_all_at(b"some bytes", 0)?;
        fs.create_subvolume("/source/inner")?;
        fs.snapshot("/source", "/first", true)?;
        run(60)?;
        fs.rename("/source/file", "/source/directory/moved")?;
        fs.snapshot("/source", "/second", true)?;
        fs.sync()?;
        let mut streams = Vec::new();
        let id = |path: &str| fs.inode(path).map(|inode| inode.tree());
        let (first, second) = (id("/first")?, id("/second")?);
        for (protocol, compressed) in
            [(SendProtocol::V1, false), (SendProtocol::V2, false), (SendProtocol::V2, true)]
        {
            for (parent, snapshot) in [(None, first), (Some(first), second), (None, second)] {
                let send = SendOptions::new().protocol(protocol).compressed_data(compressed).parent(parent);
                let mut bytes = Vec::new();
                send.send(&fs, snapshot, &mut bytes, &mut ())?;
                streams.push(HostileStream::split(&bytes));
            }
        }
        let known = fs.subvolumes()?.iter().map(|subvolume| subvolume.id).collect();
        drop(session);
        fs.close()?;
        let mut receiver = Self { device: device.snapshot(), streams, known, outside: BTreeMap::new() };
        let fs = receiver.open()?.1;
        receiver.outside = receiver.facts(&fs)?;
        Ok(receiver)
    }

    /// Returns the streams that mutations start from.
    pub fn streams(&self) -> &[HostileStream] {
        &self.streams
    }

    fn open(&self) -> papilio::Result<(Arc<dyn Device>, FileSystem)> {
        let device: Arc<dyn Device> = Arc::new(self.device.snapshot());
        let fs = FileSystem::from_devices(vec![Arc::clone(&device)], &options())?;
        Ok((device, fs))
    }

    /// Opens a copy of the prepared file system.
    ///
    /// # Errors
    /// A failure of the library, which no hostile stream caused.
    pub fn batch(&self) -> Result<Batch<'_>, String> {
        let (device, fs) = self.open().map_err(|error| format!("opening: {error}"))?;
        Ok(Batch { receiver: self, device, fs, made: BTreeMap::new() })
    }

    /// Receives one stream on a copy of its own. With `check`, also commits and checks the file
    /// system.
    ///
    /// # Errors
    /// The rule that was broken.
    pub fn receive(
        &self,
        stream: &HostileStream,
        receive: &Receive,
        check: bool,
    ) -> Result<ReceiveSummary, String> {
        let mut batch = self.batch()?;
        let summary = batch.receive(stream, receive)?;
        batch.finish(check)?;
        Ok(summary)
    }

    /// Requires that exactly the complete ones of `made` are read-only and have a received UUID.
    fn looks_whole(&self, fs: &FileSystem, made: &BTreeMap<Vec<u8>, bool>) -> Result<(), String> {
        let subvolumes = fs.subvolumes().map_err(|error| format!("listing: {error}"))?;
        let mut missing: BTreeSet<&Vec<u8>> = made.keys().collect();
        for subvolume in subvolumes.iter().filter(|subvolume| !self.known.contains(&subvolume.id)) {
            let name = subvolume.name.escape_ascii();
            let path = subvolume.path.as_ref();
            let Some((path, expected)) = path.and_then(|path| made.get_key_value(path)) else {
                return Err(format!("\"{name}\" is at {path:?}"));
            };
            missing.remove(path);
            let found = (subvolume.is_read_only(), !subvolume.received_uuid.is_nil());
            if found != (*expected, *expected) {
                return Err(format!("\"{name}\" is read-only and marked: {found:?}, complete: {expected}"));
            }
        }
        if let Some(path) = missing.first() {
            return Err(format!("the subvolume {} is gone", path.escape_ascii()));
        }
        for id in &self.known {
            if subvolumes.iter().all(|subvolume| subvolume.id != *id) {
                return Err(format!("the subvolume {id} is gone"));
            }
        }
        Ok(())
    }

    fn outside_is_unchanged(&self, fs: &FileSystem) -> Result<(), String> {
        let facts = self.facts(fs).map_err(|error| format!("reading what is outside: {error}"))?;
        if facts == self.outside {
            return Ok(());
        }
        let paths: BTreeSet<&Vec<u8>> = facts.keys().chain(self.outside.keys()).collect();
        let path = paths.into_iter().find(|path| facts.get(*path) != self.outside.get(*path));
        let path = path.expect("they differ");
        let (found, expected) = (facts.get(path), self.outside.get(path));
        Err(format!("{}: {found:?}, was {expected:?}", path.escape_ascii()))
    }

    /// Returns the state of each path outside of subvolumes that a stream made.
    fn facts(&self, fs: &FileSystem) -> papilio::Result<BTreeMap<Vec<u8>, String>> {
        let mut facts = BTreeMap::new();
        let mut pending = vec![(Vec::new(), fs.inode("/")?)];
        while let Some((path, inode)) = pending.pop() {
            if inode.metadata().is_dir() && !inode.is_subvolume_stub() {
                for entry in inode.read_dir()? {
                    let entry = entry?;
                    let below = entry.inode()?;
                    if self.known.contains(&below.tree()) {
                        pending.push(([&path[..], b"/", entry.file_name()].concat(), below));
                    }
                }
            }
            let fact = fact(&inode, path == TARGET.as_bytes())?;
            facts.insert(path, fact);
        }
        Ok(facts)
    }
}

impl Batch<'_> {
    /// Receives a stream.
    ///
    /// # Errors
    /// The rule that was broken.
    pub fn receive(&mut self, stream: &HostileStream, receive: &Receive) -> Result<ReceiveSummary, String> {
        let mut received = Vec::new();
        let bytes = stream.to_bytes();
        let result = receive.receive(&self.fs, TARGET, &mut &bytes[..], &mut received, &mut ());
        // On a resume, a stream that begins a complete subvolume again passes it over: two entries
        // are then of one subvolume.
        let mut names: BTreeMap<&[u8], bool> = BTreeMap::new();
        for ReceivedSubvolume { name, complete, .. } in &received {
            *names.entry(name).or_default() |= complete;
        }
        let completed = names.values().filter(|complete| **complete).count();
        if completed > stream.most_complete() {
            return Err(format!("{completed} subvolumes are complete: {received:?}"));
        }
        for (name, complete) in names {
            let from = [TARGET.as_bytes(), b"/", name].concat();
            // Within the directory: a read-only subvolume cannot be moved to another one.
            let to = format!("{TARGET}/received {}", self.made.len());
            let named = |error| format!("moving {}: {error}", from.escape_ascii());
            self.fs.rename(&from[..], &to).map_err(named)?;
            self.made.insert(to.trim_start_matches('/').into(), complete);
        }
        Ok(ReceiveSummary {
            received: u64::from(result.is_ok()),
            failed: u64::from(result.is_err()),
            begun: received.len() as u64,
            completed: received.iter().filter(|entry| entry.complete).count() as u64,
        })
    }

    /// Looks at the results of all streams. With `check`, also commits and checks the file system.
    ///
    /// # Errors
    /// The rule that one of them broke.
    pub fn finish(self, check: bool) -> Result<(), String> {
        self.receiver.looks_whole(&self.fs, &self.made)?;
        self.receiver.outside_is_unchanged(&self.fs)?;
        if check {
            self.fs.close().map_err(|error| format!("closing: {error}"))?;
            verify::check(&[self.device])?;
        }
        Ok(())
    }
}

/// Describes an inode. The directory that receives gets entries, and with them a size and times.
fn fact(inode: &Inode, receives: bool) -> papilio::Result<String> {
    let meta = inode.metadata();
    let mut text = format!(
        "{} {} {:o} {} {} {} {:?} {:?}",
        meta.tree(),
        meta.number(),
        meta.mode(),
        meta.uid(),
        meta.gid(),
        meta.nlink(),
        meta.rdev(),
        meta.flags()
    );
    if !receives {
        text += &format!(" {} {:?} {:?}", meta.size(), meta.mtime(), meta.ctime());
    }
    if inode.is_subvolume_stub() {
        return Ok(text);
    }
    for xattr in inode.xattrs()? {
        text += &format!(" {}={}", xattr.name.escape_ascii(), xattr.value.escape_ascii());
    }
    if meta.is_symlink() {
        text += &format!(" -> {}", inode.read_link()?.escape_ascii());
    }
    if meta.is_file() {
        text += &format!(" {:08x}", papilio_format::checksum::crc32c_raw(0, &inode.open()?.read_all()?));
    }
    Ok(text)
}
