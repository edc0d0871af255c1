//! Reads, writes, trims and syncs, one at a time and many at once.

use crate::harness::{Bench, fio};
use std::path::Path;
use std::process::Command;

/// Lets fio verify through the kernel's mount what its jobs wrote through the engine.
fn verify_on_host(mounted: &Path, jobs: &[&str]) {
    let directory = format!("--directory={}", mounted.display());
    let output = Command::new("timeout")
        .args(["-k", "5", "120"])
        .arg(fio())
        .args(["--name=job", "--ioengine=psync", "--verify_only=1", "--thread"])
        .arg(&directory)
        .args(jobs)
        .current_dir(mounted)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}", text.chars().take(2000).collect::<String>());
}

fn verified(more: &[&str]) {
    verified_with(&[], more);
}

/// `own` holds options of the engine.
fn verified_with(own: &[&str], more: &[&str]) {
    let Some(bench) = Bench::with_image(512) else { return };
    let jobs = ["--rw=randwrite", "--bsrange=4k-64k", "--size=6m", "--verify=crc32c", "--numjobs=4"];
    let done = bench.run(&[own, &jobs, more].concat()).ok();
    assert_eq!(done.len(), 4);
    assert!(done.sum("write", "total_ios") > 4 * 96);
    assert_eq!(done.sum("write", "io_bytes"), 24 << 20);
    // All written data was read back and compared.
    assert_eq!(done.sum("read", "io_bytes"), 24 << 20);
    bench.judge(|mounted| verify_on_host(mounted, &[&jobs, more].concat()));
}

#[test]
fn deep_direct_writes_verify() {
    verified(&["--iodepth=16", "--direct=1"]);
}

#[test]
fn deep_buffered_writes_verify() {
    verified(&["--iodepth=16", "--direct=0", "--fsync=50"]);
}

#[test]
fn queue_thread_writes_verify() {
    verified_with(&["--queue_threads=3"], &["--iodepth=8", "--fsync=60"]);
}

#[test]
fn writes_one_at_a_time_verify() {
    verified(&["--iodepth=1", "--fdatasync=40"]);
}

#[test]
fn batched_submissions_and_completions_verify() {
    verified(&[
        "--iodepth=32",
        "--iodepth_batch_submit=8",
        "--iodepth_batch_complete_min=2",
        "--iodepth_batch_complete_max=5",
        "--iodepth_low=4",
        "--end_fsync=1",
    ]);
}

#[test]
fn page_cache_writes_verify() {
    verified_with(&["--cache=64m"], &["--iodepth=8", "--direct=0", "--fsync=40"]);
    // The cache holds less than the jobs write, so pages are written back and reclaimed meanwhile.
    verified_with(&["--cache=2m"], &["--iodepth=8", "--direct=0", "--end_fsync=1"]);
    verified_with(&["--cache=64m"], &["--iodepth=8", "--direct=1"]);
    verified_with(&["--cache=64m"], &["--iodepth=1", "--direct=0", "--invalidate=0"]);
}

#[test]
fn alternative_tunings_verify() {
    let slow = "--tuning=nocow_check=collect-all,log_items=in-place,write_checksum=before-submit,csum_lookup=heap,\
                cache_insert=many-walks";
    let mixed = ["--iodepth=8", "--fsync=30"];
    verified_with(&["--cache=16m", slow], &mixed);
    verified_with(&["--nodatacow=1", slow], &mixed);
    verified_with(&["--tuning=write_checksum=offloaded"], &mixed);
}

#[test]
fn direct_and_buffered_jobs_share_a_file() {
    let Some(bench) = Bench::with_image(256) else { return };
    let (engine, image) = (bench.engine(), format!("--image={}", bench.image.display()));
    let common = ["--cache=16m", "--rw=randwrite", "--bs=8k", "--size=4m", "--filename=f"];
    let common = [&common[..], &["--verify=crc32c", "--iodepth=4"]].concat();
    let second = ["--name=second", &engine, &image, "--direct=1", "--offset=4m"];
    let done = bench.run(&[&common[..], &["--direct=0"], &second, &common].concat()).ok();
    assert_eq!((done.len(), done.sum("read", "io_bytes")), (2, 8 << 20));
    bench.judge(|_| {});
}

#[test]
fn polled_completions_verify() {
    let polled = ["--iodepth=8", "--iodepth_batch_complete_min=0", "--iodepth_batch_submit=4"];
    verified(&polled);
    verified_with(&["--queue_threads=2"], &polled);
}

