//! File systems in object stores: made, filled, mounted, read at a checkpoint, and cloned.

use crate::common::{check_failure, command, fail, succeed, succeed_json, succeed_text, text};
use papilio::device::{Access, RemoteCache, RemoteOptions};
use papilio_device::{Device, PhysicalAddress};
use papilio_oracle::object_server::{ObjectServer, PROGRAM};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use papilio_store::{StoreDevice, StoreUrl};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const SIZE: u64 = 256 << 20;

fn url(scratch: &Scratch, name: &str) -> String {
    format!("slatedb+file://{}/{name}", scratch.path().display())
}

/// Makes a directory with some files.
fn make_tree(path: &Path) {
    std::fs::create_dir_all(path.join("directory/below")).unwrap();
    std::fs::write(path.join("small"), "a line\n").unwrap();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| (number.wrapping_mul(number) >> 7) as u8).collect();
    std::fs::write(path.join("directory/large"), bytes).unwrap();
    std::os::unix::fs::symlink("../small", path.join("directory/link")).unwrap();
}

/// Copies the bytes of the device at a URL to an image file.
fn download(url: &str, image: &Path) {
    let options = RemoteOptions { cache: RemoteCache::Memory, ..RemoteOptions::default() };
    let device =
        StoreDevice::open(&StoreUrl::parse(url, &options).unwrap(), Access::ReadOnly, &options).unwrap();
    let file = File::create(image).unwrap();
    file.set_len(device.size()).unwrap();
    let mut bytes = vec![0; 4 << 20];
    for at in (0..device.size()).step_by(bytes.len()) {
        device.read_at(&mut bytes, PhysicalAddress(at)).unwrap();
        if bytes.iter().any(|byte| *byte != 0) {
            file.write_all_at(&bytes, at).unwrap();
        }
    }
}

/// Compares the trees below two directories with `diff`.
fn assert_same(one: &Path, other: &Path) {
    let output = std::process::Command::new("diff")
        .args(["-r", "--no-dereference"])
        .arg(one)
        .arg(other)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stdout));
}

#[test]
fn the_kernel_mounts_what_was_written_to_a_store() {
    let scratch = Scratch::new(2 << 30).unwrap();
    let (tree, store) = (scratch.path().join("tree"), url(&scratch, "store"));
    make_tree(&tree);
    fail(2, "needs --size", ["mkfs", "-q", "--rootdir", tree.to_str().unwrap(), &store]);
    succeed(["mkfs", "-q", "--size", &SIZE.to_string(), "--rootdir", tree.to_str().unwrap(), &store]);
    let inside = format!("{store}:/");
    succeed(["cp", "-r", tree.join("directory").to_str().unwrap(), &format!("{store}:/copy")]);
    succeed(["subvolume", "snapshot", &inside, &format!("{store}:/snapshot")]);
    succeed(["rm", &format!("{store}:/small")]);
    fail(1, "does not shrink", ["store", "grow", &store, "1M"]);
    succeed(["store", "grow", &store, "512M"]);
    succeed(["filesystem", "resize", "max", &store]);
    let usage = succeed_text(["filesystem", "usage", "-b", &inside]);
    assert!(usage.contains(&(2 * SIZE).to_string()), "{usage}");
    succeed(["check", "--check-data-csum", &store]);
    assert_eq!(succeed_text(["ls", &inside]), "copy\ndirectory\nsnapshot\n");
    assert_eq!(succeed_text(["cat", &format!("{store}:/snapshot/small")]), "a line\n");
    if require(Need::KERNEL_MOUNT).is_none() {
        return;
    }
    let image = scratch.path().join("downloaded.img");
    download(&store, &image);
    let images = ImageSet::open(&scratch, vec![image]);
    images.btrfs_check().unwrap();
    let mount = images.mount().unwrap();
    assert_same(&tree.join("directory"), &mount.path().join("copy"));
    assert_same(&tree.join("directory"), &mount.path().join("snapshot/directory"));
    mount.unmount().unwrap();
}

