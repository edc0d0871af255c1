//! The jobs: fio runs from five changes to the kernel's Btrfs and page cache.
//!
//! Owns the list [`JOBS`] and scaling ([`Job::scaled`]). Each job names the tuning switch that
//! disables Papilio's version of the same optimisation. The fio parameters are in `jobs/*.fio`.
//!
//! - Sizes are multiplied by one factor, down to a floor below which results mean nothing.
//! - Below full size, every job runs for the same number of seconds.

use crate::job_file::{self, JobFile};
use std::fmt;

/// One job.
#[derive(Debug)]
pub struct Job {
    /// The job's name.
    pub id: &'static str,
    /// The job's former number ("seed 000"), still accepted on the command line and in old reports.
    pub seed: &'static str,
    /// One line that says what the job does.
    pub title: &'static str,
    /// Title of the kernel patch that the job comes from.
    pub change: &'static str,
    /// Result published with that patch.
    pub published: &'static str,
    /// Text of the fio job file.
    pub text: &'static str,
    /// Tuning switch in its slow position, in the syntax of `tuning=`.
    pub slow: &'static str,
    /// Tuning switch in its fast position, which is the default.
    pub fast: &'static str,
    /// Ratios that Papilio aims for.
    pub target: Target,
    /// How the job's files are created.
    pub files: Files,
    /// Whether all file systems run the job with `nodatacow`: writes in place, no checksums.
    pub nodatacow: bool,
    /// Page cache limit in bytes at full size; `None` if the job has no limit.
    pub cache: Option<u64>,
    /// Smallest `size` or `filesize` in bytes that scaling may produce.
    pub(crate) floor: u64,
}

/// How a job's files are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// By the job itself, on a new file system for each run.
    New,
    /// Once, on a file system that all sides read. Jobs with the same name here share the files.
    Shared(&'static str),
}

/// Bandwidth ratios that Papilio aims for.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Against the kernel's Btrfs.
    pub kernel: f64,
    /// Against the raw backing.
    pub raw: f64,
    /// Against Papilio with the switch in its slow position.
    pub slow: f64,
}

/// The job whose result is compared with the [model](crate::model) of an overlapped checksum.
pub const CHECKSUMMED_WRITE: &str = "checksummed-write";

/// All jobs, in the order in which they run.
pub static JOBS: [Job; 8] = [
    Job {
        id: "prealloc-write",
        seed: "000",
        title: "random writes of 4 to 64 KiB into a preallocated file, 16 jobs, queue depth 16",
        change: "btrfs: make NOCOW checks for existence of checksums in a range more efficient",
        published: "139 to 153 MiB/s, +10 %",
        text: include_str!("../jobs/prealloc-write.fio"),
        slow: "nocow_check=collect-all",
        fast: "nocow_check=first-match",
        target: Target { kernel: 12.0, raw: 0.8, slow: 1.10 },
        files: Files::New,
        nodatacow: false,
        cache: None,
        floor: 32 << 20,
    },
    Job {
        id: "nocow-overwrite",
        seed: "000-nodatacow",
        title: "the same writes on nodatacow: in place, without checksums",
        change: "btrfs: make NOCOW checks for existence of checksums in a range more efficient",
        published: "139 to 153 MiB/s, +10 %",
        text: include_str!("../jobs/nocow-overwrite.fio"),
        slow: "nocow_check=collect-all",
        fast: "nocow_check=first-match",
        target: Target { kernel: 12.0, raw: 0.8, slow: 1.10 },
        files: Files::New,
        nodatacow: true,
        cache: None,
        floor: 32 << 20,
    },
    Job {
        id: "fsync",
        seed: "001",
        title: "random buffered writes, each followed by fsync, 8 threads",
        change: "btrfs: prepare extents to be logged before locking a log tree path",
        published: "116 to 125 MiB/s, +7.8 %",
        text: include_str!("../jobs/fsync.fio"),
        slow: "log_items=in-place",
        fast: "log_items=prepared",
        target: Target { kernel: 8.0, raw: 0.25, slow: 1.078 },
        files: Files::New,
        nodatacow: false,
        cache: None,
        floor: 16 << 20,
    },
    Job {
        id: CHECKSUMMED_WRITE,
        seed: "002",
        title: "sequential direct writes of 1 MiB, data checksums on",
        change: "btrfs: introduce btrfs_bio::async_csum",
        published: "1619 to 1792 MiB/s, +10.6 %; in theory +15.3 %",
        text: include_str!("../jobs/checksummed-write.fio"),
        slow: "write_checksum=before-submit",
        fast: "write_checksum=overlapped",
        target: Target { kernel: 12.0, raw: 0.75, slow: 1.10 },
        files: Files::New,
        nodatacow: false,
        cache: None,
        floor: 1 << 30,
    },
    Job {
        id: "direct-read-4k",
        seed: "003-4k",
        title: "random direct reads of 4 KiB within files of 4 MiB",
        change: "btrfs: Stop kmalloc'ing btrfs_path in btrfs_lookup_bio_sums",
        published: "4m41 to 4m21, system time -14 %",
        text: include_str!("../jobs/direct-read-4k.fio"),
        slow: "csum_lookup=heap",
        fast: "csum_lookup=stack",
        target: Target { kernel: 10.0, raw: 0.8, slow: 1.07 },
        files: Files::Shared("direct-read"),
        nodatacow: false,
        cache: None,
        floor: 64 << 20,
    },
    Job {
        id: "direct-read-1m",
        seed: "003-1m",
        title: "sequential direct reads of 1 MiB from files of 4 MiB",
        change: "btrfs: Stop kmalloc'ing btrfs_path in btrfs_lookup_bio_sums",
        published: "4m41 to 4m21, system time -14 %",
        text: include_str!("../jobs/direct-read-1m.fio"),
        slow: "csum_lookup=heap",
        fast: "csum_lookup=stack",
        target: Target { kernel: 1.5, raw: 0.8, slow: 1.07 },
        files: Files::Shared("direct-read"),
        nodatacow: false,
        cache: None,
        floor: 64 << 20,
    },
    Job {
        id: "cached-read",
        seed: "004",
        title: "random reads of 4 KiB through a page cache half the size of the file, 16 jobs",
        change: "mm/filemap: optimize filemap folio adding",
        published: "2445 to 2625 MiB/s, +7.3 %",
        text: include_str!("../jobs/cached-read.fio"),
        slow: "cache_insert=many-walks",
        fast: "cache_insert=one-walk",
        target: Target { kernel: 10.0, raw: 0.3, slow: 1.073 },
        files: Files::Shared("cached-read"),
        nodatacow: false,
        cache: Some(8 << 30),
        floor: 512 << 20,
    },
    Job {
        id: "cached-read-huge",
        seed: "004-huge",
        title: "the same reads after huge folios, which each insertion has to split",
        change: "mm/filemap: optimize filemap folio adding",
        published: "7936 to 8929 KiB/s, +12.5 %",
        text: include_str!("../jobs/cached-read-huge.fio"),
        slow: "cache_insert=many-walks",
        fast: "cache_insert=one-walk",
        target: Target { kernel: 10.0, raw: 0.3, slow: 1.125 },
        files: Files::Shared("cached-read"),
        nodatacow: false,
        cache: Some(8 << 30),
        floor: 512 << 20,
    },
];

