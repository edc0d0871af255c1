//! Races, explored by shuttle in many interleavings: `cargo test -p papilio-pagecache --features
//! shuttle --test model_check`.
//!
//! `PAPILIO_SHUTTLE_ITERATIONS` scales the tests. Each runs half of its iterations with random
//! schedules and half with PCT, which places few, well-chosen preemptions.

use papilio_pagecache::{
    CacheError, CacheInsert, CacheOptions, Dirty, Folio, Invalidate, Lookup, Mapping, PAGE_SIZE, PageCache,
    Statistics,
};
use shuttle::thread;
use std::sync::Arc;

const PAGE: u64 = PAGE_SIZE as u64;

fn check(body: impl Fn() + Send + Sync + 'static) {
    let iterations =
        std::env::var("PAPILIO_SHUTTLE_ITERATIONS").map_or(400, |text| text.parse().expect("a number"));
    let body = Arc::new(body);
    let random = Arc::clone(&body);
    shuttle::check_random(move || random(), iterations);
    shuttle::check_pct(move || body(), iterations, 3);
}

fn cache(pages: u64, insert: CacheInsert) -> PageCache {
    PageCache::with_options(CacheOptions {
        insert,
        huge_pages: false,
        ..CacheOptions::new(pages * (PAGE + 64))
    })
}

/// Returns a page, filled with its number if it is new.
fn touch(mapping: &Mapping, index: u64, order: u8) -> Result<Folio, CacheError> {
    Ok(match mapping.get_or_insert(index, order)? {
        Lookup::Present(folio) => folio,
        Lookup::Vacant(mut fill) => {
            let first = fill.index();
            for (page, bytes) in fill.chunks_mut(PAGE_SIZE).enumerate() {
                bytes.fill((first + page as u64) as u8);
            }
            fill.finish()
        }
    })
}

/// Reads a page if it is cached and checks the contents that `touch` writes. Returns whether it is
/// cached.
fn check_page(mapping: &Mapping, index: u64) -> bool {
    let Some(guard) = mapping.get(index).and_then(Folio::into_read) else { return false };
    let start = ((index - guard.folio().index()) * PAGE) as usize;
    assert_eq!(guard[start], index as u8, "page {index} has the contents of another page");
    assert_eq!(guard[start + PAGE_SIZE - 1], index as u8);
    true
}

fn spawn(mapping: &Arc<Mapping>, body: impl FnOnce(&Mapping) + Send + 'static) -> thread::JoinHandle<()> {
    let mapping = Arc::clone(mapping);
    thread::spawn(move || body(&mapping))
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("no thread panics");
    }
}

/// Checks the final state: all threads have ended and the mapping is dropped.
fn nothing_left(cache: &PageCache, mapping: Arc<Mapping>) {
    drop(Arc::into_inner(mapping).expect("all threads have ended"));
    let statistics = cache.statistics();
    let left = Statistics {
        bytes: statistics.bytes,
        folios: statistics.folios,
        active_bytes: statistics.active_bytes,
        inactive_bytes: statistics.inactive_bytes,
        dirty_bytes: statistics.dirty_bytes,
        writeback_bytes: statistics.writeback_bytes,
        nodes: statistics.nodes,
        ..Statistics::default()
    };
    assert_eq!(left, Statistics::default());
}

#[test]
fn concurrent_insertions_of_one_page_yield_one_folio() {
    for insert in [CacheInsert::OneWalk, CacheInsert::ManyWalks] {
        check(move || {
            let cache = cache(64, insert);
            let mapping = Arc::new(cache.mapping(0));
            let threads = [(5, 0), (4, 2), (5, 0)].map(|(index, order)| {
                spawn(&mapping, move |mapping| {
                    let folio = touch(mapping, index, order).expect("the cache has space");
                    let guard = folio.read().expect("it was filled");
                    assert_eq!(guard[((index - folio.index()) * PAGE) as usize], index as u8);
                    assert!(mapping.get(index).expect("it is cached") == folio);
                })
            });
            join(threads.into());
            assert!(check_page(&mapping, 5));
            nothing_left(&cache, mapping);
        });
    }
}

#[test]
fn lookup_racing_with_eviction_finds_the_page_or_nothing() {
    check(|| {
        let cache = cache(16, CacheInsert::OneWalk);
        let mapping = Arc::new(cache.mapping(0));
        for index in 0..3 {
            touch(&mapping, index, 0).expect("the cache has space");
        }
        let evictor = cache.clone();
        let threads = vec![
            thread::spawn(move || {
                evictor.shrink_to(0);
            }),
            spawn(&mapping, |mapping| {
                for index in [1, 2, 1] {
                    check_page(mapping, index);
                }
            }),
            spawn(&mapping, |mapping| {
                // Reuses the memory freed by eviction for another page.
                touch(mapping, 70, 0).expect("the cache has space");
                assert!(mapping.peek(70).is_none_or(|folio| folio.index() == 70));
            }),
        ];
        join(threads);
        for index in [0, 1, 2, 70] {
            check_page(&mapping, index);
        }
        nothing_left(&cache, mapping);
    });
}

