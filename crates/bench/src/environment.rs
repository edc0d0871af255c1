//! What the machine offers to the run, and what it lacks.
//!
//! Owns [`Environment`], the programs that were found, and [`Environment::missing`], why a side cannot be
//! run. A side that a machine lacks is left out and named, never guessed.

use crate::cgroup::MemoryLimit;
use crate::job::ScaledJob;
use crate::side::Side;
use anyhow::{Context, bail};
use papilio_oracle::requirement::find_command;
use papilio_oracle::{Need, RingSwitch};
use std::path::{Path, PathBuf};

/// The file name of Papilio's engine for fio.
const ENGINE: &str = "libpapilio_fio.so";

/// Programs and libraries of the run.
#[derive(Debug)]
pub struct Environment {
    /// fio.
    pub fio: PathBuf,
    /// Papilio's engine for it, where found.
    pub engine: Option<PathBuf>,
    /// The papilio command, for its mount, where found.
    pub papilio: Option<PathBuf>,
}

impl Environment {
    /// Looks for all of it; `engine` is where the user says that the engine lies.
    ///
    /// # Errors
    /// There is no fio, or no engine where the user says.
    pub fn find(engine: Option<&Path>) -> anyhow::Result<Self> {
        let fio = find_command("fio").context("fio is not installed (Debian: apt-get install fio)")?;
        let engine = match engine {
            // fio takes it for a name of its own if there is no slash in it.
            Some(path) => Some(path.canonicalize().with_context(|| format!("--engine {}", path.display()))?),
            None => beside_us(ENGINE),
        };
        if let Some(engine) = engine.as_deref().filter(|engine| engine.to_string_lossy().contains(':')) {
            bail!("--engine {}: fio cannot load what has a colon in its path", engine.display());
        }
        let papilio = papilio_command();
        Ok(Self { fio, engine, papilio })
    }

    /// Why a side cannot run here; `None` where it can.
    pub fn missing(&self, side: Side) -> Option<String> {
        match side {
            Side::Kernel => Need::KERNEL_MOUNT.iter().find_map(|need| need.missing()),
            Side::Papilio | Side::PapilioSlow => self.engine.is_none().then(|| {
                format!("{ENGINE} is not there: build it (cargo build -p papilio-fio), or say --engine")
            }),
            Side::Mount => self.mount_missing(),
            Side::MountRing => self.mount_missing().or_else(RingSwitch::missing),
            Side::Raw => None,
        }
    }

    /// Why a side cannot run a job here, although it can run others.
    pub fn missing_for(side: Side, job: &ScaledJob) -> Option<String> {
        match side {
            // Without a limit the whole file fits, which is another job.
            Side::Kernel | Side::Mount | Side::MountRing if job.cache.is_some() => MemoryLimit::missing(),
            _ => None,
        }
    }

    fn mount_missing(&self) -> Option<String> {
        if self.papilio.is_none() {
            return Some("the papilio command is not there".to_owned());
        }
        let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
        fuse.err().map(|error| format!("/dev/fuse: {error}"))
    }
}

/// The papilio command: this program, one beside it, or an installed one.
pub fn papilio_command() -> Option<PathBuf> {
    own_command().or_else(|| beside_us("papilio")).or_else(|| find_command("papilio"))
}

/// This very program, when it is the papilio command.
fn own_command() -> Option<PathBuf> {
    std::env::current_exe().ok().filter(|path| path.file_name().is_some_and(|name| name == "papilio"))
}

/// A file that was built or installed with this program.
fn beside_us(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    // Beside it; above it (tests lie in target/debug/deps); where packages put libraries.
    let folders = [
        folder.to_owned(),
        folder.join(".."),
        folder.join("../lib"),
        folder.join("../lib/papilio"),
        PathBuf::from("target/release"),
    ];
    let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file())?;
    found.canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let nothing = Environment { fio: "fio".into(), engine: None, papilio: None };
        assert!(nothing.missing(Side::Papilio).unwrap().contains(ENGINE));
        assert!(nothing.missing(Side::Mount).unwrap().contains("papilio"));
        assert!(nothing.missing(Side::MountRing).unwrap().contains("papilio"));
        assert_eq!(nothing.missing(Side::Raw), None);
    }

    #[test]
    fn an_engine_that_is_not_there_is_an_error() {
        if find_command("fio").is_some() {
            let error = Environment::find(Some(Path::new("/no/such.so"))).unwrap_err();
            assert!(format!("{error:#}").contains("/no/such.so"));
        }
    }
}