/// Size in bytes of each file in a job with many files.
const SMALL_FILE: u64 = 4 << 20;
/// Default run time in seconds below full size.
const SHORT_SECONDS: f64 = 1.0;

/// Size and duration of a run relative to the original job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Factor for all sizes; 1 is the original size.
    pub size: f64,
    /// Run time in seconds; `None` means the original's at full size and one second below.
    pub seconds: Option<f64>,
}

/// A job with its sizes and times scaled.
#[derive(Clone, Debug)]
pub struct ScaledJob {
    /// The original.
    pub job: &'static Job,
    /// The scaled job file. Each side adds the location of the files.
    pub file: JobFile,
    /// Total size of the job's files in bytes.
    pub file_bytes: u64,
    /// Page cache limit in bytes.
    pub cache: Option<u64>,
    /// Longest run in seconds, ramp included; `None` if only the size ends the run.
    pub seconds: Option<f64>,
}

impl Job {
    /// Scales the job.
    ///
    /// # Errors
    /// The job file cannot be parsed.
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
        // Without `filename`, each of the `numjobs` jobs has files of its own.
        let file_bytes = if file.has("filename") { bytes } else { bytes * jobs };
        self.scale_time(&mut file, scale)?;
        let seconds = total_seconds(&file)?;
        // The file stays twice the size of the cache, even at the floor.
        let cache = self.cache.map(|_| bytes / 2);
        Ok(ScaledJob { job: self, file, file_bytes, cache, seconds })
    }

    /// Sets `runtime` and `ramp_time`. At full size they change only if the caller gives seconds.
    fn scale_time(&self, file: &mut JobFile, scale: Scale) -> anyhow::Result<()> {
        let seconds = match scale.seconds {
            Some(seconds) => seconds,
            None if scale.size >= 1.0 => return Ok(()),
            None => SHORT_SECONDS,
        };
        let ramp = match (file.value("ramp_time"), file.value("runtime")) {
            (Some(ramp), Some(runtime)) => {
                let share = job_file::parse_seconds(ramp)? / job_file::parse_seconds(runtime)?.max(1.0);
                // A shorter ramp would measure a cache that is not full yet.
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

/// Upper bound of the seconds that all jobs of a file take, one after the other.
fn total_seconds(file: &JobFile) -> anyhow::Result<Option<f64>> {
    let Some(runtime) = file.value("runtime") else { return Ok(None) };
    let ramp = file.value("ramp_time").map(job_file::parse_seconds).transpose()?.unwrap_or(0.0);
    let jobs = file.jobs().count() as f64;
    // Counts the longest run time for every job: callers want a bound, not an estimate.
    let mut longest = job_file::parse_seconds(runtime)?;
    let mut copy = file.clone();
    copy.change("runtime", |value| {
        longest = longest.max(job_file::parse_seconds(value)?);
        Ok(value.to_owned())
    })?;
    Ok(Some((longest + ramp) * jobs))
}

impl ScaledJob {
    /// Name of the measured job: the last one in the file.
    pub fn measured(&self) -> &str {
        self.file.jobs().last().unwrap_or_default()
    }

    /// Size in bytes of a file system that holds the job, however often it rewrites its blocks.
    pub fn image_bytes(&self) -> u64 {
        let data = match self.job.files {
            // A preallocated extent is freed only once its last byte has been rewritten elsewhere.
            Files::New => self.file_bytes.saturating_mul(3),
            Files::Shared(_) => self.file_bytes + self.file_bytes / 8,
        };
        (data + (1 << 30)).next_multiple_of(1 << 20)
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.title)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(id: &str, size: f64, seconds: Option<f64>) -> ScaledJob {
        Job::named(id)[0].scaled(Scale { size, seconds }).unwrap()
    }

    #[test]
    fn full_size_changes_nothing() {
        for job in Job::all() {
            let scaled = job.scaled(Scale { size: 1.0, seconds: None }).unwrap();
            let mut original = JobFile::parse(job.text).unwrap();
            for key in ["size", "filesize"] {
                original.change(key, |size| Ok(job_file::parse_size(size)?.to_string())).unwrap();
            }
            assert_eq!(scaled.file, original, "{}", job.id);
            assert_eq!(scaled.cache, job.cache, "{}", job.id);
        }
        assert_eq!(scaled("prealloc-write", 1.0, None).file_bytes, 8 << 30);
        assert_eq!(scaled("fsync", 1.0, None).file_bytes, 1 << 30);
        assert_eq!(scaled("checksummed-write", 1.0, None).file_bytes, 7 << 30);
        assert_eq!(scaled("direct-read-4k", 1.0, None).file_bytes, 80 << 30);
        assert_eq!(scaled("cached-read", 1.0, None).file_bytes, 16 << 30);
    }

    #[test]
    fn sizes_follow_the_scale_down_to_a_floor() {
        let nocow = scaled("prealloc-write", 1.0 / 64.0, None);
        assert_eq!(nocow.file.value("size"), Some("134217728"));
        assert_eq!(nocow.file.value("runtime"), Some("1000ms"));
        assert_eq!(scaled("prealloc-write", 1e-9, None).file.value("size"), Some("33554432"));
        let reads = scaled("direct-read-1m", 1.0 / 64.0, Some(2.0));
        assert_eq!(reads.file.value("size"), Some("335544320"));
        assert_eq!(reads.file.value("nrfiles"), Some("80"));
        assert_eq!(reads.file_bytes, 1_342_177_280);
        assert_eq!(reads.file.value("runtime"), Some("2000ms"));
        let cached = scaled("cached-read", 1.0 / 64.0, None);
        assert_eq!(cached.cache, Some(cached.file_bytes / 2));
    }

    #[test]
    fn times_follow_the_requested_seconds() {
        let cached = scaled("cached-read", 0.1, Some(20.0));
        assert_eq!(cached.file.value("runtime"), Some("20000ms"));
        assert_eq!(cached.file.value("ramp_time"), Some("2000ms"));
        assert_eq!(cached.seconds, Some(22.0));
        let huge = scaled("cached-read-huge", 1.0, None);
        assert_eq!(huge.measured(), "cached");
        assert_eq!(huge.seconds, Some(1260.0));
        assert_eq!(scaled("checksummed-write", 1.0, None).seconds, None);
    }

    #[test]
    fn a_word_selects_one_job_or_all_variants() {
        let ids = |word| Job::named(word).iter().map(|job| job.id).collect::<Vec<_>>();
        assert_eq!(ids("fsync"), ["fsync"]);
        assert_eq!(ids("direct-read-1m"), ["direct-read-1m"]);
        assert_eq!(ids("direct-read"), ["direct-read-4k", "direct-read-1m"]);
        assert_eq!(ids("cached-read"), ["cached-read"]);
        assert!(ids("direct").len() == 2 && ids("dir").is_empty() && ids("").is_empty());
    }

    #[test]
    fn former_numbers_still_select_jobs() {
        let ids = |word| Job::named(word).iter().map(|job| job.id).collect::<Vec<_>>();
        assert_eq!(ids("000"), ["prealloc-write", "nocow-overwrite"]);
        assert_eq!(ids("000-nodatacow"), ["nocow-overwrite"]);
        assert_eq!(ids("001"), ["fsync"]);
        assert_eq!(ids("002"), ["checksummed-write"]);
        assert_eq!(ids("003"), ["direct-read-4k", "direct-read-1m"]);
        assert_eq!(ids("003-1m"), ["direct-read-1m"]);
        assert_eq!(ids("004"), ["cached-read", "cached-read-huge"]);
        assert!(ids("00").is_empty());
        assert_eq!(Job::by_id("004").map(|job| job.id), Some("cached-read"));
    }
}
