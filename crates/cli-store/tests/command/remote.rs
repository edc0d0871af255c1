//! Images at URLs: read-only commands work over S3 and HTTP, others refuse.

use crate::common::{check_failure, command, text};
use papilio_oracle::object_server::{ObjectServer, PROGRAM, Proxy};
use papilio_oracle::{Need, Scratch, require};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const FILES: usize = 3000;
/// Bytes of a file that nothing lists.
const BULK: usize = 48 << 20;

/// Runs the command with the environment of an S3 client.
fn papilio(proxy: &Proxy, cache: &Path, arguments: &[&str]) -> Output {
    let mut command = command();
    command.env("AWS_ENDPOINT", proxy.url()).env("AWS_ACCESS_KEY_ID", "test");
    command.env("AWS_SECRET_ACCESS_KEY", "test").env("AWS_REGION", "us-east-1");
    command.env("XDG_CACHE_HOME", cache).args(arguments).output().unwrap()
}

fn succeed(proxy: &Proxy, cache: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = papilio(proxy, cache, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    output.stdout
}

/// Makes a qcow2 image with many small files and a large one. Returns it with the raw image.
fn make_image(scratch: &Scratch) -> (String, String) {
    let tree = scratch.path().join("tree");
    for directory in 0..30 {
        let directory = tree.join(format!("dir{directory}"));
        std::fs::create_dir_all(&directory).unwrap();
        for file in 0..FILES / 30 {
            std::fs::write(directory.join(format!("file{file}")), format!("{file}\n")).unwrap();
        }
    }
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let bulk: Vec<u8> = (0..BULK).map(|_| next()).collect();
    std::fs::write(tree.join("bulk"), bulk).unwrap();
    let raw = scratch.path().join("disk.img").to_str().unwrap().to_owned();
    let output = command()
        .args(["mkfs", "-q", "--rootdir", tree.to_str().unwrap(), "--size", "256M", &raw])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let qcow2 = format!("{}.qcow2", raw.trim_end_matches(".img"));
    let status = Command::new("qemu-img").args(["convert", "-O", "qcow2", &raw, &qcow2]).status().unwrap();
    assert!(status.success());
    (raw, qcow2)
}

#[test]
fn a_qcow2_image_on_s3_is_listed_without_its_data() {
    if require(&[Need::Command(PROGRAM), Need::Command("qemu-img")]).is_none() {
        return;
    }
    let scratch = Scratch::new(2 << 30).unwrap();
    let (raw, qcow2) = make_image(&scratch);
    let cache = scratch.path().join("cache");
    let server = ObjectServer::start().unwrap();
    server.make_bucket("bucket").unwrap();
    let image = std::fs::read(&qcow2).unwrap();
    server.put("bucket", "disk.qcow2", &image).unwrap();
    let proxy = server.proxy(Duration::from_millis(20)).unwrap();

    let local = command().args(["ls", "-lR", &raw]).output().unwrap().stdout;
    let url = "s3://bucket/disk.qcow2";
    let began = Instant::now();
    let listed = succeed(&proxy, &cache, &["ls", "-lR", &format!("{url}:/")]);
    let took = began.elapsed();
    let (requests, bytes) = proxy.take_counts();
    println!(
        "ls -lR of {FILES} files: {took:?}, {requests} requests, {bytes} bytes of {} ({:.1} %)",
        image.len(),
        bytes as f64 / image.len() as f64 * 100.0
    );
    let lines = |bytes: &[u8]| text(bytes).lines().filter(|line| line.contains("file")).count();
    assert_eq!(lines(&listed), FILES);
    assert_eq!(lines(&local), FILES);
    assert!(bytes < image.len() as u64 / 8, "{bytes} of {}", image.len());

    // From the disk: one request says that the object is the same. Others read further ahead.
    let again = succeed(&proxy, &cache, &["ls", "-lR", &format!("{url}:/")]);
    assert_eq!(again, listed);
    let (few, _) = proxy.take_counts();
    assert!(few < requests / 2, "{few} requests, and {requests} without the cache");
    // In memory only, all is fetched again.
    succeed(&proxy, &cache, &["--remote-cache", "none", "ls", "-lR", url]);
    assert!(proxy.take_counts().0 > 2);

    let file = succeed(&proxy, &cache, &["cat", &format!("{url}:/dir7/file42")]);
    assert_eq!(file, b"42\n");
    let http = format!("{}/bucket/disk.qcow2", proxy.url());
    assert_eq!(succeed(&proxy, &cache, &["cat", &format!("{http}:/dir7/file43")]), b"43\n");
    let bulk = succeed(&proxy, &cache, &["cat", &format!("{url}:/bulk")]);
    assert!(bulk == std::fs::read(scratch.path().join("tree/bulk")).unwrap());

    for arguments in [
        vec!["mkfs", "--size", "256M", url],
        vec!["rm", "s3://bucket/disk.qcow2:/dir7/file42"],
        vec!["mkdir", "s3://bucket/disk.qcow2:/new"],
    ] {
        proxy.take_counts();
        check_failure(&papilio(&proxy, &cache, &arguments), 1, "an image at a URL can only be read");
        assert_eq!(proxy.take_counts().0, 0, "{arguments:?}");
    }
    check_failure(&papilio(&proxy, &cache, &["ls", "s3://bucket/none:/"]), 1, "s3://bucket/none");
}

#[test]
fn missing_credentials_are_named() {
    if require(&[Need::Command(PROGRAM)]).is_none() {
        return;
    }
    let server = ObjectServer::start().unwrap();
    let mut command = command();
    // A place without an instance's credentials, which answers at once.
    command.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1").env("AWS_REGION", "us-east-1");
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"] {
        command.env_remove(name);
    }
    command.env("AWS_ENDPOINT", server.proxy(Duration::ZERO).unwrap().url());
    let output = command.args(["ls", "s3://bucket/disk.img:/"]).output().unwrap();
    let error = check_failure(&output, 1, "s3://bucket/disk.img");
    assert!(error.contains("AWS_ACCESS_KEY_ID"), "{error}");
}
