//! Profiles: a run of a side under `perf record`, as a list of symbols.
//!
//! Owns [`Profile`], and [`Recorder`], which samples a running process.
//!
//! - Samples are of processor time, by symbol and without callees.
//! - Only samples from the measured time of the job count.
//! - The name of a symbol determines the part of the program that it belongs to ([`part_of`]).

use crate::side::Side;
use anyhow::{Context, bail};
use papilio_oracle::requirement::find_command;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Samples per second and processor; a prime, so that it does not align with periodic events.
const FREQUENCY: &str = "1999";
/// Number of symbols kept.
const SYMBOLS: usize = 15;
/// Time limit for perf to start and to exit.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The profile of one side in one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The side; for a mount, its server was sampled.
    pub side: Side,
    /// Number of samples.
    pub samples: u64,
    /// Percent of the samples by part, largest first.
    pub parts: Vec<(String, f64)>,
    /// The symbols with the most samples.
    pub symbols: Vec<Symbol>,
}

/// A symbol with its own time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Symbol {
    /// Percent of the samples.
    pub percent: f64,
    /// The part that the symbol belongs to.
    pub part: String,
    /// Name of the symbol.
    pub name: String,
}

/// Finds the perf program.
///
/// # Errors
/// perf is not installed.
pub fn program() -> anyhow::Result<PathBuf> {
    find_command("perf").context("perf is not installed (Debian: apt-get install linux-perf)")
}

/// Returns perf's arguments to record to the file `data`.
pub fn arguments(data: &Path) -> impl Iterator<Item = &OsStr> {
    ["record", "-q", "-F", FREQUENCY, "-k", "CLOCK_REALTIME", "-o"]
        .map(OsStr::new)
        .into_iter()
        .chain([data.as_os_str()])
}

/// perf attached to a running process.
#[derive(Debug)]
pub struct Recorder {
    perf: Child,
    log: PathBuf,
}

