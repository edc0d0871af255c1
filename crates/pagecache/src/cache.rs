//! The cache: the state that all files share.
//!
//! Owns the byte limit, the memory, the LRU lists and the counters.
//!
//! **Invariants**
//! - `bytes()` is the sum of all charges: each folio plus 64 bytes for its record, and each node of
//!   the files' trees. It never exceeds the limit.
//! - A folio is charged before it is allocated. If the charge does not fit, the allocator evicts
//!   first.
//!
//! **Locks**, in order of acquisition:
//! - a folio's content lock;
//! - a mapping's tree;
//! - then one at a time: an LRU shard, the buddy allocator, the node pool, the table of mappings,
//!   the wait table.

use crate::folio::Folio;
use crate::folio::arena::Arena;
use crate::folio::lock::{LOCKED, WaitTable};
use crate::folio::record::{Record, flag};
use crate::lru::{Lrus, STRETCH};
use crate::mapping::{Mapping, MappingInner};
use crate::reclaim;
use crate::statistics::{Counters, Statistics};
use crate::sync::{self, AtomicU64, Condvar, Mutex, Padded};
use crate::xarray::{CacheInsert, NodePool};
use crate::{MAX_ORDER, PAGE_SIZE};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64 as PlainU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Number of counters of folios in use.
const HELD: usize = if cfg!(feature = "shuttle") { 2 } else { 8 };
/// Bytes charged per folio in addition to its memory.
pub(crate) const RECORD_BYTES: u64 = 64;

/// The reason why an insertion into the cache failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// All evictable memory is dirty or under writeback: write back, or wait for writeback, and
    /// retry.
    #[error("the page cache is full: {dirty} bytes are dirty and {writeback} bytes are under writeback")]
    AllDirty {
        /// Dirty bytes.
        dirty: u64,
        /// Bytes under writeback.
        writeback: u64,
    },
    /// All memory is in use: release folios and retry.
    #[error("the page cache is full: all {bytes} bytes are in use")]
    AllInUse {
        /// Bytes charged.
        bytes: u64,
    },
    /// The kernel refused to map more memory.
    #[error("the kernel refused memory for the page cache")]
    NoMemory,
}

/// Options of a new cache.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Limit in bytes, metadata included; at least 16 pages.
    pub limit: u64,
    /// How an insertion treats the shadows it overlaps.
    pub insert: CacheInsert,
    /// Whether evicted folios leave shadows, which identify the working set when pages come back.
    /// Without shadows, eviction only gives accessed folios a second chance.
    pub working_set: bool,
    /// Number of dirty bytes from which [`PageCache::over_background`] returns true.
    pub dirty_background: u64,
    /// Number of dirty bytes from which [`PageCache::over_hard`] returns true.
    pub dirty_hard: u64,
    /// Whether to advise huge pages.
    pub huge_pages: bool,
    /// The largest order of a folio, 0 to 9.
    pub max_order: u8,
}

impl CacheOptions {
    /// Defaults: background writeback starts at a tenth of the limit, writers stop at two fifths.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            insert: CacheInsert::default(),
            working_set: true,
            dirty_background: limit / 10,
            dirty_hard: limit / 5 * 2,
            huge_pages: true,
            max_order: MAX_ORDER,
        }
    }
}

/// A page cache, shared by any number of files. Clones are handles to the same cache.
#[derive(Clone)]
pub struct PageCache {
    shared: Arc<Shared>,
}

impl PageCache {
    /// Creates a cache of at most `limit` bytes, metadata included (at least 16 pages).
    ///
    /// # Panics
    /// See [`PageCache::with_options`].
    pub fn new(limit: u64) -> Self {
        Self::with_options(CacheOptions::new(limit))
    }

    /// Creates a cache with the given options.
    ///
    /// # Panics
    /// If the limit is above 8 TiB or `max_order` above 9.
    pub fn with_options(mut options: CacheOptions) -> Self {
        assert!(options.max_order <= MAX_ORDER, "max_order is at most {MAX_ORDER}");
        options.limit = options.limit.max(16 * (PAGE_SIZE as u64 + RECORD_BYTES));
        let pages = u32::try_from(options.limit / PAGE_SIZE as u64 + 1)
            .ok()
            .filter(|pages| *pages < u32::MAX / 2)
            .expect("the limit is at most 8 TiB");
        let charged = Arc::<Padded<PlainU64>>::default();
        let nodes = (options.limit / NodePool::NODE_BYTES as u64).min(u64::from(u32::MAX / 2)) as usize;
        Self {
            shared: Arc::new(Shared {
                arena: Arena::new(pages, options.huge_pages),
                pool: Arc::new(NodePool::with_account(nodes + 64, Arc::clone(&charged))),
                options,
                lru: Lrus::new(pages),
                waits: WaitTable::new(),
                held: std::array::from_fn(|_| Padded(AtomicU64::new(0))),
                charged,
                isolated: Padded::default(),
                age: Padded::default(),
                dirty: Padded::default(),
                writeback: Padded::default(),
                counters: Counters::new(),
                mappings: Mutex::new(HashMap::new()),
                next_mapping: PlainU64::new(1),
                shadow_nodes: Mutex::new(reclaim::ShadowNodes::new()),
                throttle: (Mutex::new(()), Condvar::new()),
            }),
        }
    }

