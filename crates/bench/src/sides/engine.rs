//! Papilio inside fio's own process, through its engine.

use super::{Bench, Turn};
use crate::fio::run::{Measurement, Run, Whose};
use crate::job::ScaledJob;
use crate::job_file::JobFile;
use anyhow::bail;
use std::path::{Path, PathBuf};

impl Bench<'_> {
    pub(super) fn engine(&self, turn: Turn<'_>, tuning: Option<&str>) -> anyhow::Result<Measurement> {
        let Turn { job, fresh, stem, record } = turn;
        if fresh {
            self.mkfs()?;
        }
        let file = self.engine_job(job, tuning);
        let memory_of = job.cache.map(|_| Whose::Fio);
        Run { memory_of, record: record.map(Path::to_owned), ..self.fio(job, &file, stem, None) }.measure()
    }

    pub(super) fn engine_lay_out(&self, job: &ScaledJob, stem: PathBuf) -> anyhow::Result<()> {
        self.mkfs()?;
        let file = self.engine_job(job, None);
        self.fio(job, &file, stem, None).lay_out()
    }

    /// Writes all files of a job, in order.
    pub(super) fn engine_fill(&self, job: &ScaledJob, stem: PathBuf) -> anyhow::Result<()> {
        if self.environment.engine.is_none() {
            bail!("Papilio's engine for fio is not there to prepare the files");
        }
        let file = filling(&self.engine_job(job, None));
        self.fio(job, &file, stem, None).lay_out_by_running()
    }

    fn engine_job(&self, job: &ScaledJob, tuning: Option<&str>) -> JobFile {
        let engine = self.environment.engine.as_deref().unwrap_or(Path::new(""));
        job_file(job, engine, self.backing.path(), tuning)
    }
}

/// Bytes of the engine's cache of tree blocks. The kernel keeps as many as memory holds.
const NODE_CACHE: u64 = 256 << 20;

/// The job with Papilio's engine for the kernel's, and its files on the image.
fn job_file(job: &ScaledJob, engine: &Path, image: &Path, tuning: Option<&str>) -> JobFile {
    let mut file = job.file.clone();
    // Files are named within the image; nothing of them is on the host.
    for key in ["directory", "openfiles", "ioengine"] {
        file.remove(key);
    }
    large_reads(&mut file);
    // An engine's options are known only in and after the section that names it.
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

/// Huge folios come of large reads in order, here.
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

/// The job that writes each byte of another's files once.
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
    // Several jobs with one file would each write all of it.
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
    fn the_engine_takes_the_place_of_fio_s_own() {
        let text = made("000", Some("nocow_check=collect-all"));
        assert!(text.contains("ioengine=external:/e.so\n") && !text.contains("io_uring"), "{text}");
        assert!(text.contains("image=/i\n") && text.contains("tuning=nocow_check=collect-all\n"), "{text}");
        assert!(text.contains("filename=fio-rand-write\n") && !text.contains("directory="), "{text}");
        assert!(text.contains("node_cache=268435456\n"), "{text}");
        assert!(!text.contains("\ncache=") && !text.contains("nodatacow"), "{text}");
        assert!(made("000-nodatacow", None).contains("nodatacow=1\n"));
    }

    #[test]
    fn files_are_filled_once() {
        let job = Job::named("000")[0].scaled(Scale { size: 0.01, seconds: Some(1.0) }).unwrap();
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
    fn huge_folios_come_of_large_reads() {
        let text = made("004-huge", None);
        assert!(text.contains("\ncache=268435456\n"), "{text}");
        let (before, after) = text.split_once("[cached]").unwrap();
        assert!(before.contains("bs=2m\n") && !text.contains("thp") && !after.contains("2m"), "{text}");
    }
}
