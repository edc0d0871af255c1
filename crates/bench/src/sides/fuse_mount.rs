//! Papilio's FUSE mount: the papilio command is the server, fio uses the mount.

use super::bench::{Bench, Turn};
use crate::cgroup::MemoryLimit;
use crate::fio::run::{Measurement, Run, Whose};
use crate::interrupt;
use crate::profile::Recorder;
use anyhow::{Context, bail};
use papilio_oracle::RingSwitch;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Limit on the time until a mount appears, and until its server exits after the unmount.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A mount and its server. Dropping it unmounts and waits for the server.
struct Served {
    server: Child,
    point: PathBuf,
    log: PathBuf,
    /// Keeps FUSE over io_uring enabled in the kernel while the mount uses it.
    _switch: Option<RingSwitch>,
}

impl Bench<'_> {
    /// Runs a job on a mount of the papilio command `program`.
    pub(super) fn fuse_mount(
        &self,
        turn: Turn<'_>,
        program: Option<&Path>,
        ring: bool,
    ) -> anyhow::Result<Measurement> {
        let Turn { job, fresh, stem, record } = turn;
        if fresh {
            self.mkfs()?;
        }
        let program = program.context("cannot find the papilio command")?;
        let point = self.backing.scratch().unique("fuse");
        std::fs::create_dir(&point)?;
        let log = PathBuf::from(format!("{}.server.log", stem.display()));
        let mut options = String::from("noatime,nodiscard");
        if job.job.nodatacow {
            options.push_str(",nodatacow");
        }
        let switch = ring.then(RingSwitch::on).transpose().context("cannot enable FUSE over io_uring")?;
        // As the engine and the kernel's loop device do.
        if job.file.value("direct") == Some("1") {
            options.push_str(",device_io=direct");
        }
        if ring {
            options.push_str(",transport=ring");
        }
        let mut served = Served::start(program, self.backing.path(), &point, &options, log, switch)?;
        let limit = job.cache.map(|cache| MemoryLimit::new(cache, job.file_bytes)).transpose()?;
        let mut file = job.file.clone();
        file.set("directory", point.display());
        let memory_of = job.cache.map(|_| Whose::Process(served.server.id()));
        let recorder = record.map(|data| Recorder::start(served.server.id(), data)).transpose()?;
        let measured = Run { memory_of, ..self.fio(job, &file, stem, limit.as_ref()) }.measure();
        let recorded = recorder.map_or(Ok(()), Recorder::end);
        // The result counts only if the server wrote everything back.
        served.end().and(recorded).and(measured)
    }
}

impl Served {
    fn start(
        program: &Path,
        image: &Path,
        point: &Path,
        options: &str,
        log: PathBuf,
        switch: Option<RingSwitch>,
    ) -> anyhow::Result<Self> {
        let before = std::fs::metadata(point)?.dev();
        let output = File::create(&log).with_context(|| log.display().to_string())?;
        let server = Command::new(program)
            .args(["mount", "--foreground", "-o", options])
            .args([image, point])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Keeps Ctrl-C from killing the server under a mount in use: fio ends first.
            .process_group(0)
            .spawn()
            .with_context(|| program.display().to_string())?;
        let mut served = Self { server, point: point.to_owned(), log, _switch: switch };
        let start = Instant::now();
        loop {
            if std::fs::metadata(point).is_ok_and(|now| now.dev() != before) {
                return Ok(served);
            }
            if let Some(status) = served.server.try_wait()? {
                bail!("papilio mount: {}", served.last_message().unwrap_or_else(|| status.to_string()));
            }
            interrupt::check()?;
            if start.elapsed() > TIMEOUT {
                bail!("papilio mount: not mounted after {} s", TIMEOUT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the last line of the server's output.
    fn last_message(&self) -> Option<String> {
        let mut text = String::new();
        File::open(&self.log).ok()?.read_to_string(&mut text).ok()?;
        text.lines().rfind(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
    }

    /// Unmounts and waits until the server has closed the image and exited.
    fn end(&mut self) -> anyhow::Result<()> {
        papilio_oracle::scratch::unmount(&self.point)
            .with_context(|| format!("unmount {}", self.point.display()))?;
        let start = Instant::now();
        loop {
            match self.server.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    bail!("papilio mount: {}", self.last_message().unwrap_or_else(|| status.to_string()));
                }
                None if start.elapsed() > TIMEOUT => {
                    bail!("papilio mount: server still running {} s after the unmount", TIMEOUT.as_secs());
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if matches!(self.server.try_wait(), Ok(Some(_))) {
            // The mount may outlive its server.
            let _ = papilio_oracle::scratch::unmount(&self.point);
        } else if self.end().is_err() {
            let _ = self.server.kill();
            let _ = self.server.wait();
            let _ = papilio_oracle::scratch::unmount(&self.point);
        }
    }
}
