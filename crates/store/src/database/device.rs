//! `StoreDevice`: a device whose blocks are in segments and in the values of a SlateDB database.
//!
//! It owns the opening and closing, and the tasks in the background: one commits groups, the other
//! seals old ones and cleans. Both end with the device.

use super::clean::Cleaner;
use super::commit::{Committer, Prepared};
use super::core::{Core, FIRST_WINDOW, MAX_WINDOW, Writing};
use super::counted::{self, Counted, StoreRequests};
use super::errors::opening;
use super::groups::{Groups, OPEN_FOR};
use super::holder::Claim;
use super::layout::{BLOCK, META, Meta, REQUESTS};
use super::lineage;
use super::map::BlockMap;
use super::source::Source;
use super::units::SegmentReader;
use super::url::StoreUrl;
use crate::remote::disk_cache::{DiskCache, root_of};
use crate::remote::readahead::Streams;
use crate::remote::runtime;
use futures_util::StreamExt;
use object_store::ObjectStore;
use papilio_device::{
    Access, Advice, Device, Direction, OpenErrorKind, PhysicalAddress, ReadRequest, RemoteOptions, StartedOp,
    StoreCleaned, WriteRequest, check_write,
};
use papilio_locks::Mutex;
use slatedb::{DbReaderMode, WriteBatch};
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;

/// Requests of one batch that are in flight at once.
const IN_FLIGHT: usize = 64;
/// The least memory for units: those that are read ahead must stay until they are read.
const LEAST_MEMORY: u64 = 32 << 20;
/// How often a writer cleans.
const CLEAN_INTERVAL: Duration = Duration::from_secs(60);
/// The most bytes that a hint brings.
const MOST_AT_ONCE: u64 = 8 << 20;

/// A device in an object store.
pub struct StoreDevice {
    core: Arc<Core>,
}

impl fmt::Debug for StoreDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreDevice").field("name", &self.core.name).field("size", &self.core.size).finish()
    }
}

/// A group that is being prepared, with its number.
type Sealed = (u64, JoinHandle<io::Result<Prepared>>);

/// Reports that groups are committed no more, if the task ends while there are groups.
struct Ending(Weak<Groups>);

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(groups) = self.0.upgrade() {
            groups.failed(&io::Error::other("the task that commits writes has ended"));
        }
    }
}

/// Commits groups in their order, until the device is dropped.
async fn commit_groups(
    groups: Weak<Groups>,
    committer: Arc<Committer>,
    mut sealed: UnboundedReceiver<Sealed>,
) {
    // Also if a commit panics: nobody waits for it for ever.
    let ending = Ending(groups);
    while let Some((number, prepared)) = sealed.recv().await {
        let Some(groups) = ending.0.upgrade() else { return };
        if groups.fault().is_some() {
            prepared.abort();
            continue;
        }
        let commit = async { committer.commit(prepared.await.map_err(io::Error::other)??).await };
        match commit.await {
            Ok(()) => groups.committed(number),
            Err(error) => groups.failed(&error),
        }
    }
}

/// Seals old groups and cleans, until the device is dropped.
async fn keep_tidy(core: Weak<Core>) {
    let mut cleaned = Instant::now();
    loop {
        tokio::time::sleep(OPEN_FOR / 2).await;
        let Some(core) = core.upgrade() else { return };
        core.seal_old();
        if cleaned.elapsed() >= CLEAN_INTERVAL && !core.store.activity().is_resting() {
            // A failure is one of writes, too, which report it. Else the next turn tries again.
            let _ = core.clean_some().await;
            cleaned = Instant::now();
        }
    }
}

fn disk_cache(url: &StoreUrl, options: &RemoteOptions) -> Option<DiskCache> {
    // The files of a local store are as near as those of a cache.
    let root = root_of(options).filter(|_| url.store_name != "file")?;
    let disk = DiskCache::open(&root, &format!("segments {}", url.store_name), options.cache_bytes)?;
    let disk = disk.sealed_by(url.sealing().cloned());
    // Files of earlier runs may exceed a limit that is lower now.
    disk.shrink();
    Some(disk)
}