    pub(crate) fn from_shared(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Creates an empty mapping for a file. `host` is the caller's identifier for the file;
    /// [`Mapping::host`] returns it.
    pub fn mapping(&self, host: u64) -> Mapping {
        Mapping::new(&self.shared, host)
    }

    /// Returns the bytes charged: folios, their records, and nodes.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes()
    }

    /// Returns the limit of the bytes charged.
    pub fn limit(&self) -> u64 {
        self.shared.options.limit
    }

    /// Returns the options of this cache.
    pub fn options(&self) -> &CacheOptions {
        &self.shared.options
    }

    /// Returns the number of bytes that are dirty or under writeback.
    pub fn dirty_bytes(&self) -> u64 {
        self.shared.dirty.load(Relaxed) + self.shared.writeback.load(Relaxed)
    }

    /// Returns whether background writeback should start.
    pub fn over_background(&self) -> bool {
        self.dirty_bytes() >= self.shared.options.dirty_background
    }

    /// Returns whether writers should wait for writeback.
    pub fn over_hard(&self) -> bool {
        self.dirty_bytes() >= self.shared.options.dirty_hard
    }

    /// Waits until writers may continue. Returns false if `timeout` passes first.
    pub fn wait_dirty_below_hard(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let (mutex, condvar) = &self.shared.throttle;
        let mut guard = sync::lock(mutex);
        while self.over_hard() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            guard = sync::wait_for(condvar, guard, left);
        }
        true
    }

    /// Evicts clean unused folios until at most `bytes` are charged or none is left. Returns the
    /// bytes still charged.
    pub fn shrink_to(&self, bytes: u64) -> u64 {
        reclaim::shrink_to(&self.shared, bytes);
        self.bytes()
    }

    /// Returns event counts and current sizes.
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }
}

impl std::fmt::Debug for PageCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageCache")
            .field("limit", &self.limit())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

/// The state shared by mappings and folios. It outlives every allocated folio.
pub(crate) struct Shared {
    pub options: CacheOptions,
    pub arena: Arena,
    pub pool: Arc<NodePool>,
    pub lru: Lrus,
    pub waits: WaitTable,
    /// Numbers of folios in use, by stretch of memory.
    held: [Padded<AtomicU64>; HELD],
    /// Bytes charged for folios, their records, and nodes.
    charged: Arc<Padded<PlainU64>>,
    /// Folios taken off the LRU lists by a thread that tries to evict them.
    pub isolated: Padded<PlainU64>,
    /// The eviction clock: number of pages evicted or activated so far.
    pub age: Padded<PlainU64>,
    pub dirty: Padded<PlainU64>,
    pub writeback: Padded<PlainU64>,
    pub counters: Counters,
    pub mappings: Mutex<HashMap<u64, Weak<MappingInner>>>,
    pub next_mapping: PlainU64,
    pub shadow_nodes: Mutex<reclaim::ShadowNodes>,
    pub throttle: (Mutex<()>, Condvar),
}

impl Shared {
    pub fn bytes(&self) -> u64 {
        self.charged.load(Relaxed)
    }

    /// Allocates a folio of this order, or of a smaller one if no such block is free.
    ///
    /// The folio is locked exclusively and has two references: the caller's and the one that the
    /// tree will own. It has these flags and belongs to no mapping yet.
    ///
    /// # Errors
    /// The cache is full and nothing can be evicted, or the kernel refuses memory.
    pub fn allocate(self: &Arc<Self>, order: u8, flags: u32) -> Result<&Record, CacheError> {
        let mut order = order.min(self.options.max_order);
        // A folio is at most an eighth of the cache.
        while order > 0 && (PAGE_SIZE as u64) << order > self.options.limit / 8 {
            order -= 1;
        }
        let bytes = |order: u8| ((PAGE_SIZE as u64) << order) + RECORD_BYTES;
        if let Err(error) = self.charge(bytes(order)) {
            if order == 0 {
                return Err(error);
            }
            order = 0;
            self.charge(bytes(0))?;
        }
        let Some((id, got)) = self.arena.allocate(order) else {
            self.charged.fetch_sub(bytes(order), Relaxed);
            return Err(CacheError::NoMemory);
        };
        self.charged.fetch_sub(bytes(order) - bytes(got), Relaxed);
        let record = self.arena.record(id);
        record.lock.store(LOCKED, Relaxed);
        record.flags.store(u32::from(got) | flags, Relaxed);
        self.hold(record);
        record.refs.store(2, Release);
        Ok(record)
    }