/// Inserts folios into all shards. A cache of 64 pages has four.
fn fill_shards(mapping: &Mapping, pages: u64) {
    for index in 0..pages {
        touch(mapping, index, 0).expect("the cache has space");
    }
}

#[test]
fn concurrent_evictors_take_each_folio_once() {
    check(|| {
        let cache = cache(64, CacheInsert::OneWalk);
        let mapping = Arc::new(cache.mapping(0));
        fill_shards(&mapping, 20);
        let threads = [0, 12 * (PAGE + 64)].map(|target| {
            let evictor = cache.clone();
            thread::spawn(move || {
                evictor.shrink_to(target);
            })
        });
        join(threads.into());
        let statistics = cache.statistics();
        assert_eq!((statistics.evictions, statistics.folios), (20, 0), "each folio is evicted exactly once");
        assert!(mapping.is_empty());
        nothing_left(&cache, mapping);
    });
}

#[test]
fn eviction_racing_with_lookups_and_removal_keeps_the_lists() {
    check(|| {
        let cache = cache(64, CacheInsert::OneWalk);
        let mapping = Arc::new(cache.mapping(0));
        fill_shards(&mapping, 12);
        let (first, second) = (cache.clone(), cache.clone());
        let threads = vec![
            thread::spawn(move || {
                first.shrink_to(4 * (PAGE + 64));
            }),
            thread::spawn(move || {
                second.shrink_to(0);
            }),
            spawn(&mapping, |mapping| {
                mapping.truncate(10 * PAGE);
                mapping.invalidate(0..3 * PAGE, Invalidate::Clean);
            }),
            spawn(&mapping, |mapping| {
                for index in [9, 0, 5] {
                    check_page(mapping, index);
                }
                // Inserts where a shadow may be, in memory that may have just been freed.
                touch(mapping, 5, 0).expect("the cache has space");
                check_page(mapping, 5);
            }),
        ];
        join(threads);
        let statistics = cache.statistics();
        assert_eq!(statistics.folios, mapping.folios(), "exactly the file's folios are on the lists");
        assert!(mapping.get(10).is_none() && mapping.get(11).is_none(), "truncated");
        nothing_left(&cache, mapping);
    });
}

#[test]
fn pages_in_other_threads_magazines_are_found() {
    check(|| {
        let cache = cache(16, CacheInsert::OneWalk);
        let mapping = Arc::new(cache.mapping(0));
        fill_shards(&mapping, 14);
        let threads = [0u64, 100].map(|base| {
            let evictor = cache.clone();
            spawn(&mapping, move |mapping| {
                // Either thread takes the pages freed here.
                evictor.shrink_to(4 * (PAGE + 64));
                for index in base..base + 5 {
                    touch(mapping, index, 0).expect("the cache has space and memory");
                }
            })
        });
        join(threads.into());
        nothing_left(&cache, mapping);
    });
}

#[test]
fn lookup_in_a_growing_and_shrinking_tree_misses_nothing() {
    check(|| {
        let cache = cache(64, CacheInsert::OneWalk);
        let mapping = Arc::new(cache.mapping(0));
        let other = Arc::new(cache.mapping(1));
        touch(&mapping, 0, 0).expect("the cache has space");
        let threads = vec![
            spawn(&mapping, |mapping| {
                for index in [1, 100, 5000] {
                    touch(mapping, index, 0).expect("the cache has space");
                }
                mapping.truncate(PAGE);
            }),
            spawn(&other, |other| {
                // Takes over nodes that the first thread releases.
                touch(other, 64, 0).expect("the cache has space");
                touch(other, 3, 0).expect("the cache has space");
            }),
            spawn(&mapping, |mapping| {
                for _ in 0..3 {
                    assert!(check_page(mapping, 0), "page 0 is there all the time");
                }
            }),
        ];
        join(threads);
        drop(Arc::into_inner(other));
        nothing_left(&cache, mapping);
    });
}

