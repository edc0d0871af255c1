//! The names of jobs: finding them in both lists.

use crate::disk_jobs::DISK_JOBS;
use crate::job::{JOBS, Job};

impl Job {
    /// Returns the jobs that `word` selects; empty for an unknown word.
    ///
    /// A full name selects one job. A prefix such as `direct-read` selects every `direct-read-*`.
    /// A former number selects that job and its variants: `003` selects `003-4k` and `003-1m`.
    pub fn named(word: &str) -> Vec<&'static Self> {
        if let Some(job) = Self::all().find(|job| job.id == word) {
            return vec![job];
        }
        let prefix = format!("{word}-");
        let selects =
            |job: &&Self| job.seed == word || job.seed.starts_with(&prefix) || job.id.starts_with(&prefix);
        Self::all().filter(selects).collect()
    }

    /// Returns all jobs, those for a disk at the end.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        JOBS.iter().chain(&DISK_JOBS)
    }

    /// Looks up a job by its name or its former number.
    pub fn by_id(id: &str) -> Option<&'static Self> {
        Self::all().find(|job| job.id == id || job.seed == id)
    }
}