impl Recorder {
    /// Starts to sample all threads of a process to the file `data`.
    ///
    /// # Errors
    /// perf is not installed or does not start.
    pub fn start(process: u32, data: &Path) -> anyhow::Result<Self> {
        let log = data.with_extension("perf.log");
        let output = File::create(&log).with_context(|| log.display().to_string())?;
        let mut command = Command::new(program()?);
        command.args(arguments(data)).arg("-p").arg(process.to_string());
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let perf = command.spawn().context("cannot start perf")?;
        let mut recorder = Self { perf, log };
        // perf creates the file once it samples.
        let start = Instant::now();
        while !data.exists() {
            if recorder.perf.try_wait()?.is_some() || start.elapsed() > TIMEOUT {
                bail!("perf: {}", recorder.message());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(recorder)
    }

    /// Stops perf and waits until the samples are in the file.
    ///
    /// # Errors
    /// perf does not exit in time.
    pub fn end(mut self) -> anyhow::Result<()> {
        self.interrupt();
        let start = Instant::now();
        while self.perf.try_wait()?.is_none() {
            if start.elapsed() > TIMEOUT {
                bail!("perf did not exit within {} s", TIMEOUT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn interrupt(&self) {
        let pid = i32::try_from(self.perf.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        }
    }

    /// Returns the first informative line of perf's output.
    fn message(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines()
            .map(str::trim)
            .find(|line| !line.is_empty() && *line != "Error:")
            .unwrap_or("did not start")
            .to_owned()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if matches!(self.perf.try_wait(), Ok(None)) {
            let _ = self.perf.kill();
            let _ = self.perf.wait();
        }
    }
}

impl Profile {
    /// Reads the samples between two times, in seconds since 1970, and removes the file.
    ///
    /// # Errors
    /// perf cannot read the file, or it has no samples.
    pub fn read(side: Side, data: &Path, (start, end): (f64, f64)) -> anyhow::Result<Self> {
        let mut command = Command::new(program()?);
        command.args(["report", "--stdio", "--no-children", "-g", "none", "-t", "\t"]);
        command.args(["-F", "sample,dso,symbol", "-i"]).arg(data);
        command.arg(format!("--time={start:.6},{end:.6}"));
        let output = command.stdin(Stdio::null()).output().context("cannot start perf report")?;
        let _ = std::fs::remove_file(data);
        let profile = Self::parse(side, &String::from_utf8_lossy(&output.stdout));
        if profile.samples == 0 {
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("perf report: {}", words.lines().last().unwrap_or("no samples").trim());
        }
        Ok(profile)
    }

    /// Parses lines with the number of samples, the object and the symbol, separated by tabs.
    fn parse(side: Side, text: &str) -> Self {
        let mut all: Vec<(u64, &'static str, String)> = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut fields = line.split('\t').map(str::trim);
            let (Some(samples), Some(object), Some(symbol)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let Ok(samples) = samples.parse::<u64>() else { continue };
            // "[k] name" for the kernel or "[.] name" for user space.
            let name = symbol.split_once("] ").map_or(symbol, |(_, name)| name);
            all.push((samples, part_of(object, name), name.to_owned()));
        }
        let total: u64 = all.iter().map(|(samples, ..)| samples).sum();
        let percent = |samples: u64| samples as f64 * 100.0 / total.max(1) as f64;
        let mut parts: Vec<(String, f64)> = Vec::new();
        for (samples, part, _) in &all {
            match parts.iter_mut().find(|(name, _)| name == part) {
                Some((_, share)) => *share += percent(*samples),
                None => parts.push(((*part).to_owned(), percent(*samples))),
            }
        }
        parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.sort_by_key(|(samples, ..)| std::cmp::Reverse(*samples));
        all.truncate(SYMBOLS);
        let symbols = all.into_iter().map(|(samples, part, name)| Symbol {
            percent: percent(samples),
            part: part.to_owned(),
            name: shortened(&name),
        });
        Self { side, samples: total, parts, symbols: symbols.collect() }
    }

    /// Formats the parts as a line, with those below one percent combined.
    pub fn parts_line(&self) -> String {
        let (large, small): (Vec<_>, Vec<_>) = self.parts.iter().partition(|(_, share)| *share >= 1.0);
        let mut words: Vec<String> =
            large.iter().map(|(name, share)| format!("{name} {share:.0} %")).collect();
        let rest: f64 = small.iter().map(|(_, share)| share).sum();
        if rest >= 0.5 {
            words.push(format!("others {rest:.0} %"));
        }
        words.join(", ")
    }
}

/// Parts and the words in symbol names that identify them; the first match counts.
const PARTS: [(&str, &[&str]); 10] = [
    (
        "checksum",
        &["crc32c", "crc_fast", "xxhash", "sha2::", "blake2", "data::checksum::", "data::overlap", "csum"],
    ),
    ("locks", &["parking_lot", "pthread_mutex", "pthread_rwlock", "futex", "lll_lock", "arc_swap"]),
    ("copying", &["memmove", "memcpy", "memset", "memcmp"]),
    ("page cache", &["papilio_pagecache", "::buffered"]),
    ("device", &["papilio_device", "papilio::volume", "io_uring"]),
    ("transaction", &["papilio::transaction", "papilio::space", "papilio::fsync_log", "::committer"]),
    ("btree", &["papilio::btree", "papilio::items", "papilio_format", "extent_map", "stored_extents"]),
    ("FUSE server", &["papilio_fuse", "fuser::"]),
    ("engine", &["papilio_fio"]),
    ("maps and sets", &["alloc::collections", "std::collections", "hashbrown"]),
];

/// Returns the part that a symbol of an object (program or library) belongs to.
fn part_of(object: &str, name: &str) -> &'static str {
    if object.starts_with("[kernel") || object.ends_with(".ko") || object.starts_with("[guest") {
        return "kernel and device";
    }
    match object {
        "[vdso]" => return "clock",
        "fio" => return "fio",
        _ => {}
    }
    let fits = |words: &&(&str, &[&str])| words.1.iter().any(|word| name.contains(word));
    if let Some((part, _)) = PARTS.iter().find(fits) {
        return part;
    }
    if name.contains("papilio::") {
        return "files";
    }
    let is_memory = ["malloc", "free", "realloc", "calloc", "alloc::"].iter().any(|word| name.contains(word));
    if is_memory { "allocation" } else { "other" }
}

/// Shortens a name for a table.
fn shortened(name: &str) -> String {
    const MOST: usize = 90;
    if name.chars().count() <= MOST {
        return name.to_owned();
    }
    name.chars().take(MOST - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "# Samples: 1K of event 'cpu-clock'\n#\n# Samples\tShared Object\tSymbol\n\
        \x20      60\t[kernel.kallsyms]   \t[k] shmem_write_end            \n\
        \x20      25\tlibpapilio_fio.so   \t[.] papilio::btree::cursor::Cursor::seek \n\
        \x20      10\tlibpapilio_fio.so   \t[.] crc32c::hw_x86_64::crc32c\n\
        \x20       4\tfio                 \t[.] get_io_u\n\
        \x20       1\t[vdso]              \t[.] __vdso_clock_gettime\n\n";

    #[test]
    fn symbols_and_parts_are_parsed() {
        let profile = Profile::parse(Side::Papilio, REPORT);
        assert_eq!(profile.samples, 100);
        let line = "kernel and device 60 %, btree 25 %, checksum 10 %, fio 4 %, clock 1 %";
        assert_eq!(profile.parts_line(), line);
        assert_eq!(profile.symbols.len(), 5);
        let first =
            Symbol { percent: 60.0, part: "kernel and device".into(), name: "shmem_write_end".into() };
        assert_eq!(profile.symbols[0], first);
        assert_eq!(profile.symbols[1].name, "papilio::btree::cursor::Cursor::seek");
        assert_eq!(Profile::parse(Side::Mount, "Error:\nno samples\n").samples, 0);
    }

    #[test]
    fn names_determine_parts() {
        for (object, name, part) in [
            ("libpapilio_fio.so", "papilio_pagecache::xarray::XArray::load", "page cache"),
            ("libpapilio_fio.so", "papilio::data::read::read", "files"),
            ("libpapilio_fio.so", "papilio::transaction::delayed_refs::DelayedRefs::change", "transaction"),
            ("papilio", "papilio_fuse::server::Server::read", "FUSE server"),
            ("libc.so.6", "__memmove_avx512_unaligned_erms", "copying"),
            ("libc.so.6", "_int_malloc", "allocation"),
            ("libpapilio_fio.so", "alloc::collections::btree::navigate::find", "maps and sets"),
            ("libpapilio_fio.so", "alloc::raw_vec::finish_grow", "allocation"),
            ("libc.so.6", "syscall", "other"),
            ("fuse.ko", "fuse_copy_page", "kernel and device"),
        ] {
            assert_eq!(part_of(object, name), part, "{object} {name}");
        }
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(shortened("short"), "short");
        assert_eq!(shortened(&"x".repeat(200)).chars().count(), 90);
    }
}