    /// Counts a folio that comes into use. While a counter is above 0, it owns a reference to this
    /// `Shared`, which therefore outlives the folios.
    pub fn hold(self: &Arc<Self>, record: &Record) {
        if self.held(record).fetch_add(1, Relaxed) == 0 {
            // Another thread that increments the counter before the next line may rely on this
            // thread's own reference: this folio cannot have been freed yet.
            let _counted = Arc::into_raw(Arc::clone(self));
        }
    }

    fn held(&self, record: &Record) -> &AtomicU64 {
        &self.held[(record.id / STRETCH) as usize % HELD]
    }

    /// Charges bytes to the cache, evicting first if they do not fit.
    pub fn charge(self: &Arc<Self>, bytes: u64) -> Result<(), CacheError> {
        loop {
            let charged = self.charged.load(Relaxed);
            if charged + bytes <= self.options.limit {
                if self.charged.compare_exchange(charged, charged + bytes, Relaxed, Relaxed).is_ok() {
                    return Ok(());
                }
            } else {
                self.make_room(bytes)?;
            }
        }
    }

    /// Returns a charge.
    pub fn uncharge(&self, bytes: u64) {
        self.charged.fetch_sub(bytes, Relaxed);
    }

    /// Evicts until `bytes` more can be charged.
    fn make_room(self: &Arc<Self>, bytes: u64) -> Result<(), CacheError> {
        let target = self.options.limit.saturating_sub(bytes);
        if self.bytes() <= target || reclaim::shrink_to(self, target) {
            return Ok(());
        }
        let (dirty, writeback) = (self.dirty.load(Relaxed), self.writeback.load(Relaxed));
        Err(if dirty + writeback > 0 {
            CacheError::AllDirty { dirty, writeback }
        } else {
            CacheError::AllInUse { bytes: self.bytes() }
        })
    }

    /// Frees a folio from `allocate` that did not make it into a tree.
    pub fn release_new(&self, record: &Record) {
        record.unlock_exclusive(&self.waits);
        for _ in 0..2 {
            // SAFETY: these are the two references that `allocate` gave.
            drop(unsafe { Folio::from_counted(record, self) });
        }
    }

    /// Frees a folio whose reference count has dropped to 0.
    ///
    /// # Safety
    /// The caller took the count to 0. `this` is the `Shared` that allocated the record, and the
    /// caller does not use it afterwards unless something else keeps it alive.
    pub unsafe fn free(this: NonNull<Self>, record: NonNull<Record>) {
        // SAFETY: the folio, until it is freed at the end, keeps `Shared` alive.
        let shared = unsafe { this.as_ref() };
        {
            // SAFETY: records live as long as the arena, which is `Shared`'s.
            let record = unsafe { record.as_ref() };
            if record.has(flag::LRU) {
                shared.lru.lock_of(record).remove(&shared.arena, record);
            }
        }
        // SAFETY: this function's own contract.
        unsafe { Self::free_all(this, &[record]) };
    }

    /// [`Shared::free`] for several folios that are on no LRU list.
    ///
    /// # Safety
    /// See [`Shared::free`].
    pub unsafe fn free_all(this: NonNull<Self>, records: &[NonNull<Record>]) {
        // SAFETY: the folios, until they are freed at the end, keep `Shared` alive.
        let shared = unsafe { this.as_ref() };
        let mut bytes = 0;
        shared.arena.free(records.iter().map(|record| {
            // SAFETY: records live as long as the arena, which is `Shared`'s.
            let record = unsafe { record.as_ref() };
            let order = record.order();
            record.mapping.store(0, Relaxed);
            record.flags.store(0, Relaxed);
            bytes += ((PAGE_SIZE as u64) << order) + RECORD_BYTES;
            (record.id, order)
        }));
        shared.charged.fetch_sub(bytes, Relaxed);
        // Most records of one LRU shard share a stretch, so update each counter once.
        let stretch = |record: &NonNull<Record>| {
            // SAFETY: as above.
            unsafe { record.as_ref() }.id / STRETCH
        };
        for same in records.chunk_by(|a, b| stretch(a) == stretch(b)) {
            // SAFETY: as above.
            let held = shared.held(unsafe { same[0].as_ref() });
            let count = same.len() as u64;
            if held.fetch_sub(count, AcqRel) == count {
                // SAFETY: when the counter left 0, `hold` turned one clone of the `Arc` into this
                // pointer. It is dropped here, and `shared` is not used after the last drop.
                drop(unsafe { Arc::from_raw(this.as_ptr().cast_const()) });
            }
        }
    }

    /// Wakes writers that wait for the dirty bytes to fall.
    pub fn writeback_ended(&self) {
        let (mutex, condvar) = &self.throttle;
        drop(sync::lock(mutex));
        condvar.notify_all();
    }
}
