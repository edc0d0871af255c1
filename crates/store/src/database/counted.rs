//! `Counted`: an object store whose requests are counted by kind.
//!
//! It owns the counters of one open device. Requests for segments and those of the database are
//! counted apart. A request counts once, however often the client repeats it.
//!
//! **Locks**: none; the counters are atomic.

use super::activity::Activity;
use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) use papilio_device::{RequestCounts, StoreRequests};

/// The folder below a device's prefix that has its segments.
pub(super) const SEGMENTS: &str = "segments";

#[derive(Debug, Default)]
struct KindCounters {
    puts: AtomicU64,
    gets: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

impl KindCounters {
    fn put(&self, bytes: usize) {
        self.puts.fetch_add(1, Ordering::Relaxed);
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn get(&self) -> RequestCounts {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RequestCounts {
            puts: value(&self.puts),
            gets: value(&self.gets),
            lists: value(&self.lists),
            deletes: value(&self.deletes),
            bytes_sent: value(&self.sent),
            bytes_received: value(&self.received),
        }
    }
}

#[derive(Debug, Default)]
struct Both {
    segments: KindCounters,
    database: KindCounters,
    activity: Arc<Activity>,
}

impl Both {
    fn put(&self, path: &Path, bytes: usize) {
        self.activity.note();
        self.of(path).put(bytes);
    }

    fn of(&self, path: &Path) -> &KindCounters {
        let mut parts = path.parts().rev();
        if parts.nth(1).is_some_and(|folder| folder.as_ref() == SEGMENTS) {
            &self.segments
        } else {
            &self.database
        }
    }
}

const NUMBERS: usize = 12;

fn numbers(requests: &StoreRequests) -> [u64; NUMBERS] {
    let (one, other) = (&requests.segments, &requests.database);
    [
        one.puts,
        one.gets,
        one.lists,
        one.deletes,
        one.bytes_sent,
        one.bytes_received,
        other.puts,
        other.gets,
        other.lists,
        other.deletes,
        other.bytes_sent,
        other.bytes_received,
    ]
}

fn requests(numbers: [u64; NUMBERS]) -> StoreRequests {
    let counts = |at: usize| RequestCounts {
        puts: numbers[at],
        gets: numbers[at + 1],
        lists: numbers[at + 2],
        deletes: numbers[at + 3],
        bytes_sent: numbers[at + 4],
        bytes_received: numbers[at + 5],
    };
    StoreRequests { segments: counts(0), database: counts(NUMBERS / 2) }
}

/// Returns the value of the key of requests: twelve numbers, little-endian.
pub(super) fn to_bytes(requests: &StoreRequests) -> Vec<u8> {
    numbers(requests).into_iter().flat_map(u64::to_le_bytes).collect()
}

/// Reads the value of the key of requests.
pub(super) fn parse(bytes: &[u8]) -> Option<StoreRequests> {
    let mut all = [0; NUMBERS];
    if bytes.len() != all.len() * 8 {
        return None;
    }
    for (number, bytes) in all.iter_mut().zip(bytes.chunks_exact(8)) {
        *number = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    Some(requests(all))
}

/// Returns the sums of two counts.
pub(super) fn sum(one: &StoreRequests, other: &StoreRequests) -> StoreRequests {
    let mut sums = numbers(one);
    sums.iter_mut().zip(numbers(other)).for_each(|(sum, number)| *sum = sum.saturating_add(number));
    requests(sums)
}

/// A store that counts its requests.
#[derive(Debug)]
pub(super) struct Counted {
    inner: Arc<dyn ObjectStore>,
    counters: Arc<Both>,
}

impl Counted {
    pub(super) fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self { inner, counters: Arc::default() }
    }

    /// Returns the counts so far.
    pub(super) fn requests(&self) -> StoreRequests {
        StoreRequests { segments: self.counters.segments.get(), database: self.counters.database.get() }
    }

    /// Returns when objects were written last.
    pub(super) fn activity(&self) -> &Arc<Activity> {
        &self.counters.activity
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// An upload in parts, each of which is a request.
#[derive(Debug)]
struct CountedUpload {
    inner: Box<dyn MultipartUpload>,
    counters: Arc<Both>,
}

#[async_trait]
impl MultipartUpload for CountedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.counters.activity.note();
        self.counters.database.put(data.content_length());
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.counters.database.put(0);
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

#[async_trait]
impl ObjectStore for Counted {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.counters.put(path, payload.content_length());
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.counters.database.put(0);
        let inner = self.inner.put_multipart_opts(path, options).await?;
        Ok(Box::new(CountedUpload { inner, counters: Arc::clone(&self.counters) }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let counters = self.counters.of(path);
        counters.gets.fetch_add(1, Ordering::Relaxed);
        let head = options.head;
        let result = self.inner.get_opts(path, options).await?;
        if !head {
            counters.received.fetch_add(result.range.end - result.range.start, Ordering::Relaxed);
        }
        Ok(result)
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let counters = Arc::clone(&self.counters);
        let counted = paths.inspect(move |path| {
            if let Ok(path) = path {
                counters.of(path).deletes.fetch_add(1, Ordering::Relaxed);
            }
        });
        self.inner.delete_stream(counted.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.counters.database.lists.fetch_add(1, Ordering::Relaxed);
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.counters.database.lists.fetch_add(1, Ordering::Relaxed);
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.counters.database.lists.fetch_add(1, Ordering::Relaxed);
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.counters.of(to).put(0);
        self.inner.copy_opts(from, to, options).await
    }
}
