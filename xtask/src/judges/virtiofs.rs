//! A guest that mounts a file system of `papilio serve --vhost-user`.
//!
//! The server runs on the host. User Mode Linux is the virtual machine monitor and lends the
//! guest's memory, through `scripts/judge-virtiofs-relay.py`. The same steps on virtiofs and on the guest's Btrfs must print the same lines
//! (`scripts/judge-virtiofs.py`); afterwards `papilio check` judges the image.

use super::guest::{Guest, Kernel, Outcome};
use super::{INIT, quoted};
use anyhow::{Context, bail};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The device of virtiofs in a virtio bus (VIRTIO 1.2, section 5.11.1).
const VIRTIO_FS: u32 = 26;
/// Time for the guest: some ten times what it takes on an idle machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Judges the device under one kernel. Returns the failure, if there is one.
///
/// # Errors
/// Files cannot be written, or programs cannot be started.
pub fn judge(root: &Path, kernel: &Kernel) -> anyhow::Result<Option<String>> {
    // The path of a socket has at most 108 bytes.
    let folder = tempfile::Builder::new().prefix("papilio").tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let (image, socket, relayed) = (at("image"), at("socket"), at("relayed"));
    let program = root.join("target/debug/papilio");
    let made = Command::new(&program).args(["mkfs", "-q", "--size", "600M"]).arg(&image).status();
    if !made.with_context(|| program.display().to_string())?.success() {
        bail!("{}: mkfs failed", program.display());
    }
    let mut serve = Command::new(&program);
    serve.args(["serve", "--tag", "judge", "--vhost-user"]).args([&socket, &image]);
    let mut server = start(&mut serve, "vhost-user:")?;
    let mut relay = Command::new("python3");
    relay.arg(root.join("scripts/judge-virtiofs-relay.py")).args([&relayed, &socket]);
    let judged = start(&mut relay, "listening").and_then(|mut relay| {
        let judged = run(root, kernel, &relayed);
        let _ = relay.kill();
        relay.wait()?;
        judged
    });
    let ended = end(&mut server);
    if let Some(failure) = judged? {
        return Ok(Some(failure));
    }
    if let Some(failure) = ended? {
        return Ok(Some(failure));
    }
    let check = Command::new(&program).args(["check", "--check-data-csum"]).arg(&image).output()?;
    Ok((!check.status.success()).then(|| String::from_utf8_lossy(&check.stdout).into_owned()))
}

/// Starts a program that listens, and waits until it says so.
fn start(command: &mut Command, word: &str) -> anyhow::Result<Child> {
    let mut program = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(program.stdout.take().context("it has an output")?).read_line(&mut line)?;
    if !line.starts_with(word) {
        let _ = program.kill();
        bail!("{command:?} did not start: {line} {}", program.wait()?);
    }
    Ok(program)
}

/// Ends the server as a user does. Returns its failure.
fn end(server: &mut Child) -> anyhow::Result<Option<String>> {
    let interrupted = Command::new("kill").args(["-INT", &server.id().to_string()]).status()?;
    if !interrupted.success() {
        server.kill()?;
    }
    let status = server.wait()?;
    Ok((!status.success()).then(|| format!("the server ended with {status}")))
}

fn run(root: &Path, kernel: &Kernel, socket: &Path) -> anyhow::Result<Option<String>> {
    let job = root.join("target/judges").join(format!("{}-virtiofs", kernel.name));
    if job.exists() {
        fs::remove_dir_all(&job)?;
    }
    fs::create_dir_all(&job)?;
    let words = [root.join("scripts/judge-virtiofs.sh"), root.to_owned(), job.clone()];
    let words = words.map(|word| quoted(&word.display().to_string()));
    let guest = Guest {
        kernel,
        root,
        init: &root.join(INIT),
        job: &job,
        memory: 1024,
        arguments: vec![format!("virtio_uml.device={}:{VIRTIO_FS}", socket.display())],
        limit: LIMIT,
    };
    let outcome = guest.run(&format!("exec {}\n", words.join(" ")))?;
    let read =
        |name: &str| String::from_utf8_lossy(&fs::read(job.join(name)).unwrap_or_default()).into_owned();
    Ok(match outcome {
        Outcome::Ended(0) => {
            println!("judges: {}: virtiofs: {} lines are equal", kernel.name, read("stdout").trim());
            None
        }
        Outcome::Ended(code) => {
            Some(format!("the guest's steps ended with {code}:\n{}{}", read("stdout"), read("stderr")))
        }
        Outcome::Late => Some(format!("no result after {} s", LIMIT.as_secs())),
        Outcome::Died(console) => Some(format!("the guest ended without a result:\n{console}")),
    })
}
