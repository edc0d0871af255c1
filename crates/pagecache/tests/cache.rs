//! The cache's guarantees, one per test.

#![cfg(not(feature = "shuttle"))]

use papilio_pagecache::{
    CacheError, CacheInsert, CacheOptions, Dirty, Folio, Invalidate, Invalidated, Lookup, Mapping, PAGE_SIZE,
    PageCache,
};

const PAGE: u64 = PAGE_SIZE as u64;

/// Makes sure that a page is cached, filled with its number. Returns true if it was.
fn touch(mapping: &Mapping, index: u64, order: u8) -> bool {
    match mapping.get_or_insert(index, order).expect("the cache has space") {
        Lookup::Present(_) => true,
        Lookup::Vacant(mut fill) => {
            let first = fill.index();
            for (page, bytes) in fill.chunks_mut(PAGE_SIZE).enumerate() {
                bytes.fill((first + page as u64) as u8);
            }
            fill.finish();
            false
        }
    }
}

fn write(mapping: &Mapping, offset: u64, byte: u8, len: usize) {
    let mut done = 0;
    while done < len {
        let position = offset + done as u64;
        touch(mapping, position / PAGE, 0);
        let folio = mapping.get(position / PAGE).expect("it has just been touched");
        let mut guard = folio.write().expect("it is up to date");
        let start = (position - folio.offset()) as usize;
        let count = (guard.len() - start).min(len - done);
        guard[start..start + count].fill(byte);
        mapping.mark_dirty(&guard, start..start + count).expect("it is attached");
        done += count;
    }
}

#[test]
fn reads_return_filled_contents() {
    let cache = PageCache::new(1 << 24);
    let mapping = cache.mapping(5);
    assert_eq!(mapping.host(), 5);
    assert!(mapping.get(3).is_none());
    assert!(!touch(&mapping, 3, 0));
    assert!(!touch(&mapping, 12, 2));
    assert!(touch(&mapping, 14, 9));
    let folio = mapping.get(14).expect("it is cached");
    assert_eq!(
        (folio.index(), folio.order(), folio.len(), folio.offset()),
        (12, 2, 4 * PAGE_SIZE, 12 * PAGE)
    );
    assert_eq!(
        folio.read().expect("up to date")[2 * PAGE_SIZE..],
        [[14; PAGE_SIZE], [15; PAGE_SIZE]].concat()
    );
    let mut out = vec![0; 5 * PAGE_SIZE];
    assert_eq!(mapping.read(13 * PAGE + 7, &mut out), 3 * PAGE_SIZE - 7);
    assert_eq!((out[0], out[PAGE_SIZE - 7], out[2 * PAGE_SIZE - 7]), (13, 14, 15));
    assert_eq!(mapping.read(11 * PAGE, &mut out), 0);
    assert_eq!(mapping.folios(), 2);
    drop(folio);
    drop(mapping);
    assert_eq!(cache.bytes(), 0, "dropping the mapping frees everything");
}

#[test]
fn new_folios_do_not_overlap_neighbours() {
    let cache = PageCache::new(1 << 24);
    let mapping = cache.mapping(0);
    touch(&mapping, 5, 0);
    touch(&mapping, 0, 9);
    let folio = mapping.get(0).expect("it is cached");
    assert_eq!((folio.index(), folio.order()), (0, 2));
    touch(&mapping, 6, 9);
    assert_eq!(mapping.get(7).expect("it is cached").order(), 1);
    let mut fills = Vec::new();
    mapping.insert_range(0..100, 4, &mut fills).expect("the cache has space");
    let made: Vec<(u64, u8)> = fills.iter().map(|fill| (fill.index(), fill.order())).collect();
    assert_eq!(made, [(4, 0), (8, 3), (16, 4), (32, 4), (48, 4), (64, 4), (80, 4), (96, 2)]);
}

