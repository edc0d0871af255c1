//! `Source`: the database of a device, open for writing or for reading.
//!
//! It owns the settings of SlateDB, and turns its errors into those of the device.

use super::activity::{Activity, RestingClock};
use super::errors::error_of;
use super::still::StillClock;
use super::url::StoreUrl;
use crate::remote::{directory_name, root_of};
use object_store::ObjectStore;
use papilio_device::{RemoteOptions, read_only};
use slatedb::bytes::Bytes;
use slatedb::config::{
    DbReaderOptions, FlushOptions, FlushType, ObjectStoreCacheOptions, ScanOptions, WriteOptions,
};
use slatedb::db_cache::moka::{MokaCache, MokaCacheOptions};
use slatedb::{Checkpoint, Db, DbIterator, DbReader, DbReaderMode, Settings, SstBlockSize, WriteBatch};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of blocks that wait in the database's memory before writers wait.
const MOST_UNFLUSHED: usize = 128 << 20;
/// Tables that wait for compaction before writers wait. Each close of a writer makes one, and short
/// programs end before they compact.
const MOST_TABLES: usize = 32;
/// Bytes that a read of many keys fetches at once.
const READ_AHEAD: usize = 512 << 10;
/// Bytes of a file of the database's cache on disk.
const CACHE_PART: usize = 256 << 10;
/// The part of the caches, on disk and in memory, that the database has. Segments have the rest.
const SHARE: u64 = 4;
/// How long the checkpoint of a reader lives that ends without deleting it.
const READER_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

enum Handle {
    Writer(Db, Arc<Activity>),
    Reader(Box<DbReader>),
}

/// An open database.
pub(super) struct Source {
    name: String,
    handle: Handle,
}

fn cache_options(options: &RemoteOptions, url: &StoreUrl) -> ObjectStoreCacheOptions {
    // The files of a local store are as near as those of a cache. SlateDB's cache holds content.
    let root = root_of(options).filter(|_| url.store_name != "file" && url.sealing().is_none());
    let name = directory_name(&format!("{} {}", url.store_name, url.path));
    ObjectStoreCacheOptions {
        root_folder: root.map(|root| root.join("slatedb").join(name)),
        max_cache_size_bytes: usize::try_from(options.cache_bytes / SHARE).ok(),
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
        max_capacity: options.memory_bytes / SHARE,
        ..MokaCacheOptions::default()
    }))
}

impl Source {
    /// Opens the database for writing, or makes it. Fences another writer.
    pub(super) async fn writer(
        url: &StoreUrl,
        store: &Arc<dyn ObjectStore>,
        activity: &Arc<Activity>,
        options: &RemoteOptions,
    ) -> Result<Self, slatedb::Error> {
        activity.note();
        let settings = Settings {
            flush_interval: Some(Duration::from_secs(1)),
            l0_max_ssts: MOST_TABLES,
            l0_max_ssts_per_key: MOST_TABLES,
            max_unflushed_bytes: MOST_UNFLUSHED,
            object_store_max_retries: Some(retries(options)),
            object_store_cache_options: cache_options(options, url),
            ..Settings::default()
        };
        let db = Db::builder(url.path.clone(), Arc::clone(store))
            .with_settings(settings)
            .with_sst_block_size(SstBlockSize::Block64Kib)
            .with_db_cache(memory_cache(options), 0)
            .with_system_clock(Arc::new(RestingClock::new(Arc::clone(activity))))
            .build()
            .await?;
        Ok(Self { name: url.name.clone(), handle: Handle::Writer(db, Arc::clone(activity)) })
    }

