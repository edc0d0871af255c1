//! One run of fio: starts it, watches it, and reads its results.
//!
//! Owns [`Run`], the parameters, and [`Measurement`], the results.
//!
//! - fio runs in a process group of its own. Ctrl-C reaches only this process, which ends fio and
//!   cleans up.
//! - The processor time of the whole machine is sampled while fio runs. The measured job's share is
//!   interpolated at its end, which fio reports, and its start.

use super::output::{Figures, Output};
use crate::cpu::Samples;
use crate::memory::Peak;
use crate::{interrupt, profile};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Interval between checks of the process and samples of processor time.
const POLL: Duration = Duration::from_millis(10);
/// Time allowed for setup, creation of files and closing, besides the job's own run time.
const SLACK: Duration = Duration::from_secs(600);

/// Parameters of a run of fio.
#[derive(Debug)]
pub struct Run<'a> {
    /// The fio program.
    pub program: &'a Path,
    /// The text of the job file.
    pub job_file: String,
    /// Name of the measured job; `None` to only create files.
    pub measured: Option<&'a str>,
    /// Path of the job file and output, without a suffix.
    pub stem: PathBuf,
    /// The `cgroup.procs` file of fio's cgroup, if any.
    pub cgroup: Option<PathBuf>,
    /// Expected run time in seconds, if time ends the jobs.
    pub seconds: Option<f64>,
    /// The process whose memory is measured, if any.
    pub memory_of: Option<Whose>,
    /// Path of the perf data file, if fio is profiled.
    pub record: Option<PathBuf>,
}

/// A process whose memory is measured.
#[derive(Clone, Copy, Debug)]
pub enum Whose {
    /// fio itself.
    Fio,
    /// The process with this ID.
    Process(u32),
}

/// The results of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Results that fio reports.
    #[serde(flatten)]
    pub fio: Figures,
    /// Processor time of the whole machine during the job, in seconds. Includes kernel workers,
    /// FUSE servers and unrelated processes.
    pub machine_seconds: f64,
    /// Peak anonymous memory in bytes of the process that does the side's work, if measured.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// End of the job in seconds since 1970.
    #[serde(default)]
    pub end: f64,
}

/// Observations made while fio ran.
struct Seen {
    text: String,
    samples: Samples,
    memory_bytes: Option<u64>,
}

impl Measurement {
    /// Returns the processor time of the whole machine per operation, in microseconds.
    pub fn machine_us_per_operation(&self) -> f64 {
        self.machine_seconds * 1e6 / self.fio.operations.max(1) as f64
    }

    /// Returns the processor time of fio's own processes per operation, in microseconds.
    pub fn fio_us_per_operation(&self) -> f64 {
        (self.fio.user_seconds + self.fio.system_seconds) * 1e6 / self.fio.operations.max(1) as f64
    }
}

