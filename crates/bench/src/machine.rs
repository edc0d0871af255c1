//! Facts about the machine that are needed to interpret results.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The machine, and the programs of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the processor.
    pub processor: String,
    /// Number of processors that this process may use.
    pub processors: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// Load average over the minute before the run.
    #[serde(default)]
    pub load: f64,
    /// Release of the kernel.
    pub kernel: String,
    /// Papilio's version, with "(debug)" for a debug build, whose results mean little.
    pub papilio: String,
    /// fio's version, if installed.
    pub fio: Option<String>,
    /// Version of btrfs-progs, if installed.
    pub btrfs_progs: Option<String>,
}

impl Machine {
    /// Returns whether other processes used so much of the machine that absolute results mean
    /// little.
    pub fn was_busy(&self) -> bool {
        self.load > self.processors as f64 / 4.0
    }

    /// Collects the facts of this machine.
    pub fn here(fio: Option<&Path>) -> Self {
        let debug = if cfg!(debug_assertions) { " (debug)" } else { "" };
        let mkfs = papilio_oracle::requirement::find_command("mkfs.btrfs");
        Self {
            processor: processor(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory: memory("MemTotal:"),
            load: load(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            papilio: format!("{}{debug}", env!("CARGO_PKG_VERSION")),
            fio: fio.and_then(version),
            btrfs_progs: mkfs.as_deref().and_then(version),
        }
    }
}

/// Returns the available memory in bytes.
pub fn available_memory() -> u64 {
    memory("MemAvailable:")
}

fn memory(key: &str) -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    info.lines()
        .find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib << 10)
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or_default()
}

fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Returns the first line of a program's `--version` output.
fn version(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Keeps the package of a line such as "mkfs.btrfs, part of btrfs-progs v6.2".
    let line = text.lines().next()?.trim();
    let name = line.rsplit_once("part of ").map_or(line, |(_, whole)| whole);
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_facts() {
        let machine = Machine::here(None);
        assert!(machine.processors > 0 && machine.memory > 1 << 20);
        assert!(!machine.processor.is_empty() && !machine.kernel.is_empty());
        assert_eq!(machine.fio, None);
        assert!((1..=machine.memory).contains(&available_memory()));
    }
}
