//! A guest: User Mode Linux, which runs another kernel as a program, over the host's own files.
//!
//! Owns [`Kernel`], [`Guest`] and [`Outcome`].
//!
//! **Invariants**
//! - A guest ends with its time limit, after a panic, and with the caller: its processes are in a
//!   PID namespace of their own.
//! - The result counts only if the guest itself wrote it down as its last step.

use anyhow::{Context, bail};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program of Debian's package user-mode-linux.
const DEBIAN: &str = "/usr/bin/linux.uml";

/// A kernel that can run as a guest.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its name in the report.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// The folder that holds its modules, in a folder named by its release.
    pub modules: PathBuf,
}

impl Kernel {
    /// Debian's own, or `None` if its package is not installed.
    pub fn of_debian() -> Option<Self> {
        let program = PathBuf::from(DEBIAN);
        let modules = PathBuf::from("/usr/lib/uml/modules");
        program.is_file().then(|| Self { name: "debian".to_owned(), program, modules })
    }

    /// The kernels that lie unpacked in a folder, by name.
    ///
    /// # Errors
    /// A folder that cannot be read, or has no kernel.
    pub fn downloaded(folder: &Path) -> anyhow::Result<Vec<Self>> {
        let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
        let mut folders = Vec::new();
        for entry in entries {
            folders.push(entry?.path());
        }
        folders.sort();
        folders.iter().map(|folder| Self::in_folder(&name_of(folder), folder)).collect()
    }

    /// Parses `NAME=FOLDER`, where FOLDER is an unpacked package user-mode-linux.
    ///
    /// # Errors
    /// Another form; a folder without the program.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let (name, folder) = text.split_once('=').context("--kernel: expected NAME=FOLDER")?;
        Self::in_folder(name, Path::new(folder))
    }

    fn in_folder(name: &str, folder: &Path) -> anyhow::Result<Self> {
        let folder = folder.canonicalize().with_context(|| folder.display().to_string())?;
        let program = folder.join("usr/bin/linux.uml");
        if !program.is_file() {
            bail!("{}: no such program; unpack Debian's package user-mode-linux there", program.display());
        }
        Ok(Self { name: name.to_owned(), program, modules: folder.join("usr/lib/uml/modules") })
    }
}

fn name_of(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Folders of the host that a guest covers with its own.
const COVERED: &[&str] = &["/tmp", "/run", "/mnt", "/dev", "/proc", "/sys"];

/// Refuses a path that a guest does not see.
///
/// # Errors
/// The path is below a folder that the guest covers with its own.
pub fn check_visible(path: &Path) -> anyhow::Result<()> {
    match COVERED.iter().find(|folder| path.starts_with(folder)) {
        Some(folder) => bail!("{}: a guest has a {folder} of its own; use another folder", path.display()),
        None => Ok(()),
    }
}

/// The end of a guest.
#[derive(Debug)]
pub enum Outcome {
    /// The command ended with this exit code.
    Ended(i32),
    /// The time limit was reached.
    Late,
    /// The kernel panicked or ended without a result: the last lines of its console.
    Died(String),
}

/// A run of one command in a guest.
pub struct Guest<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// The project: a folder that the guest sees wherever it is.
    pub root: &'a Path,
    /// The script that the kernel starts first.
    pub init: &'a Path,
    /// A folder of the project, for the command, its output and the console.
    pub job: &'a Path,
    /// Memory in MiB.
    pub memory: u32,
    /// The time limit, boot included.
    pub limit: Duration,
}