    /// Opens the database for reading.
    pub(super) async fn reader(
        url: &StoreUrl,
        store: &Arc<dyn ObjectStore>,
        options: &RemoteOptions,
        mode: DbReaderMode,
    ) -> Result<Self, slatedb::Error> {
        let reader = DbReaderOptions {
            checkpoint_lifetime: READER_LIFETIME,
            object_store_max_retries: Some(retries(options)),
            object_store_cache_options: cache_options(options, url),
            ..DbReaderOptions::default()
        };
        let reader = DbReader::builder(url.path.clone(), Arc::clone(store))
            .with_reader_mode(mode)
            .with_options(reader)
            .with_system_clock(Arc::new(StillClock))
            .with_db_cache(memory_cache(options), 0)
            .build()
            .await?;
        Ok(Self { name: url.name.clone(), handle: Handle::Reader(Box::new(reader)) })
    }

    /// Returns the device's URL, for messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_writer(&self) -> bool {
        matches!(self.handle, Handle::Writer(..))
    }

    fn db(&self) -> io::Result<&Db> {
        match &self.handle {
            Handle::Writer(db, activity) => {
                activity.note();
                Ok(db)
            }
            Handle::Reader(_) => Err(read_only()),
        }
    }

    fn failed(&self) -> impl Fn(slatedb::Error) -> io::Error + '_ {
        |error| error_of(&self.name, &error)
    }

    pub(super) async fn get(&self, key: &[u8]) -> io::Result<Option<Bytes>> {
        let found = match &self.handle {
            Handle::Writer(db, _) => db.get(key).await,
            Handle::Reader(reader) => reader.get(key).await,
        };
        found.map_err(self.failed())
    }

    /// Returns the keys of a range with their values, in order.
    pub(super) async fn scan(&self, keys: Range<Vec<u8>>) -> io::Result<Scan<'_>> {
        let options = ScanOptions {
            read_ahead_bytes: READ_AHEAD,
            max_fetch_tasks: 4,
            cache_blocks: true,
            ..ScanOptions::default()
        };
        let scan = match &self.handle {
            Handle::Writer(db, _) => db.scan_with_options(keys, &options).await,
            Handle::Reader(reader) => reader.scan_with_options(keys, &options).await,
        };
        Ok(Scan { source: self, scan: scan.map_err(self.failed())? })
    }

    /// Writes a batch, all of it or nothing. It is durable after [`Source::flush`].
    pub(super) async fn write(&self, batch: WriteBatch) -> io::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let written = self.db()?.write_with_options(batch, &WriteOptions::default()).await;
        written.map(drop).map_err(self.failed())
    }

    /// Makes all batches durable.
    pub(super) async fn flush(&self) -> io::Result<()> {
        self.db()?.flush().await.map(drop).map_err(self.failed())
    }

    /// Makes all batches durable and brings the manifest up to date, so that a checkpoint made now
    /// has them.
    pub(super) async fn update_manifest(&self) -> io::Result<()> {
        let options = FlushOptions { flush_type: FlushType::MemTable };
        self.db()?.flush_with_options(options).await.map_err(self.failed())
    }

    /// Returns the number of the latest manifest and the checkpoints in it.
    pub(super) async fn latest_manifest(&self) -> io::Result<(u64, Vec<Checkpoint>)> {
        let db = self.db()?;
        db.refresh_manifest().await.map_err(self.failed())?;
        let manifest = db.manifest();
        Ok((manifest.id(), manifest.checkpoints().clone()))
    }

    /// Returns the number of a manifest that is not newer than the present one.
    pub(super) fn known_manifest(&self) -> io::Result<u64> {
        Ok(self.db()?.manifest().id())
    }

    pub(super) async fn close(&self) -> io::Result<()> {
        let closed = match &self.handle {
            Handle::Writer(db, activity) => {
                activity.note();
                db.close().await
            }
            Handle::Reader(reader) => reader.close().await,
        };
        closed.map_err(self.failed())
    }
}

/// A scan of keys.
pub(super) struct Scan<'a> {
    source: &'a Source,
    scan: DbIterator,
}

impl Scan<'_> {
    pub(super) async fn next(&mut self) -> io::Result<Option<(Bytes, Bytes)>> {
        let next = self.scan.next().await.map_err(self.source.failed())?;
        Ok(next.map(|found| (found.key, found.value)))
    }
}