impl StoreDevice {
    /// Opens the device that a URL names. Opening it for writing fences another writer.
    ///
    /// # Errors
    /// No such device, or no such checkpoint; a checkpoint for writing; a store that does not
    /// answer.
    pub fn open(url: &StoreUrl, access: Access, options: &RemoteOptions) -> Result<Self, OpenErrorKind> {
        let runtime = runtime().map_err(OpenErrorKind::Io)?;
        runtime.block_on(async {
            let url = &url.unlock_device().await?;
            let (counted, store) = url.counted();
            let source = match (access, &url.checkpoint) {
                (Access::ReadWrite, Some(_)) => return Err(OpenErrorKind::ReadOnlyMedium),
                (Access::ReadWrite, None) => {
                    let writer = Source::writer(url, &store, counted.activity(), options).await;
                    writer.map_err(opening)?
                }
                (Access::ReadOnly, Some(checkpoint)) => {
                    let id = super::admin::find_checkpoint(url, checkpoint).await?.id;
                    let mode = DbReaderMode::Checkpoint(id);
                    Source::reader(url, &store, options, mode).await.map_err(opening)?
                }
                (Access::ReadOnly, None) => {
                    // A checkpoint keeps the objects of this state. Without the right to write one,
                    // a read fails once a writer has deleted an object.
                    let managed = Source::reader(url, &store, options, DbReaderMode::ManagedCheckpoint).await;
                    match managed {
                        Ok(reader) => reader,
                        Err(_) => Source::reader(url, &store, options, DbReaderMode::FollowLatest)
                            .await
                            .map_err(opening)?,
                    }
                }
            };
            let meta = Meta::parse(source.get(META).await.map_err(OpenErrorKind::Io)?.as_deref())?;
            Self::new(url, (counted, store), source, meta, options).await
        })
    }

    /// Makes a device of `size` bytes, all zeros, or opens the one that is there and sets its size.
    ///
    /// # Errors
    /// A size of 0 or no multiple of 4096; a database of something else; as [`StoreDevice::open`].
    pub fn create(url: &StoreUrl, size: u64, options: &RemoteOptions) -> Result<Self, OpenErrorKind> {
        if size == 0 || !size.is_multiple_of(BLOCK) {
            return Err(OpenErrorKind::Remote(format!("its size must be a multiple of {BLOCK} bytes")));
        }
        if url.checkpoint.is_some() {
            return Err(OpenErrorKind::ReadOnlyMedium);
        }
        let runtime = runtime().map_err(OpenErrorKind::Io)?;
        runtime.block_on(async {
            let (url, existed) = &url.unlock().await?;
            let (counted, store) = url.counted();
            if !existed {
                lineage::forget_ancestors(url, &store).await.map_err(OpenErrorKind::Io)?;
            }
            let writer = Source::writer(url, &store, counted.activity(), options).await;
            let source = writer.map_err(opening)?;
            let found = source.get(META).await.map_err(OpenErrorKind::Io)?;
            let meta = match Meta::parse(found.as_deref()) {
                Ok(meta) => Meta { size, ..meta },
                Err(error) if found.is_some() => return Err(error),
                Err(error) => {
                    let first = source.scan(Vec::new()..vec![u8::MAX; 32]).await;
                    let first = async { first?.next().await };
                    // A crash may have left a new database without its description.
                    if *existed && first.await.map_err(OpenErrorKind::Io)?.is_some() {
                        return Err(error);
                    }
                    Meta::new(size)
                }
            };
            put_meta(&source, meta).await?;
            Self::new(url, (counted, store), source, meta, options).await
        })
    }

    /// Makes the device that a URL names larger; the new part reads as zeros. Fences another
    /// writer. Returns the size in bytes before.
    ///
    /// # Errors
    /// A size below that of the device, or no multiple of 4096; as [`StoreDevice::open`].
    pub fn grow(url: &StoreUrl, size: u64, options: &RemoteOptions) -> Result<u64, OpenErrorKind> {
        if !size.is_multiple_of(BLOCK) {
            return Err(OpenErrorKind::Remote(format!("its size must be a multiple of {BLOCK} bytes")));
        }
        let device = Self::open(url, Access::ReadWrite, options)?;
        let core = &device.core;
        if size < core.size {
            let reason = format!("it has {} bytes, and a device in a store does not shrink", core.size);
            return Err(OpenErrorKind::Remote(reason));
        }
        core.runtime.block_on(async {
            let meta = Meta::parse(core.source.get(META).await.map_err(OpenErrorKind::Io)?.as_deref())?;
            put_meta(&core.source, Meta { size, ..meta }).await
        })?;
        Ok(core.size)
    }

