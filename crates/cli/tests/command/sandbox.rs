//! The sandbox of the command: it holds while a command reads, copies or serves, and can be turned
//! off. Attacks on it are in crates/sandbox.

use crate::common::{command, papilio, succeed, text};
use papilio_oracle::{Need, Scratch, require};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Returns whether the kernel has all parts; without them the test says so.
fn has_parts() -> bool {
    let found = text(&papilio(["doctor", "--need", "sandbox"]).stderr);
    let required = std::env::var_os("PAPILIO_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(found.is_empty() || !required, "{found}");
    if !found.is_empty() {
        eprintln!("skipped: {found}");
    }
    found.is_empty()
}

/// A process that is killed if the test fails.
struct Running(Child);

impl Running {
    fn start<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        let mut command = command();
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Returns a field of the state of the process, such as `Seccomp`.
    fn field(&self, name: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.expect(name).trim().to_owned()
    }

    /// Asserts that the process has given up everything but `capabilities`.
    fn is_confined(&self, capabilities: u64) {
        assert_eq!(self.field("NoNewPrivs"), "1");
        assert_eq!(self.field("Seccomp"), "2");
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            let has = u64::from_str_radix(&self.field(set), 16).unwrap();
            assert_eq!(has & !capabilities, 0, "{set}: {has:x}");
        }
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", self.0.id())).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert!(matches!(core.split_ascii_whitespace().nth(4), Some("0" | "1")), "{core}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already, unless the test has failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A mount point that is free again if the test fails.
struct Detached<'a>(&'a Path);

impl Drop for Detached<'_> {
    fn drop(&mut self) {
        // Nothing is mounted there, unless the test has failed.
        let _ = command().args(["umount", "-l"]).arg(self.0).stderr(Stdio::null()).status();
    }
}

/// Makes an image with the file `/large`, of more bytes than a pipe takes.
fn image(scratch: &Scratch) -> String {
    let image = scratch.path().join("image").to_str().unwrap().to_owned();
    let large = scratch.path().join("large");
    std::fs::write(&large, vec![7; 4 << 20]).unwrap();
    succeed(["mkfs", "-q", "--size", "128M", &image]);
    succeed(["cp", large.to_str().unwrap(), &format!("{image}:/large")]);
    image
}

#[test]
fn a_command_that_reads_is_confined() {
    if !has_parts() {
        return;
    }
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = image(&scratch);
    // It waits for the reader of its output, so its state can be looked at.
    let mut cat = Running::start(["cat", &format!("{image}:/large")]);
    let mut output = cat.0.stdout.take().unwrap();
    let mut first = [0; 1];
    output.read_exact(&mut first).unwrap();
    cat.is_confined(0);
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).unwrap();
    assert!(cat.0.wait().unwrap().success() && rest.len() == (4 << 20) - 1);
}

#[test]
fn a_server_is_confined() {
    if !has_parts() {
        return;
    }
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = image(&scratch);
    for protocol in ["--nbd", "--nfs"] {
        let mut server = Running::start(["serve", protocol, "--listen", "localhost:0", &image]);
        let mut uri = String::new();
        BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut uri).unwrap();
        assert!(uri.contains("://"), "{uri:?}");
        server.is_confined(0);
    }
    let socket = scratch.path().join("socket");
    let mut server = Running::start(["serve", "--nbd", "--socket", socket.to_str().unwrap(), &image]);
    let mut uri = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut uri).unwrap();
    server.is_confined(0);
    let pid = server.0.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(server.0.wait().unwrap().success() && !socket.exists());
}

