//! The jobs: the fio runs that proved five changes of the kernel's Btrfs and page cache, each with the
//! switch that turns Papilio's own way of the same thing off.
//!
//! Owns the list [`JOBS`] and scaling ([`Job::scaled`]): sizes follow one factor, down to a floor below which
//! a figure means nothing; times are a number of seconds for all jobs below full size. The parameters are
//! in the files of `jobs/`.

use crate::job_file::{self, JobFile};
use std::fmt;

/// One job.
#[derive(Debug)]
pub struct Job {
    /// Its name: the change's number, with a suffix where one change has two runs.
    pub id: &'static str,
    /// What it does, in a few words.
    pub title: &'static str,
    /// The kernel's change that it comes from.
    pub change: &'static str,
    /// What that change's author measured.
    pub published: &'static str,
    /// The job file.
    pub text: &'static str,
    /// The switch, and its slow position, as `tuning=` takes them.
    pub slow: &'static str,
    /// The fast position, which is the default.
    pub fast: &'static str,
    /// What Papilio aims at.
    pub target: Target,
    /// How its files come about.
    pub files: Files,
    /// Whether data is overwritten where it lies and has no checksums (`nodatacow`), by all file systems.
    pub nodatacow: bool,
    /// Bytes that the page cache may hold at full size; `None` where it does not matter.
    pub cache: Option<u64>,
    /// Bytes at full size, below which scaling does not go, of each `size` or `filesize`.
    floor: u64,
}

/// How the files of a job come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// The job makes them on a new file system, each time.
    New,
    /// Written once on one file system that all sides then read; jobs with the same name here share it.
    Shared(&'static str),
}

/// The ratios that Papilio aims at.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Against the kernel's Btrfs.
    pub kernel: f64,
    /// Against the raw backing.
    pub raw: f64,
    /// Against the slow position of the switch.
    pub slow: f64,
}

/// All jobs, in the order in which they run.
pub const JOBS: [Job; 8] = [
    Job {
        id: "000",
        title: "NOCOW: random writes into a preallocated file, 16 jobs, depth 16",
        change: "btrfs: make NOCOW checks for existence of checksums in a range more efficient",
        published: "139 to 153 MiB/s, +10 %",
        text: include_str!("../jobs/000-nocow.fio"),
        slow: "nocow_check=collect-all",
        fast: "nocow_check=first-match",
        target: Target { kernel: 12.0, raw: 0.8, slow: 1.10 },
        files: Files::New,
        nodatacow: false,
        cache: None,
        floor: 32 << 20,
    },
    Job {
        id: "000-nodatacow",
        title: "NOCOW: the same on a file that is overwritten in place (nodatacow)",
        change: "btrfs: make NOCOW checks for existence of checksums in a range more efficient",
        published: "139 to 153 MiB/s, +10 %",
        text: include_str!("../jobs/000-nodatacow.fio"),
        slow: "nocow_check=collect-all",
        fast: "nocow_check=first-match",
        target: Target { kernel: 12.0, raw: 0.8, slow: 1.10 },
        files: Files::New,
        nodatacow: true,
        cache: None,
        floor: 32 << 20,
    },
    Job {
        id: "001",
        title: "fsync log: random buffered writes, each with fsync, 8 threads",
        change: "btrfs: prepare extents to be logged before locking a log tree path",
        published: "116 to 125 MiB/s, +7.8 %",
        text: include_str!("../jobs/001-fsync.fio"),
        slow: "log_items=in-place",
        fast: "log_items=prepared",
        target: Target { kernel: 8.0, raw: 0.25, slow: 1.078 },
        files: Files::New,
        nodatacow: false,
        cache: None,
        floor: 16 << 20,
    },
    Job {
        id: "002",
        title: "checksums: direct writes of 1 MiB, data checksums on",
        change: "btrfs: introduce btrfs_bio::async_csum",
        published: "1619 to 1792 MiB/s, +10.6 %; in theory +15.3 %",
        text: include_str!("../jobs/002-checksum.fio"),
        slow: "write_checksum=before-submit",
        fast: "write_checksum=overlapped",
        target: Target { kernel: 12.0, raw: 0.75, slow: 1.10 },
        files: Files::New,
        nodatacow: false,
        cache: None,
        floor: 1 << 30,
    },
    Job {
        id: "003-4k",
        title: "direct reads: 4 KiB at random within files of 4 MiB",
        change: "btrfs: Stop kmalloc'ing btrfs_path in btrfs_lookup_bio_sums",
        published: "4m41 to 4m21, system time -14 %",
        text: include_str!("../jobs/003-direct-read-4k.fio"),
        slow: "csum_lookup=heap",
        fast: "csum_lookup=stack",
        target: Target { kernel: 10.0, raw: 0.8, slow: 1.07 },
        files: Files::Shared("003"),
        nodatacow: false,
        cache: None,
        floor: 64 << 20,
    },
    Job {
        id: "003-1m",
        title: "direct reads: files of 4 MiB in order, 1 MiB at a time",
        change: "btrfs: Stop kmalloc'ing btrfs_path in btrfs_lookup_bio_sums",
        published: "4m41 to 4m21, system time -14 %",
        text: include_str!("../jobs/003-direct-read-1m.fio"),
        slow: "csum_lookup=heap",
        fast: "csum_lookup=stack",
        target: Target { kernel: 1.5, raw: 0.8, slow: 1.07 },
        files: Files::Shared("003"),
        nodatacow: false,
        cache: None,
        floor: 64 << 20,
    },
    Job {
        id: "004",
        title: "page cache: cached random reads of a file twice its size, 16 jobs",
        change: "mm/filemap: optimize filemap folio adding",
        published: "2445 to 2625 MiB/s, +7.3 %",
        text: include_str!("../jobs/004-page-cache.fio"),
        slow: "cache_insert=many-walks",
        fast: "cache_insert=one-walk",
        target: Target { kernel: 10.0, raw: 0.3, slow: 1.073 },
        files: Files::Shared("004"),
        nodatacow: false,
        cache: Some(8 << 30),
        floor: 512 << 20,
    },
    Job {
        id: "004-huge",
        title: "page cache after huge folios: what is inserted must split them",
        change: "mm/filemap: optimize filemap folio adding",
        published: "7936 to 8929 KiB/s, +12.5 %",
        text: include_str!("../jobs/004-page-cache-huge.fio"),
        slow: "cache_insert=many-walks",
        fast: "cache_insert=one-walk",
        target: Target { kernel: 10.0, raw: 0.3, slow: 1.125 },
        files: Files::Shared("004"),
        nodatacow: false,
        cache: Some(8 << 30),
        floor: 512 << 20,
    },
];