#[test]
fn truncation_racing_with_a_fill_leaves_nothing() {
    check(|| {
        let cache = cache(64, CacheInsert::OneWalk);
        let mapping = Arc::new(cache.mapping(0));
        touch(&mapping, 1, 0).expect("the cache has space");
        let threads = vec![
            spawn(&mapping, |mapping| mapping.truncate(PAGE)),
            spawn(&mapping, |mapping| {
                if let Lookup::Vacant(mut fill) = mapping.get_or_insert(2, 0).expect("the cache has space") {
                    fill.fill(2);
                    fill.finish();
                }
            }),
            spawn(&mapping, |mapping| {
                if let Lookup::Vacant(fill) = mapping.get_or_insert(2, 0).expect("the cache has space") {
                    // The read failed.
                    drop(fill);
                }
            }),
            spawn(&mapping, |mapping| {
                for index in [1, 2] {
                    check_page(mapping, index);
                }
            }),
        ];
        join(threads);
        assert!(mapping.get(1).is_none(), "page 1 was cached before the truncation began");
        mapping.truncate(0);
        assert!(mapping.is_empty());
        nothing_left(&cache, mapping);
    });
}

#[test]
fn shadow_split_racing_with_lookups() {
    for insert in [CacheInsert::OneWalk, CacheInsert::ManyWalks] {
        check(move || {
            // A folio is at most an eighth of the cache: order 3 needs 64 pages.
            let cache = cache(80, insert);
            let mapping = Arc::new(cache.mapping(0));
            touch(&mapping, 64, 3).expect("the cache has space");
            cache.shrink_to(0);
            assert!(mapping.is_empty());
            touch(&mapping, 3, 0).expect("the cache has space");
            let threads = vec![
                spawn(&mapping, |mapping| {
                    touch(mapping, 66, 0).expect("the cache has space");
                    assert!(check_page(mapping, 66));
                }),
                spawn(&mapping, |mapping| {
                    touch(mapping, 68, 2).expect("the cache has space");
                    assert!(check_page(mapping, 70));
                }),
                spawn(&mapping, |mapping| {
                    for index in [66, 69, 71] {
                        check_page(mapping, index);
                    }
                    assert!(check_page(mapping, 3), "page 3 is there all the time");
                }),
            ];
            join(threads);
            assert!(check_page(&mapping, 66) && check_page(&mapping, 70));
            assert!(mapping.get(65).is_none(), "only a shadow is there");
            nothing_left(&cache, mapping);
        });
    }
}

#[test]
fn folio_split_racing_with_lookups_and_eviction() {
    check(|| {
        let cache = cache(80, CacheInsert::OneWalk);
        let mapping = Arc::new(cache.mapping(0));
        touch(&mapping, 4, 2).expect("the cache has space");
        let evictor = cache.clone();
        let threads = vec![
            spawn(&mapping, |mapping| {
                if let Some(guard) = mapping.peek(4).and_then(|folio| folio.write())
                    && let Err(guard) = mapping.split(guard, 0)
                {
                    assert_eq!(guard[0], 4, "the folio is in use and unchanged");
                }
            }),
            spawn(&mapping, |mapping| {
                // The truncation zeroes page 7 while it is part of the large folio.
                for index in [4, 5, 6] {
                    check_page(mapping, index);
                }
            }),
            thread::spawn(move || {
                evictor.shrink_to(0);
            }),
            spawn(&mapping, |mapping| {
                touch(mapping, 6, 0).expect("the cache has space");
                mapping.truncate(7 * PAGE);
            }),
        ];
        join(threads);
        if let Some(guard) = mapping.get(7).and_then(Folio::into_read) {
            let at = ((7 - guard.folio().index()) * PAGE) as usize;
            assert_eq!(guard[at], 0, "kept bytes beyond the end are zero");
        }
        nothing_left(&cache, mapping);
    });
}

/// Writes a byte over a page.
fn write(mapping: &Mapping, index: u64, byte: u8) {
    loop {
        let folio = touch(mapping, index, 0).expect("the cache has space");
        let Some(mut guard) = folio.write() else { continue };
        guard.fill(byte);
        let start = ((index - folio.index()) * PAGE) as usize;
        mapping.mark_dirty(&guard, start..start + PAGE_SIZE).expect("it stays while it is locked");
        return;
    }
}

