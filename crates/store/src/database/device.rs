//! `StoreDevice`: a device whose blocks are the values of a SlateDB database.
//!
//! It owns the layout. The key `meta` has the format's version, the size of a block and that of the
//! device. The key of a block is `b` and its number, big-endian. A block without a key reads as
//! zeros.
//!
//! **Invariants**
//! - A write is in the database's memory when it ends, and durable after a flush, in the order of
//!   the writes: a crash leaves a prefix of them.
//! - A part of a block is written by reading the rest. No other write runs meanwhile.
//!
//! **Locks**: `parts`, shared by writes of whole blocks, exclusive for a part of one. It belongs to
//! the async runtime and is held across requests.

use super::counted::{Counted, StoreRequests};
use super::errors::{error_of, opening};
use super::still::StillClock;
use super::url::StoreUrl;
use crate::remote::{directory_name, root_of, runtime};
use futures_util::StreamExt;
use object_store::ObjectStore;
use papilio_device::{
    Access, Device, Direction, OpenErrorKind, PhysicalAddress, ReadRequest, RemoteOptions, StartedOp,
    check_read, check_write, read_only,
};
use slatedb::bytes::Bytes;
use slatedb::config::{
    DbReaderOptions, FlushOptions, FlushType, ObjectStoreCacheOptions, ScanOptions, WriteOptions,
};
use slatedb::db_cache::moka::{MokaCache, MokaCacheOptions};
use slatedb::{Db, DbIterator, DbReader, DbReaderMode, Settings, SstBlockSize, WriteBatch};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::RwLock;

/// Bytes of a block: a sector of most file systems, so that few writes cover parts of one.
const BLOCK: u64 = 4096;
/// The key of the device's description.
const META: &[u8] = b"meta";
/// The first bytes of the description.
const MAGIC: &[u8; 16] = b"papilio-device\0\x01";
/// Requests of one batch that are in flight at once.
const IN_FLIGHT: usize = 64;
/// Keys of one batch of deletions.
const DELETIONS: usize = 4096;
/// Bytes that a read of many blocks fetches at once.
const READ_AHEAD: usize = 512 << 10;
/// Bytes of written blocks that wait in memory before writers wait.
const MOST_UNFLUSHED: usize = 256 << 20;
/// Bytes of a file of the cache on disk.
const CACHE_PART: usize = 256 << 10;
/// The longest time that a checkpoint of a device in use is behind. Flushes bring the database's
/// manifest up to date this often.
const MANIFEST_INTERVAL: Duration = Duration::from_secs(30);
/// How long the checkpoint of a reader lives that ends without deleting it.
const READER_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

enum Source {
    Writer(Db),
    Reader(Box<DbReader>),
}

/// A device in an object store.
pub struct StoreDevice {
    name: String,
    size: u64,
    store: Arc<Counted>,
    source: Source,
    runtime: &'static Runtime,
    parts: RwLock<()>,
    /// When the manifest was last brought up to date.
    manifest_at: papilio_locks::Mutex<Instant>,
}

impl fmt::Debug for StoreDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreDevice").field("name", &self.name).field("size", &self.size).finish()
    }
}

/// The description of a device.
struct Meta {
    size: u64,
}

impl Meta {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&BLOCK.to_le_bytes());
        bytes.extend_from_slice(&self.size.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let numbers = bytes.strip_prefix(MAGIC)?;
        let (block, size) = numbers.split_at_checked(8)?;
        let [block, size] = [block, size].map(|number| number.try_into().ok().map(u64::from_le_bytes));
        (block? == BLOCK).then_some(Self { size: size? })
    }
}

fn key(block: u64) -> [u8; 9] {
    let mut key = [b'b'; 9];
    key[1..].copy_from_slice(&block.to_be_bytes());
    key
}

fn block_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.strip_prefix(b"b")?.try_into().ok()?))
}

fn cache_options(options: &RemoteOptions, url: &StoreUrl) -> ObjectStoreCacheOptions {
    // The files of a local store are as near as those of a cache.
    let root = root_of(options).filter(|_| url.store_name != "file");
    let name = directory_name(&format!("{} {}", url.store_name, url.path));
    ObjectStoreCacheOptions {
        root_folder: root.map(|root| root.join("slatedb").join(name)),
        max_cache_size_bytes: usize::try_from(options.cache_bytes).ok(),
        part_size_bytes: CACHE_PART,
        cache_on_flush: true,
        ..ObjectStoreCacheOptions::default()
    }
}

/// Returns how often SlateDB repeats a request that the client has given up.
fn retries(options: &RemoteOptions) -> u32 {
    u32::try_from(options.retries).unwrap_or(u32::MAX)
}

