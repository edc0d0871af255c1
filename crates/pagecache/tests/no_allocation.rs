//! Hits, and insertions into a full cache, do not allocate from the heap.

#![cfg(not(feature = "shuttle"))]

use papilio_pagecache::{Lookup, Mapping, PAGE_SIZE, PageCache};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An allocator that counts allocations.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: forwards every call to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller keeps the contract of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn touch(mapping: &Mapping, index: u64) {
    if let Lookup::Vacant(mut fill) = mapping.get_or_insert(index, 0).expect("the cache has space") {
        fill.fill(index as u8);
        fill.finish();
    }
}

/// The only test, since the counter covers the whole process.
#[test]
fn hits_and_insertions_do_not_allocate() {
    let cache = PageCache::new(16 << 20);
    let mapping = cache.mapping(0);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut out = vec![0; 2 * PAGE_SIZE];
    // Fill the cache, and leave space for shadows.
    for _ in 0..40_000 {
        touch(&mapping, rng.u64(..8192));
    }
    let before = ALLOCATIONS.load(Relaxed);
    let mut hits = 0;
    for _ in 0..40_000 {
        let index = rng.u64(..8192);
        if mapping.get(index).is_some() {
            hits += mapping.read(index * PAGE_SIZE as u64 + 5, &mut out).min(1);
        } else {
            touch(&mapping, index);
        }
    }
    assert!(hits > 1000 && cache.statistics().evictions > 20_000);
    assert_eq!(ALLOCATIONS.load(Relaxed) - before, 0, "allocations");
}
