//! Runs an attacker's code in a process that has given up its rights: everything that it tries
//! must be refused, as root and as an ordinary user, and the job itself must still work.
//!
//! The attacker is this test program once more, with the job in `PAPILIO_ATTACK`. It takes the
//! steps that the command takes, by the same functions. A control run without the sandbox shows
//! that the attacks would do something: there, the kernel does not refuse them.

#![cfg(target_os = "linux")]

mod attacker;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Command, Stdio};

/// The variable with the attacker's job, and those with what it attacks.
const VARIABLE: &str = "PAPILIO_ATTACK";

/// The jobs of the table in docs/sandbox.md, in the order of its columns.
const JOBS: [&str; 4] = ["read", "extract", "serve", "mount"];

/// A job that reads, and opens files below the target later.
const READS_LATER: &str = "read-later";

/// Errors that mean "refused": by the filter, by Landlock, by a filter that has a substitute, or by
/// mounts that are read-only.
const REFUSED: [i32; 4] = [libc::EPERM, libc::EACCES, libc::ENOSYS, libc::EROFS];

/// The least number of attacks of each job.
const LEAST: usize = 60;

/// Of those, the least that do something to a process of root without the sandbox.
const LEAST_WITHOUT: usize = 60;

/// The results of an attacker.
struct Found {
    /// The error of each attack, 0 for success.
    attacks: BTreeMap<String, i32>,
    /// Attacks that the job needs, so that they are not refused.
    needed: BTreeSet<String>,
}