fn memory_cache(options: &RemoteOptions) -> Arc<MokaCache> {
    Arc::new(MokaCache::new_with_opts(MokaCacheOptions {
        max_capacity: options.memory_bytes,
        ..MokaCacheOptions::default()
    }))
}

async fn open_writer(
    url: &StoreUrl,
    store: &Arc<Counted>,
    options: &RemoteOptions,
) -> Result<Db, slatedb::Error> {
    let settings = Settings {
        flush_interval: Some(Duration::from_secs(1)),
        max_unflushed_bytes: MOST_UNFLUSHED,
        object_store_max_retries: Some(retries(options)),
        object_store_cache_options: cache_options(options, url),
        ..Settings::default()
    };
    Db::builder(url.path.clone(), Arc::clone(store) as Arc<dyn ObjectStore>)
        .with_settings(settings)
        .with_sst_block_size(SstBlockSize::Block64Kib)
        .with_db_cache(memory_cache(options), 0)
        .build()
        .await
}

async fn open_reader(
    url: &StoreUrl,
    store: &Arc<Counted>,
    options: &RemoteOptions,
    mode: DbReaderMode,
) -> Result<DbReader, slatedb::Error> {
    let reader = DbReaderOptions {
        checkpoint_lifetime: READER_LIFETIME,
        object_store_max_retries: Some(retries(options)),
        object_store_cache_options: cache_options(options, url),
        ..DbReaderOptions::default()
    };
    DbReader::builder(url.path.clone(), Arc::clone(store) as Arc<dyn ObjectStore>)
        .with_reader_mode(mode)
        .with_options(reader)
        .with_system_clock(Arc::new(StillClock))
        .with_db_cache(memory_cache(options), 0)
        .build()
        .await
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
            let store = Arc::new(Counted::new(Arc::clone(&url.store)));
            if !super::admin::exists(url).await? {
                return Err(OpenErrorKind::NotFound);
            }
            let source = match (access, &url.checkpoint) {
                (Access::ReadWrite, Some(_)) => return Err(OpenErrorKind::ReadOnlyMedium),
                (Access::ReadWrite, None) => {
                    Source::Writer(open_writer(url, &store, options).await.map_err(opening)?)
                }
                (Access::ReadOnly, Some(checkpoint)) => {
                    let id = super::admin::find_checkpoint(url, checkpoint).await?.id;
                    let mode = DbReaderMode::Checkpoint(id);
                    Source::Reader(Box::new(open_reader(url, &store, options, mode).await.map_err(opening)?))
                }
                (Access::ReadOnly, None) => {
                    // A checkpoint keeps the objects of this state. Without the right to write one,
                    // a read fails once a writer has deleted an object.
                    let managed = open_reader(url, &store, options, DbReaderMode::ManagedCheckpoint).await;
                    Source::Reader(Box::new(match managed {
                        Ok(reader) => reader,
                        Err(_) => {
                            open_reader(url, &store, options, DbReaderMode::FollowLatest).await.map_err(opening)?
                        }
                    }))
                }
            };
            let meta = match &source {
                Source::Writer(db) => db.get(META).await,
                Source::Reader(reader) => reader.get(META).await,
            };
            let meta = meta.map_err(opening)?;
            let Some(meta) = meta.as_deref().and_then(Meta::parse) else {
                return Err(OpenErrorKind::Remote("the database there is no device of Papilio".to_owned()));
            };
            Ok(Self::new(url, store, source, meta.size, runtime))
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
            let store = Arc::new(Counted::new(Arc::clone(&url.store)));
            let existed = super::admin::exists(url).await?;
            let db = open_writer(url, &store, options).await.map_err(opening)?;
            let meta = db.get(META).await.map_err(opening)?;
            if existed && meta.as_deref().and_then(Meta::parse).is_none() {
                let first = db.scan::<std::ops::RangeFull>(..).await.map_err(opening)?.next().await;
                // A crash may have left a new database without its description.
                if first.map_err(opening)?.is_some() {
                    return Err(OpenErrorKind::Remote(
                        "the database there is no device of Papilio".to_owned(),
                    ));
                }
            }
            db.put(META, Meta { size }.to_bytes()).await.map_err(opening)?;
            db.flush().await.map_err(opening)?;
            Ok(Self::new(url, store, Source::Writer(db), size, runtime))
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
        if size < device.size {
            let reason = format!("it has {} bytes, and a device in a store does not shrink", device.size);
            return Err(OpenErrorKind::Remote(reason));
        }
        let db = device.writer().map_err(OpenErrorKind::Io)?;
        device.runtime.block_on(async {
            db.put(META, Meta { size }.to_bytes()).await.map_err(opening)?;
            db.flush().await.map(drop).map_err(opening)
        })?;
        Ok(device.size)
    }

    fn new(
        url: &StoreUrl,
        store: Arc<Counted>,
        source: Source,
        size: u64,
        runtime: &'static Runtime,
    ) -> Self {
        let manifest_at = papilio_locks::Mutex::new(Instant::now());
        Self { name: url.name.clone(), size, store, source, runtime, parts: RwLock::new(()), manifest_at }
    }

    /// Closes the device, which makes its writes durable. Later calls are errors.
    ///
    /// # Errors
    /// A store that does not answer; another program that has opened the device for writing.
    pub fn close(&self) -> io::Result<()> {
        self.runtime.block_on(self.end())
    }

    /// Returns the requests since the device was opened, by kind.
    pub fn requests(&self) -> StoreRequests {
        self.store.requests()
    }

    fn writer(&self) -> io::Result<&Db> {
        match &self.source {
            Source::Writer(db) => Ok(db),
            Source::Reader(_) => Err(read_only()),
        }
    }

    fn failed(&self) -> impl Fn(slatedb::Error) -> io::Error + '_ {
        |error| error_of(&self.name, &error)
    }

    async fn get(&self, block: u64) -> io::Result<Option<Bytes>> {
        let found = match &self.source {
            Source::Writer(db) => db.get(key(block)).await,
            Source::Reader(reader) => reader.get(key(block)).await,
        };
        let bytes = found.map_err(self.failed())?;
        match bytes {
            Some(bytes) if bytes.len() as u64 != BLOCK => {
                let reason = format!("{}: block {block} has {} bytes", self.name, bytes.len());
                Err(io::Error::new(io::ErrorKind::InvalidData, reason))
            }
            bytes => Ok(bytes),
        }
    }

    async fn scan(&self, blocks: &Range<u64>) -> io::Result<DbIterator> {
        let options = ScanOptions {
            read_ahead_bytes: READ_AHEAD,
            max_fetch_tasks: 4,
            cache_blocks: true,
            ..ScanOptions::default()
        };
        let keys = key(blocks.start)..key(blocks.end);
        let scan = match &self.source {
            Source::Writer(db) => db.scan_with_options(keys, &options).await,
            Source::Reader(reader) => reader.scan_with_options(keys, &options).await,
        };
        scan.map_err(self.failed())
    }

    async fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        check_read(self.size, PhysicalAddress(offset), buffer.len())?;
        let end = offset + buffer.len() as u64;
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
        let mut put = |block: u64, bytes: &[u8]| {
            let start = block * BLOCK;
            let (from, to) = (start.max(offset), (start + BLOCK).min(end));
            buffer[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
        };
        if blocks.end - blocks.start == 1 {
            match self.get(blocks.start).await? {
                Some(bytes) => put(blocks.start, &bytes),
                None => buffer.fill(0),
            }
            return Ok(());
        }
        let mut next = blocks.start;
        let zeros = [0; BLOCK as usize];
        let mut scan = self.scan(&blocks).await?;
        while let Some(found) = scan.next().await.map_err(self.failed())? {
            let block = block_of(&found.key).filter(|block| blocks.contains(block));
            let Some(block) = block.filter(|_| found.value.len() as u64 == BLOCK) else {
                let reason = format!("{}: a block of the database is not valid", self.name);
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
            };
            (next..block).for_each(|hole| put(hole, &zeros));
            put(block, &found.value);
            next = block + 1;
        }
        (next..blocks.end).for_each(|hole| put(hole, &zeros));
        Ok(())
    }

    async fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let db = self.writer()?;
        check_write(self.access(), self.size, PhysicalAddress(offset), bytes.len() as u64)?;
        let end = offset + bytes.len() as u64;
        if bytes.is_empty() {
            return Ok(());
        }
        let whole = offset.is_multiple_of(BLOCK) && end.is_multiple_of(BLOCK);
        let (_shared, _alone) = match whole {
            true => (Some(self.parts.read().await), None),
            false => (None, Some(self.parts.write().await)),
        };
        let mut batch = WriteBatch::new();
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            let start = block * BLOCK;
            let (from, to) = (start.max(offset), (start + BLOCK).min(end));
            let part = &bytes[(from - offset) as usize..(to - offset) as usize];
            if part.len() as u64 == BLOCK {
                batch.put(key(block), part);
                continue;
            }
            let mut content =
                self.get(block).await?.map_or_else(|| vec![0; BLOCK as usize], |old| old.to_vec());
            content[(from - start) as usize..(to - start) as usize].copy_from_slice(part);
            batch.put(key(block), content);
        }
        db.write_with_options(batch, &WriteOptions::default()).await.map(drop).map_err(self.failed())
    }

    /// Deletes the whole blocks of a range, which then read as zeros. Returns the range of bytes
    /// that they cover.
    async fn delete(&self, offset: u64, length: u64) -> io::Result<Range<u64>> {
        let db = self.writer()?;
        let blocks = offset.div_ceil(BLOCK)..(offset + length) / BLOCK;
        if blocks.is_empty() {
            return Ok(offset..offset);
        }
        let _shared = self.parts.read().await;
        let mut scan = self.scan(&blocks).await?;
        let mut batch = WriteBatch::new();
        let mut count = 0;
        loop {
            let found = scan.next().await.map_err(self.failed())?;
            if count > 0 && (found.is_none() || count == DELETIONS) {
                let full = std::mem::replace(&mut batch, WriteBatch::new());
                db.write_with_options(full, &WriteOptions::default()).await.map_err(self.failed())?;
                count = 0;
            }
            let Some(found) = found else { break };
            batch.delete(&found.key);
            count += 1;
        }
        Ok(blocks.start * BLOCK..blocks.end * BLOCK)
    }

    async fn make_durable(&self) -> io::Result<()> {
        let db = self.writer()?;
        db.flush().await.map_err(self.failed())?;
        let is_due = {
            let mut at = self.manifest_at.lock();
            let is_due = at.elapsed() >= MANIFEST_INTERVAL;
            if is_due {
                *at = Instant::now();
            }
            is_due
        };
        if is_due {
            self.update_manifest().await?;
        }
        Ok(())
    }

    /// Brings the manifest up to date, so that a checkpoint made now has all that is durable.
    async fn update_manifest(&self) -> io::Result<()> {
        let options = FlushOptions { flush_type: FlushType::MemTable };
        self.writer()?.flush_with_options(options).await.map_err(self.failed())
    }

    async fn end(&self) -> io::Result<()> {
        match &self.source {
            Source::Writer(db) => {
                self.update_manifest().await?;
                db.close().await.map_err(self.failed())
            }
            Source::Reader(reader) => reader.close().await.map_err(self.failed()),
        }
    }
}

