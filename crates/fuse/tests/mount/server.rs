//! A mount whose server is a child process, and its end.

use crate::transport;
use papilio::MkfsOptions;
use papilio_oracle::{Need, Scratch, require};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The program that serves, or locks a file, beside the tests.
pub const HELPER: &str = env!("CARGO_BIN_EXE_papilio-fuse-test-helper");

/// What mounting takes.
pub use crate::transport::NEEDS;

/// Options, and a transport.
fn over(transport: &str, options: &str) -> String {
    format!("{options},transport={transport}")
}

/// A mount. Dropping it ends it, also after a failure.
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

    /// Mounts by the helper for users.
    pub fn by_helper(scratch: &Scratch, image: &Path, options: &str) -> Self {
        Self::start(scratch, image, &over(transport::NAME, options), true, transport::switch())
    }

    /// Mounts over another transport than this program's, with the switch as it is.
    #[allow(dead_code, reason = "asked for by the tests of one transport only")]
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
        // What follows is read on, so that the server is never held up by it.
        std::thread::spawn(move || output.for_each(drop));
        let mount = Self { directory, server: Some(server), _scratch: scratch.clone(), _switch: switch };
        assert!(mounted, "the server did not mount");
        mount
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// The server's process.
    #[allow(dead_code, reason = "asked for by the tests of one transport only")]
    pub fn server(&self) -> u32 {
        self.server.as_ref().expect("it runs").id()
    }

    /// Unmounts and waits for the server to close the image.
    pub fn unmount(mut self) {
        papilio_oracle::scratch::unmount(&self.directory).unwrap();
        let status = self.server.take().expect("it runs").wait().unwrap();
        assert!(status.success(), "the server ended with {status}");
    }

    /// Kills the server, as a crash would end it, and takes the mount away.
    pub fn kill(self) {
        let directory = self.directory.clone();
        self.kill_only();
        papilio_oracle::scratch::unmount(&directory).unwrap();
    }

    /// Kills the server and leaves the mount.
    pub fn kill_only(mut self) {
        let mut server = self.server.take().expect("it runs");
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

/// A new image of ours.
pub fn make_image(scratch: &Scratch, size: u64) -> PathBuf {
    let image = scratch.unique("image");
    papilio::mkfs(&image, &MkfsOptions::new().size(size)).unwrap();
    image
}

/// Asks the oracle whether an image is consistent.
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