#[test]
fn checkpoints_and_clones_are_file_systems() {
    let scratch = Scratch::new(1 << 30).unwrap();
    let store = url(&scratch, "store");
    succeed(["mkfs", "-q", "--size", &SIZE.to_string(), &store]);
    succeed(["mkdir", &format!("{store}:/first")]);
    let id = succeed_text(["store", "checkpoint", &store, "--name", "one", "--expires", "7"]);
    succeed(["mkdir", &format!("{store}:/second")]);
    let listed = succeed_json(["store", "list", "--json", &store]);
    assert_eq!((&listed[0]["id"], &listed[0]["name"]), (&id.trim().into(), &"one".into()));
    assert!(listed[0]["expires"].is_string() && listed.as_array().unwrap().len() == 1);
    assert!(succeed_text(["store", "list", &store]).trim_end().ends_with("  one"));
    for name in ["one", id.trim()] {
        assert_eq!(succeed_text(["ls", &format!("{store}?checkpoint={name}:/")]), "first\n");
    }
    fail(1, "read-only", ["mkdir", &format!("{store}?checkpoint=one:/third")]);
    let clone = url(&scratch, "clone");
    succeed(["store", "clone", &format!("{store}?checkpoint=one"), &clone]);
    succeed(["mkdir", &format!("{clone}:/in-clone")]);
    assert_eq!(succeed_text(["ls", &format!("{clone}:/")]), "first\nin-clone\n");
    assert_eq!(succeed_text(["ls", &format!("{store}:/")]), "first\nsecond\n");
    succeed(["check", &clone]);
    fail(1, "already", ["store", "clone", &store, &clone]);
    fail(1, "another bucket", ["store", "clone", &store, "slatedb+s3://bucket/clone"]);
    let info = succeed_json(["store", "info", "--json", &store]);
    assert_eq!((&info["version"], &info["size"]), (&2.into(), &SIZE.into()));
    assert!(
        info["checkpoints"].as_u64().unwrap() >= 1 && info["requests"]["database"]["puts"].as_u64() > Some(0)
    );
    succeed(["store", "delete", &store, "one"]);
    fail(1, "no checkpoint one", ["ls", &format!("{store}?checkpoint=one:/")]);
    fail(1, "no checkpoint one", ["store", "delete", &store, "one"]);
    fail(1, "contains a Btrfs file system", ["mkfs", "-q", "--size", &SIZE.to_string(), &store]);
    succeed(["mkfs", "-q", "-f", "--size", &(SIZE * 2).to_string(), &store]);
    assert_eq!(succeed_text(["ls", &format!("{store}:/")]), "");
}