#[test]
fn a_server_of_a_mount_of_root_is_confined() {
    if !has_parts() || require(&[Need::Root, Need::Fuse]).is_none() {
        return;
    }
    // CAP_CHOWN, CAP_SETUID, CAP_NET_ADMIN and CAP_SYS_MODULE, as docs/sandbox.md says.
    const LOST: u64 = 1 << 0 | 1 << 7 | 1 << 12 | 1 << 16;
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = image(&scratch);
    let point = scratch.path().join("mount");
    std::fs::create_dir(&point).unwrap();
    let _detached = Detached(&point);
    let mut server = Running::start(["mount", "--foreground", &image, point.to_str().unwrap()]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while server.field("Seccomp") != "2" {
        assert!(Instant::now() < deadline && server.0.try_wait().unwrap().is_none(), "no filter");
        std::thread::sleep(Duration::from_millis(10));
    }
    server.is_confined(!LOST);
    assert_eq!(std::fs::read(point.join("large")).unwrap().len(), 4 << 20);
    std::fs::write(point.join("new"), b"content").unwrap();
    crate::common::unmount(&point);
    assert!(server.0.wait().unwrap().success());
}

/// Waits until a field of a process has a value.
fn wait_for(process: &mut Running, field: &str, value: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while process.field(field) != value {
        let waits = Instant::now() < deadline && process.0.try_wait().unwrap().is_none();
        assert!(waits, "{field} does not become {value}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a process has taken the first step.
fn wait_for_filter(process: &mut Running) {
    wait_for(process, "Seccomp", "2");
}

#[test]
fn pictures_and_counts_of_space_are_confined() {
    if !has_parts() {
        return;
    }
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = image(&scratch);
    // CAP_SETUID, CAP_NET_ADMIN and CAP_SYS_MODULE. Writers of files keep those that concern files.
    const LOST: u64 = 1 << 7 | 1 << 12 | 1 << 16;
    // The picture goes into a pipe, so that the command waits for its reader.
    for name in ["out.svg", "out.html"] {
        let picture = scratch.path().join(name);
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &picture, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let mut map = Running::start(["treemap", &image, picture.to_str().unwrap()]);
        wait_for_filter(&mut map);
        map.is_confined(!LOST);
        assert!(std::fs::read_to_string(&picture).unwrap().contains("large"), "{name}");
        assert!(map.0.wait().unwrap().success());
    }
    // More samples than it takes in any time.
    let samples = ["usage", "--tree", "--samples", "100000000000", &image];
    let mut usage = Running::start(samples);
    wait_for_filter(&mut usage);
    // The second step comes once the devices are open.
    wait_for(&mut usage, "CapEff", "0000000000000000");
    usage.is_confined(0);
    assert!(usage.0.try_wait().unwrap().is_none());
}

#[test]
fn copies_go_to_the_destination_only() {
    if !has_parts() {
        return;
    }
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = image(&scratch);
    let out = scratch.path().join("new/out");
    succeed(["restore", &image, out.to_str().unwrap()]);
    assert_eq!(std::fs::read(out.join("large")).unwrap().len(), 4 << 20);
    // An old file is written in its place, also through a link to another directory.
    let other = scratch.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("target"), b"old").unwrap();
    std::os::unix::fs::symlink(other.join("target"), out.join("link")).unwrap();
    succeed(["cp", &format!("{image}:/large"), out.join("link").to_str().unwrap()]);
    assert_eq!(std::fs::read(other.join("target")).unwrap().len(), 4 << 20);
    // The working directory is the destination.
    let mut here = command();
    let copied = here.args(["cp", &format!("{image}:/large"), "."]).current_dir(&other).output().unwrap();
    assert!(copied.status.success(), "{}", text(&copied.stderr));
    assert!(Path::new(&other.join("large")).exists());
}

#[test]
fn readers_of_a_repository_are_confined() {
    if !has_parts() {
        return;
    }
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = image(&scratch);
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let (repository, out, key) = (at("repository"), at("out"), at("key"));
    std::fs::write(&key, b"the key").unwrap();
    std::fs::create_dir(&out).unwrap();
    succeed(["subvolume", "snapshot", "-r", &format!("{image}:/"), &format!("{image}:/snap")]);
    succeed(["backup", "init", "--encrypt", "--key-file", &key, &repository]);
    succeed(["backup", "create", "--key-file", &key, &repository, &format!("{image}:/snap")]);
    // A call that is missing in the list of the job ends the process.
    let killed = |arguments: &[&str]| {
        let mut command = command();
        command.env("PAPILIO_SANDBOX", "kill").env("PAPILIO_KEY_FILE", &key);
        let output = command.args(["backup"]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    assert!(killed(&["list", &repository]).ends_with("  snap\n"));
    assert!(killed(&["show", &repository, "snap"]).contains("Snapshot: snap\n"));
    assert_eq!(killed(&["ls", &repository, "snap"]), "/\n/large\n");
    assert!(killed(&["verify", &repository]).ends_with(" 0 faults\n"));
    assert!(killed(&["verify", "--sample", "50", &repository]).ends_with(" 0 faults\n"));
    killed(&["extract", &repository, "snap", "large", "-C", &out]);
    assert_eq!(std::fs::read(scratch.path().join("out/snap/large")).unwrap().len(), 4 << 20);
    killed(&["restore", "--name", "whole", &repository, "snap", &out]);
    assert_eq!(std::fs::read(scratch.path().join("out/whole/large")).unwrap().len(), 4 << 20);
    // Both steps are taken, the second one before a manifest is read.
    let said = text(&papilio(["-vv", "backup", "list", "--key-file", &key, &repository]).stderr);
    let steps: Vec<_> = said.lines().filter(|line| line.starts_with("sandbox: ")).collect();
    assert!(steps.len() == 2 && steps[1].contains("paths version "), "{said}");
    // A process that waits for its reader has given up everything.
    for number in 0..2000 {
        let name = format!("{}/backups/{number:064x}", repository);
        std::fs::write(name, b"damaged").unwrap();
    }
    let mut list = command();
    list.args(["backup", "list", "--key-file", &key, &repository]).stdin(Stdio::null());
    let mut list = Running(list.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut first = [0; 1];
    let mut errors = list.0.stderr.take().unwrap();
    errors.read_exact(&mut first).unwrap();
    list.is_confined(0);
    let mut rest = Vec::new();
    errors.read_to_end(&mut rest).unwrap();
    assert_eq!(list.0.wait().unwrap().code(), Some(1));
}

#[test]
fn what_holds_is_said_and_can_be_turned_off() {
    let scratch = Scratch::new(256 << 20).unwrap();
    let image = image(&scratch);
    let shown = |arguments: &[&str]| text(&papilio(arguments).stderr);
    if has_parts() {
        let said = shown(&["-vv", "ls", &image]);
        assert_eq!(said.lines().filter(|line| line.starts_with("sandbox: ")).count(), 2, "{said}");
        for part in ["new privileges forbidden", "system calls with ", "paths version "] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    assert_eq!(shown(&["-vv", "--sandbox=off", "ls", &image]), "");
    let unknown = papilio(["--sandbox=of", "ls", &image]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("not one of on, off and kill"));
    let mut wrong = command();
    let wrong = wrong.env("PAPILIO_SANDBOX", "no").args(["ls", &image]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert_eq!(text(&wrong.stderr), "papilio: PAPILIO_SANDBOX=no: not one of on, off and kill\n");
}
