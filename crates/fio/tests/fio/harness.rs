//! Runs fio with the engine and examines the image afterwards.

use papilio::{CheckOptions, FileSystem, OpenOptions};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the shared library under test. Cargo puts it beside the test program or one directory
/// up.
pub fn engine() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    let candidates = [folder, folder.parent().unwrap()].map(|folder| folder.join("libpapilio_fio.so"));
    let found = candidates.iter().filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)));
    found.max().expect("cargo builds the shared library with its tests").1.clone()
}

/// Returns the fio under test: the program that `PAPILIO_FIO` names, or the one in `PATH`.
pub fn fio() -> PathBuf {
    std::env::var_os("PAPILIO_FIO").map_or_else(|| "fio".into(), PathBuf::from)
}

/// A scratch directory with an image for one test.
pub struct Bench {
    pub scratch: Scratch,
    pub image: PathBuf,
}

/// The outcome of a run of fio.
pub struct Run {
    pub success: bool,
    pub output: String,
    pub errors: String,
}

impl Bench {
    /// Returns `None` if fio is not installed.
    pub fn new() -> Option<Self> {
        let _met = require(&[Need::Command("fio"), Need::Command("timeout")])?;
        let scratch = Scratch::new(1 << 30).unwrap();
        let image = scratch.path().join("fio.img");
        Some(Self { scratch, image })
    }

    /// Creates an image with an empty file system.
    pub fn with_image(megabytes: u64) -> Option<Self> {
        let bench = Self::new()?;
        papilio::mkfs(&bench.image, &papilio::MkfsOptions::new().size(megabytes << 20)).unwrap();
        Some(bench)
    }

    /// Runs fio's jobs on the image.
    pub fn run(&self, arguments: &[&str]) -> Run {
        let image = format!("--image={}", self.image.display());
        // Engine options must follow the engine, and the first job's name must precede it.
        let (name, rest) = match arguments.split_first() {
            Some((name, rest)) if name.starts_with("--name=") => (*name, rest),
            _ => ("--name=job", arguments),
        };
        self.run_plainly(&[&[name, &self.engine(), &image], rest].concat())
    }

    /// Returns the option that selects the engine.
    pub fn engine(&self) -> String {
        format!("--ioengine=external:{}", engine().display())
    }

    /// Runs fio with exactly these arguments.
    pub fn run_plainly(&self, arguments: &[&str]) -> Run {
        self.run_program(&fio(), arguments)
    }

    /// Runs another fio with exactly these arguments.
    pub fn run_program(&self, fio: &Path, arguments: &[&str]) -> Run {
        let before = self.host_files();
        let output = Command::new("timeout")
            .args(["-k", "5", "120"])
            .arg(fio)
            .arg("--output-format=json")
            .args(arguments)
            .current_dir(self.scratch.path())
            .output()
            .unwrap();
        let mut after = self.host_files();
        after.retain(|path| !before.contains(path) && *path != self.image);
        assert_eq!(after, Vec::<PathBuf>::new(), "left on the host");
        Run {
            success: output.status.success(),
            output: String::from_utf8_lossy(&output.stdout).into_owned(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    fn host_files(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.scratch.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// Opens the image for reading.
    pub fn open(&self) -> FileSystem {
        FileSystem::open(&self.image).unwrap()
    }

    /// Opens the image for writing.
    pub fn open_writable(&self) -> FileSystem {
        FileSystem::open_with(&self.image, &OpenOptions::new().write(true)).unwrap()
    }

    /// Asserts that the library's check finds nothing, data checksums included.
    pub fn check(&self) {
        let report = self.open().check(&CheckOptions::new().data_csum(true)).unwrap();
        let findings: Vec<_> = report.findings.iter().take(3).map(ToString::to_string).collect();
        assert!(report.is_clean(), "{findings:?}");
    }

    /// Asserts that neither the library nor `btrfs check` finds a fault, and passes the kernel's
    /// mount to `look`. Where the kernel or `btrfs` is missing, only the library checks.
    pub fn judge(&self, look: impl FnOnce(&Path)) {
        self.check();
        let needs = [Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat();
        let Some(_met) = require(&needs) else { return };
        let images = ImageSet::open(&self.scratch, vec![self.image.clone()]);
        images.btrfs_check().unwrap();
        let mounted = images.mount().unwrap();
        look(mounted.path());
        mounted.unmount().unwrap();
        images.btrfs_check().unwrap();
    }
}

impl Run {
    /// Asserts that fio succeeds and the engine prints nothing.
    pub fn ok(self) -> Jobs {
        assert!(self.success, "{} {}", self.errors, self.output.chars().take(2000).collect::<String>());
        assert!(!self.errors.contains("papilio"), "{}", self.errors);
        Jobs::of(&self.output)
    }

    /// Asserts that fio fails and that exactly one line of the engine contains `why`.
    #[track_caller]
    pub fn refused(self, why: &str) {
        let lines: Vec<_> = self.errors.lines().filter(|line| line.starts_with("papilio: ")).collect();
        assert!(!self.success, "fio took it: {}", self.errors);
        assert!(lines.len() == 1 && lines[0].contains(why), "{why}: {lines:?}; {}", self.errors);
        assert!(!self.errors.contains("panicked"), "{}", self.errors);
    }
}

/// fio's results, by job.
pub struct Jobs(Vec<Value>);

impl Jobs {
    fn of(output: &str) -> Self {
        let start = output.find("{\n").expect("fio prints JSON");
        let results: Value = serde_json::from_str(&output[start..]).unwrap();
        let jobs = results["jobs"].as_array().expect("the results list jobs").clone();
        assert!(jobs.iter().all(|job| job["error"] == 0));
        Self(jobs)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Sums a number over all jobs, such as `write` and `total_ios`, or `sync` and `lat_ns/N`.
    pub fn sum(&self, kind: &str, field: &str) -> u64 {
        let pointer = format!("/{kind}/{field}");
        self.0
            .iter()
            .map(|job| job.pointer(&pointer).and_then(Value::as_u64).expect("fio reports the number"))
            .sum()
    }
}