#[test]
fn failed_fill_leaves_no_folio() {
    let cache = PageCache::new(1 << 24);
    let mapping = cache.mapping(0);
    let Lookup::Vacant(fill) = mapping.get_or_insert(1, 0).expect("the cache has space") else {
        panic!("it is new")
    };
    let Lookup::Present(waiting) = mapping.get_or_insert(1, 0).expect("the cache has space") else {
        panic!("it is cached")
    };
    assert!(waiting.try_read().is_none() && !waiting.is_uptodate());
    drop(fill);
    assert!(waiting.read().is_none() && waiting.write().is_none() && !waiting.is_attached());
    assert!(mapping.get(1).is_none());
    assert!(!touch(&mapping, 1, 0));
}

#[test]
fn adjacent_dirty_blocks_form_one_run() {
    let cache = PageCache::new(1 << 24);
    let mapping = cache.mapping(0);
    touch(&mapping, 8, 3);
    write(&mapping, 8 * PAGE + 100, 1, 2 * PAGE_SIZE);
    write(&mapping, 14 * PAGE, 2, 2 * PAGE_SIZE);
    write(&mapping, 16 * PAGE, 3, 1);
    write(&mapping, 18 * PAGE, 4, 1);
    assert_eq!(mapping.dirty_bytes(), 7 * PAGE);
    assert_eq!(cache.dirty_bytes(), 7 * PAGE);
    assert!(mapping.has_dirty(10 * PAGE..11 * PAGE) && !mapping.has_dirty(11 * PAGE..14 * PAGE));
    assert_eq!(mapping.next_dirty(11 * PAGE..u64::MAX, u64::MAX), Some(14 * PAGE..17 * PAGE));
    let mut runs = Vec::new();
    let mut written = Vec::new();
    while let Some(run) = mapping.start_writeback(0..u64::MAX, u64::MAX, Dirty::Any) {
        runs.push(run.range().start / PAGE..run.range().end / PAGE);
        written.push(run.slices().map(<[u8]>::len).collect::<Vec<_>>());
        assert!(run.folios().all(Folio::is_writeback));
        run.finish();
    }
    assert_eq!(runs, [8..11, 14..17, 18..19]);
    assert_eq!(written, [vec![3 * PAGE_SIZE], vec![2 * PAGE_SIZE, PAGE_SIZE], vec![PAGE_SIZE]]);
    assert_eq!((mapping.dirty_bytes(), cache.dirty_bytes()), (0, 0));
    assert!(!mapping.get(8).expect("it is cached").is_dirty());
}

#[test]
fn writeback_excludes_writers_not_readers() {
    let cache = PageCache::new(1 << 24);
    let mapping = cache.mapping(0);
    write(&mapping, 0, 7, PAGE_SIZE);
    let folio = mapping.get(0).expect("it is cached");
    let run = mapping.start_writeback(0..PAGE, u64::MAX, Dirty::Any).expect("it is dirty");
    assert!(folio.try_write().is_none() && folio.try_read().is_some() && folio.is_writeback());
    assert_eq!((mapping.dirty_bytes(), cache.dirty_bytes()), (0, PAGE));
    run.fail();
    assert!(folio.try_write().is_some() && folio.is_dirty() && !folio.is_writeback());
    assert_eq!(mapping.dirty_bytes(), PAGE);
    drop(mapping.start_writeback(0..PAGE, u64::MAX, Dirty::Any).expect("it is dirty again"));
    assert_eq!(mapping.dirty_bytes(), PAGE, "a dropped run counts as not written");
}

#[test]
fn tagged_writeback_terminates_while_more_becomes_dirty() {
    let cache = PageCache::new(1 << 24);
    let mapping = cache.mapping(0);
    write(&mapping, 0, 1, PAGE_SIZE);
    write(&mapping, 9 * PAGE, 1, PAGE_SIZE);
    assert!(mapping.tag_for_writeback(0..u64::MAX));
    let mut written = 0;
    while let Some(run) = mapping.start_writeback(0..u64::MAX, u64::MAX, Dirty::Tagged) {
        run.finish();
        written += 1;
        write(&mapping, (20 + written) * PAGE, 1, PAGE_SIZE);
    }
    assert_eq!((written, mapping.dirty_bytes()), (2, 2 * PAGE));
}

