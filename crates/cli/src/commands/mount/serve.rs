//! The server of a mount: from opening the image to its closing.
//!
//! Order: signals are held back before the first thread is there; the session is set apart from the terminal's;
//! the image is opened and mounted; the caller is told; standard streams are let go; then nothing but waiting.
//! A failure before the caller is told goes to its terminal, one after that to the log.

use crate::context::Context;
use crate::{holder, log};
use anyhow::{Context as _, bail};
use papilio::FileSystem;
use papilio_fuse::signals::Signals;
use papilio_fuse::streams::{Stream, replace};
use papilio_fuse::{MountOptions, Session, Unmounter};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The byte that the server writes to standard output when the mount can be used.
pub(super) const READY: u8 = b'\n';

/// The arguments of a server.
pub(super) struct Server<'a> {
    /// The image or device.
    pub image: &'a Path,
    /// The mount point.
    pub directory: &'a Path,
    /// The file that warnings and errors are appended to.
    pub log: Option<&'a Path>,
    /// Whether the caller waits for [`READY`] and the server then leaves its terminal.
    pub background: bool,
}

impl Server<'_> {
    /// Mounts, and serves until the file system is unmounted.
    pub(super) fn run(&self, context: &Context, options: MountOptions) -> anyhow::Result<()> {
        let signals = Signals::block().context("holding signals back")?;
        let log_file = self.log.map(open_log).transpose()?;
        if self.background {
            // Where the caller leads a session of its own, such as from cron, this is none of it any more.
            let _ = rustix::process::setsid();
        }
        log::Log::start(context.verbosity);
        let source = absolute(self.image);
        let fs = FileSystem::open_with(&source, &options.open).map_err(holder::explain)?;
        check_subvolume(&fs, &options)?;
        if fs.has_log() && context.verbosity >= 0 {
            context.warning(format_args!(
                "{}: a log tree is present: changes fsynced since the last commit are not shown",
                self.image.display()
            ));
        }
        let session = Session::mount(fs, &source, self.directory, &options)?;
        log::Log::serving();
        end_on_signals(signals, session.unmounter())?;
        if self.background {
            std::io::stdout().write_all(&[READY]).and_then(|()| std::io::stdout().flush())?;
            leave(log_file.as_ref())?;
        } else if let Some(file) = &log_file {
            replace(Stream::Error, file).context("the log")?;
        }
        session.wait().with_context(|| format!("{}: closing", self.image.display()))
    }
}

/// The image's path as the table of mounts shows it. Names of the device mapper stay as they are: what they
/// lead to says nothing.
fn absolute(image: &Path) -> PathBuf {
    let kept = image.starts_with("/dev/mapper");
    let resolved = if kept { std::path::absolute(image) } else { image.canonicalize() };
    resolved.unwrap_or_else(|_| image.to_path_buf())
}

/// Where both a path and an id were given, they must be one subvolume's.
fn check_subvolume(fs: &FileSystem, options: &MountOptions) -> anyhow::Result<()> {
    let Some(expected) = options.expected_subvolume else { return Ok(()) };
    let found = fs.root()?.tree();
    if found != expected {
        bail!("mount options subvol and subvolid contradict: the path is subvolume {found}, not {expected}");
    }
    Ok(())
}

/// Unmounts on the first signal; where the mount is in use, takes it out of sight, and it ends with the last user.
fn end_on_signals(signals: Signals, unmounter: Unmounter) -> anyhow::Result<()> {
    let wait = move || {
        while let Ok(signal) = signals.wait() {
            tracing::info!("signal {signal}: unmounting");
            if let Err(error) = unmounter.unmount() {
                tracing::warn!("unmounting: {error}; it ends with its last user");
                if let Err(error) = unmounter.detach() {
                    tracing::error!("unmounting: {error}");
                }
            }
        }
    };
    std::thread::Builder::new()
        .name("papilio-signals".to_owned())
        .spawn(wait)
        .context("starting a thread")?;
    Ok(())
}

/// Lets go of everything of the caller's: its directory, which could not be unmounted else, and its streams.
fn leave(log: Option<&File>) -> anyhow::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null").context("/dev/null")?;
    rustix::process::chdir("/").context("/")?;
    replace(Stream::Input, &null).context("standard input")?;
    replace(Stream::Error, log.unwrap_or(&null)).context("standard error")?;
    // The caller waits for this one's end.
    replace(Stream::Output, &null).context("standard output")?;
    Ok(())
}

/// Opens the file that the server logs to.
fn open_log(path: &Path) -> anyhow::Result<File> {
    let opened = File::options().append(true).create(true).open(path);
    opened.with_context(|| format!("{}: opening the log", path.display()))
}
