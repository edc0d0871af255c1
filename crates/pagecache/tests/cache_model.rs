//! The cache against a model: a disk, and the file's expected contents.
//!
//! Random operations on a few files go through the cache or make it write back, invalidate and
//! evict; every read must match the model. Then several threads do the same, each with bytes that
//! no other thread writes. `PAPILIO_PAGECACHE_STEPS` scales the tests.

#![cfg(not(feature = "shuttle"))]

use papilio_pagecache::{
    CacheError, CacheInsert, CacheOptions, Dirty, Folio, FolioFill, Invalidate, Lookup, Mapping, PAGE_SIZE,
    PageCache, Readahead,
};
use proptest::prelude::*;
use std::sync::Mutex;

const PAGE: u64 = PAGE_SIZE as u64;
const FILE_PAGES: u64 = 1500;

fn steps(otherwise: u64) -> u64 {
    std::env::var("PAPILIO_PAGECACHE_STEPS").map_or(otherwise, |text| text.parse().expect("a number"))
}

/// A file: its pages in the cache and its bytes on a disk.
struct File {
    mapping: Mapping,
    disk: Mutex<Vec<u8>>,
}

impl File {
    fn new(cache: &PageCache, host: u64) -> Self {
        Self { mapping: cache.mapping(host), disk: Mutex::new(vec![0; (FILE_PAGES * PAGE) as usize]) }
    }

    fn load(&self, mut fill: FolioFill) -> FolioFill {
        let start = fill.offset() as usize;
        let disk = self.disk.lock().expect("no panic");
        let there = disk.len().saturating_sub(start).min(fill.len());
        fill[..there].copy_from_slice(&disk[start..start + there]);
        fill[there..].fill(0);
        fill
    }

    /// Frees space in a cache that is full of dirty folios.
    fn relieve(&self, error: CacheError) {
        match error {
            CacheError::AllDirty { .. } => self.write_back(0..u64::MAX, u64::MAX),
            other => panic!("{other}"),
        }
    }

    fn folio(&self, index: u64, order: u8) -> Folio {
        loop {
            match self.mapping.get_or_insert(index, order) {
                Ok(Lookup::Present(folio)) => return folio,
                Ok(Lookup::Vacant(fill)) => return self.load(fill).finish(),
                Err(error) => self.relieve(error),
            }
        }
    }

    fn read(&self, offset: u64, len: usize, order: u8) -> Vec<u8> {
        let mut out = vec![0xEE; len];
        let mut done = 0;
        while done < len {
            done += self.mapping.read(offset + done as u64, &mut out[done..]);
            if done < len {
                self.folio((offset + done as u64) / PAGE, order);
            }
        }
        out
    }

    fn read_ahead(&self, readahead: &mut Readahead, offset: u64, len: usize) -> Vec<u8> {
        let pages = offset / PAGE..(offset + len as u64).div_ceil(PAGE);
        let missing = pages.clone().any(|page| self.mapping.peek(page).is_none());
        if let Some(request) = readahead.access(pages, missing, FILE_PAGES) {
            let mut fills = Vec::new();
            // Readahead is skipped if the cache is full.
            let _ = self.mapping.insert_range(request.pages.clone(), request.order, &mut fills);
            for fill in fills {
                assert!(request.pages.contains(&fill.index()));
                self.load(fill).finish();
            }
        }
        self.read(offset, len, 0)
    }

    fn write(&self, offset: u64, bytes: &[u8], order: u8) {
        let mut done = 0;
        while done < bytes.len() {
            let position = offset + done as u64;
            let Some(mut guard) = self.folio(position / PAGE, order).write() else { continue };
            let start = (position - guard.folio().offset()) as usize;
            let count = (guard.len() - start).min(bytes.len() - done);
            guard[start..start + count].copy_from_slice(&bytes[done..done + count]);
            self.mapping.mark_dirty(&guard, start..start + count).expect("a locked folio stays");
            done += count;
        }
    }

    fn write_back(&self, bytes: std::ops::Range<u64>, max: u64) {
        while let Some(run) = self.mapping.start_writeback(bytes.clone(), max, Dirty::Any) {
            let mut position = run.range().start as usize;
            {
                let mut disk = self.disk.lock().expect("no panic");
                for slice in run.slices() {
                    let count = slice.len().min(disk.len().saturating_sub(position));
                    disk[position..position + count].copy_from_slice(&slice[..count]);
                    position += slice.len();
                }
            }
            assert_eq!(position as u64, run.range().end);
            run.finish();
        }
    }

    /// Truncates the file and its disk. The disk's block at the cut is zeroed, as by a file system.
    fn truncate(&self, from: u64) {
        self.mapping.truncate(from);
        self.disk.lock().expect("no panic")[from as usize..].fill(0);
    }