    /// Cleans the segments of the device that a URL names, and fences another writer: copies what
    /// lives in those that are half dead, and removes those that nothing names.
    ///
    /// # Errors
    /// As [`StoreDevice::open`]; a store that denies or fails a request.
    pub fn clean(url: &StoreUrl, options: &RemoteOptions) -> Result<StoreCleaned, OpenErrorKind> {
        let device = Self::open(url, Access::ReadWrite, options)?;
        let writing = device.core.writing().map_err(OpenErrorKind::Io)?;
        let cleaned = device.core.runtime.block_on(writing.cleaner.clean()).map_err(OpenErrorKind::Io)?;
        device.close().map_err(OpenErrorKind::Io)?;
        Ok(cleaned)
    }

    async fn new(
        url: &StoreUrl,
        (store, objects): (Arc<Counted>, Arc<dyn ObjectStore>),
        source: Source,
        meta: Meta,
        options: &RemoteOptions,
    ) -> Result<Self, OpenErrorKind> {
        let io = OpenErrorKind::Io;
        let runtime = runtime().map_err(io)?;
        let origins = lineage::origins(url, &objects).await.map_err(io)?;
        let origin = u16::try_from(origins.len() - 1)
            .map_err(|_| OpenErrorKind::Remote("it has too many ancestors".to_owned()))?;
        let source = Arc::new(source);
        let segments = Arc::new(SegmentReader::new(
            url.name.clone(),
            Arc::clone(&objects),
            origins.iter().map(lineage::segments_of).collect(),
            runtime,
            disk_cache(url, options),
            (options.memory_bytes / 4 * 3).max(LEAST_MEMORY),
        ));
        let map = Arc::new(BlockMap::new(Arc::clone(&source), meta.has_earlier_blocks));
        let mut writing = None;
        if source.is_writer() {
            let requests = source.get(REQUESTS).await.map_err(io)?;
            let (claim, before) = Claim::make(url, &objects).await;
            if let Some(before) = before {
                tracing::warn!("{}: fenced another writer: {before}; this one is {}", url.name, claim.own());
            }
            let committer = Arc::new(Committer::new(
                Arc::clone(&source),
                Arc::clone(&map),
                Arc::clone(&segments),
                objects,
                origin,
                meta,
                options,
            ));
            writing = Some(Writing {
                groups: start_groups(&committer, runtime),
                claim,
                cleaner: Cleaner { committer, url: url.clone() },
                earlier_requests: requests.as_deref().and_then(counted::parse).unwrap_or_default(),
                manifest_at: Mutex::new(Instant::now()),
            });
        }
        let core = Arc::new(Core {
            name: url.name.clone(),
            size: meta.size,
            runtime,
            store,
            source,
            map,
            segments,
            streams: Mutex::new(Streams::new(FIRST_WINDOW, MAX_WINDOW)),
            parts: tokio::sync::RwLock::new(()),
            writing,
        });
        if core.writing.is_some() {
            runtime.spawn(keep_tidy(Arc::downgrade(&core)));
        }
        Ok(Self { core })
    }

    /// Returns when the device was last used.
    #[cfg(test)]
    pub(super) fn activity(&self) -> &super::activity::Activity {
        self.core.store.activity()
    }

    /// Returns the part that cleans, to clean while the device is in use.
    #[cfg(test)]
    pub(super) fn cleaner(&self) -> &Cleaner {
        &self.core.writing.as_ref().expect("the device is open for writing").cleaner
    }

    /// Closes the device, which makes its writes durable. Later calls are errors.
    ///
    /// # Errors
    /// A store that does not answer; another program that has opened the device for writing.
    pub fn close(&self) -> io::Result<()> {
        self.core.runtime.block_on(self.core.close())
    }