#[test]
fn segments_are_shown_and_cleaned() {
    let scratch = Scratch::new(2 << 30).unwrap();
    let (tree, store) = (scratch.path().join("tree"), url(&scratch, "store"));
    make_tree(&tree);
    let size = SIZE.to_string();
    succeed(["mkfs", "-q", "--size", &size, "--rootdir", tree.to_str().unwrap(), &store]);
    let info = succeed_json(["store", "info", "--json", &store]);
    assert!(info["segments"]["live_bytes"].as_u64() > Some(2_900_000), "{info}");
    let text = succeed_text(["store", "info", &store]);
    assert!(text.contains("Segments:") && text.contains("not in use:"), "{text}");
    let prices = scratch.path().join("prices.json");
    std::fs::write(&prices, r#"{"currency": "EUR", "storage_gib_month": 1000, "put_1000": 5}"#).unwrap();
    let prices = prices.to_str().unwrap();
    let cost = succeed_json(["store", "info", "--json", "--prices", prices, &store])["cost"].take();
    assert!(
        cost["storage_per_month"].as_f64() > Some(2.7) && cost["requests"].as_f64() > Some(0.0),
        "{cost}"
    );
    assert_eq!((&cost["currency"], &cost["transfer"]), (&"EUR".into(), &0.0.into()));
    assert!(succeed_text(["store", "info", "--prices", prices, &store]).contains(" EUR a month for "));
    std::fs::write(prices, "puts = 1").unwrap();
    fail(1, "prices.json", ["store", "info", "--prices", prices, &store]);
    let clone = url(&scratch, "clone");
    succeed(["store", "clone", &store, &clone]);
    assert_eq!(succeed_json(["store", "info", "--json", &store])["clones"], 1);
    assert!(succeed_json(["store", "info", "--json", &clone])["ancestors"]["segments"].as_u64() > Some(0));
    // An orphan, as a crash leaves it.
    let orphan = scratch.path().join("store/segments/01ARZ3NDEKTSV4RRFFQ69G5FAV.seg");
    std::fs::write(&orphan, [1; 1000]).unwrap();
    assert_eq!(succeed_json(["store", "info", "--json", &store])["segments"]["orphans"], 1);
    succeed(["rm", "-r", &format!("{store}:/directory")]);
    succeed(["trim", &store]);
    let cleaned = succeed_text(["store", "clean", &store]);
    assert!(cleaned.contains("Orphans:  1 segments") && !orphan.exists(), "{cleaned}");
    for url in [&store, &clone] {
        succeed(["check", "--check-data-csum", url]);
    }
    let file = format!("{clone}:/directory/large");
    let image = scratch.path().join("large");
    succeed(["cp", &file, image.to_str().unwrap()]);
    assert!(std::fs::read(&image).unwrap() == std::fs::read(tree.join("directory/large")).unwrap());
    fail(1, "no such file or device", ["store", "info", &url(&scratch, "nothing")]);
    fail(1, "no such file or device", ["store", "clean", &url(&scratch, "nothing")]);
}

#[test]
fn wrong_urls_of_stores_are_errors() {
    let scratch = Scratch::new(1 << 20).unwrap();
    let nothing = url(&scratch, "nothing");
    fail(1, "no such file or device", ["ls", &format!("{nothing}:/")]);
    fail(1, "no such file or device", ["mkfs", &nothing]);
    fail(1, "no such file or device", ["store", "list", &nothing]);
    fail(1, "it is no slatedb+ URL", ["store", "list", "s3://bucket/key"]);
    fail(1, "names no object", ["store", "list", "slatedb+s3://bucket"]);
}

#[test]
fn a_file_system_on_s3_is_mounted_and_written() {
    if require(&[Need::Command(PROGRAM)]).is_none() {
        return;
    }
    let server = ObjectServer::start().unwrap();
    server.make_bucket("bucket").unwrap();
    let proxy = server.proxy(std::time::Duration::ZERO).unwrap();
    let scratch = Scratch::new(1 << 30).unwrap();
    let papilio = |arguments: &[&str]| {
        let mut command = command();
        command.env("AWS_ENDPOINT", proxy.url()).env("AWS_ACCESS_KEY_ID", "test");
        command.env("AWS_SECRET_ACCESS_KEY", "test").env("AWS_REGION", "us-east-1");
        command.env("XDG_CACHE_HOME", scratch.path().join("cache")).args(arguments).output().unwrap()
    };
    let run = |arguments: &[&str]| {
        let output = papilio(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let (tree, store) = (scratch.path().join("tree"), "slatedb+s3://bucket/a/file-system");
    make_tree(&tree);
    run(&["mkfs", "-q", "--size", &SIZE.to_string(), store]);
    run(&["cp", "-r", tree.to_str().unwrap(), &format!("{store}:/tree")]);
    assert_eq!(run(&["cat", &format!("{store}:/tree/small")]), "a line\n");
    run(&["check", "--check-data-csum", store]);
    check_failure(&papilio(&["ls", "slatedb+s3://bucket/none:/"]), 1, "no such file or device");
    if require(&[Need::Root, Need::Fuse]).is_none() {
        return;
    }
    let directory = scratch.path().join("mnt");
    std::fs::create_dir(&directory).unwrap();
    let mount = directory.to_str().unwrap();
    run(&["mount", store, mount]);
    let written = std::panic::catch_unwind(|| {
        assert_same(&tree, &directory.join("tree"));
        std::fs::write(directory.join("written"), "through the mount\n").unwrap();
        File::open(directory.join("written")).unwrap().sync_all().unwrap();
    });
    crate::common::unmount(mount.as_ref());
    written.unwrap();
    assert_eq!(run(&["cat", &format!("{store}:/written")]), "through the mount\n");
}

/// Runs a program, which must succeed.
fn run_tool(program: &str, arguments: &[&str]) {
    let output = std::process::Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", text(&output.stderr));
}

#[test]
fn servers_with_tls_need_a_certificate_that_the_host_trusts() {
    if require(&[PROGRAM, "curl", "openssl"].map(Need::Command)).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let at = |name: &str| scratch.path().join(name);
    let (key, certificate) = (at("key.pem"), at("certificate.pem"));
    let (key_name, certificate_name) = (key.to_str().unwrap(), certificate.to_str().unwrap());
    let extensions = at("extensions.cnf");
    std::fs::write(
        &extensions,
        "[req]\nprompt=no\ndistinguished_name=name\nx509_extensions=server\n[name]\nCN=test\n\
         [server]\nsubjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n",
    )
    .unwrap();
    let request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    let config = extensions.to_str().unwrap();
    let files = ["-config", config, "-keyout", key_name, "-out", certificate_name];
    run_tool("openssl", &[&request.split_whitespace().collect::<Vec<_>>()[..], &files].concat());
    let server = ObjectServer::start_tls(&certificate, &key).unwrap();
    let endpoint = format!("https://{}", server.address());
    let bucket = format!("{endpoint}/bucket");
    let signature = "Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, \
                     SignedHeaders=host, Signature=x";
    run_tool("curl", &["-sf", "--cacert", certificate_name, "-X", "PUT", "-H", signature, &bucket]);
    let papilio = |trusted: Option<&Path>, arguments: &[&str]| {
        let mut command = command();
        command.env("AWS_ENDPOINT", &endpoint).env("AWS_ACCESS_KEY_ID", "test");
        command.env("AWS_SECRET_ACCESS_KEY", "test").env("AWS_REGION", "us-east-1");
        command.env_remove("SSL_CERT_DIR").env_remove("SSL_CERT_FILE");
        if let Some(trusted) = trusted {
            command.env("SSL_CERT_FILE", trusted);
        }
        command.args(["--remote-cache", "none"]).args(arguments).output().unwrap()
    };
    let (store, size) = ("slatedb+s3://bucket/tls", SIZE.to_string());
    for arguments in
        [&["mkfs", "-q", "--size", &size, store][..], &["mkdir", "slatedb+s3://bucket/tls:/made"]]
    {
        let output = papilio(Some(&certificate), arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    }
    assert_eq!(text(&papilio(Some(&certificate), &["ls", store]).stdout), "made\n");
    let refused = check_failure(&papilio(None, &["ls", store]), 1, store);
    assert!(refused.to_lowercase().contains("certificate"), "{refused}");
}