#[test]
fn a_run_is_at_most_max_bytes_long() {
    let cache = PageCache::new(1 << 24);
    let mapping = cache.mapping(0);
    touch(&mapping, 0, 4);
    write(&mapping, 0, 1, 20 * PAGE_SIZE);
    let mut runs = Vec::new();
    while let Some(run) = mapping.start_writeback(0..u64::MAX, 6 * PAGE, Dirty::Any) {
        runs.push(run.range().start / PAGE..run.range().end / PAGE);
        run.finish();
    }
    assert_eq!(runs, [0..6, 6..12, 12..18, 18..20]);
}

#[test]
fn split_preserves_contents_and_dirty_blocks() {
    for order in [0, 2, 6, 8] {
        let cache = PageCache::new(32 << 20);
        let mapping = cache.mapping(0);
        touch(&mapping, 512, 9);
        write(&mapping, 515 * PAGE, 1, 130 * PAGE_SIZE);
        write(&mapping, 1023 * PAGE, 2, 1);
        let folio = mapping.get(600).expect("it is cached");
        let guard = folio.write().expect("it is up to date");
        let guard = mapping.split(guard, order).expect_err("the folio is in use");
        drop(folio);
        assert!(mapping.split(guard, order).is_ok());
        assert_eq!(mapping.folios(), 512 >> order);
        assert_eq!((mapping.dirty_bytes(), cache.statistics().folio_splits), (131 * PAGE, 1));
        for page in 512..1024 {
            let folio = mapping.get(page).expect("it is cached");
            assert_eq!((folio.order(), folio.index()), (order, page >> order << order));
            let at = ((page - folio.index()) * PAGE) as usize;
            let written = (515..645).contains(&page);
            let byte = if written { 1 } else { page as u8 };
            assert_eq!(folio.read().expect("up to date")[at + 1], byte);
            assert_eq!(mapping.has_dirty(page * PAGE..(page + 1) * PAGE), written || page == 1023);
        }
        let mut runs = Vec::new();
        while let Some(run) = mapping.start_writeback(0..u64::MAX, u64::MAX, Dirty::Any) {
            runs.push(run.range().start / PAGE..run.range().end / PAGE);
            run.finish();
        }
        assert_eq!(runs, [515..645, 1023..1024]);
        assert_eq!(cache.shrink_to(0), 0, "all parts can be evicted");
        assert_eq!(mapping.folios(), 0);
    }
}

#[test]
fn truncation_drops_zeroes_and_cleans() {
    let cache = PageCache::new(1 << 24);
    let mapping = cache.mapping(0);
    touch(&mapping, 8, 3);
    write(&mapping, 8 * PAGE, 9, 12 * PAGE_SIZE);
    let held = mapping.get(19).expect("it is cached");
    mapping.truncate(10 * PAGE + 5);
    assert_eq!(mapping.dirty_bytes(), 3 * PAGE);
    assert!(mapping.get(16).is_none() && !held.is_attached() && held.write().is_none());
    assert_eq!(held.read().expect("a holder may read a truncated folio")[0], 9);
    let mut out = vec![1; 8 * PAGE_SIZE];
    assert_eq!(mapping.read(8 * PAGE, &mut out), 8 * PAGE_SIZE);
    assert!(out[..2 * PAGE_SIZE + 5].iter().all(|byte| *byte == 9));
    assert!(out[2 * PAGE_SIZE + 5..].iter().all(|byte| *byte == 0));
    mapping.discard(9 * PAGE - 1..10 * PAGE);
    assert_eq!(mapping.dirty_bytes(), 2 * PAGE);
    mapping.truncate(0);
    assert!(mapping.is_empty() && mapping.dirty_bytes() == 0);
}