impl Run<'_> {
    /// Runs fio and returns the results.
    ///
    /// # Errors
    /// fio cannot start, fails, exceeds the time limit or is interrupted. The error quotes fio.
    pub fn measure(&self) -> anyhow::Result<Measurement> {
        let job = self.measured.context("no job to measure")?;
        let Seen { text, samples, memory_bytes } = self.run(&[])?;
        let output = Output::parse(&text)?;
        let fio = output.figures(job)?;
        let end = output.timestamp_ms as f64 / 1000.0;
        let machine_seconds = samples.busy_between(end - fio.seconds, end);
        Ok(Measurement { fio, machine_seconds, memory_bytes, end })
    }

    /// Creates the files of the jobs without running them.
    ///
    /// # Errors
    /// As [`Self::measure`].
    pub fn lay_out(&self) -> anyhow::Result<()> {
        self.run(&["--create_only=1"]).map(drop)
    }

    /// Runs the job for the files that it writes, and discards its results.
    ///
    /// # Errors
    /// As [`Self::measure`].
    pub fn lay_out_by_running(&self) -> anyhow::Result<()> {
        let seen = self.run(&[])?;
        Output::parse(&seen.text)?.figures(self.measured.unwrap_or_default()).map(drop)
    }

    /// Runs fio to its end.
    fn run(&self, options: &[&str]) -> anyhow::Result<Seen> {
        let path = |suffix: &str| PathBuf::from(format!("{}.{suffix}", self.stem.display()));
        let (job, json, messages) = (path("fio"), path("json"), path("log"));
        fs::write(&job, self.text(options)).with_context(|| job.display().to_string())?;
        // An earlier run's output must not be taken for this run's.
        let _ = fs::remove_file(&json);
        let mut command = self.command(&job, &json)?;
        let log = fs::File::create(&messages).with_context(|| messages.display().to_string())?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut child = ProcessGroup(command.spawn().with_context(|| self.program.display().to_string())?);
        let mut samples = Samples::default();
        let mut memory = self.memory_of.map(|whose| match whose {
            // If a shell starts fio, `exec` keeps the process ID.
            Whose::Fio => Peak::of(child.0.id()),
            Whose::Process(process) => Peak::of(process),
        });
        let status = self.wait(&mut child, &mut samples, memory.as_mut())?;
        let text = fs::read_to_string(&json).unwrap_or_default();
        if !status.success() {
            let log = fs::read_to_string(&messages).unwrap_or_default();
            bail!("fio: {}", why_it_failed(&log, &text, status));
        }
        Ok(Seen { text, samples, memory_bytes: memory.map(|peak| peak.bytes()) })
    }

    fn text(&self, options: &[&str]) -> String {
        let mut text = self.job_file.clone();
        // Command line options do not apply to jobs from a file, so they go into its first section.
        for option in options.iter().filter_map(|option| option.strip_prefix("--")) {
            text = text.replacen("]\n", &format!("]\n{option}\n"), 1);
        }
        text
    }

    fn command(&self, job: &Path, json: &Path) -> anyhow::Result<Command> {
        let mut output = std::ffi::OsString::from("--output=");
        output.push(json);
        let mut command = match (&self.cgroup, &self.record) {
            // The shell enters the cgroup before it becomes fio, so that all of fio's memory
            // counts.
            (Some(procs), _) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(procs).arg(self.program);
                shell
            }
            (None, Some(data)) => {
                let mut perf = Command::new(profile::program()?);
                perf.args(profile::arguments(data)).arg("--").arg(self.program);
                perf
            }
            (None, None) => Command::new(self.program),
        };
        command.arg("--output-format=json+").arg(output).arg(job);
        // fio writes files of its own to its working directory.
        if let Some(folder) = self.stem.parent() {
            command.current_dir(folder);
        }
        command.process_group(0);
        Ok(command)
    }

    fn wait(
        &self,
        child: &mut ProcessGroup,
        samples: &mut Samples,
        mut memory: Option<&mut Peak>,
    ) -> anyhow::Result<ExitStatus> {
        let limit = SLACK + Duration::from_secs_f64(self.seconds.unwrap_or(0.0) * 2.0);
        let start = Instant::now();
        loop {
            samples.take()?;
            if let Some(memory) = &mut memory {
                memory.take();
            }
            if let Some(status) = child.0.try_wait()? {
                return Ok(status);
            }
            interrupt::check()?;
            if start.elapsed() > limit {
                bail!("fio did not exit within {} s", limit.as_secs());
            }
            std::thread::sleep(POLL);
        }
    }
}

/// A process group that dropping terminates.
struct ProcessGroup(Child);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(Some(_))) {
            return;
        }
        let Some(pid) = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw) else {
            return;
        };
        // On SIGTERM fio closes its files. Stuck threads of its engine need SIGKILL.
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::TERM);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            if matches!(self.0.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(POLL);
        }
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Picks the most informative line of fio's messages.
fn why_it_failed(log: &str, json: &str, status: ExitStatus) -> String {
    let before_json = json.split('{').next().unwrap_or_default();
    let lines = || log.lines().chain(before_json.lines()).map(str::trim).filter(|line| !line.is_empty());
    let telling = lines().find(|line| {
        let line = line.to_ascii_lowercase();
        ["error", "fail", "papilio", "cannot", "refuse", "unknown", "bad option", "not "]
            .iter()
            .any(|word| line.contains(word))
    });
    let line = telling.or_else(|| lines().next()).map(|line| line.trim_start_matches("fio: ").to_owned());
    let line = line.or_else(|| {
        let error = Output::parse(json).ok()?;
        error.figures("").err().map(|error| error.to_string())
    });
    line.unwrap_or_else(|| status.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn the_informative_line_is_chosen() {
        let status = ExitStatus::from_raw(256);
        let log = "note: both iodepth >= 1\nfio: engine /x.so not loadable\nmore\n";
        assert_eq!(why_it_failed(log, "", status), "engine /x.so not loadable");
        assert_eq!(why_it_failed("", "", status), "exit status: 1");
        assert_eq!(why_it_failed("", "fio: io_u error on file a\n{}", status), "io_u error on file a");
        assert_eq!(why_it_failed("hello\n", "", status), "hello");
    }

    #[test]
    fn options_go_into_the_first_section() {
        let run = Run {
            program: Path::new("fio"),
            job_file: "[a]\nrw=read\n\n[b]\n".to_owned(),
            measured: None,
            stem: PathBuf::from("x"),
            cgroup: None,
            seconds: None,
            memory_of: None,
            record: None,
        };
        assert_eq!(run.text(&["--create_only=1"]), "[a]\ncreate_only=1\nrw=read\n\n[b]\n");
    }
}
