//! `papilio serve`: QEMU reads and writes the disk in an image, libnfs the files in it, and a
//! signal ends the server.

use crate::common::{binary, fail, papilio, succeed, succeed_text, text};
use papilio_oracle::{Need, Scratch, require};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A server, which is killed if the test fails.
struct Server {
    process: Child,
    uri: String,
    _state: tempfile::TempDir,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        Self::of("nbd", arguments)
    }

    fn of(protocol: &str, arguments: &[&str]) -> Self {
        Self::at(protocol, "127.0.0.1:0", arguments)
    }

    fn at(protocol: &str, address: &str, arguments: &[&str]) -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut command = Command::new(binary());
        command.args(["serve", &format!("--{protocol}"), "--listen", address]).args(arguments);
        command.env("XDG_STATE_HOME", state.path());
        let mut process =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut uri = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut uri).unwrap();
        let host = address.rsplit_once(':').unwrap().0;
        assert!(uri.starts_with(&format!("{protocol}://{host}")), "{uri:?}");
        Self { process, uri: uri.trim_end().to_owned(), _state: state }
    }

    /// Runs qemu-io on the export, and returns whether it succeeds.
    fn io(&self, command: &str) -> bool {
        self.io_as(&[], command)
    }

    fn io_as(&self, options: &[&str], command: &str) -> bool {
        let mut qemu = Command::new("qemu-io");
        let output = qemu.args(options).args(["-f", "raw", &self.uri, "-c", command]).output().unwrap();
        output.status.success() && !text(&output.stdout).contains("failed")
    }

    fn port(&self) -> u16 {
        let digits = self.uri.rsplit(['=', ':']).next().unwrap();
        digits.parse().unwrap_or_else(|_| panic!("{}", self.uri))
    }

    /// Ends the server by a signal, which it must obey. Returns its messages.
    fn end(mut self, signal: &str) -> String {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        assert!(self.process.wait().unwrap().success());
        let mut messages = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
        messages
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already, unless the test has failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn partition_and_qcow2_are_served_and_closed_by_a_signal() {
    let tools = ["qemu-io", "qemu-img", "sfdisk", "sh"].map(Need::Command);
    if require(&tools).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let disk = scratch.image("disk", 64 << 20).unwrap().to_str().unwrap().to_owned();
    let script = format!("printf 'start=1MiB, size=8MiB\\nstart=16MiB, size=8MiB\\n' | sfdisk -q {disk}");
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
    let before = std::fs::read(&disk).unwrap();

    let server = Server::start(&[&format!("{disk}@2")]);
    fail(1, "another process is using it", ["serve", "--nbd", "--listen", "127.0.0.1:0", &disk]);
    assert!(server.io("write -P 7 4k 8k") && !server.io("write -P 7 8M 512"));
    server.end("-TERM");
    let after = std::fs::read(&disk).unwrap();
    let at = (16 << 20) + 4096;
    assert!(after[at..at + 8192].iter().all(|byte| *byte == 7));
    assert!(before[..at] == after[..at] && before[at + 8192..] == after[at + 8192..]);

    // The whole disk has the size of the image, though it has partitions.
    let server = Server::start(&["--read-only", &disk]);
    assert!(server.io_as(&["-r"], "read 63M 1M") && !server.io("write 0 512"));
    server.end("-INT");
    assert!(after == std::fs::read(&disk).unwrap());

    let qcow2 = scratch.path().join("disk.qcow2").to_str().unwrap().to_owned();
    let run =
        |arguments: &[&str]| assert!(Command::new("qemu-img").args(arguments).status().unwrap().success());
    run(&["convert", "-f", "raw", "-O", "qcow2", &disk, &qcow2]);
    let server = Server::start(&["--export", "x", &qcow2]);
    assert!(server.uri.ends_with("/x"));
    assert!(server.io("write -P 9 40M 1M") && server.io("write -z 16M 1M") && server.io("read -P 9 40M 1M"));
    // Holes of qcow2: clients need not read 60 of the 64 MiB.
    let map =
        Command::new("qemu-img").args(["map", "--output=json", "-f", "raw", &server.uri]).output().unwrap();
    let map: serde_json::Value = serde_json::from_slice(&map.stdout).unwrap();
    let data = map.as_array().unwrap().iter().filter(|run| run["data"] == true);
    let data: u64 = data.map(|run| run["length"].as_u64().unwrap()).sum();
    assert!((1 << 20..4 << 20).contains(&data), "{map}");
    server.end("-TERM");
    run(&["check", "-q", &qcow2]);
    let mut expected = after;
    expected[40 << 20..41 << 20].fill(9);
    expected[16 << 20..17 << 20].fill(0);
    std::fs::write(&disk, expected).unwrap();
    run(&["compare", "-q", "-f", "qcow2", "-F", "raw", &qcow2, &disk]);
}

#[test]
fn a_directory_is_served_to_nfs_clients() {
    if require(&[Need::Command("nfs-cp")]).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = scratch.path().join("image").to_str().unwrap().to_owned();
    succeed(["mkfs", "-q", "--size", "256M", &image]);
    succeed(["mkdir", &format!("{image}:/served")]);
    let local = scratch.path().join("local");
    std::fs::write(&local, "over the network\n").unwrap();
    let copy = |server: &Server, name: &str| {
        let to = server.uri.replace("papilio?", &format!("papilio/{name}?"));
        Command::new("nfs-cp").arg(&local).arg(to).output().unwrap().status.success()
    };
    // Root is nobody by default.
    let server = Server::of("nfs", &[&format!("{image}:/served")]);
    assert!(!copy(&server, "refused"));
    server.end("-TERM");
    let server = Server::of("nfs", &["--no-root-squash", &format!("{image}:/served")]);
    fail(1, "another process is using it", ["serve", "--nfs", "--listen", "127.0.0.1:0", &image]);
    assert!(copy(&server, "copied"));
    server.end("-TERM");
    assert_eq!(succeed_text(["cat", &format!("{image}:/served/copied")]), "over the network\n");
    succeed(["check", "--check-data-csum", &image]);
    let server = Server::of("nfs", &["--read-only", &format!("{image}:/served")]);
    assert!(!copy(&server, "refused"));
    server.end("-INT");
    assert_eq!(succeed_text(["ls", &format!("{image}:/served")]), "copied\n");
    fail(1, "no such file or directory", ["serve", "--nfs", &format!("{image}:/none")]);
    fail(1, "cannot listen on", ["serve", "--nfs", "--listen", "nowhere", &image]);
    let anonymous = ["--all-squash", "--anon-uid", "0", "--anon-gid", "7", &image];
    let server = Server::of("nfs", &anonymous);
    assert!(copy(&server, "anonymous"));
    server.end("-TERM");
    assert!(succeed_text(["ls", "-ln", &image]).contains(" 7 "));
    let output = papilio(["serve", "--nbd", "--all-squash", &image]);
    assert_eq!(output.status.code(), Some(2));
    let output = papilio(["serve", "--nfs", "--nbd", &image]);
    assert_eq!(output.status.code(), Some(2));
}

/// Returns whether a server that listens on this address answers a call of NFS that does nothing.
fn answers_null(host: &str, port: u16) -> bool {
    let mut stream = TcpStream::connect((host, port)).unwrap();
    let words = [1 << 31 | 40, 1, 0, 2, 100_003, 3, 0, 0, 0, 0, 0_u32];
    let call: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
    let mut reply = [0; 28];
    stream.write_all(&call).is_ok() && stream.read_exact(&mut reply).is_ok() && reply[24..] == [0; 4]
}

#[test]
fn only_clients_of_allowed_addresses_are_served() {
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = scratch.path().join("image").to_str().unwrap().to_owned();
    succeed(["mkfs", "-q", "--size", "256M", &image]);
    for (allowed, is_served) in
        [("127.0.0.1", true), ("10.0.0.0/8,127.0.0.0/8", true), ("10.0.0.0/8", false), ("::1", false)]
    {
        let server = Server::of("nfs", &["--allow", allowed, &image]);
        assert_eq!(answers_null("127.0.0.1", server.port()), is_served, "{allowed}");
        let messages = server.end("-TERM");
        let refused = "an NFS client at 127.0.0.1 was refused: its address is not allowed";
        assert_eq!(messages.contains(refused), !is_served, "{allowed}: {messages}");
    }
    let server = Server::of("nbd", &["--allow", "10.0.0.0/8", &image]);
    let mut byte = [0];
    assert!(matches!(
        TcpStream::connect(("127.0.0.1", server.port())).unwrap().read(&mut byte),
        Ok(0) | Err(_)
    ));
    assert!(server.end("-TERM").contains("an NBD client at 127.0.0.1 was refused"));
    for bad in ["10.0.0.0/33", "somewhere", ""] {
        let output = papilio(["serve", "--nbd", "--allow", bad, &image]);
        assert!(output.status.code() == Some(2) && text(&output.stderr).contains("is no address"), "{bad}");
    }
    let output = papilio(["serve", "--nbd", "--socket", "s", "--allow", "::1", &image]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn servers_listen_on_addresses_of_version_6() {
    if TcpStream::connect("[::1]:1").is_err_and(|error| error.kind() != std::io::ErrorKind::ConnectionRefused)
    {
        return println!("skipped: the host has no IPv6");
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let image = scratch.path().join("image").to_str().unwrap().to_owned();
    succeed(["mkfs", "-q", "--size", "256M", &image]);
    let server = Server::at("nfs", "[::1]:0", &["--allow", "::1", &image]);
    assert!(server.uri.starts_with("nfs://[::1]/papilio?"), "{}", server.uri);
    assert!(answers_null("::1", server.port()));
    server.end("-TERM");
    let server = Server::at("nbd", "[::1]:0", &[&image]);
    let mut greeting = [0; 8];
    TcpStream::connect(("::1", server.port())).unwrap().read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"NBDMAGIC");
    server.end("-TERM");
}

#[test]
fn the_secret_of_handles_is_kept() {
    let scratch = Scratch::new(1 << 30).unwrap();
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let (image, key) = (at("image"), at("key"));
    succeed(["mkfs", "-q", "--size", "256M", &image]);
    Server::of("nfs", &["--handle-key", &key, &image]).end("-TERM");
    let first = std::fs::read(&key).unwrap();
    Server::of("nfs", &["--handle-key", &key, &image]).end("-TERM");
    assert_eq!(std::fs::read(&key).unwrap(), first);
    let server = Server::of("nfs", &[&image]);
    assert_eq!(std::fs::read(server._state.path().join("papilio/nfs.key")).unwrap().len(), first.len());
    server.end("-TERM");
    fail(1, "it needs mode 600", ["serve", "--nfs", "--handle-key", &image, &image]);
    fail(1, "none/key", ["serve", "--nfs", "--handle-key", &format!("{image}/none/key"), &image]);
}

#[test]
fn wrong_usage_and_bad_images_are_reported() {
    let scratch = Scratch::new(1 << 20).unwrap();
    let image = scratch.image("image", 1 << 20).unwrap().to_str().unwrap().to_owned();
    fail(2, "--nbd", ["serve", &image]);
    fail(1, "cannot listen on", ["serve", "--nbd", "--listen", "nowhere", &image]);
    fail(1, "cannot listen on", ["serve", "--nbd", "--socket", "/no/such/place", &image]);
    fail(1, "no such file", ["serve", "--nbd", "/no/such/image"]);
    fail(1, "no partition 3", ["serve", "--nbd", &format!("{image}@3")]);
    let output = papilio(["serve", "--nbd", "--socket", "s", "--listen", "127.0.0.1:0", &image]);
    assert_eq!(output.status.code(), Some(2));
    assert!(succeed_text(["serve", "--help"]).contains("--socket"));
    succeed(["inspect", "partitions", &image]);
}
