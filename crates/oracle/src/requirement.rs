//! A test's requirements on the machine.
//!
//! A test that cannot run says so on the real standard error, because the test harness captures
//! `eprintln!` of passing tests. With `PAPILIO_REQUIRE_ALL=1` it fails instead, so a full run
//! cannot silently become an empty one. With `PAPILIO_WITHOUT_KERNEL=1` tests act as if the kernel
//! had no Btrfs.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

/// One requirement of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Effective user 0.
    Root,
    /// Loop devices that this process can configure.
    Loop,
    /// A kernel with Btrfs, built in or as a module.
    KernelBtrfs,
    /// FUSE, usable by this process.
    Fuse,
    /// FUSE over io_uring, which this process can switch on.
    FuseRing,
    /// A program in the PATH or in the sbin folders.
    Command(&'static str),
}

impl Need {
    /// The requirements for making and mounting a file system.
    pub const KERNEL_MOUNT: &'static [Self] =
        &[Self::Root, Self::Loop, Self::KernelBtrfs, Self::Command("mkfs.btrfs")];

    /// Returns why the requirement is not met, or `None` if it is.
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Root => (!rustix::process::geteuid().is_root()).then(|| "needs root".to_owned()),
            Self::Loop => std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/loop-control")
                .err()
                .map(|e| format!("needs loop devices: /dev/loop-control: {e}")),
            Self::Fuse => std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/fuse")
                .err()
                .map(|e| format!("needs FUSE: /dev/fuse: {e}")),
            Self::FuseRing => crate::fuse_ring::RingSwitch::missing(),
            Self::KernelBtrfs => (!kernel_has_btrfs()).then(|| "needs a kernel with Btrfs".to_owned()),
            Self::Command(name) => find_command(name).is_none().then(|| format!("needs the command {name}")),
        }
    }
}

/// Proof that all requirements of a test are met.
#[derive(Debug)]
#[must_use = "a test that ignores missing requirements fails on the wrong machines"]
pub struct Met(());

/// Checks `needs`. If one is not met, prints `skipped: TEST: why` and returns `None`.
///
/// # Panics
/// If one is not met and the environment contains `PAPILIO_REQUIRE_ALL=1`.
pub fn require(needs: &[Need]) -> Option<Met> {
    let Some(why) = needs.iter().find_map(|need| need.missing()) else {
        return Some(Met(()));
    };
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("unnamed");
    let all = std::env::var_os("PAPILIO_REQUIRE_ALL");
    assert!(all.as_deref() != Some(OsStr::new("1")), "PAPILIO_REQUIRE_ALL=1, but {name} {why}");
    // A closed standard error must not fail the test.
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
    None
}

/// Finds a program in the PATH, then in the folders of root's PATH.
pub fn find_command(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

fn kernel_has_btrfs() -> bool {
    if std::env::var_os("PAPILIO_WITHOUT_KERNEL").as_deref() == Some(OsStr::new("1")) {
        return false;
    }
    let listed = || {
        std::fs::read_to_string("/proc/filesystems")
            .is_ok_and(|list| list.lines().any(|line| line.split_whitespace().last() == Some("btrfs")))
    };
    listed() || Path::new("/sys/fs/btrfs").exists() || (load_module() && listed())
}

fn load_module() -> bool {
    find_command("modprobe").is_some_and(|modprobe| {
        std::process::Command::new(modprobe)
            .args(["-q", "btrfs"])
            .status()
            .is_ok_and(|status| status.success())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_command_is_named() {
        let why = Need::Command("no-such-program-anywhere").missing().unwrap();
        assert!(why.contains("no-such-program-anywhere"));
        assert_eq!(Need::Command("sh").missing(), None);
    }

    #[test]
    fn empty_requirements_are_always_met() {
        assert!(require(&[]).is_some());
    }
}
