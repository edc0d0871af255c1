//! Papilio inside fio's own process, through its fio engine.

use super::bench::{Bench, Turn};
use crate::fio::run::{Measurement, Run, Whose};
use crate::job::ScaledJob;
use crate::job_file::JobFile;
use anyhow::Context;
use std::path::{Path, PathBuf};

impl Bench<'_> {
    /// Runs the job with the engine at `engine`; `tuning` is the value of the engine's `tuning=`.
    pub(super) fn engine(
        &self,
        turn: Turn<'_>,
        engine: Option<&Path>,
        tuning: Option<&str>,
    ) -> anyhow::Result<Measurement> {
        let Turn { job, fresh, stem, record } = turn;
        if fresh {
            self.mkfs()?;
        }
        let engine = engine.context("cannot find Papilio's fio engine")?;
        let mut file = job_file(job, engine, self.backing.path(), tuning);
        if let Some(delay) = self.delay {
            file.set("device_delay_us", delay.as_micros());
        }
        let memory_of = job.cache.map(|_| Whose::Fio);
        Run { memory_of, record: record.map(Path::to_owned), ..self.fio(job, &file, stem, None) }.measure()
    }

    pub(super) fn engine_lay_out(&self, job: &ScaledJob, stem: PathBuf) -> anyhow::Result<()> {
        self.mkfs()?;
        let file = self.engine_job(job)?;
        self.fio(job, &file, stem, None).lay_out()
    }

    /// Writes all files of a job sequentially.
    pub(super) fn engine_fill(&self, job: &ScaledJob, stem: PathBuf) -> anyhow::Result<()> {
        let file = filling(&self.engine_job(job)?);
        self.fio(job, &file, stem, None).lay_out_by_running()
    }

    fn engine_job(&self, job: &ScaledJob) -> anyhow::Result<JobFile> {
        let engine = self.environment.engine.as_deref().context("cannot find Papilio's fio engine")?;
        Ok(job_file(job, engine, self.backing.path(), None))
    }
}

/// Size of the engine's tree block cache in bytes. The kernel's is limited only by memory.
const NODE_CACHE: u64 = 256 << 20;

/// Converts a job to Papilio's engine, with its files in the image.
fn job_file(job: &ScaledJob, engine: &Path, image: &Path, tuning: Option<&str>) -> JobFile {
    let mut file = job.file.clone();
    // File names are relative to the image's root; the host has no such files.
    for key in ["directory", "openfiles", "ioengine"] {
        file.remove(key);
    }
    large_reads(&mut file);
    // fio accepts an engine's options only after `ioengine`.
    file.set("ioengine", format_args!("external:{}", engine.display()));
    file.set("image", image.display().to_string().replace(':', "\\:"));
    file.set("node_cache", NODE_CACHE);
    if let Some(tuning) = tuning {
        file.set("tuning", tuning);
    }
    if let Some(cache) = job.cache {
        file.set("cache", cache);
    }
    if job.job.nodatacow {
        file.set("nodatacow", 1);
    }
    file
}

/// Replaces `thp` by sequential reads of 2 MiB, from which Papilio's readahead makes huge folios.
pub(super) fn large_reads(file: &mut JobFile) {
    if file.has("thp") {
        file.remove("thp");
        let first = file.jobs().next().unwrap_or_default().to_owned();
        if let Some(mut huge) = file.job_mut(&first) {
            huge.set("rw", "read");
            huge.set("bs", "2m");
        }
    }
}

/// Converts a job to one that writes every byte of its files once.
fn filling(job: &JobFile) -> JobFile {
    let mut file = job.clone();
    let measured = job.jobs().last().unwrap_or_default().to_owned();
    file.keep_job(&measured);
    for key in ["bssplit", "time_based", "runtime", "ramp_time", "fsync", "stonewall", "cache", "iodepth"] {
        file.remove(key);
    }
    file.set("rw", "write");
    file.set("bs", 1 << 20);
    file.set("direct", 1);
    // Several jobs would each write the whole of their common file.
    if file.has("filename") {
        file.set("numjobs", 1);
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Job, Scale};

    fn made(id: &str, tuning: Option<&str>) -> String {
        let job = Job::named(id)[0].scaled(Scale { size: 0.01, seconds: Some(1.0) }).unwrap();
        job_file(&job, Path::new("/e.so"), Path::new("/i"), tuning).to_string()
    }

    #[test]
    fn the_engine_replaces_fio_s_own() {
        let text = made("prealloc-write", Some("nocow_check=collect-all"));
        assert!(text.contains("ioengine=external:/e.so\n") && !text.contains("io_uring"), "{text}");
        assert!(text.contains("image=/i\n") && text.contains("tuning=nocow_check=collect-all\n"), "{text}");
        assert!(text.contains("filename=fio-rand-write\n") && !text.contains("directory="), "{text}");
        assert!(text.contains("node_cache=268435456\n"), "{text}");
        assert!(!text.contains("\ncache=") && !text.contains("nodatacow"), "{text}");
        assert!(made("nocow-overwrite", None).contains("nodatacow=1\n"));
    }

    #[test]
    fn filling_writes_every_byte_once() {
        let job = Job::named("prealloc-write")[0].scaled(Scale { size: 0.01, seconds: Some(1.0) }).unwrap();
        let made = job_file(&job, Path::new("/e.so"), Path::new("/i"), None);
        let text = filling(&made).to_string();
        for word in ["rw=write\n", "bs=1048576\n", "numjobs=1\n", "filename=fio-rand-write\n", "direct=1\n"] {
            assert!(text.contains(word), "{word} in {text}");
        }
        for word in ["time_based", "runtime", "bssplit", "iodepth"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }

    #[test]
    fn large_reads_replace_thp() {
        let text = made("cached-read-huge", None);
        assert!(text.contains("\ncache=268435456\n"), "{text}");
        let (before, after) = text.split_once("[cached]").unwrap();
        assert!(before.contains("bs=2m\n") && !text.contains("thp") && !after.contains("2m"), "{text}");
    }
}
