//! How files are made, laid out and removed, and how file systems are made and mounted.

use crate::harness::Bench;
use papilio::format::ChecksumType;
use papilio::format::items::inode::InodeFlags;
use papilio::{ErrorKind, FiemapExtent, PathError};

#[test]
fn fallocate_modes_are_honoured() {
    let Some(bench) = Bench::with_image(256) else { return };
    for (mode, size, extents) in [
        ("none", 0, 0),
        ("posix", 1 << 20, 1),
        ("native", 1 << 20, 1),
        ("keep", 0, 1),
        ("truncate", 1 << 20, 0),
    ] {
        let (fallocate, file) = (format!("--fallocate={mode}"), format!("--filename={mode}"));
        let made = bench.run(&["--rw=randwrite", "--size=1m", "--create_only=1", &fallocate, &file]);
        assert!(made.success, "{}", made.errors);
        let fs = bench.open();
        let file = fs.open_file(mode).unwrap();
        let found = file.fiemap(0).unwrap();
        assert_eq!((file.len(), found.len()), (size, extents), "{mode}");
        assert!(found.iter().all(|extent| extent.flags & FiemapExtent::UNWRITTEN != 0), "{mode}");
        assert_eq!(found.iter().map(|extent| extent.length).sum::<u64>(), (extents as u64) << 20, "{mode}");
    }
    // Preallocated space verifies after it is written.
    for mode in ["--fallocate=keep", "--fallocate=posix"] {
        bench.run(&["--rw=randwrite", "--size=1m", "--iodepth=4", "--verify=md5", "--filename=g", mode]).ok();
    }
    bench.judge(|_| {});
}

#[test]
fn files_are_below_root_and_not_on_host() {
    let Some(bench) = Bench::with_image(256) else { return };
    let root = ["--root=/a/b", "--rw=write", "--size=64k"];
    bench.run(&[&root[..], &["--filename=c/d"]].concat()).ok();
    bench.run(&[&root[..], &["--nrfiles=3", "--size=192k"]].concat()).ok();
    bench.run(&["--rw=write", "--size=64k", "--filename=/etc/passwd"]).ok();
    bench.run(&["--rw=write", "--size=64k", "--filename=gone", "--unlink=1"]).ok();
    bench.run(&["--rw=write", "--filesize=16k-64k", "--nrfiles=4", "--root=sized"]).ok();
    let fs = bench.open();
    assert_eq!(fs.metadata("/a/b/c/d").unwrap().size(), 64 << 10);
    assert_eq!(fs.metadata("/etc/passwd").unwrap().size(), 64 << 10);
    assert_eq!(fs.read_dir("/a/b").unwrap().count(), 4);
    assert_eq!(fs.read_dir("/sized").unwrap().count(), 4);
    let gone = fs.metadata("/gone").unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Path(PathError::NotFound));
    bench.check();
}

#[test]
fn large_enough_file_is_kept() {
    let Some(bench) = Bench::with_image(256) else { return };
    let fs = bench.open_writable();
    fs.create_file("/f").unwrap().write_all_at(&vec![5; 256 << 10], 0).unwrap();
    fs.close().unwrap();
    bench.run(&["--rw=write", "--bs=4k", "--size=64k", "--filename=f"]).ok();
    let content = bench.open().read("/f").unwrap();
    assert_eq!(content.len(), 256 << 10);
    assert!(content[64 << 10..].iter().all(|byte| *byte == 5));
    assert!(content[..64 << 10].iter().any(|byte| *byte != 5));
    // An appending job extends the file and keeps its content.
    bench.run(&["--rw=write", "--file_append=1", "--bs=4k", "--size=512k", "--filename=f"]).ok();
    let grown = bench.open().read("/f").unwrap();
    assert!(grown.len() >= 512 << 10 && grown[..256 << 10] == content, "{}", grown.len());
    bench.check();
}