impl Guest<'_> {
    /// Runs a bash script as root in the guest.
    ///
    /// # Errors
    /// The job's folder cannot be written; the program cannot be started.
    pub fn run(&self, script: &str) -> anyhow::Result<Outcome> {
        // The kernel starts the script before the guest's own folders cover any of the host's.
        if !self.kernel.modules.starts_with(self.root) {
            check_visible(&self.kernel.modules)?;
        }
        fs::write(self.job.join("command"), script)?;
        fs::write(self.job.join("modules"), self.kernel.modules.as_os_str().as_encoded_bytes())?;
        let console = File::create(self.job.join("console"))?;
        let mut guest = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "--"])
            .arg(&self.kernel.program)
            .arg(format!("mem={}M", self.memory))
            .args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw", "panic=-1"])
            .arg(format!("init={}", self.init.display()))
            .arg(format!("ROOT={}", self.root.display()))
            .arg(format!("JOB={}", self.job.display()))
            .arg(format!("uml_dir={}", self.job.join("uml").display()))
            .args(["con=null", "con0=null,fd:1"])
            .stdin(Stdio::null())
            .stderr(console.try_clone()?)
            .stdout(console)
            .spawn()
            .with_context(|| format!("unshare {}", self.kernel.program.display()))?;
        let outcome = self.wait(&mut guest);
        // Ends the namespace, and with it all processes of the guest.
        let _ = guest.kill();
        guest.wait()?;
        Ok(outcome)
    }

    fn wait(&self, guest: &mut Child) -> Outcome {
        let begun = Instant::now();
        while begun.elapsed() < self.limit {
            if let Some(status) = self.status() {
                return Outcome::Ended(status);
            }
            let has_ended = !matches!(guest.try_wait(), Ok(None));
            if has_ended || self.console().contains("Kernel panic") {
                return self.status().map_or_else(|| Outcome::Died(self.last_lines()), Outcome::Ended);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Outcome::Late
    }

    /// Returns the exit code that the guest wrote last.
    fn status(&self) -> Option<i32> {
        fs::read_to_string(self.job.join("status")).ok()?.trim().parse().ok()
    }

    fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.job.join("console")).unwrap_or_default()).into_owned()
    }

    fn last_lines(&self) -> String {
        let console = self.console();
        let lines: Vec<&str> = console.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_a_guest_covers_are_refused() {
        assert!(check_visible(Path::new("/tmp/project")).unwrap_err().to_string().contains("/tmp"));
        assert!(check_visible(Path::new("/tmpfs/project")).is_ok());
    }

    /// Runs a shell script in the place of a kernel.
    fn run_instead(kernel: &str, limit: Duration) -> Option<Outcome> {
        use std::os::unix::fs::PermissionsExt;
        let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
        if !is_root {
            assert!(std::env::var_os("PAPILIO_REQUIRE_ALL").is_none_or(|all| all != "1"), "needs root");
            eprintln!("skipped: {kernel}: needs root");
            return None;
        }
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let program = folder.path().join("linux.uml");
        fs::write(&program, format!("#!/bin/sh\n{kernel}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let modules = folder.path().join("modules");
        let kernel = Kernel { name: "fake".to_owned(), program, modules };
        let init = Path::new("/etc/none");
        let guest =
            Guest { kernel: &kernel, root: folder.path(), init, job: folder.path(), memory: 64, limit };
        Some(guest.run("true").unwrap())
    }

    #[test]
    fn a_guest_that_hangs_panics_or_ends_early_is_no_success() {
        let second = Duration::from_secs(1);
        let Some(hung) = run_instead("sleep 60", second) else { return };
        assert!(matches!(hung, Outcome::Late), "{hung:?}");
        let panicked = run_instead("echo 'Kernel panic - not syncing'; sleep 60", 30 * second).unwrap();
        assert!(
            matches!(&panicked, Outcome::Died(console) if console.contains("not syncing")),
            "{panicked:?}"
        );
        let ended = run_instead("echo bye", 30 * second).unwrap();
        assert!(matches!(&ended, Outcome::Died(console) if console.contains("bye")), "{ended:?}");
    }

    #[test]
    fn a_folder_without_a_kernel_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("7.2={}", folder.path().display());
        assert!(Kernel::parse(&text).unwrap_err().to_string().contains("user-mode-linux"));
        assert!(Kernel::parse("7.2").unwrap_err().to_string().contains("NAME=FOLDER"));
        assert!(Kernel::downloaded(&folder.path().join("none")).unwrap().is_empty());
    }
}