#[test]
fn changes_racing_with_writeback_are_not_lost() {
    check(|| {
        let cache = cache(64, CacheInsert::OneWalk);
        let mapping = Arc::new(cache.mapping(0));
        write(&mapping, 0, 1);
        // The contents of a disk.
        let disk = Arc::new(std::sync::Mutex::new([0u8; 2]));
        let write_back = |mapping: &Mapping, disk: &std::sync::Mutex<[u8; 2]>| {
            while let Some(run) = mapping.start_writeback(0..u64::MAX, u64::MAX, Dirty::Any) {
                let bytes: Vec<u8> = run.slices().flatten().copied().step_by(PAGE_SIZE).collect();
                thread::yield_now();
                for (byte, slice) in bytes.iter().zip(run.slices()) {
                    assert_eq!(slice[PAGE_SIZE - 1], *byte, "the contents do not change during writeback");
                }
                let first = (run.range().start / PAGE) as usize;
                disk.lock().expect("no panic")[first..first + bytes.len()].copy_from_slice(&bytes);
                run.finish();
            }
        };
        let mut threads = vec![
            spawn(&mapping, |mapping| {
                write(mapping, 0, 2);
                write(mapping, 1, 3);
            }),
            spawn(&mapping, |mapping| {
                mapping.wait_writeback(0..u64::MAX);
                check_dirty(mapping);
            }),
        ];
        for _ in 0..2 {
            let disk = Arc::clone(&disk);
            threads.push(spawn(&mapping, move |mapping| write_back(mapping, &disk)));
        }
        join(threads);
        write_back(&mapping, &disk);
        assert_eq!(*disk.lock().expect("no panic"), [2, 3]);
        assert_eq!(cache.dirty_bytes(), 0);
        nothing_left(&cache, mapping);
    });
}

/// Checks that the dirty state of a page and of the mapping agree.
fn check_dirty(mapping: &Mapping) {
    if let Some(guard) = mapping.peek(0).and_then(|folio| folio.write()) {
        assert_eq!(guard.folio().is_dirty(), mapping.has_dirty(0..PAGE));
    }
}

#[test]
fn writeback_racing_with_truncation_and_reclaim() {
    check(|| {
        let cache = cache(16, CacheInsert::OneWalk);
        let mapping = Arc::new(cache.mapping(0));
        for index in 0..2 {
            write(&mapping, index, 9);
        }
        let evictor = cache.clone();
        let threads = vec![
            spawn(&mapping, |mapping| {
                if let Some(run) = mapping.start_writeback(0..u64::MAX, PAGE, Dirty::Any) {
                    run.fail();
                }
                mapping.tag_for_writeback(0..u64::MAX);
                while let Some(run) = mapping.start_writeback(0..u64::MAX, u64::MAX, Dirty::Tagged) {
                    assert!(run.slices().all(|slice| slice.iter().all(|byte| *byte == 9)));
                    run.finish();
                }
            }),
            spawn(&mapping, |mapping| mapping.truncate(PAGE)),
            thread::spawn(move || {
                evictor.shrink_to(0);
            }),
            spawn(&mapping, |mapping| {
                mapping.invalidate(0..PAGE, Invalidate::Clean);
                mapping.wait_writeback(0..u64::MAX);
            }),
        ];
        join(threads);
        assert!(mapping.get(1).is_none(), "truncated");
        assert_eq!(mapping.dirty_bytes(), cache.dirty_bytes());
        nothing_left(&cache, mapping);
    });
}

#[test]
fn mapping_dropped_while_folios_are_in_use() {
    check(|| {
        let cache = cache(16, CacheInsert::OneWalk);
        let mapping = Arc::new(cache.mapping(0));
        write(&mapping, 0, 1);
        write(&mapping, 2, 1);
        let run = mapping.start_writeback(0..PAGE, u64::MAX, Dirty::Any).expect("it is dirty");
        let folio = mapping.get(2).expect("it is cached");
        let Ok(Lookup::Vacant(fill)) = mapping.get_or_insert(5, 0) else { panic!("it is new") };
        let evictor = cache.clone();
        let threads = vec![
            thread::spawn(move || run.fail()),
            thread::spawn(move || {
                if let Some(guard) = folio.write() {
                    assert_eq!(guard[0], 1);
                }
            }),
            thread::spawn(move || {
                fill.finish();
            }),
            thread::spawn(move || {
                evictor.shrink_to(0);
            }),
        ];
        nothing_in_tree(mapping);
        join(threads);
        let statistics = cache.statistics();
        assert_eq!((statistics.bytes, statistics.dirty_bytes, statistics.writeback_bytes), (0, 0, 0));
    });
}

fn nothing_in_tree(mapping: Arc<Mapping>) {
    drop(Arc::into_inner(mapping).expect("only this thread holds it"));
}

#[test]
fn concurrent_insertions_keep_the_limit() {
    check(|| {
        let cache = cache(16, CacheInsert::OneWalk);
        let mapping = Arc::new(cache.mapping(0));
        let threads = [0u64, 100, 200].map(|base| {
            let cache = cache.clone();
            spawn(&mapping, move |mapping| {
                for index in base..base + 8 {
                    if let Err(error) = touch(mapping, index, 0) {
                        panic!("at most three folios are in use: {error}");
                    }
                    assert!(cache.bytes() <= cache.limit());
                }
            })
        });
        join(threads.into());
        for index in 0..300 {
            check_page(&mapping, index);
        }
        nothing_left(&cache, mapping);
    });
}
