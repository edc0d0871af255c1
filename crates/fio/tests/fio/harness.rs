//! Running fio with the engine, and looking at what it left.

use papilio::{CheckOptions, FileSystem, OpenOptions};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The shared library under test: cargo leaves it beside the test's own program or one folder up.
pub fn engine() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap();
    let candidates = [folder, folder.parent().unwrap()].map(|folder| folder.join("libpapilio_fio.so"));
    let found = candidates.iter().filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)));
    found.max().expect("cargo builds the library with its tests").1.clone()
}

/// The fio under test: of another version where `PAPILIO_FIO` names one.
pub fn fio() -> PathBuf {
    std::env::var_os("PAPILIO_FIO").map_or_else(|| "fio".into(), PathBuf::from)
}

/// A folder and an image in it for one test.
pub struct Bench {
    pub scratch: Scratch,
    pub image: PathBuf,
}

/// What a run of fio left.
pub struct Run {
    pub success: bool,
    pub output: String,
    pub errors: String,
}

impl Bench {
    /// `None` where there is no fio.
    pub fn new() -> Option<Self> {
        let _met = require(&[Need::Command("fio"), Need::Command("timeout")])?;
        let scratch = Scratch::new(1 << 30).unwrap();
        let image = scratch.path().join("fio.img");
        Some(Self { scratch, image })
    }

    /// An image with an empty file system.
    pub fn with_image(megabytes: u64) -> Option<Self> {
        let bench = Self::new()?;
        papilio::mkfs(&bench.image, &papilio::MkfsOptions::new().size(megabytes << 20)).unwrap();
        Some(bench)
    }

    /// Runs fio's jobs on the image.
    pub fn run(&self, arguments: &[&str]) -> Run {
        let image = format!("--image={}", self.image.display());
        // Engine options follow the engine; the first job is named before it.
        let (name, rest) = match arguments.split_first() {
            Some((name, rest)) if name.starts_with("--name=") => (*name, rest),
            _ => ("--name=job", arguments),
        };
        self.run_plainly(&[&[name, &self.engine(), &image], rest].concat())
    }

    /// The option that chooses the engine.
    pub fn engine(&self) -> String {
        format!("--ioengine=external:{}", engine().display())
    }

    /// Runs fio with these arguments and no others.
    pub fn run_plainly(&self, arguments: &[&str]) -> Run {
        self.run_program(&fio(), arguments)
    }

    /// Runs a fio with these arguments and no others.
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

    /// Opens what fio left, for reading.
    pub fn open(&self) -> FileSystem {
        FileSystem::open(&self.image).unwrap()
    }

    /// Opens it for writing.
    pub fn open_writable(&self) -> FileSystem {
        FileSystem::open_with(&self.image, &OpenOptions::new().write(true)).unwrap()
    }

    /// The library finds nothing wrong, data checksums included.
    pub fn check(&self) {
        let report = self.open().check(&CheckOptions::new().data_csum(true)).unwrap();
        let findings: Vec<_> = report.findings.iter().take(3).map(ToString::to_string).collect();
        assert!(report.is_clean(), "{findings:?}");
    }

    /// Nor does `btrfs check`; then `look` looks at the file system as the kernel mounts it. Without a kernel
    /// that can, only the library judges.
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
    /// fio is content, and nobody said anything.
    pub fn ok(self) -> Jobs {
        assert!(self.success, "{} {}", self.errors, self.output.chars().take(2000).collect::<String>());
        assert!(!self.errors.contains("papilio"), "{}", self.errors);
        Jobs::of(&self.output)
    }

    /// fio fails, and exactly one line of the engine says why.
    #[track_caller]
    pub fn refused(self, why: &str) {
        let lines: Vec<_> = self.errors.lines().filter(|line| line.starts_with("papilio: ")).collect();
        assert!(!self.success, "fio took it: {}", self.errors);
        assert!(lines.len() == 1 && lines[0].contains(why), "{why}: {lines:?}; {}", self.errors);
        assert!(!self.errors.contains("panicked"), "{}", self.errors);
    }
}

/// fio's results.
pub struct Jobs(Vec<Value>);

impl Jobs {
    fn of(output: &str) -> Self {
        let start = output.find("{\n").expect("results");
        let results: Value = serde_json::from_str(&output[start..]).unwrap();
        let jobs = results["jobs"].as_array().expect("jobs").clone();
        assert!(jobs.iter().all(|job| job["error"] == 0));
        Self(jobs)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// A number of all jobs together, such as `write` and `total_ios`, or `sync` and `lat_ns/N`.
    pub fn sum(&self, kind: &str, field: &str) -> u64 {
        let pointer = format!("/{kind}/{field}");
        self.0.iter().map(|job| job.pointer(&pointer).and_then(Value::as_u64).expect("a number")).sum()
    }
}
