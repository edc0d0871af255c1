//! A mount with its server in a child process.

use crate::transport;
use papilio::MkfsOptions;
use papilio_oracle::{Need, Scratch, require};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The program that runs as a second process: a server, or a process that locks a file.
pub const HELPER: &str = env!("CARGO_BIN_EXE_papilio-fuse-test-helper");

/// Requirements of a mount.
pub use crate::transport::NEEDS;

/// Adds the transport to the mount options.
fn over(transport: &str, options: &str) -> String {
    format!("{options},transport={transport}")
}

/// A mount. Dropping it unmounts, also after a failed test.
pub struct Mount {
    directory: PathBuf,
    server: Option<Child>,
    _scratch: Scratch,
    _switch: transport::Switch,
}

impl Mount {
    /// Mounts the image with these options.
    pub fn new(scratch: &Scratch, image: &Path, options: &str) -> Self {
        Self::start(scratch, image, &over(transport::NAME, options), false, transport::switch())
    }

    /// Mounts as a user does, through `fusermount3`.
    pub fn by_helper(scratch: &Scratch, image: &Path, options: &str) -> Self {
        Self::start(scratch, image, &over(transport::NAME, options), true, transport::switch())
    }

    /// Mounts over a given transport, with the kernel's switch as it is.
    #[allow(dead_code, reason = "only the tests of one transport use it")]
    pub fn by_transport(scratch: &Scratch, image: &Path, name: &str, switch: transport::Switch) -> Self {
        Self::start(scratch, image, &over(name, ""), false, switch)
    }

    fn start(
        scratch: &Scratch,
        image: &Path,
        options: &str,
        unprivileged: bool,
        switch: transport::Switch,
    ) -> Self {
        let directory = scratch.unique("papilio");
        std::fs::create_dir(&directory).unwrap();
        let mut server = Command::new(HELPER)
            .arg(if unprivileged { "serve-unprivileged" } else { "serve" })
            .args([image, &directory])
            .arg(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(server.stdout.take().unwrap()).lines();
        let mounted = output.any(|line| line.is_ok_and(|line| line == "mounted"));
        // Keep reading, so that the server never blocks on a full pipe.
        std::thread::spawn(move || output.for_each(drop));
        let mount = Self { directory, server: Some(server), _scratch: scratch.clone(), _switch: switch };
        assert!(mounted, "the server did not mount");
        mount
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// Returns the server's process id.
    #[allow(dead_code, reason = "only the tests of one transport use it")]
    pub fn server(&self) -> u32 {
        self.server.as_ref().expect("the server runs").id()
    }

    /// Unmounts and waits until the server has closed the image.
    pub fn unmount(mut self) {
        papilio_oracle::scratch::unmount(&self.directory).unwrap();
        let status = self.server.take().expect("the server runs").wait().unwrap();
        assert!(status.success(), "the server ended with {status}");
    }

    /// Kills the server as a crash would, and unmounts.
    pub fn kill(self) {
        let directory = self.directory.clone();
        self.kill_only();
        papilio_oracle::scratch::unmount(&directory).unwrap();
    }

    /// Waits for the end of a server that has failed, and unmounts.
    #[allow(dead_code, reason = "only the tests of one transport use it")]
    pub fn ended(mut self) -> std::process::ExitStatus {
        let status = self.server.take().expect("the server runs").wait().unwrap();
        papilio_oracle::scratch::unmount(&self.directory).unwrap();
        status
    }

    /// Kills the server and leaves the mount.
    pub fn kill_only(mut self) {
        let mut server = self.server.take().expect("the server runs");
        server.kill().unwrap();
        server.wait().unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        let _ = papilio_oracle::scratch::unmount(&self.directory);
        if std::thread::panicking() {
            let _ = server.kill();
        }
        let _ = server.wait();
    }
}

/// Creates an image.
pub fn make_image(scratch: &Scratch, size: u64) -> PathBuf {
    let image = scratch.unique("image");
    papilio::mkfs(&image, &MkfsOptions::new().size(size)).unwrap();
    image
}

/// Asserts that the library and `btrfs check`, if it is installed, find the image consistent.
pub fn check(image: &Path) {
    let report =
        papilio::check(image, &papilio::OpenOptions::new(), &papilio::CheckOptions::new().data_csum(true))
            .unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings.iter().take(5).collect::<Vec<_>>());
    if require(&[Need::Command("btrfs")]).is_some() {
        let arguments = ["check", "--check-data-csum"].map(OsString::from);
        let output = Command::new("btrfs").args(arguments).arg(image).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "btrfs check: {}", &text[text.len().saturating_sub(1000)..]);
    }
}
