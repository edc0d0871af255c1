//! Papilio inside fio's own process, through its engine.

use super::Bench;
use crate::fio::run::Measurement;
use crate::job::ScaledJob;
use crate::job_file::JobFile;
use std::path::{Path, PathBuf};

impl Bench<'_> {
    pub(super) fn engine(
        &self,
        job: &ScaledJob,
        fresh: bool,
        tuning: Option<&str>,
        stem: PathBuf,
    ) -> anyhow::Result<Measurement> {
        if fresh {
            self.mkfs()?;
        }
        let file = self.engine_job(job, tuning);
        self.fio(job, &file, stem, None).measure()
    }

    pub(super) fn engine_lay_out(&self, job: &ScaledJob, stem: PathBuf) -> anyhow::Result<()> {
        self.mkfs()?;
        let file = self.engine_job(job, None);
        self.fio(job, &file, stem, None).lay_out()
    }

    fn engine_job(&self, job: &ScaledJob, tuning: Option<&str>) -> JobFile {
        let engine = self.environment.engine.as_deref().unwrap_or(Path::new(""));
        job_file(job, engine, self.backing.path(), tuning)
    }
}

/// The job with Papilio's engine for the kernel's, and its files on the image.
fn job_file(job: &ScaledJob, engine: &Path, image: &Path, tuning: Option<&str>) -> JobFile {
    let mut file = job.file.clone();
    // Files are named within the image; nothing of them is on the host.
    for key in ["directory", "openfiles", "ioengine"] {
        file.remove(key);
    }
    if file.has("thp") {
        // Huge folios come of large reads in order, here.
        file.remove("thp");
        let first = file.jobs().next().unwrap_or_default().to_owned();
        if let Some(mut huge) = file.job_mut(&first) {
            huge.set("rw", "read");
            huge.set("bs", "2m");
        }
    }
    // An engine's options are known only in and after the section that names it.
    file.set("ioengine", format_args!("external:{}", engine.display()));
    file.set("image", image.display().to_string().replace(':', "\\:"));
    if let Some(tuning) = tuning {
        file.set("tuning", tuning);
    }
    if let Some(cache) = job.cache {
        file.set("cache", cache);
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
        assert!(!text.contains("cache="), "{text}");
    }

    #[test]
    fn huge_folios_come_of_large_reads() {
        let text = made("004-huge", None);
        assert!(text.contains("cache=268435456\n"), "{text}");
        let (before, after) = text.split_once("[cached]").unwrap();
        assert!(before.contains("bs=2m\n") && !text.contains("thp") && !after.contains("2m"), "{text}");
    }
}