impl Device for StoreDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn access(&self) -> Access {
        match self.source {
            Source::Writer(_) => Access::ReadWrite,
            Source::Reader(_) => Access::ReadOnly,
        }
    }

    fn waits(&self) -> bool {
        true
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        self.runtime.block_on(self.read(buffer, offset.get()))
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        let reads = requests.iter_mut().map(async |request| {
            request.result = self.read(request.buffer, request.offset.get()).await;
        });
        self.runtime.block_on(futures_util::stream::iter(reads).buffer_unordered(IN_FLIGHT).collect::<()>());
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.runtime.block_on(self.write(buffer, offset.get()))
    }

    fn flush(&self) -> io::Result<()> {
        self.runtime.block_on(self.make_durable())
    }

    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        check_write(self.access(), self.size, offset, length)?;
        self.runtime.block_on(self.delete(offset.get(), length)).map(drop)
    }

    fn write_zeroes(&self, offset: PhysicalAddress, length: u64, _keep_space: bool) -> io::Result<()> {
        check_write(self.access(), self.size, offset, length)?;
        let end = offset.get() + length;
        self.runtime.block_on(async {
            let deleted = self.delete(offset.get(), length).await?;
            let edges = match deleted.is_empty() {
                true => [offset.get()..end, end..end],
                false => [offset.get()..deleted.start, deleted.end..end],
            };
            for edge in edges {
                let zeros = vec![0; (edge.end - edge.start) as usize];
                self.write(&zeros, edge.start).await?;
            }
            Ok(())
        })
    }

    fn start(self: Arc<Self>, mut op: StartedOp) {
        let runtime = self.runtime;
        runtime.spawn(async move {
            let offset = op.offset().get();
            let result = match op.direction() {
                Direction::Read => self.read(op.bytes_mut(), offset).await,
                Direction::Write => self.write(op.bytes(), offset).await,
            };
            // The code behind a completion may wait.
            runtime.spawn_blocking(move || {
                drop(self);
                op.complete(result);
            });
        });
    }
}

impl Drop for StoreDevice {
    fn drop(&mut self) {
        let closed = match Handle::try_current() {
            // A thread of the runtime cannot wait for it.
            Ok(_) => std::thread::scope(|scope| {
                scope.spawn(|| self.runtime.block_on(self.end())).join().unwrap_or(Ok(()))
            }),
            Err(_) => self.runtime.block_on(self.end()),
        };
        // Writes that were flushed are durable. A writer that was fenced cannot close in order.
        drop(closed);
    }
}