    /// Returns the requests since the device was opened, by kind.
    pub fn requests(&self) -> StoreRequests {
        self.core.store.requests()
    }
}

async fn put_meta(source: &Source, meta: Meta) -> Result<(), OpenErrorKind> {
    let mut batch = WriteBatch::new();
    batch.put(META, meta.to_bytes());
    source.write(batch).await.map_err(OpenErrorKind::Io)?;
    source.flush().await.map_err(OpenErrorKind::Io)
}

/// Starts the task that commits groups.
fn start_groups(committer: &Arc<Committer>, runtime: &'static Runtime) -> Arc<Groups> {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel::<Sealed>();
    let preparer = Arc::clone(committer);
    let groups = Arc::new(Groups::new(move |group| {
        let number = group.number;
        let prepared = runtime.spawn(Arc::clone(&preparer).prepare(group));
        // The receiver lives until the groups are dropped.
        let _ = sender.send((number, prepared));
    }));
    runtime.spawn(commit_groups(Arc::downgrade(&groups), Arc::clone(committer), receiver));
    groups
}

impl Device for StoreDevice {
    fn name(&self) -> &str {
        &self.core.name
    }

    fn size(&self) -> u64 {
        self.core.size
    }

    fn access(&self) -> Access {
        self.core.access()
    }

    fn waits(&self) -> bool {
        true
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        self.core.runtime.block_on(self.core.read(buffer, offset.get()))
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        let reads = requests.iter_mut().map(async |request| {
            request.result = self.core.read(request.buffer, request.offset.get()).await;
        });
        let reads = futures_util::stream::iter(reads).buffer_unordered(IN_FLIGHT).collect::<()>();
        self.core.runtime.block_on(reads);
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.core.runtime.block_on(self.core.write(buffer, offset.get()))
    }

    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        self.core.runtime.block_on(async {
            for request in requests {
                request.result = self.core.write(request.buffer, request.offset.get()).await;
            }
        });
    }

    fn flush(&self) -> io::Result<()> {
        self.core.runtime.block_on(self.core.flush())
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        check_write(self.access(), self.size(), offset, length)?;
        self.core.runtime.block_on(self.core.discard(offset.get(), length)).map(drop)
    }

    fn write_zeroes(&self, offset: PhysicalAddress, length: u64, _keep_space: bool) -> io::Result<()> {
        check_write(self.access(), self.size(), offset, length)?;
        let end = offset.get() + length;
        self.core.runtime.block_on(async {
            let deleted = self.core.discard(offset.get(), length).await?;
            let edges = match deleted.is_empty() {
                true => [offset.get()..end, end..end],
                false => [offset.get()..deleted.start, deleted.end..end],
            };
            for edge in edges {
                let zeros = vec![0; (edge.end - edge.start) as usize];
                self.core.write(&zeros, edge.start).await?;
            }
            Ok(())
        })
    }

    fn start(self: Arc<Self>, mut op: StartedOp) {
        let runtime = self.core.runtime;
        runtime.spawn(async move {
            let offset = op.offset().get();
            let result = match op.direction() {
                Direction::Read => self.core.read(op.bytes_mut(), offset).await,
                Direction::Write => self.core.write(op.bytes(), offset).await,
            };
            // The code behind a completion may wait.
            runtime.spawn_blocking(move || {
                drop(self);
                op.complete(result);
            });
        });
    }

    fn advise(&self, offset: PhysicalAddress, length: u64, advice: Advice) {
        if advice == Advice::WillNeed && offset.get() < self.size() {
            let length = if length == 0 { self.size() } else { length };
            let length = length.min(self.size() - offset.get()).min(MOST_AT_ONCE);
            self.core.prefetch(offset.get()..offset.get() + length);
        }
    }
}

impl Drop for StoreDevice {
    fn drop(&mut self) {
        let closed = match Handle::try_current() {
            // A thread of the runtime cannot wait for it.
            Ok(_) => std::thread::scope(|scope| scope.spawn(|| self.close()).join().unwrap_or(Ok(()))),
            Err(_) => self.close(),
        };
        // Writes that were flushed are durable. A writer that was fenced cannot close in order.
        drop(closed);
    }
}