#[test]
fn mkfs_options_are_honoured() {
    let Some(bench) = Bench::new() else { return };
    for (csum, kind) in [
        ("crc32c", ChecksumType::Crc32c),
        ("xxhash", ChecksumType::XxHash64),
        ("sha256", ChecksumType::Sha256),
        ("blake2", ChecksumType::Blake2b),
    ] {
        let (sum, force) = (format!("--csum={csum}"), "--mkfs=force");
        let made = [
            "--fs_size=256m",
            "--nodesize=4k",
            force,
            &sum,
            "--rw=randwrite",
            "--size=1m",
            "--verify=crc32c",
        ];
        bench.run(&[&made[..], &["--iodepth=4", "--numjobs=2"]].concat()).ok();
        let raw = bench.open().superblock().raw;
        assert_eq!((raw.total_bytes, raw.node_size), (256 << 20, 4096));
        assert_eq!(raw.csum_type, kind as u16);
        bench.judge(|_| {});
    }
    // Two jobs, one after the other, share one mkfs.
    let first = [
        "--name=one",
        "--ioengine=",
        "--image=",
        "--mkfs=force",
        "--fs_size=256m",
        "--rw=write",
        "--size=1m",
    ];
    let (engine, image) = (bench.engine(), format!("--image={}", bench.image.display()));
    let mut jobs = first;
    (jobs[1], jobs[2]) = (&engine, &image);
    let global =
        [&["--name=global"][..], &jobs[1..], &["--filename=both", "--name=one", "--name=two", "--stonewall"]];
    bench.run_plainly(&global.concat()).ok();
    assert_eq!(bench.open().metadata("/both").unwrap().size(), 1 << 20);
}

#[test]
fn mount_options_apply_to_files() {
    let Some(bench) = Bench::with_image(256) else { return };
    let write = ["--rw=write", "--size=1m", "--bs=128k"];
    let flags = |name: &str| bench.open().metadata(name).unwrap().flags();
    bench.run(&[&write[..], &["--nodatacow=1", "--filename=cow"]].concat()).ok();
    assert!(flags("/cow").contains(InodeFlags::NODATACOW | InodeFlags::NODATASUM));
    bench.run(&[&write[..], &["--nodatasum=1", "--filename=sum"]].concat()).ok();
    assert!(flags("/sum").contains(InodeFlags::NODATASUM) && !flags("/sum").contains(InodeFlags::NODATACOW));
    bench.run(&[&write[..], &["--filename=plain", "--tuning=nocow_check=collect-all"]].concat()).ok();
    assert!(!flags("/plain").intersects(InodeFlags::NODATACOW | InodeFlags::NODATASUM));
    let soft =
        ["--compress=zstd:5", "--filename=small", "--buffer_compress_percentage=90", "--refill_buffers"];
    bench.run(&[&write[..], &soft, &["--fallocate=none"]].concat()).ok();
    let extents = bench.open().open_file("/small").unwrap().fiemap(0).unwrap();
    assert!(extents.iter().any(|extent| extent.flags & FiemapExtent::ENCODED != 0));
    bench.judge(|_| {});
}

#[test]
fn several_images_can_be_mounted_at_once() {
    let Some(bench) = Bench::with_image(256) else { return };
    let other = bench.scratch.path().join("other.img");
    papilio::mkfs(&other, &papilio::MkfsOptions::new().size(256 << 20)).unwrap();
    let second = format!("--image={}", other.display());
    let engine = bench.engine();
    let jobs = ["--rw=write", "--size=1m", "--filename=f", "--name=second", &engine, &second];
    let done = bench.run(&[&jobs[..], &["--rw=write", "--size=2m", "--filename=f"]].concat()).ok();
    assert_eq!(done.len(), 2);
    assert_eq!(bench.open().metadata("/f").unwrap().size(), 1 << 20);
    let fs = papilio::FileSystem::open(&other).unwrap();
    assert_eq!(fs.metadata("/f").unwrap().size(), 2 << 20);
}

#[test]
fn threaded_jobs_need_no_create_serialize() {
    let Some(bench) = Bench::with_image(256) else { return };
    let jobs =
        ["--rw=randwrite", "--size=1m", "--numjobs=4", "--verify=crc32c", "--create_serialize=0", "--thread"];
    bench.run(&jobs).ok();
    bench.run(&["--rw=randwrite", "--size=1m", "--create_on_open=1", "--filename=late", "--iodepth=2"]).ok();
    assert_eq!(bench.open().metadata("/late").unwrap().size(), 1 << 20);
    bench.check();
}
