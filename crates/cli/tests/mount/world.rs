//! An image and a mount point for each test, and helpers.

use crate::common::unmount_by;
pub use crate::common::{
    binary, check_failure, fail, papilio, succeed_text as succeed, try_unmount, unmount,
};
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::mount_table::MountEntry;
use papilio_oracle::{Need, require};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The needs of nearly all tests.
pub const MOUNT: &[Need] = &[Need::Root, Need::Fuse];

/// An image and a mount point. Dropping it unmounts the image.
pub struct World {
    folder: tempfile::TempDir,
}

impl World {
    /// Creates an image with an empty file system, or returns `None` if the test cannot run.
    pub fn new(needs: &[Need]) -> Option<Self> {
        let shared = Path::new("/dev/shm");
        match shared.is_dir() {
            true => Self::new_in(shared, needs),
            false => Self::new_in(&std::env::temp_dir(), needs),
        }
    }

    /// Like [`World::new`], in the directory `folder`.
    pub fn new_in(folder: &Path, needs: &[Need]) -> Option<Self> {
        let _ = require(needs)?;
        let world = Self { folder: tempfile::tempdir_in(folder).unwrap() };
        std::fs::create_dir(world.directory()).unwrap();
        std::fs::File::create(world.image()).unwrap().set_len(512 << 20).unwrap();
        succeed(["mkfs", "-L", "first", world.image().to_str().unwrap()]);
        Some(world)
    }

    /// Returns the path of the image.
    pub fn image(&self) -> PathBuf {
        self.folder.path().join("disk.img")
    }

    /// Returns the mount point.
    pub fn directory(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    /// Returns a path beside the image and the mount point.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a path in the mount.
    pub fn at(&self, path: &str) -> String {
        self.directory().join(path).to_str().unwrap().to_owned()
    }

    /// Mounts in the background. The kernel gathers writes, unless the options say otherwise: the
    /// image is small.
    pub fn mount(&self, options: &[&str]) {
        let decided = options.iter().any(|option| option.contains("cache"));
        let gathering: &[&str] = if decided { &[] } else { &["-o", "writeback_cache"] };
        self.mount_plainly(&[gathering, options].concat());
    }

    /// Mounts in the background, with these options only.
    pub fn mount_plainly(&self, options: &[&str]) {
        let (image, directory) = (self.image(), self.directory());
        let operands = [image.as_os_str(), directory.as_os_str()];
        let arguments =
            [OsStr::new("mount")].into_iter().chain(options.iter().map(OsStr::new)).chain(operands);
        succeed(arguments);
    }

    /// Unmounts, and waits for the server.
    pub fn unmount(&self) {
        unmount(&self.directory());
        assert!(self.entry().is_none());
    }

    /// Returns the mount, if there is one.
    pub fn entry(&self) -> Option<MountEntry> {
        MountEntry::of_papilio_on(&self.directory()).unwrap()
    }

    /// Returns the process of the server.
    pub fn server(&self) -> rustix::process::Pid {
        MountedPath::open(&self.directory()).unwrap().server().unwrap().pid.unwrap()
    }

    /// Kills the server with SIGKILL, and waits until it is gone.
    pub fn kill_server(&self) {
        let path = MountedPath::open(&self.directory()).unwrap();
        let process = path.server_process().unwrap().unwrap();
        drop(path);
        rustix::process::pidfd_send_signal(&process, rustix::process::Signal::KILL).unwrap();
        let mut ends = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut ends, None).unwrap();
    }

    /// Runs both checks immediately. Needs the command btrfs.
    pub fn assert_clean(&self) {
        let output =
            Command::new("btrfs").args(["check", "--check-data-csum"]).arg(self.image()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        // papilio check fails if another process has the image open.
        succeed([OsStr::new("check"), self.image().as_os_str()]);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Ok(Some(_)) = MountEntry::of_papilio_on(&self.directory()) {
            let _ = papilio([OsStr::new("umount"), OsStr::new("--lazy"), self.directory().as_os_str()]);
        }
        if std::thread::panicking() {
            // A mount of the kernel that a failed test left.
            let _ = Command::new("umount").arg("--lazy").arg(self.directory()).output();
        }
    }
}

/// Runs another program, which must succeed.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let program = papilio_oracle::requirement::find_command(program).unwrap_or_else(|| program.into());
    let output = Command::new(&program).args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?} {arguments:?}: {} {stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Unmounts a mount of the kernel. Returns whether that was possible.
pub fn unmount_kernel(directory: &Path) -> bool {
    unmount_by(|| Command::new("umount").arg(directory).output().unwrap()).status.success()
}

/// Waits until `condition` is true.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(120), "timeout: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