    fn discard(&self, bytes: std::ops::Range<u64>) {
        self.mapping.discard(bytes.clone());
        self.disk.lock().expect("no panic")[bytes.start as usize..bytes.end as usize].fill(0);
    }

    /// Writes directly, bypassing the cache.
    fn write_direct(&self, offset: u64, bytes: &[u8]) {
        let range = offset..offset + bytes.len() as u64;
        loop {
            self.write_back(range.clone(), u64::MAX);
            if self.mapping.invalidate(range.clone(), Invalidate::All).kept == 0 {
                break;
            }
            // Folios that stay have dirty blocks outside the range.
            self.write_back(0..u64::MAX, u64::MAX);
        }
        self.disk.lock().expect("no panic")[range.start as usize..range.end as usize].copy_from_slice(bytes);
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Read { offset: u64, len: usize, order: u8 },
    Sequential { len: usize },
    Write { offset: u64, len: usize, order: u8 },
    WriteDirect { page: u64, pages: u64 },
    WriteBack { offset: u64, len: u64, max: u64 },
    Truncate { from: u64 },
    Discard { offset: u64, len: u64 },
    Forget { offset: u64, len: u64 },
    Shrink { bytes: u64 },
}

/// Inserts a folio of another file. If the cache is full, the first file holds the dirty folios.
fn press(other: &File, file: &File, index: u64, order: u8) {
    loop {
        match other.mapping.get_or_insert(index, order) {
            Ok(Lookup::Present(_)) => return,
            Ok(Lookup::Vacant(fill)) => drop(other.load(fill).finish()),
            Err(error) => file.relieve(error),
        }
    }
}

fn run(operations: impl Iterator<Item = Operation>, limit: u64, insert: CacheInsert, working_set: bool) {
    let cache = PageCache::with_options(CacheOptions { insert, working_set, ..CacheOptions::new(limit) });
    let file = File::new(&cache, 0);
    let other = File::new(&cache, 1);
    let size = FILE_PAGES * PAGE;
    let mut model = vec![0u8; size as usize];
    let (mut readahead, mut position, mut number) = (Readahead::new(64), 0, 0u8);
    for operation in operations {
        let span = |offset: u64, len: usize| {
            let offset = offset % size;
            (offset, len.min((size - offset) as usize))
        };
        match operation.clone() {
            Operation::Read { offset, len, order } => {
                let (offset, len) = span(offset, len);
                let expected = &model[offset as usize..offset as usize + len];
                assert!(file.read(offset, len, order) == expected, "{operation:?}");
                press(&other, &file, offset / PAGE, order);
            }
            Operation::Sequential { len } => {
                let (offset, len) = span(position, len);
                let expected = &model[offset as usize..offset as usize + len];
                assert!(
                    file.read_ahead(&mut readahead, offset, len) == expected,
                    "{operation:?} at {offset}"
                );
                position = offset + len as u64;
            }
            Operation::Write { offset, len, order } => {
                let (offset, len) = span(offset, len);
                number = number.wrapping_add(1);
                model[offset as usize..offset as usize + len].fill(number);
                file.write(offset, &vec![number; len], order);
            }
            Operation::WriteDirect { page, pages } => {
                let (offset, len) = span(page % FILE_PAGES * PAGE, (pages * PAGE) as usize);
                number = number.wrapping_add(1);
                model[offset as usize..offset as usize + len].fill(number);
                file.write_direct(offset, &vec![number; len]);
            }
            Operation::WriteBack { offset, len, max } => {
                let range = offset % size..(offset % size).saturating_add(len);
                file.write_back(range.clone(), max);
                assert!(!file.mapping.has_dirty(range));
            }
            Operation::Truncate { from } => {
                let from = from % size;
                model[from as usize..].fill(0);
                file.truncate(from);
            }
            Operation::Discard { offset, len } => {
                let (offset, len) = span(offset, len as usize);
                model[offset as usize..offset as usize + len].fill(0);
                file.discard(offset..offset + len as u64);
            }
            Operation::Forget { offset, len } => {
                let done = file
                    .mapping
                    .invalidate(offset % size..(offset % size).saturating_add(len), Invalidate::Clean);
                assert!(done.kept == 0 || file.mapping.dirty_bytes() > 0, "only dirty folios stay: {done:?}");
            }
            Operation::Shrink { bytes } => {
                cache.shrink_to(bytes);
            }
        }
        assert!(cache.bytes() <= cache.limit());
        assert_eq!(cache.dirty_bytes(), file.mapping.dirty_bytes());
    }
    assert!(file.read(0, size as usize, 0) == model, "the whole file");
    file.write_back(0..u64::MAX, 64 * PAGE);
    assert_eq!(cache.dirty_bytes(), 0);
    assert!(*file.disk.lock().expect("no panic") == model, "the disk");
    drop((file, other));
    assert_eq!(cache.bytes(), 0);
}

fn operation() -> impl Strategy<Value = Operation> {
    let offset = || prop_oneof![any::<u64>(), 0..20 * PAGE];
    let len = || prop_oneof![0..200usize, 0..40 * PAGE_SIZE];
    let order = || 0..10u8;
    prop_oneof![
        4 => (offset(), len(), order()).prop_map(|(offset, len, order)| Operation::Read { offset, len, order }),
        2 => len().prop_map(|len| Operation::Sequential { len }),
        4 => (offset(), len(), order()).prop_map(|(offset, len, order)| Operation::Write { offset, len, order }),
        1 => (any::<u64>(), 1..9u64).prop_map(|(page, pages)| Operation::WriteDirect { page, pages }),
        2 => (offset(), 0..100 * PAGE, 1..1u64 << 20).prop_map(|(offset, len, max)| Operation::WriteBack { offset, len, max }),
        1 => offset().prop_map(|from| Operation::Truncate { from }),
        1 => (offset(), 0..30 * PAGE).prop_map(|(offset, len)| Operation::Discard { offset, len }),
        1 => (offset(), 0..600 * PAGE).prop_map(|(offset, len)| Operation::Forget { offset, len }),
        1 => (0..2u64 << 20).prop_map(|bytes| Operation::Shrink { bytes }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 24 }, ..ProptestConfig::default() })]

    #[test]
    fn the_file_reads_as_the_model(
        operations in prop::collection::vec(operation(), 1..80),
        limit in (256u64 << 10)..(6 << 20),
        many_walks in any::<bool>(),
        working_set in any::<bool>(),
    ) {
        let insert = if many_walks { CacheInsert::ManyWalks } else { CacheInsert::OneWalk };
        run(operations.into_iter(), limit, insert, working_set);
    }
}

