//! What the tests stand on: an image, a directory to mount it on, and how it is all taken down again.

use papilio_fuse::ioctl::client::MountedPath;
use papilio_fuse::mount_table::MountEntry;
use papilio_oracle::{Need, require};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What nearly all of them need.
pub const MOUNT: &[Need] = &[Need::Root, Need::Fuse];

/// An image and a directory; at the end nothing of it is mounted and no server is left.
pub struct World {
    folder: tempfile::TempDir,
}

impl World {
    /// An image with an empty file system, or `None` where a test cannot run.
    pub fn new(needs: &[Need]) -> Option<Self> {
        let shared = Path::new("/dev/shm");
        match shared.is_dir() {
            true => Self::new_in(shared, needs),
            false => Self::new_in(&std::env::temp_dir(), needs),
        }
    }

    /// The same in a folder of the caller's choice.
    pub fn new_in(folder: &Path, needs: &[Need]) -> Option<Self> {
        let _ = require(needs)?;
        let world = Self { folder: tempfile::tempdir_in(folder).unwrap() };
        std::fs::create_dir(world.directory()).unwrap();
        std::fs::File::create(world.image()).unwrap().set_len(512 << 20).unwrap();
        succeed(["mkfs", "-L", "first", world.image().to_str().unwrap()]);
        Some(world)
    }

    /// The image.
    pub fn image(&self) -> PathBuf {
        self.folder.path().join("disk.img")
    }

    /// Where it is mounted.
    pub fn directory(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    /// A path in the folder of both.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A path in the mount.
    pub fn at(&self, path: &str) -> String {
        self.directory().join(path).to_str().unwrap().to_owned()
    }

    /// Mounts in the background.
    pub fn mount(&self, options: &[&str]) {
        let (image, directory) = (self.image(), self.directory());
        let operands = [image.as_os_str(), directory.as_os_str()];
        let arguments =
            [OsStr::new("mount")].into_iter().chain(options.iter().map(OsStr::new)).chain(operands);
        succeed(arguments);
    }

    /// Unmounts, and waits.
    pub fn unmount(&self) {
        succeed([OsStr::new("umount"), self.directory().as_os_str()]);
        assert!(self.entry().is_none());
    }

    /// The mount, if it is there.
    pub fn entry(&self) -> Option<MountEntry> {
        MountEntry::of_papilio_on(&self.directory()).unwrap()
    }

    /// The server's process.
    pub fn server(&self) -> rustix::process::Pid {
        MountedPath::open(&self.directory()).unwrap().server().unwrap().pid.unwrap()
    }

    /// Kills the server as nothing lets it defend itself, and waits until it is gone.
    pub fn kill_server(&self) {
        let path = MountedPath::open(&self.directory()).unwrap();
        let process = path.server_process().unwrap().unwrap();
        drop(path);
        rustix::process::pidfd_send_signal(&process, rustix::process::Signal::KILL).unwrap();
        let mut ends = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut ends, None).unwrap();
    }

    /// What `btrfs check` says, at once; needs that command.
    pub fn assert_clean(&self) {
        let output =
            Command::new("btrfs").args(["check", "--check-data-csum"]).arg(self.image()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        // Our own, which would say who has the image.
        succeed([OsStr::new("check"), self.image().as_os_str()]);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Ok(Some(_)) = MountEntry::of_papilio_on(&self.directory()) {
            let _ = papilio([OsStr::new("umount"), OsStr::new("--lazy"), self.directory().as_os_str()]);
        }
    }
}

/// The binary.
pub fn binary() -> &'static Path {
    Path::new(assert_cmd::cargo::cargo_bin!("papilio"))
}

/// Runs the command.
pub fn papilio<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    Command::new(binary()).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Runs the command, which must succeed and say nothing but its output.
pub fn succeed<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> String {
    let output = papilio(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the command, which must fail with one line that holds `part`.
pub fn fail<S: AsRef<OsStr>>(code: i32, part: &str, arguments: impl IntoIterator<Item = S>) {
    check_failure(&papilio(arguments), code, part);
}

/// Checks a failure: its exit code and its one line.
pub fn check_failure(output: &Output, code: i32, part: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(part), "{part:?} is not in {said:?}");
    assert!(said.starts_with("papilio: ") && said.lines().count() == 1, "{said:?}");
}

/// Runs another program, which must succeed.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let program = papilio_oracle::requirement::find_command(program).unwrap_or_else(|| program.into());
    let output = Command::new(&program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?} {arguments:?}: {} {said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until something is so.
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what} never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}
