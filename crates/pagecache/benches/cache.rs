//! The costs of the cache: `cargo bench -p papilio-pagecache`.
//!
//! Measures insertion and split in one walk and in many, lookup by one thread and two, and reclaim.
//! Also random 4 KiB reads of a file twice the size of the cache, cold and after large folios.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use papilio_pagecache::xarray::{Entry, InsertError, NodePool, XArray};
use papilio_pagecache::{CacheInsert, CacheOptions, Folio, Lookup, Mapping, PAGE_SIZE, PageCache};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

const WAYS: [CacheInsert; 2] = [CacheInsert::OneWalk, CacheInsert::ManyWalks];
const PAGE: u64 = PAGE_SIZE as u64;

fn insert(array: &mut XArray, pool: &NodePool, index: u64, order: u8, how: CacheInsert) {
    let mut preload = pool.preload(0);
    loop {
        match array.try_insert(index, order, Entry::Item(index), how, &mut preload) {
            Err(InsertError::NeedNodes(count)) => preload.fill(count),
            other => {
                other.expect("nothing is there");
                return;
            }
        }
    }
}

/// Pages of a file of 16 GiB.
const FILE_PAGES: u64 = 1 << 22;

/// The tree alone: insertions over shadows of evicted folios.
fn xarray(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("xarray");
    let count = 4096u64;
    group.throughput(Throughput::Elements(count));
    for how in WAYS {
        let pool = Arc::new(NodePool::new(1 << 20));
        // A tree as wide as the file, so that walks are as deep.
        let make = |order: u8| {
            let mut array = XArray::with_pool(Arc::clone(&pool));
            for index in (0..count << order).step_by(1 << order) {
                array.store(index, order, Entry::Value(index));
            }
            array.store(FILE_PAGES - 1, 0, Entry::Item(1));
            array
        };
        let mut rng = fastrand::Rng::with_seed(1);
        let mut order: Vec<u64> = (0..count).collect();
        rng.shuffle(&mut order);
        let run = |shift: u8, array: &mut XArray| {
            for index in &order {
                insert(array, &pool, index << shift, 0, how);
            }
        };
        group.bench_function(format!("insert 4k where nothing was/{how}"), |bencher| {
            let make = || {
                let mut array = XArray::with_pool(Arc::clone(&pool));
                array.store(FILE_PAGES - 1, 0, Entry::Item(1));
                array
            };
            bencher.iter_batched_ref(make, |array| run(0, array), BatchSize::LargeInput);
        });
        group.bench_function(format!("insert 4k over shadows/{how}"), |bencher| {
            bencher.iter_batched_ref(|| make(0), |array| run(0, array), BatchSize::LargeInput);
        });
        group.bench_function(format!("insert 4k, splitting shadows of 16k/{how}"), |bencher| {
            bencher.iter_batched_ref(|| make(2), |array| run(2, array), BatchSize::LargeInput);
        });
        group.bench_function(format!("insert 4k, splitting shadows of 2m/{how}"), |bencher| {
            bencher.iter_batched_ref(|| make(9), |array| run(9, array), BatchSize::LargeInput);
        });
    }
    group.finish();
}

fn touch(mapping: &Mapping, index: u64, order: u8) {
    if let Lookup::Vacant(mut fill) = mapping.get_or_insert(index, order).expect("the cache has space") {
        // As if read from a device with no cost, except one byte per page.
        for page in fill.chunks_mut(PAGE_SIZE) {
            page[0] = index as u8;
        }
        fill.finish();
    }
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that the call may write.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0, "the host has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the CPU time of a thread while `count` of them run `body`. It is less sensitive to other
/// load than the clock.
fn threads(count: usize, iterations: u64, body: impl Fn(usize, u64) + Sync) -> Duration {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|thread| {
                let body = &body;
                scope.spawn(move || {
                    let start = cpu_time();
                    body(thread, iterations);
                    cpu_time() - start
                })
            })
            .collect();
        let total: Duration = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        total / count as u32
    })
}