#[test]
fn long_runs_agree() {
    for (seed, limit, insert) in [(1, 1 << 20, CacheInsert::OneWalk), (2, 5 << 20, CacheInsert::ManyWalks)] {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut random = move || {
            let offset = if rng.bool() { rng.u64(..) } else { rng.u64(..60 * PAGE) };
            let len = if rng.bool() { rng.usize(..300) } else { rng.usize(..30 * PAGE_SIZE) };
            let order = if rng.bool() { 0 } else { rng.u8(..10) };
            match rng.u8(..40) {
                0..=14 => Operation::Read { offset, len, order },
                15..=19 => Operation::Sequential { len },
                20..=30 => Operation::Write { offset, len, order },
                31 => Operation::WriteDirect { page: offset, pages: 1 + rng.u64(..8) },
                32..=34 => {
                    Operation::WriteBack { offset, len: rng.u64(..200 * PAGE), max: 1 + rng.u64(..1 << 20) }
                }
                35 => Operation::Truncate { from: offset },
                36..=37 => Operation::Discard { offset, len: len as u64 },
                38 => Operation::Forget { offset, len: rng.u64(..600 * PAGE) },
                _ => Operation::Shrink { bytes: rng.u64(..2 << 20) },
            }
        };
        run((0..steps(3000)).map(|_| random()), limit, insert, true);
    }
}

/// Every thread writes its own bytes in pages shared by all, reads them back, writes back and
/// evicts.
#[test]
fn threads_read_back_their_writes() {
    const THREADS: usize = 4;
    for order in [0, 4] {
        let cache = PageCache::new(2 << 20);
        let file = File::new(&cache, 0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (file, cache) = (&file, &cache);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(thread as u64);
                    // This thread's byte of each page.
                    let mut mine = vec![0u8; FILE_PAGES as usize];
                    let place = |page: u64| page * PAGE + (thread * 1000) as u64;
                    for _ in 0..steps(6000) {
                        let page = rng.u64(..FILE_PAGES);
                        match rng.u8(..20) {
                            0..=9 => {
                                let read = file.read(place(page), 1, order);
                                assert_eq!(read[0], mine[page as usize], "page {page} of thread {thread}");
                            }
                            10..=17 => {
                                mine[page as usize] = rng.u8(..);
                                file.write(place(page), &[mine[page as usize]], order);
                            }
                            18 => file.write_back(page * PAGE..(page + 50) * PAGE, 16 * PAGE),
                            _ => {
                                cache.shrink_to(rng.u64(..2 << 20));
                            }
                        }
                    }
                    for page in 0..FILE_PAGES {
                        assert_eq!(file.read(place(page), 1, 0)[0], mine[page as usize]);
                    }
                });
            }
        });
        let statistics = cache.statistics();
        assert!(statistics.evictions > 0 && statistics.hits > 0, "{statistics:?}");
        drop(file);
        assert_eq!(cache.bytes(), 0);
    }
}
