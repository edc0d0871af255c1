//! `RemoteDevice`: an object of a store as a read-only device.
//!
//! It owns the cut of reads into blocks, and the readahead.
//!
//! **Locks**: `streams`, held for one lookup.

use super::blocks::BLOCK;
use super::disk_cache::{self, DiskCache};
use super::fetch::Fetcher;
use super::object::Object;
use super::readahead::Streams;
use papilio_device::{
    Access, Advice, Device, OpenErrorKind, PhysicalAddress, ReadRequest, RemoteOptions, StartedOp,
    check_read, read_only,
};
use papilio_locks::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of the first request: the superblock is among them, and the headers of all formats.
const FIRST: u64 = 2 * BLOCK;
/// Blocks that are fetched ahead when a sequence of reads is found.
const FIRST_WINDOW: u64 = 4;
/// The most blocks that are fetched ahead.
const MAX_WINDOW: u64 = 64;
/// The most bytes of blocks that a read holds at once.
const MOST_AT_ONCE: usize = 8 << 20;

/// Counts of a [`RemoteDevice`] since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteStatistics {
    /// Requests that were sent, without repetitions.
    pub requests: u64,
    /// Bytes that were fetched.
    pub bytes: u64,
    /// Blocks that the cache on disk had.
    pub disk_hits: u64,
}

/// An object of a store, for reading.
#[derive(Debug)]
pub struct RemoteDevice {
    fetcher: Arc<Fetcher>,
    streams: Mutex<Streams>,
}

impl RemoteDevice {
    /// Opens the object that a URL names.
    ///
    /// # Errors
    /// A URL that names no object; no such object; no access to it; a server that does not answer,
    /// or does not send ranges.
    pub fn open(url: &str, options: &RemoteOptions) -> Result<Self, OpenErrorKind> {
        let runtime = super::runtime::runtime().map_err(OpenErrorKind::Io)?;
        let (object, start) = runtime.block_on(Object::open(url, options, FIRST))?;
        if object.size == 0 {
            return Err(OpenErrorKind::Empty);
        }
        let disk = disk_cache::root_of(options).zip(object.cache_key());
        let disk = disk.and_then(|(root, key)| DiskCache::open(&root, &key, options.cache_bytes));
        if let Some(disk) = &disk {
            // Files of earlier runs may exceed a limit that is lower now.
            disk.shrink();
        }
        let fetcher = Fetcher::new(object, runtime, disk, options.memory_bytes);
        fetcher.counters.requests.fetch_add(1, Ordering::Relaxed);
        fetcher.counters.bytes.fetch_add(start.len() as u64, Ordering::Relaxed);
        fetcher.insert(&start);
        Ok(Self { fetcher: Arc::new(fetcher), streams: Mutex::new(Streams::new(FIRST_WINDOW, MAX_WINDOW)) })
    }

    /// Returns the counts since the device was opened.
    pub fn statistics(&self) -> RemoteStatistics {
        let counters = &self.fetcher.counters;
        RemoteStatistics {
            requests: counters.requests.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
            disk_hits: counters.disk_hits.load(Ordering::Relaxed),
        }
    }

    fn read_ahead(&self, offset: PhysicalAddress, length: usize) {
        let blocks = Fetcher::blocks_of(offset.get(), length as u64);
        if !blocks.is_empty() {
            let ahead = self.streams.lock().read(blocks.start, blocks.end);
            if !ahead.is_empty() {
                self.fetcher.prefetch(ahead);
            }
        }
    }

    /// Carries out requests that lie within the device and have few bytes together.
    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) {
        let blocks_of =
            |request: &ReadRequest<'_>| Fetcher::blocks_of(request.offset.get(), request.buffer.len() as u64);
        let mut wanted: Vec<u64> = requests.iter().flat_map(blocks_of).collect();
        wanted.sort_unstable();
        wanted.dedup();
        // The wanted blocks go first. Those that are read ahead are on their way before the wait.
        self.fetcher.prefetch(wanted.iter().copied());
        for request in &*requests {
            self.read_ahead(request.offset, request.buffer.len());
        }
        let found = self.fetcher.get(&wanted);
        for request in requests {
            request.result = Ok(());
            let mut done = 0;
            while done < request.buffer.len() {
                let at = request.offset.get() + done as u64;
                let bytes = match &found[&(at / BLOCK)] {
                    Ok(bytes) => &bytes[(at % BLOCK) as usize..],
                    Err(fault) => {
                        request.result = Err(fault.to_error());
                        break;
                    }
                };
                let length = bytes.len().min(request.buffer.len() - done);
                request.buffer[done..done + length].copy_from_slice(&bytes[..length]);
                done += length;
            }
        }
    }
}

impl Device for RemoteDevice {
    fn name(&self) -> &str {
        &self.fetcher.object.name
    }

    fn size(&self) -> u64 {
        self.fetcher.object.size
    }

    fn access(&self) -> Access {
        Access::ReadOnly
    }

    fn waits(&self) -> bool {
        true
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.size(), offset, buffer.len())?;
        let mut at = offset;
        for part in buffer.chunks_mut(MOST_AT_ONCE) {
            let length = part.len() as u64;
            let mut request = [ReadRequest::new(at, part)];
            self.read_batch(&mut request);
            let [request] = request;
            request.result?;
            at.0 += length;
        }
        Ok(())
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        let size = self.size();
        let mut rest = requests;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |request: &&ReadRequest<'_>| {
                bytes += request.buffer.len();
                bytes <= MOST_AT_ONCE && check_read(size, request.offset, request.buffer.len()).is_ok()
            };
            let count = rest.iter().take_while(fits).count();
            let (batch, after) = rest.split_at_mut(count.max(1));
            match batch {
                // Too large, or outside.
                [request] if count == 0 => request.result = self.read_at(request.buffer, request.offset),
                _ => self.read_batch(batch),
            }
            rest = after;
        }
    }

    fn write_at(&self, _: &[u8], _: PhysicalAddress) -> io::Result<()> {
        Err(read_only())
    }

    fn flush(&self) -> io::Result<()> {
        Err(read_only())
    }

    fn discard(&self, _: PhysicalAddress, _: u64) -> io::Result<()> {
        Err(read_only())
    }

    fn start(self: Arc<Self>, op: StartedOp) {
        let blocks = Fetcher::blocks_of(op.offset().get(), op.bytes().len() as u64);
        if blocks.end > self.size().div_ceil(BLOCK) || self.fetcher.has(blocks) {
            return op.run(&*self);
        }
        self.fetcher.runtime().spawn_blocking(move || op.run(&*self));
    }

    fn advise(&self, offset: PhysicalAddress, length: u64, advice: Advice) {
        if advice == Advice::WillNeed && offset.get() < self.size() {
            let length = if length == 0 { self.size() } else { length };
            let length = length.min(self.size() - offset.get()).min(MOST_AT_ONCE as u64);
            self.fetcher.prefetch(Fetcher::blocks_of(offset.get(), length));
        }
    }
}