/// Bytes of each file of jobs that have many.
const SMALL_FILE: u64 = 4 << 20;
/// Seconds that a job runs below full size, where nothing is said.
const SHORT_SECONDS: f64 = 1.0;

/// How much smaller than its original a job is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// 1 is the original's size.
    pub size: f64,
    /// Seconds; `None`: the original's at full size, one below.
    pub seconds: Option<f64>,
}

/// A job at the size at which it is run.
#[derive(Clone, Debug)]
pub struct ScaledJob {
    /// The original.
    pub job: &'static Job,
    /// The job file, scaled; where its files lie is still to be said.
    pub file: JobFile,
    /// Bytes of all its files.
    pub file_bytes: u64,
    /// Bytes that the page cache may hold.
    pub cache: Option<u64>,
    /// Seconds at most for one run, ramp included; `None` where only the size ends it.
    pub seconds: Option<f64>,
}

impl Job {
    /// The jobs that a word such as `003` or `003-4k` names; none for an unknown one.
    pub fn named(word: &str) -> Vec<&'static Self> {
        let prefix = format!("{word}-");
        JOBS.iter().filter(|job| job.id == word || job.id.starts_with(&prefix)).collect()
    }

    /// The job at another size.
    ///
    /// # Errors
    /// The job file is wrong.
    pub fn scaled(&'static self, scale: Scale) -> anyhow::Result<ScaledJob> {
        let mut file = JobFile::parse(self.text)?;
        let jobs = count(&file, "numjobs")?;
        let mut bytes = 0;
        let small_files = file.has("nrfiles");
        for key in ["size", "filesize"] {
            file.change(key, |value| {
                let original = job_file::parse_size(value)?;
                let unit = if small_files { SMALL_FILE } else { 1 << 20 };
                let scaled = (original as f64 * scale.size) as u64;
                let scaled = scaled.max(self.floor.min(original)).next_multiple_of(unit);
                bytes = scaled;
                Ok(scaled.to_string())
            })?;
        }
        if small_files {
            file.set("nrfiles", bytes / SMALL_FILE);
        }
        // Without a file name each job has its own file or files.
        let file_bytes = if file.has("filename") { bytes } else { bytes * jobs };
        self.scale_time(&mut file, scale)?;
        let seconds = total_seconds(&file)?;
        // The file stays twice the cache, whatever the floor made of it.
        let cache = self.cache.map(|_| bytes / 2);
        Ok(ScaledJob { job: self, file, file_bytes, cache, seconds })
    }

    /// Times: the original's at full size, unless a number of seconds is wished for.
    fn scale_time(&self, file: &mut JobFile, scale: Scale) -> anyhow::Result<()> {
        let seconds = match scale.seconds {
            Some(seconds) => seconds,
            None if scale.size >= 1.0 => return Ok(()),
            None => SHORT_SECONDS,
        };
        let ramp = match (file.value("ramp_time"), file.value("runtime")) {
            (Some(ramp), Some(runtime)) => {
                let share = job_file::parse_seconds(ramp)? / job_file::parse_seconds(runtime)?.max(1.0);
                // A cache that is not full yet would be measured otherwise.
                Some((seconds * share).max(seconds.min(SHORT_SECONDS)))
            }
            _ => None,
        };
        file.set("runtime", job_file::time(seconds));
        if let Some(ramp) = ramp {
            file.set("ramp_time", job_file::time(ramp));
        }
        Ok(())
    }
}