#[test]
fn unaligned_blocks_verify() {
    let Some(bench) = Bench::with_image(512) else { return };
    let jobs = ["--rw=randwrite", "--bs=3000", "--size=3m", "--verify=crc32c", "--iodepth=8"];
    bench.run(&jobs).ok();
    bench.judge(|mounted| verify_on_host(mounted, &jobs));
}

#[test]
fn jobs_share_one_file() {
    let Some(bench) = Bench::with_image(512) else { return };
    let jobs = [
        "--rw=write",
        "--filename=shared",
        "--filesize=16m",
        "--size=4m",
        "--offset_increment=4m",
        "--bs=64k",
        "--numjobs=4",
        "--iodepth=4",
        "--verify=xxhash",
    ];
    let done = bench.run(&jobs).ok();
    assert_eq!(done.sum("write", "io_bytes"), 16 << 20);
    assert_eq!(bench.open().metadata("/shared").unwrap().size(), 16 << 20);
    bench.judge(|mounted| verify_on_host(mounted, &jobs));
}

#[test]
fn syncs_are_counted_and_durable() {
    let Some(bench) = Bench::with_image(256) else { return };
    for depth in ["--iodepth=1", "--iodepth=8"] {
        // fio ends with its last write and omits the sync that would follow. It also writes as many
        // blocks as the depth before the first sync. Its own asynchronous engines behave alike.
        for (sync, at_least) in
            [("--fsync=1", 57), ("--fdatasync=4", 13), ("--sync_file_range=write:8", 6), ("--end_fsync=1", 0)]
        {
            let done =
                bench.run(&["--rw=randwrite", "--bs=16k", "--size=1m", "--unlink=1", depth, sync]).ok();
            assert_eq!(done.sum("write", "total_ios"), 64);
            let syncs = done.sum("sync", "lat_ns/N");
            assert!(syncs >= at_least, "{sync}: {syncs}");
        }
    }
    bench.check();
}

#[test]
fn trims_punch_holes() {
    let Some(bench) = Bench::with_image(256) else { return };
    for depth in ["--iodepth=1", "--iodepth=8"] {
        let file = ["--filename=f", "--size=4m", "--bs=64k", depth];
        bench.run(&[&["--rw=write"][..], &file].concat()).ok();
        assert!(bench.open().read("/f").unwrap().chunks(4096).all(|block| block != [0; 4096]));
        let done = bench.run(&[&["--rw=randtrim", "--io_size=4m"][..], &file].concat()).ok();
        assert_eq!(done.sum("trim", "total_ios"), 64);
        let fs = bench.open();
        let trimmed = fs.open_file("/f").unwrap();
        assert_eq!(trimmed.len(), 4 << 20);
        assert_eq!(trimmed.seek_data(0).unwrap(), None);
    }
    let mixed = ["--rw=trimwrite", "--filename=g", "--size=4m", "--bs=16k", "--iodepth=4"];
    let done = bench.run(&mixed).ok();
    assert!(done.sum("trim", "total_ios") > 100 && done.sum("write", "total_ios") > 100);
    bench.judge(|_| {});
}

#[test]
fn reads_return_file_content() {
    let Some(bench) = Bench::with_image(256) else { return };
    // fio lays the file out for reading, so it holds no zeros.
    let read = ["--rw=randread", "--bs=4k", "--size=4m", "--filename=f"];
    for more in [&["--iodepth=1"][..], &["--iodepth=16"], &["--direct=1", "--iodepth=4"], &["--readonly"]] {
        let done = bench.run(&[&read, more].concat()).ok();
        assert_eq!(done.sum("read", "total_ios"), 1024);
    }
    let content = bench.open().read("/f").unwrap();
    assert_eq!(content.len(), 4 << 20);
    assert!(content.chunks(4096).all(|block| block != [0; 4096]));

    // Without size= the file's size counts, and its end makes no read short.
    let fs = bench.open_writable();
    fs.create_file("/odd").unwrap().write_all_at(&vec![7; 10_000], 0).unwrap();
    fs.close().unwrap();
    let done = bench.run(&["--rw=read", "--bs=1000", "--filename=odd"]).ok();
    assert_eq!((done.sum("read", "total_ios"), done.sum("read", "short_ios")), (10, 0));
    bench.check();
}

#[test]
fn time_based_jobs_of_all_kinds_end() {
    let Some(bench) = Bench::with_image(256) else { return };
    let done = bench
        .run(&[
            "--rw=randrw",
            "--bs=4k",
            "--size=4m",
            "--numjobs=2",
            "--iodepth=8",
            "--time_based",
            "--runtime=1",
            "--ramp_time=0",
        ])
        .ok();
    assert!(done.sum("read", "total_ios") > 100 && done.sum("write", "total_ios") > 100);
    bench.judge(|_| {});
}