#[test]
fn invalidation_keeps_folios_dirty_outside_the_range() {
    let cache = PageCache::new(1 << 24);
    let mapping = cache.mapping(0);
    for index in 0..4 {
        touch(&mapping, index, 0);
    }
    touch(&mapping, 8, 2);
    write(&mapping, PAGE, 1, 1);
    write(&mapping, 8 * PAGE, 1, 1);
    write(&mapping, 10 * PAGE, 1, 1);
    let used = mapping.get(2).expect("it is cached");
    let clean = mapping.invalidate(0..12 * PAGE, Invalidate::Clean);
    assert_eq!(clean, Invalidated { dropped: 2, kept: 3 });
    drop(used);
    assert_eq!(
        mapping.invalidate(10 * PAGE..12 * PAGE, Invalidate::All),
        Invalidated { dropped: 0, kept: 1 }
    );
    assert_eq!(mapping.invalidate(0..11 * PAGE, Invalidate::All), Invalidated { dropped: 3, kept: 0 });
    assert_eq!((mapping.folios(), mapping.dirty_bytes(), cache.bytes()), (0, 0, 0));
}

#[test]
#[cfg_attr(miri, ignore = "many steps, and no unsafe code that other tests miss")]
fn limit_holds_by_evicting_clean_folios() {
    for order in [0, 3, 9] {
        let limit = 8 << 20;
        let cache = PageCache::new(limit);
        let mapping = cache.mapping(0);
        for index in 0..10_000 {
            touch(&mapping, index, order);
            assert!(cache.bytes() <= limit, "order {order}, page {index}");
        }
        let statistics = cache.statistics();
        assert!(statistics.evictions > 0 && statistics.bytes > limit / 2, "{statistics:?}");
        assert!(statistics.mapped_bytes <= limit + PAGE);
        assert_eq!(cache.shrink_to(0), 0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "many steps, and no unsafe code that other tests miss")]
fn insertion_into_an_all_dirty_cache_fails() {
    let cache = PageCache::new(1 << 20);
    let mapping = cache.mapping(0);
    let mut index = 0;
    let error = loop {
        match mapping.get_or_insert(index, 0) {
            Ok(Lookup::Vacant(fill)) => {
                let guard = fill.finish_write();
                mapping.mark_dirty(&guard, 0..PAGE_SIZE).expect("it is attached");
            }
            Ok(Lookup::Present(_)) => panic!("every page is new"),
            Err(error) => break error,
        }
        index += 1;
    };
    assert_eq!(error, CacheError::AllDirty { dirty: index * PAGE, writeback: 0 });
    assert!(cache.over_hard() && cache.over_background());
    let run = mapping.start_writeback(0..u64::MAX, u64::MAX, Dirty::Any).expect("all is dirty");
    assert_eq!(run.range(), 0..index * PAGE);
    run.finish();
    assert!(!cache.over_background());
    assert!(!touch(&mapping, index, 0));
    let mut held = Vec::new();
    let error = loop {
        match mapping.get_or_insert(index, 0) {
            Ok(Lookup::Vacant(fill)) => held.push(fill.finish()),
            Ok(Lookup::Present(folio)) => held.push(folio),
            Err(error) => break error,
        }
        index += 1;
    };
    assert_eq!(error, CacheError::AllInUse { bytes: cache.bytes() }, "{} held", held.len());
}

#[test]
#[cfg_attr(miri, ignore = "many steps, and no unsafe code that other tests miss")]
fn small_insertions_split_large_shadows() {
    let mut options = CacheOptions::new(16 << 20);
    let mut results = Vec::new();
    for insert in [CacheInsert::OneWalk, CacheInsert::ManyWalks] {
        options.insert = insert;
        let cache = PageCache::with_options(options.clone());
        let mapping = cache.mapping(0);
        for index in (0..16_384).step_by(512) {
            touch(&mapping, index, 9);
        }
        let left = cache.statistics().evictions;
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..20_000 {
            touch(&mapping, rng.u64(..16_384), 0);
        }
        let statistics = cache.statistics();
        assert!(
            left > 0 && statistics.splits > 0 && statistics.refaults >= statistics.splits,
            "{statistics:?}"
        );
        results.push(statistics);
    }
    assert_eq!(results[0], results[1], "both insertion methods agree");
}

/// Returns the hit rate of a working set that is read concurrently with a scan.
fn hit_rate_during_scan(working_set: bool) -> f64 {
    let cache = PageCache::with_options(CacheOptions { working_set, ..CacheOptions::new(8 << 20) });
    let mapping = cache.mapping(0);
    let (mut hits, mut all) = (0, 0);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut scan = 1_000_000;
    // 1,200 of about 2,000 pages form the working set; the scan reads three pages for each of its
    // accesses.
    for step in 0..60_000 {
        let hit = touch(&mapping, rng.u64(..1200), 0);
        if step > 20_000 {
            hits += u64::from(hit);
            all += 1;
        }
        for _ in 0..3 {
            touch(&mapping, scan, 0);
            scan += 1;
        }
    }
    hits as f64 / all as f64
}

#[test]
#[cfg_attr(miri, ignore = "many steps, and no unsafe code that other tests miss")]
fn oldest_folios_are_evicted_first_across_shards() {
    let pages = 16_384;
    let cache = PageCache::new(pages * (PAGE_SIZE as u64 + 64) + (2 << 20));
    let mapping = cache.mapping(0);
    for index in 0..pages {
        let Ok(Lookup::Vacant(fill)) = mapping.get_or_insert(index, 0) else { panic!("page {index} is new") };
        fill.finish();
    }
    assert_eq!(mapping.folios(), pages, "all pages fit");
    let left = |range: std::ops::Range<u64>| range.filter(|index| mapping.peek(*index).is_some()).count();
    cache.shrink_to(cache.bytes() / 2);
    // Shards are visited in turn, one batch each, so the order may differ by that much.
    assert_eq!(left(0..pages * 3 / 8), 0);
    assert_eq!(left(pages * 5 / 8..pages), pages as usize * 3 / 8);
    cache.shrink_to(0);
    assert_eq!(cache.statistics().folios, 0, "every shard is empty");
    assert_eq!(cache.statistics().evictions, pages);
}

#[test]
#[cfg_attr(miri, ignore = "many steps, and no unsafe code that other tests miss")]
fn a_scan_does_not_evict_the_working_set() {
    let (with, without) = (hit_rate_during_scan(true), hit_rate_during_scan(false));
    println!("hit rate of the working set: {with:.3} with shadows, {without:.3} without");
    assert!(with > 0.95, "{with}");
    assert!(without < 0.75, "{without}");
}

#[test]
#[cfg_attr(miri, ignore = "many steps, and no unsafe code that other tests miss")]
fn shadows_are_bounded() {
    let limit = 4 << 20;
    let cache = PageCache::new(limit);
    let mapping = cache.mapping(0);
    for index in 0..2_000_000u64 {
        touch(&mapping, index * 3, 0);
    }
    let statistics = cache.statistics();
    assert!(statistics.shadow_nodes_pruned > 0);
    assert!(statistics.nodes < 2 * limit / PAGE / 8 + 100, "{statistics:?}");
    assert!(statistics.bytes <= limit);
}

#[test]
fn folios_outlive_the_cache() {
    let cache = PageCache::new(1 << 20);
    let mapping = cache.mapping(0);
    touch(&mapping, 1, 0);
    let folio = mapping.get(1).expect("it is cached");
    drop((mapping, cache));
    assert!(!folio.is_attached());
    assert_eq!(folio.read().expect("up to date")[0], 1);
}