fn count(file: &JobFile, key: &str) -> anyhow::Result<u64> {
    Ok(file.value(key).map(str::parse).transpose()?.unwrap_or(1))
}

/// All that the jobs of a file take one after the other.
fn total_seconds(file: &JobFile) -> anyhow::Result<Option<f64>> {
    let Some(runtime) = file.value("runtime") else { return Ok(None) };
    let ramp = file.value("ramp_time").map(job_file::parse_seconds).transpose()?.unwrap_or(0.0);
    let jobs = file.jobs().count() as f64;
    // The longest of them, for each: a bound is wanted, no forecast.
    let mut longest = job_file::parse_seconds(runtime)?;
    let mut copy = file.clone();
    copy.change("runtime", |value| {
        longest = longest.max(job_file::parse_seconds(value)?);
        Ok(value.to_owned())
    })?;
    Ok(Some((longest + ramp) * jobs))
}

impl ScaledJob {
    /// The job whose figures count: the last of the file.
    pub fn measured(&self) -> &str {
        self.file.jobs().last().unwrap_or_default()
    }

    /// Bytes of a file system that the job fits into, however often its blocks are written anew.
    pub fn image_bytes(&self) -> u64 {
        let room = match self.job.files {
            // Preallocated extents stay until the last byte of them is overwritten elsewhere.
            Files::New => self.file_bytes.saturating_mul(3),
            Files::Shared(_) => self.file_bytes + self.file_bytes / 8,
        };
        (room + (1 << 30)).next_multiple_of(1 << 20)
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.id, self.title)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(id: &str, size: f64, seconds: Option<f64>) -> ScaledJob {
        Job::named(id)[0].scaled(Scale { size, seconds }).unwrap()
    }

    #[test]
    fn at_full_size_nothing_changes() {
        for job in &JOBS {
            let scaled = job.scaled(Scale { size: 1.0, seconds: None }).unwrap();
            let mut original = JobFile::parse(job.text).unwrap();
            for key in ["size", "filesize"] {
                original.change(key, |size| Ok(job_file::parse_size(size)?.to_string())).unwrap();
            }
            assert_eq!(scaled.file, original, "{}", job.id);
            assert_eq!(scaled.cache, job.cache, "{}", job.id);
        }
        assert_eq!(scaled("000", 1.0, None).file_bytes, 8 << 30);
        assert_eq!(scaled("001", 1.0, None).file_bytes, 1 << 30);
        assert_eq!(scaled("002", 1.0, None).file_bytes, 7 << 30);
        assert_eq!(scaled("003-4k", 1.0, None).file_bytes, 80 << 30);
        assert_eq!(scaled("004", 1.0, None).file_bytes, 16 << 30);
    }

    #[test]
    fn sizes_follow_the_scale_down_to_a_floor() {
        let nocow = scaled("000", 1.0 / 64.0, None);
        assert_eq!(nocow.file.value("size"), Some("134217728"));
        assert_eq!(nocow.file.value("runtime"), Some("1000ms"));
        assert_eq!(scaled("000", 1e-9, None).file.value("size"), Some("33554432"));
        let reads = scaled("003-1m", 1.0 / 64.0, Some(2.0));
        assert_eq!(reads.file.value("size"), Some("335544320"));
        assert_eq!(reads.file.value("nrfiles"), Some("80"));
        assert_eq!(reads.file_bytes, 1_342_177_280);
        assert_eq!(reads.file.value("runtime"), Some("2000ms"));
        let cached = scaled("004", 1.0 / 64.0, None);
        assert_eq!(cached.cache, Some(cached.file_bytes / 2));
    }

    #[test]
    fn times_follow_what_is_wished_for() {
        let cached = scaled("004", 0.1, Some(20.0));
        assert_eq!(cached.file.value("runtime"), Some("20000ms"));
        assert_eq!(cached.file.value("ramp_time"), Some("2000ms"));
        assert_eq!(cached.seconds, Some(22.0));
        let huge = scaled("004-huge", 1.0, None);
        assert_eq!(huge.measured(), "cached");
        assert_eq!(huge.seconds, Some(1260.0));
        assert_eq!(scaled("002", 1.0, None).seconds, None);
    }

    #[test]
    fn words_name_one_job_or_its_variants() {
        let ids = |word| Job::named(word).iter().map(|job| job.id).collect::<Vec<_>>();
        assert_eq!(ids("000"), ["000", "000-nodatacow"]);
        assert_eq!(ids("000-nodatacow"), ["000-nodatacow"]);
        assert_eq!(ids("003"), ["003-4k", "003-1m"]);
        assert_eq!(ids("003-1m"), ["003-1m"]);
        assert_eq!(ids("004"), ["004", "004-huge"]);
        assert!(ids("00").is_empty() && ids("").is_empty());
    }
}