/// Runs the attacker, which must also find that its job works.
fn attack(job: &str, as_root: bool) -> Found {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for (name, mode) in [("beside", 0o777), ("target", 0o777)] {
        std::fs::create_dir(path(name)).unwrap();
        std::fs::set_permissions(path(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    for (name, mode) in [("image", 0o666), ("secret", 0o600), ("victim", 0o666)] {
        std::fs::write(path(name), [7; 4096]).unwrap();
        std::fs::set_permissions(path(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    if job == READS_LATER {
        std::fs::write(path("target/object"), [7; 4096]).unwrap();
    }
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let name = folder.path().display().to_string();
    let _unix = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    // Root's mounts are shared there, as they are under systemd.
    let mut command = match is_root() {
        true => Command::new("unshare"),
        false => Command::new(std::env::current_exe().unwrap()),
    };
    if is_root() {
        command.args(["--mount", "--propagation", "shared"]).arg(std::env::current_exe().unwrap());
    }
    let output = command
        .args(["--exact", "attacker_process", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, job)
        .env("PAPILIO_ATTACK_USER", if as_root { "root" } else { "other" })
        .env("PAPILIO_ATTACK_FOLDER", folder.path())
        .env("PAPILIO_ATTACK_TCP", tcp.local_addr().unwrap().port().to_string())
        .env("PAPILIO_ATTACK_UDP", udp.local_addr().unwrap().port().to_string())
        .env("PAPILIO_ATTACK_UNIX", &name)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let all = format!("{job}, root {as_root}: {}\n{stdout}{stderr}", output.status);
    assert!(output.status.success() && stdout.contains("job: works\n"), "{all}");
    let lines = |kind| {
        let lines = stdout.lines().filter_map(move |line| line.strip_prefix(kind)?.split_once(' '));
        lines.map(|(name, errno)| (name.to_owned(), errno.parse().unwrap()))
    };
    Found { attacks: lines("attack: ").collect(), needed: lines("needed: ").map(|line| line.0).collect() }
}

/// The process under attack: it does nothing in an ordinary run of the tests.
#[test]
fn attacker_process() {
    if let Ok(job) = std::env::var(VARIABLE) {
        attacker::run(&job);
    }
}

fn is_root() -> bool {
    // SAFETY: it has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Returns whether the kernel has all parts; without them the test says so.
fn has_parts() -> bool {
    let missing: Vec<_> =
        papilio_sandbox::kernel_parts().into_iter().filter(|part| part.state.is_err()).collect();
    if missing.is_empty() {
        return true;
    }
    let required = std::env::var_os("PAPILIO_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(!required, "this kernel lacks {missing:?}");
    eprintln!("skipped: this kernel lacks {missing:?}");
    false
}

fn is_refused_everything(job: &str) {
    if !has_parts() {
        return;
    }
    let users = if is_root() { &[true, false][..] } else { &[false] };
    for &as_root in users {
        let attacks = attack(job, as_root).attacks;
        assert!(attacks.len() >= LEAST, "{job}: only {} attacks", attacks.len());
        let succeeded: Vec<_> = attacks.iter().filter(|(_, errno)| !REFUSED.contains(errno)).collect();
        assert!(succeeded.is_empty(), "{job}, root {as_root}: not refused: {succeeded:?}");
    }
}

#[test]
fn a_reader_is_refused_everything() {
    is_refused_everything("read");
}

/// As the commands that read a repository of backups.
#[test]
fn a_reader_that_opens_files_later_is_refused_everything_else() {
    is_refused_everything(READS_LATER);
}

#[test]
fn an_extractor_is_refused_everything() {
    is_refused_everything("extract");
}

#[test]
fn a_server_is_refused_everything() {
    is_refused_everything("serve");
}

/// It has a sandbox only if root runs it.
#[test]
fn a_server_of_a_mount_is_refused_much() {
    if !has_parts() || !is_root() {
        return;
    }
    let attacks = attack("mount", true).attacks;
    assert!(attacks.len() >= 45, "only {} attacks", attacks.len());
    let succeeded: Vec<_> = attacks.iter().filter(|(_, errno)| !REFUSED.contains(errno)).collect();
    assert!(succeeded.is_empty(), "not refused: {succeeded:?}");
}

/// Returns the lines of the table in docs/sandbox.md, in the order of the names.
fn table() -> Vec<String> {
    let found = JOBS.map(|job| (job, attack(job, true)));
    let early = |name: &str| name.starts_with("early-");
    let names: BTreeSet<&String> = found
        .iter()
        .flat_map(|(_, found)| found.attacks.keys().chain(&found.needed))
        .filter(|name| !early(name))
        .collect();
    let cell = |job: &str, found: &Found, name: &String| match found.attacks.get(name) {
        Some(errno) if REFUSED.contains(errno) => "refused",
        Some(_) => "POSSIBLE",
        None if found.needed.contains(name) && job == "mount" => "not refused",
        None if found.needed.contains(name) => "needed",
        None => "not tried",
    };
    let line = |name: &String| {
        let cells = found.iter().map(|(job, found)| cell(job, found, name)).collect::<Vec<_>>();
        format!("| `{name}` | {} |", cells.join(" | "))
    };
    names.into_iter().map(line).collect()
}

#[test]
fn the_table_in_the_documents_is_true() {
    if !has_parts() || !is_root() {
        return;
    }
    let documents = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sandbox.md");
    let text = std::fs::read_to_string(documents).unwrap();
    let (_, text) = text.split_once("## What an attacker cannot do").expect("the heading of the table");
    let written: Vec<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
    let expected = table();
    assert_eq!(written, expected, "the table in docs/sandbox.md should be:\n{}", expected.join("\n"));
}

/// Without the sandbox the same attacks are not refused: the test above can fail.
#[test]
fn without_the_sandbox_attacks_are_not_refused() {
    if !is_root() {
        let required = std::env::var_os("PAPILIO_REQUIRE_ALL").is_some_and(|value| value == "1");
        assert!(!required, "the control run needs root");
        eprintln!("skipped: the control run needs root");
        return;
    }
    let attacks = attack("none", true).attacks;
    let done = attacks.values().filter(|errno| !REFUSED.contains(errno)).count();
    assert!(done >= LEAST_WITHOUT, "only {done} of {} attacks do something: {attacks:?}", attacks.len());
    for name in
        ["open-secret", "write-beside", "connect-tcp", "connect-abstract", "chmod-foreign", "socket-udp"]
    {
        assert_eq!(attacks.get(name), Some(&0), "{name} does not work without the sandbox either");
    }
}
