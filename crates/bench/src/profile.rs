//! Where the time goes: a side's run once more under `perf record`, as a list of symbols.
//!
//! Owns [`Profile`], and [`Recorder`], which samples a process that runs already. Samples are of processor time, by
//! symbol without what it calls, and only of the time that the job's figures are made of. A symbol belongs to a
//! part ([`part_of`]) by its name.

use crate::side::Side;
use anyhow::{Context, bail};
use papilio_oracle::requirement::find_command;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Samples of a second of each processor; no divisor of anything that happens regularly.
const FREQUENCY: &str = "1999";
/// Symbols that are kept.
const SYMBOLS: usize = 15;
/// How long perf may take to begin and to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// One side's time in one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Whose; of the mount, its server.
    pub side: Side,
    /// Samples.
    pub samples: u64,
    /// Percent of them by part, the largest first.
    pub parts: Vec<(String, f64)>,
    /// The symbols with the most.
    pub symbols: Vec<Symbol>,
}

/// A symbol's own time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Symbol {
    /// Percent of the samples.
    pub percent: f64,
    /// What it belongs to.
    pub part: String,
    /// Its name.
    pub name: String,
}

/// The perf program.
///
/// # Errors
/// It is not there.
pub fn program() -> anyhow::Result<PathBuf> {
    find_command("perf").context("perf is not installed (Debian: apt-get install linux-perf)")
}

/// What is said to perf to record into `data`.
pub fn arguments(data: &Path) -> impl Iterator<Item = &OsStr> {
    ["record", "-q", "-F", FREQUENCY, "-k", "CLOCK_REALTIME", "-o"]
        .map(OsStr::new)
        .into_iter()
        .chain([data.as_os_str()])
}

/// perf beside a process that runs already.
#[derive(Debug)]
pub struct Recorder {
    perf: Child,
    log: PathBuf,
}

impl Recorder {
    /// Samples all threads of a process into `data`, from now on.
    ///
    /// # Errors
    /// perf is not there, or does not start.
    pub fn start(process: u32, data: &Path) -> anyhow::Result<Self> {
        let log = data.with_extension("perf.log");
        let output = File::create(&log).with_context(|| log.display().to_string())?;
        let mut command = Command::new(program()?);
        command.args(arguments(data)).arg("-p").arg(process.to_string());
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let perf = command.spawn().context("perf")?;
        let mut recorder = Self { perf, log };
        // The file is there once it samples.
        let start = Instant::now();
        while !data.exists() {
            if recorder.perf.try_wait()?.is_some() || start.elapsed() > PATIENCE {
                bail!("perf: {}", recorder.words());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(recorder)
    }

    /// Ends it; the samples are in the file then.
    ///
    /// # Errors
    /// It could not sample.
    pub fn end(mut self) -> anyhow::Result<()> {
        self.interrupt();
        let start = Instant::now();
        while self.perf.try_wait()?.is_none() {
            if start.elapsed() > PATIENCE {
                bail!("perf does not end");
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

    fn words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines()
            .map(str::trim)
            .find(|line| !line.is_empty() && *line != "Error:")
            .unwrap_or("does not start")
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
    /// Reads what perf recorded between two moments, in seconds since 1970, and removes it.
    ///
    /// # Errors
    /// perf cannot read it, or there is no sample in it.
    pub fn read(side: Side, data: &Path, (start, end): (f64, f64)) -> anyhow::Result<Self> {
        let mut command = Command::new(program()?);
        command.args(["report", "--stdio", "--no-children", "-g", "none", "-t", "\t"]);
        command.args(["-F", "sample,dso,symbol", "-i"]).arg(data);
        command.arg(format!("--time={start:.6},{end:.6}"));
        let output = command.stdin(Stdio::null()).output().context("perf report")?;
        let _ = std::fs::remove_file(data);
        let profile = Self::parse(side, &String::from_utf8_lossy(&output.stdout));
        if profile.samples == 0 {
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("perf report: {}", words.lines().last().unwrap_or("no samples").trim());
        }
        Ok(profile)
    }

    /// Lines of samples, object and symbol, with tabs between.
    fn parse(side: Side, text: &str) -> Self {
        let mut all: Vec<(u64, &'static str, String)> = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut fields = line.split('\t').map(str::trim);
            let (Some(samples), Some(object), Some(symbol)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let Ok(samples) = samples.parse::<u64>() else { continue };
            // "[k] name" or "[.] name".
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

    /// The parts as a line; those below one percent together.
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

/// Parts by words in a symbol's name; the first that fits.
const PARTS: [(&str, &[&str]); 10] = [
    (
        "checksum",
        &["crc32c", "crc_fast", "xxhash", "sha2::", "blake2", "data::checksum", "data::overlap", "csum"],
    ),
    ("locks", &["parking_lot", "pthread_mutex", "pthread_rwlock", "futex", "lll_lock", "arc_swap"]),
    ("copying", &["memmove", "memcpy", "memset", "memcmp"]),
    ("page cache", &["papilio_pagecache", "fs::buffered"]),
    ("device", &["papilio_device", "papilio::volume", "io_uring"]),
    ("transaction", &["papilio::transaction", "papilio::space", "papilio::fsync_log", "fs::committer"]),
    ("btree", &["papilio::btree", "papilio::items", "papilio_format", "extent_map", "stored_extents"]),
    ("FUSE server", &["papilio_fuse", "fuser::"]),
    ("engine", &["papilio_fio"]),
    ("maps and sets", &["alloc::collections", "std::collections", "hashbrown"]),
];

/// What a symbol of an object (a program, a library) belongs to.
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

/// A name that fits into a table.
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
    fn symbols_and_parts_come_out() {
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
    fn names_say_what_they_belong_to() {
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
