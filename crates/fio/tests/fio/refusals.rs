//! A refusal prints one line with the reason and sets fio's exit code.

use crate::harness::{Bench, engine, fio};
use std::ffi::c_void;
use std::process::Command;

const WRITE: [&str; 3] = ["--rw=write", "--size=1m", "--numjobs=3"];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&WRITE[..], more].concat()
}

#[test]
fn invalid_job_options_are_refused() {
    let Some(bench) = Bench::with_image(256) else { return };
    let engine = bench.engine();
    let write = ["--name=job", &engine, "--rw=write", "--size=1m"];
    bench.run_plainly(&write).refused("job job: image= is missing");
    bench.run(&with(&["--tuning=nocow_check=perhaps"])).refused("tuning=nocow_check=perhaps");
    bench.run(&with(&["--tuning=unknown"])).refused("no tuning switch");
    bench.run(&with(&["--compress=zip"])).refused("compress=zip");
    bench.run(&with(&["--csum=sha256"])).refused("csum=sha256: only valid with mkfs=1");
    bench.run(&with(&["--mkfs=maybe"])).refused("mkfs=maybe");
    bench.run(&with(&["--mkfs=1", "--fs_size=lots"])).refused("fs_size=lots");
    bench.run(&with(&["--mkfs=1", "--fs_size=1m"])).refused("too few");
    bench.run(&with(&["--queue_threads=1000"])).refused("queue_threads=1000");
    // The image already has a file system.
    bench.run(&with(&["--mkfs=1", "--fs_size=256m"])).refused("use force to overwrite it");
    bench.run(&["--rw=read", "--size=1m", "--pre_read=1"]).refused("pre_read=1");
    bench.run(&with(&["--fsync_on_close=1"])).refused("fsync_on_close=1");
    bench.run(&["--rw=write", "--fill_device=1"]).refused("size= is missing");
    bench
        .run(&["--rw=read", "--size=1m", "--allow_file_create=0"])
        .refused("the file /job.0.0 does not exist");
    bench.run(&["--rw=write", "--size=1m", "--filename=../../.."]).refused("");
    bench.check();
}

#[test]
fn unmountable_images_are_refused() {
    let Some(bench) = Bench::with_image(256) else { return };
    let held = bench.open_writable();
    bench.run(&WRITE).refused("another process is using it");
    drop(held);
    let (good, text) = (bench.image.clone(), bench.scratch.path().join("text.img"));
    std::fs::write(&text, vec![b'x'; 1 << 20]).unwrap();
    for (image, why) in [
        (bench.scratch.path().join("none.img"), "no such file or device"),
        (bench.scratch.path().to_owned(), "it is a directory"),
        (text, "superblock"),
    ] {
        let bench = Bench { scratch: bench.scratch.clone(), image };
        bench.run(&WRITE).refused(why);
    }
    assert!(bench.image == good);
    bench.run(&WRITE).ok();
}

#[test]
fn forked_jobs_are_refused() {
    let Some(bench) = Bench::with_image(256) else { return };
    bench.run(&["--rw=write", "--size=1m", "--create_serialize=0"]).refused("add thread=1");
    bench.check();
}

#[test]
fn conflicting_mounts_of_one_image_are_refused() {
    let Some(bench) = Bench::with_image(256) else { return };
    let (engine, image) = (bench.engine(), format!("--image={}", bench.image.display()));
    let second = ["--name=second", &engine, &image, "--nodatacow=1", "--rw=write", "--size=1m"];
    bench.run(&[&["--rw=write", "--size=1m"][..], &second].concat()).refused("other options");
}

#[test]
fn full_file_system_is_an_error_and_stays_intact() {
    let Some(bench) = Bench::with_image(256) else { return };
    let full = ["--size=400m", "--bs=1m"];
    bench.run(&[&["--rw=write", "--fallocate=posix"][..], &full].concat()).refused("no space left");
    for depth in ["--iodepth=1", "--iodepth=4"] {
        let run = bench.run(&[&["--rw=write", "--fallocate=none", depth][..], &full].concat());
        assert!(
            run.errors.contains("No space left") || run.output.contains("No space left"),
            "{}",
            run.errors
        );
        run.refused("no space left");
    }
    bench.run(&[&["--rw=read"][..], &full].concat()).refused("no space left");
    bench.run(&["--rw=read", "--size=1m", "--filename=new", "--readonly"]).refused("read-only");
    bench.judge(|_| {});
}

#[test]
fn unknown_fio_version_is_refused() {
    let Some(bench) = Bench::with_image(256) else { return };
    let fio = match fio() {
        path if path.is_absolute() => path,
        _ => papilio_oracle::requirement::find_command("fio").unwrap(),
    };
    let version = Command::new(&fio).arg("--version").output().unwrap().stdout;
    let version = version.trim_ascii();
    // The replacement is as long as fio's version, so it fits in the same bytes of the program.
    let unknown = [b"fio-2.1".as_slice(), &b"00000000"[..version.len() - 7]].concat();
    let mut program = std::fs::read(&fio).unwrap();
    let places: Vec<_> = (0..program.len() - version.len())
        .filter(|at| program[*at..].starts_with(version) && program[at + version.len()] == 0)
        .collect();
    assert!(!places.is_empty(), "no version in the program");
    for at in places {
        program[at..][..version.len()].copy_from_slice(&unknown);
    }
    let old = bench.scratch.path().join("old-fio");
    std::fs::write(&old, program).unwrap();
    std::fs::set_permissions(&old, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let engine = format!("--ioengine=external:{}", engine().display());
    let image = format!("--image={}", bench.image.display());
    let run = bench.run_program(&old, &["--name=job", &engine, &image, "--rw=write", "--size=1m"]);
    let why =
        format!("fio version {}: this engine supports 3.28 and later", String::from_utf8_lossy(&unknown));
    run.refused(&why);
}

#[test]
fn other_programs_get_no_engine() {
    let mut table: *mut c_void = std::ptr::dangling_mut();
    // SAFETY: `table` is valid for writing a pointer.
    unsafe { papilio_fio::get_ioengine(&raw mut table) };
    assert!(table.is_null());
}
