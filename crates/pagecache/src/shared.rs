//! The state that all files of a cache share, and the part of a file's state that guards keep
//! alive.
//!
//! Owns [`Shared`] and [`MappingInner`]. `charge` adds to the bytes charged, `mapping` holds the
//! operations on a file.
//!
//! **Invariants**
//! - `Shared` outlives every allocated folio: each counter in `held` that is above 0 owns a
//!   reference.
//! - A mapping's number is never reused.
//!
//! **Locks**: see [`crate::cache`].

use crate::PAGE_SIZE;
use crate::folio::arena::Arena;
use crate::folio::lock::WaitTable;
use crate::folio::record::{Record, flag};
use crate::lru::{Lrus, STRETCH};
use crate::options::CacheOptions;
use crate::statistics::Counters;
use crate::sync::{self, AtomicU64, Condvar, Mutex, Padded};
use crate::xarray::{NodePool, Reader, XArray};
use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64 as PlainU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::{Arc, Weak};

/// Number of counters of folios in use.
const HELD: usize = if cfg!(feature = "shuttle") { 2 } else { 8 };
/// Bytes charged per folio in addition to its memory.
pub(crate) const RECORD_BYTES: u64 = 64;

/// The part of a mapping that guards keep alive.
pub(crate) struct MappingInner {
    pub shared: Arc<Shared>,
    pub id: u64,
    pub host: u64,
    pub reader: Reader,
    /// In cache lines of its own, apart from the fields that a lookup reads.
    pub tree: Padded<Mutex<XArray>>,
    /// Number of folios in the tree; written only with the tree locked.
    pub folios: Padded<PlainU64>,
    pub dirty: PlainU64,
}

/// Queue of nodes that held only shadows when they were queued: mapping and an index in the node.
pub(crate) struct ShadowNodes {
    pub queue: VecDeque<(u64, u64)>,
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
    pub charged: Arc<Padded<PlainU64>>,
    /// Folios taken off the LRU lists by a thread that tries to evict them.
    pub isolated: Padded<PlainU64>,
    /// The eviction clock: number of pages evicted or activated so far.
    pub age: Padded<PlainU64>,
    pub dirty: Padded<PlainU64>,
    pub writeback: Padded<PlainU64>,
    pub counters: Counters,
    pub mappings: Mutex<HashMap<u64, Weak<MappingInner>>>,
    pub next_mapping: PlainU64,
    pub shadow_nodes: Mutex<ShadowNodes>,
    pub throttle: (Mutex<()>, Condvar),
}

impl Shared {
    /// Creates the state of an empty cache of at most `pages` pages.
    pub fn new(options: CacheOptions, pages: u32) -> Self {
        let charged = Arc::<Padded<PlainU64>>::default();
        let nodes = (options.limit / NodePool::NODE_BYTES as u64).min(u64::from(u32::MAX / 2)) as usize;
        Self {
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
            shadow_nodes: Mutex::new(ShadowNodes { queue: VecDeque::new() }),
            throttle: (Mutex::new(()), Condvar::new()),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.charged.load(Relaxed)
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

    /// Returns the pointer that [`Shared::free`] needs: one of the `Arc`, which may free its
    /// memory. A pointer made of a reference may not.
    #[inline]
    pub fn pointer(self: &Arc<Self>) -> NonNull<Self> {
        NonNull::new(Arc::as_ptr(self).cast_mut()).expect("an Arc's pointer is not null")
    }

    fn held(&self, record: &Record) -> &AtomicU64 {
        &self.held[(record.id / STRETCH) as usize % HELD]
    }

    /// Returns a charge.
    pub fn uncharge(&self, bytes: u64) {
        self.charged.fetch_sub(bytes, Relaxed);
    }

    /// Frees a folio whose reference count has dropped to 0.
    ///
    /// # Safety
    /// The caller took the count to 0. `this` is the `Shared` that allocated the record, by
    /// [`Shared::pointer`]. The caller does not use it afterwards unless something else keeps it
    /// alive.
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

    /// Returns the mapping with this number if it is still alive.
    pub fn mapping_by_id(&self, id: u64) -> Option<Arc<MappingInner>> {
        sync::lock(&self.mappings).get(&id)?.upgrade()
    }
}

impl std::fmt::Debug for MappingInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MappingInner").field("host", &self.host).finish_non_exhaustive()
    }
}
