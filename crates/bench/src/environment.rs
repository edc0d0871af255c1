//! The programs and privileges that a run needs.
//!
//! Owns [`Environment`], the programs found, and [`Environment::missing`], the reason why a side
//! cannot run. The report names every side that is left out.

use crate::against::Against;
use crate::cgroup::MemoryLimit;
use crate::job::ScaledJob;
use crate::side::Side;
use anyhow::{Context, bail};
use papilio::CsumLookup;
use papilio_oracle::requirement::find_command;
use papilio_oracle::{Need, RingSwitch};
use std::path::{Path, PathBuf};

/// File name of Papilio's fio engine.
const ENGINE: &str = "libpapilio_fio.so";

/// Programs and libraries of a run.
#[derive(Debug)]
pub struct Environment {
    /// The fio program.
    pub fio: PathBuf,
    /// Papilio's fio engine, if found.
    pub engine: Option<PathBuf>,
    /// The fio engine of another build, if given.
    pub other_engine: Option<PathBuf>,
    /// The papilio command, for the mount, if found.
    pub papilio: Option<PathBuf>,
    /// The papilio command of another build, if given.
    pub other_papilio: Option<PathBuf>,
}

impl Environment {
    /// Finds the programs. The user gave the path `engine` and those in `against`.
    ///
    /// # Errors
    /// fio is not installed, or a given file does not exist, or an engine has a colon in its path.
    pub fn find(engine: Option<&Path>, against: &Against) -> anyhow::Result<Self> {
        let fio = find_command("fio").context("fio is not installed (Debian: apt-get install fio)")?;
        let engine = match engine {
            Some(path) => Some(existing_engine("--engine", path)?),
            None => next_to_us(ENGINE),
        };
        let other_engine = against.engine.as_deref();
        let other_engine = other_engine.map(|path| existing_engine("--against", path)).transpose()?;
        let other_papilio = against.papilio.as_deref();
        let other_papilio = other_papilio.map(existing_program).transpose()?;
        Ok(Self { fio, engine, other_engine, papilio: papilio_command(), other_papilio })
    }

    /// Returns why a side cannot run on this machine; `None` if it can.
    pub fn missing(&self, side: Side) -> Option<String> {
        match side {
            Side::Kernel => Need::KERNEL_MOUNT.iter().find_map(|need| need.missing()),
            Side::PapilioSlow if !has_slow_positions() => Some(
                "this build lacks the slow positions of the switches; `make bench` builds them".to_owned(),
            ),
            Side::Papilio | Side::PapilioSlow => self.engine.is_none().then(|| {
                format!("cannot find {ENGINE}: build it (cargo build -p papilio-fio) or use --engine")
            }),
            Side::PapilioOther => {
                self.other_engine.is_none().then(|| "needs --against with another build's engine".to_owned())
            }
            Side::Mount => mount_missing(self.papilio.as_deref()),
            Side::MountOther if self.other_papilio.is_none() => {
                Some("needs --against with another build's papilio command".to_owned())
            }
            Side::MountOther => mount_missing(self.other_papilio.as_deref()),
            Side::MountRing => mount_missing(self.papilio.as_deref()).or_else(RingSwitch::missing),
            Side::Raw => None,
        }
    }

    /// Returns why a side cannot run this job, although it can run others.
    pub fn missing_for(side: Side, job: &ScaledJob) -> Option<String> {
        match side {
            // Without a memory limit the whole file fits into the cache, which is a different job.
            side if (side == Side::Kernel || side.is_mount()) && job.cache.is_some() => {
                MemoryLimit::missing()
            }
            _ => None,
        }
    }
}

/// Returns whether the library was built with the feature `ablation`. The engine for fio is built
/// beside this program, with the same library.
pub fn has_slow_positions() -> bool {
    CsumLookup::ALL.len() > 1
}

/// Returns why the papilio command cannot mount; `None` if it can.
fn mount_missing(papilio: Option<&Path>) -> Option<String> {
    if papilio.is_none() {
        return Some("cannot find the papilio command".to_owned());
    }
    let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    fuse.err().map(|error| format!("/dev/fuse: {error}"))
}

/// Returns the absolute path of the program that `--against` names.
fn existing_program(path: &Path) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let named = || format!("--against {}", path.display());
    let program = path.canonicalize().with_context(named)?;
    let metadata = program.metadata().with_context(named)?;
    if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
        bail!("{}: neither a program nor an engine (.so)", named());
    }
    Ok(program)
}

/// Returns the absolute path of the engine that an option names.
///
/// fio takes a path without a slash for the name of one of its own engines.
fn existing_engine(option: &str, path: &Path) -> anyhow::Result<PathBuf> {
    let named = || format!("{option} {}", path.display());
    let engine = path.canonicalize().with_context(named)?;
    if engine.to_string_lossy().contains(':') {
        bail!("{}: fio cannot load an engine with a colon in its path", named());
    }
    Ok(engine)
}

/// Finds the papilio command: this program, one next to it, or an installed one.
pub fn papilio_command() -> Option<PathBuf> {
    next_to_us("papilio").or_else(|| find_command("papilio"))
}

/// Finds a file that was built or installed together with this program.
fn next_to_us(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    // The same directory; its parent (tests run in target/debug/deps); where packages put
    // libraries.
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
    fn missing_programs_are_named() {
        let nothing = Environment {
            fio: "fio".into(),
            engine: None,
            other_engine: None,
            papilio: None,
            other_papilio: None,
        };
        assert!(nothing.missing(Side::Papilio).unwrap().contains(ENGINE));
        assert!(nothing.missing(Side::Mount).unwrap().contains("papilio"));
        assert!(nothing.missing(Side::MountRing).unwrap().contains("papilio"));
        assert!(nothing.missing(Side::PapilioOther).unwrap().contains("--against"));
        assert!(nothing.missing(Side::MountOther).unwrap().contains("--against"));
        assert_eq!(nothing.missing(Side::Raw), None);
    }

    #[test]
    fn missing_files_are_errors() {
        if find_command("fio").is_some() {
            let none = Path::new("/no/such.so");
            for (engine, against) in
                [(Some(none), &[][..]), (None, &[none]), (None, &[Path::new("/no/such")])]
            {
                let paths: Vec<_> = against.iter().map(|path: &&Path| path.to_path_buf()).collect();
                let error = Environment::find(engine, &Against::of(&paths).unwrap()).unwrap_err();
                assert!(format!("{error:#}").contains("/no/such"));
            }
            let directory = Against::of(&["/".into()]).unwrap();
            let error = Environment::find(None, &directory).unwrap_err();
            assert!(format!("{error:#}").contains("neither a program nor an engine"));
        }
    }
}
