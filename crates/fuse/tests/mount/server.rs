//! A mount whose server is a child process, and its end.

use crate::transport;
use papilio::{FileSystem, MkfsOptions};
use papilio_fuse::{MountOptions, Session};
use papilio_oracle::{Need, Scratch, require};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const IMAGE: &str = "PAPILIO_TEST_IMAGE";
const DIRECTORY: &str = "PAPILIO_TEST_DIRECTORY";
const OPTIONS: &str = "PAPILIO_TEST_OPTIONS";
const HELPER: &str = "PAPILIO_TEST_HELPER";
const MOUNTED: &str = "mounted";

/// The server: this test does nothing unless it is asked to be one.
#[test]
fn serve() {
    let Some(image) = std::env::var_os(IMAGE).map(PathBuf::from) else { return };
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("a directory is named"));
    let options = std::env::var(OPTIONS).unwrap_or_default();
    let options = MountOptions::parse(&options).expect("options of the test");
    if std::env::var_os(HELPER).is_some() {
        give_up_mounting();
    }
    let fs = FileSystem::open_with(&image, &options.open).expect("the image opens");
    let session = Session::mount(fs, &image, &directory, &options).expect("it is mounted");
    // On a line of its own, whatever the harness printed before.
    println!("\n{MOUNTED}");
    session.wait().expect("all is durable");
}

/// Gives up the right to mount, as users do not have it; programs that are started have it anew.
fn give_up_mounting() {
    const VERSION: u32 = 0x2008_0522;
    const SYS_ADMIN: u32 = 1 << 21;
    let mut header = [VERSION, 0];
    // Effective, permitted and inheritable, of the lower and of the upper capabilities.
    let mut sets = [0_u32; 6];
    // SAFETY: plain system calls about this thread, with buffers of the sizes that this version has.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()), 0);
        sets[0] &= !SYS_ADMIN;
        sets[1] &= !SYS_ADMIN;
        assert_eq!(libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()), 0);
    }
}

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
        helper: bool,
        switch: transport::Switch,
    ) -> Self {
        let directory = scratch.unique("papilio");
        std::fs::create_dir(&directory).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        if helper {
            command.env(HELPER, "1");
        }
        let mut server = command
            .args(["--exact", "server::serve", "--nocapture", "--test-threads=1"])
            .env(IMAGE, image)
            .env(DIRECTORY, &directory)
            .env(OPTIONS, options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(server.stdout.take().unwrap()).lines();
        let mounted = output.any(|line| line.is_ok_and(|line| line == MOUNTED));
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
