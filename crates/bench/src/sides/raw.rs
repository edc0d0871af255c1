//! The raw side: the same job on the backing without a file system, as the reference.

use super::bench::{Bench, Turn};
use super::engine::large_reads;
use crate::fio::run::{Measurement, Run, Whose};
use crate::job::ScaledJob;
use crate::job_file::JobFile;
use std::path::Path;

impl Bench<'_> {
    pub(super) fn raw(&self, turn: Turn<'_>) -> anyhow::Result<Measurement> {
        let Turn { job, stem, .. } = turn;
        let mut file = job_file(&job.file, self.backing.path(), self.backing.is_direct());
        if job.file_bytes > self.backing.bytes() {
            // Files that share extents can be larger than the backing.
            file.set("size", self.backing.bytes());
        }
        self.fio(job, &file, stem, None).measure()
    }

    /// Measures the memory in bytes that fio itself uses for a job, as one process with threads.
    ///
    /// Papilio's engine runs in such a process, so this is the part that is not Papilio's.
    ///
    /// # Errors
    /// fio fails.
    pub fn fio_memory(&self, job: &ScaledJob) -> anyhow::Result<u64> {
        let mut original = job.file.clone();
        large_reads(&mut original);
        let mut file = job_file(&original, self.backing.path(), self.backing.is_direct());
        file.set_flag("thread");
        file.remove("ramp_time");
        file.set("runtime", "200ms");
        let stem = self.output.join(format!("{}-memory", job.job.id));
        let run = Run { memory_of: Some(Whose::Fio), ..self.fio(job, &file, stem, None) };
        Ok(run.measure()?.memory_bytes.unwrap_or_default())
    }
}

/// Converts a job to work on the backing; jobs with separate files get separate ranges of it.
fn job_file(original: &JobFile, backing: &Path, direct: bool) -> JobFile {
    let mut file = original.clone();
    if !original.has("filename") {
        let bytes = original.value("size").or(original.value("filesize")).unwrap_or_default().to_owned();
        file.set("size", &bytes);
        file.set("offset_increment", &bytes);
    }
    for key in [
        "directory",
        "filesize",
        "filename_format",
        "nrfiles",
        "openfiles",
        "file_service_type",
        "fallocate",
        // Nothing to preallocate, and no file system that supports huge pages.
        "thp",
    ] {
        file.remove(key);
    }
    file.set("filename", backing.display().to_string().replace(':', "\\:"));
    file.set("fallocate", "none");
    if !direct {
        file.set("direct", 0);
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JOBS, Job, Scale};

    #[test]
    fn every_job_stays_within_its_range() {
        for job in Job::all() {
            let scaled = job.scaled(Scale { size: 0.01, seconds: None }).unwrap();
            let file = job_file(&scaled.file, Path::new("/dev/x:y"), false);
            assert_eq!(file.value("filename"), Some("/dev/x\\:y"), "{}", job.id);
            assert!(!file.to_string().contains("MOUNT"), "{}", job.id);
            assert_eq!(file.value("direct"), Some("0"), "{}", job.id);
            let size: u64 = file.value("size").unwrap().parse().unwrap();
            let jobs: u64 = file.value("numjobs").map_or(1, |jobs| jobs.parse().unwrap());
            let parts = if file.has("offset_increment") { jobs } else { 1 };
            assert_eq!(size * parts, scaled.file_bytes, "{}", job.id);
        }
    }

    #[test]
    fn the_workload_stays_the_same() {
        let scaled = JOBS[0].scaled(Scale { size: 0.01, seconds: None }).unwrap();
        let file = job_file(&scaled.file, Path::new("/b"), true);
        for key in ["rw", "bssplit", "direct", "numjobs", "iodepth", "ioengine", "runtime"] {
            assert_eq!(file.value(key), scaled.file.value(key), "{key}");
        }
    }
}