fn lookup(criterion: &mut Criterion) {
    let cache = PageCache::new(1 << 30);
    let mapping = cache.mapping(0);
    let pages = (256 << 20) / PAGE;
    for index in 0..pages {
        touch(&mapping, index, 0);
    }
    let mut group = criterion.benchmark_group("lookup of 256 MiB in 4k");
    for count in [1, 2] {
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(format!("get/{count} threads"), |bencher| {
            bencher.iter_custom(|iterations| {
                threads(count, iterations, |thread, iterations| {
                    let mut rng = fastrand::Rng::with_seed(thread as u64);
                    for _ in 0..iterations {
                        black_box(mapping.get(rng.u64(..pages)).expect("it is there"));
                    }
                })
            });
        });
        group.bench_function(format!("get and lock/{count} threads"), |bencher| {
            bencher.iter_custom(|iterations| {
                threads(count, iterations, |thread, iterations| {
                    let mut rng = fastrand::Rng::with_seed(thread as u64);
                    for _ in 0..iterations {
                        let guard =
                            mapping.get(rng.u64(..pages)).and_then(Folio::into_read).expect("it is there");
                        black_box(guard[0]);
                    }
                })
            });
        });
        group.bench_function(format!("read 4k/{count} threads"), |bencher| {
            bencher.iter_custom(|iterations| {
                threads(count, iterations, |thread, iterations| {
                    let mut rng = fastrand::Rng::with_seed(thread as u64);
                    let mut out = [0; PAGE_SIZE];
                    for _ in 0..iterations {
                        assert_eq!(mapping.read(rng.u64(..pages) * PAGE, &mut out), PAGE_SIZE);
                        black_box(&out);
                    }
                })
            });
        });
    }
    group.finish();
}

/// Random reads of a file twice the size of the cache that was first read in pages or in folios of
/// 2 MiB.
fn job(criterion: &mut Criterion) {
    const READS: u64 = 50_000;
    let mut group = criterion.benchmark_group("random 4k of a file twice the cache");
    group.throughput(Throughput::Elements(READS)).sample_size(20);
    let limit = 256 << 20;
    let pages = 2 * limit / PAGE;
    for count in [1, 2] {
        for (name, order) in [("after 4k", 0), ("after 2m", 9)] {
            for how in WAYS {
                group.bench_function(format!("{name}/{count} threads/{how}"), |bencher| {
                    let cache =
                        PageCache::with_options(CacheOptions { insert: how, ..CacheOptions::new(limit) });
                    bencher.iter_custom(|iterations| {
                        let mut total = Duration::ZERO;
                        for round in 0..iterations {
                            // A new file each time: the first reads split the shadows of its large
                            // folios.
                            let mapping = cache.mapping(round);
                            for index in (0..pages).step_by(1 << order) {
                                touch(&mapping, index, order);
                            }
                            total += threads(count, READS / count as u64, |thread, reads| {
                                let mut rng = fastrand::Rng::with_seed(thread as u64);
                                for _ in 0..reads {
                                    touch(&mapping, rng.u64(..pages), 0);
                                }
                            });
                        }
                        total
                    });
                });
            }
        }
    }
    group.finish();
}

/// Every insertion evicts.
fn reclaim(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("insertion into a full cache");
    group.throughput(Throughput::Elements(1));
    for order in [0, 4] {
        let cache = PageCache::new(128 << 20);
        let mapping = cache.mapping(0);
        let mut next = 0;
        let mut step = move || {
            touch(&mapping, next, order);
            next += 1 << order;
        };
        for _ in 0..(128 << 20) / (PAGE << order) {
            step();
        }
        group.bench_function(format!("{} KiB, one after the other", 4 << order), |bencher| {
            bencher.iter(&mut step)
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = xarray, lookup, reclaim, job
}
criterion_main!(benches);
