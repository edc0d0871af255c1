//! Stock clients: qemu-io, qemu-img, nbdinfo, nbdcopy and fio.

use papilio_device::{Access, OpenOptions};
use papilio_nbd::{Address, Export, Server};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const SIZE: u64 = 16 << 20;

/// Returns whether a program is there; says so if it is not, or fails if all are required.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
        return true;
    }
    let name = std::thread::current().name().unwrap_or("unnamed").to_owned();
    let all = std::env::var_os("PAPILIO_REQUIRE_ALL");
    assert!(all.is_none_or(|all| all != "1"), "PAPILIO_REQUIRE_ALL=1, but {name} needs {program}");
    // A closed standard error must not fail the test.
    let _ = writeln!(std::io::stderr(), "skipped: {name}: needs the command {program}");
    false
}

/// Runs a program, which must succeed, and returns its output.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {out} {err}");
    // qemu-io reports some failures on standard output only.
    assert!(!out.contains("failed"), "{program} {arguments:?}: {out}");
    out.into_owned()
}

/// Bytes that differ from sector to sector.
fn noise(length: u64) -> Vec<u8> {
    (0..length / 4).flat_map(|word| (word as u32).wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

fn serve(image: &Path, access: Access, address: &Address, name: &str) -> Server {
    let device = Arc::new(OpenOptions::new(access).open(image).unwrap());
    Server::start(address, Export::new(name.to_owned(), device).unwrap(), 16).unwrap()
}

fn tcp() -> Address {
    Address::Tcp("127.0.0.1:0".to_owned())
}

#[test]
fn qemu_reads_writes_and_maps() {
    if !has("qemu-io") || !has("qemu-img") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(SIZE).unwrap();
    let socket = folder.path().join("a socket");
    for (address, name) in [(tcp(), ""), (Address::Unix(socket), "an export")] {
        let server = serve(&image, Access::ReadWrite, &address, name);
        let uri = server.uri();
        let io = |commands: &[&str]| {
            let mut arguments = vec!["-f", "raw", uri];
            arguments.extend(commands.iter().flat_map(|command| ["-c", command]));
            run("qemu-io", &arguments)
        };
        io(&["write -P 1 0 16M", "flush"]);
        io(&["write -P 2 1000000 3000000", "write -f -P 3 512 1", "read -P 3 512 1", "read -P 1 0 512"]);
        io(&["write -z 4M 1M", "write -z -u 6M 1M", "discard 8M 1M", "flush", "read -P 0 4M 1M"]);
        io(&["read -P 0 6M 1M", "read -P 2 1000000 3000000", "read -P 1 9M 7M"]);
        io(&["aio_write -P 4 10M 1M", "aio_write -P 5 11M 1M", "aio_read 0 1M", "aio_flush"]);
        io(&["read -P 4 10M 1M", "read -P 5 11M 1M"]);
        // The server has the image locked, and QEMU heeds its locks.
        let copy = folder.path().join("copy");
        std::fs::copy(&image, &copy).unwrap();
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", uri, copy.to_str().unwrap()]);
        let map = run("qemu-img", &["map", "--output=json", "-f", "raw", uri]);
        server.stop().unwrap();
        let here = run("qemu-img", &["map", "--output=json", "-f", "raw", image.to_str().unwrap()]);
        let zeros = |map: &str| map.matches("\"zero\": true").count();
        assert_eq!(zeros(&map), zeros(&here), "{map} {here}");
        // The image is unlocked, and has what was written.
        let bytes = std::fs::read(&image).unwrap();
        assert_eq!(bytes.len() as u64, SIZE);
        assert!(bytes[10 << 20..11 << 20].iter().all(|byte| *byte == 4));
        drop(OpenOptions::new(Access::ReadWrite).open(&image).unwrap());
    }
}

#[test]
fn qemu_img_converts_from_and_to_the_server() {
    if !has("qemu-img") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut bytes = noise(SIZE);
    bytes[2 << 20..9 << 20].fill(0);
    std::fs::write(at("from"), &bytes).unwrap();
    std::fs::File::create(at("to")).unwrap().set_len(SIZE).unwrap();
    let from = serve(&at("from"), Access::ReadOnly, &tcp(), "");
    let to = serve(&at("to"), Access::ReadWrite, &tcp(), "");
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", from.uri(), to.uri()]);
    let qcow2 = at("copy.qcow2").to_str().unwrap().to_owned();
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", to.uri(), &qcow2]);
    run("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", &qcow2, from.uri()]);
    to.stop().unwrap();
    from.stop().unwrap();
    assert!(std::fs::read(at("to")).unwrap() == bytes);
    assert!(std::fs::read(at("from")).unwrap() == bytes);
}

#[test]
fn read_only_export_refuses_qemu_writers() {
    if !has("qemu-io") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::write(&image, noise(SIZE)).unwrap();
    let server = serve(&image, Access::ReadOnly, &tcp(), "");
    let output =
        Command::new("qemu-io").args(["-f", "raw", server.uri(), "-c", "write -P 1 0 512"]).output().unwrap();
    assert!(!output.status.success());
    run("qemu-io", &["-r", "-f", "raw", server.uri(), "-c", "read 0 16M"]);
    server.stop().unwrap();
    assert!(std::fs::read(&image).unwrap() == noise(SIZE));
}

#[test]
fn libnbd_tools_copy_and_describe() {
    if !has("nbdinfo") || !has("nbdcopy") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut bytes = noise(SIZE);
    bytes[1 << 20..5 << 20].fill(0);
    std::fs::write(at("source"), &bytes).unwrap();
    std::fs::File::create(at("image")).unwrap().set_len(SIZE).unwrap();
    let server = serve(&at("image"), Access::ReadWrite, &Address::Unix(at("socket")), "disk");
    let uri = server.uri();
    let told = run("nbdinfo", &[uri]);
    for part in ["export-size: 16777216", "can_multi_conn: true", "can_fua: true", "is_read_only: false"] {
        assert!(told.contains(part), "{part:?} is not in {told}");
    }
    assert!(told.contains("base:allocation"), "{told}");
    assert!(run("nbdinfo", &["--list", uri]).contains("export=\"disk\""));
    let (source, copy) = (at("source"), at("copy"));
    // Over several connections, as the server allows.
    run("nbdcopy", &["--connections=4", "--flush", source.to_str().unwrap(), uri]);
    run("nbdcopy", &["--connections=4", uri, copy.to_str().unwrap()]);
    assert!(std::fs::read(copy).unwrap() == bytes);
    server.stop().unwrap();
    assert!(std::fs::read(at("image")).unwrap() == bytes);
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !has("fio") {
        return;
    }
    if !run("fio", &["--enghelp"]).lines().any(|line| line.trim() == "nbd") {
        let _ = writeln!(std::io::stderr(), "skipped: fio_verifies_what_it_wrote: fio has no engine nbd");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(SIZE).unwrap();
    let server = serve(&image, Access::ReadWrite, &Address::Unix(folder.path().join("socket")), "");
    let uri = format!("--uri={}", server.uri());
    run(
        "fio",
        &[
            "--name=job",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bs=4k",
            "--iodepth=32",
            "--size=8M",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--aux-path",
            folder.path().to_str().unwrap(),
        ],
    );
    server.stop().unwrap();
}
