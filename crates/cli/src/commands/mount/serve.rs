//! The server of a mount, from opening the image to closing it.
//!
//! The steps, in this order:
//! 1. Block signals, before the first thread starts.
//! 2. Leave the terminal's session.
//! 3. Open the image and mount it.
//! 4. Tell the caller that the mount is usable.
//! 5. Replace the standard streams.
//! 6. Give up the rights that only mounting needs, and wait for the unmount.
//!
//! A failure before step 4 is printed on the terminal, a later one in the log.

use crate::commands::filesystem::warn_of_lesser_profiles;
use crate::context::Context;
use crate::devices::resolved;
use crate::{devices, holder, log};
use anyhow::{Context as _, bail};
use papilio::FileSystem;
use papilio::device::is_url;
use papilio_fuse::signals::Signals;
use papilio_fuse::streams::{Stream, replace};
use papilio_fuse::{MountOptions, Session, Unmounter};
use papilio_sandbox::{Job, Sandbox};
use std::fs::File;
use std::io::{IsTerminal, Write};
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
        let signals = Signals::block().context("cannot block signals")?;
        let log_file = self.log.map(open_log).transpose()?;
        log::Log::start(context.verbosity);
        if self.background && context.verbosity <= 0 && !std::io::stderr().is_terminal() {
            log::Log::for_script(log_file.as_ref().map(File::try_clone).transpose()?);
        }
        context.confine(Sandbox::for_job(Job::Mount, context.sandbox_mode()), []);
        let source = absolute(self.image);
        let mut options = options;
        let given = options.devices.clone();
        options.open = devices::add_missing(&source, &given, options.open);
        let fs = FileSystem::open_with(&source, &options.open).map_err(|error| match error {
            papilio::Error::Unreplayed { .. } => anyhow::Error::msg(format!(
                "{}: {error}; -o ro,rescue=nologreplay shows the last commit",
                self.image.display()
            )),
            other => holder::explain(other),
        })?;
        check_subvolume(&fs, &options)?;
        context.warn_of_older(self.image, &fs);
        context.warn_of_lost_checksums(self.image, &fs);
        if !options.read_only {
            match fs.usage() {
                Ok(usage) => warn_of_lesser_profiles(context, self.directory, &usage),
                Err(error) => {
                    context.warning(format_args!("cannot tell whether chunks have fewer copies: {error}"));
                }
            }
        }
        let session = Session::mount(fs, &source, self.directory, &options)?;
        log::Log::serving();
        end_on_signals(signals, session.unmounter())?;
        if self.background {
            std::io::stdout().write_all(&[READY]).and_then(|()| std::io::stdout().flush())?;
            leave(log_file.as_ref())?;
        } else if let Some(file) = &log_file {
            replace(Stream::Error, file).context("cannot redirect standard error to the log")?;
        }
        context.seal();
        session.wait().with_context(|| format!("{}: closing", self.image.display()))
    }
}

/// Returns the path of the image for the table of mounts. Keeps names of the device mapper, since
/// the device that they link to has no meaningful name.
fn absolute(image: &Path) -> PathBuf {
    if is_url(image) {
        return image.to_path_buf();
    }
    let kept = image.starts_with("/dev/mapper");
    let resolve = |file: &Path| if kept { std::path::absolute(file) } else { file.canonicalize() };
    resolved(image, resolve).unwrap_or_else(|_| image.to_path_buf())
}

/// Checks that a path and an id, if both were given, name the same subvolume.
fn check_subvolume(fs: &FileSystem, options: &MountOptions) -> anyhow::Result<()> {
    let Some(expected) = options.expected_subvolume else { return Ok(()) };
    let found = fs.root()?.tree();
    if found != expected {
        bail!("mount options subvol and subvolid conflict: the path is subvolume {found}, not {expected}");
    }
    Ok(())
}

/// Starts a thread that unmounts when a signal arrives. It detaches a mount that is in use, which
/// ends with its last user.
fn end_on_signals(signals: Signals, unmounter: Unmounter) -> anyhow::Result<()> {
    let wait = move || {
        while let Ok(signal) = signals.wait() {
            tracing::info!("signal {signal}: unmounting");
            if let Err(error) = unmounter.unmount() {
                tracing::warn!("cannot unmount: {error}; detaching the mount until its last user ends");
                if let Err(error) = unmounter.detach() {
                    tracing::error!("cannot detach the mount: {error}");
                }
            }
        }
    };
    std::thread::Builder::new()
        .name("papilio-signals".to_owned())
        .spawn(wait)
        .context("cannot start a thread")?;
    Ok(())
}

/// Leaves the caller's session, its working directory, which the server would keep busy, and its
/// standard streams. Not before the mount is there: an automount lets only the process group of
/// its daemon, which systemd's mount(8) is in, touch the mount point until then.
fn leave(log: Option<&File>) -> anyhow::Result<()> {
    // Fails only if this process leads a session already.
    let _ = rustix::process::setsid();
    let null = File::options().read(true).write(true).open("/dev/null").context("/dev/null")?;
    rustix::process::chdir("/").context("/")?;
    replace(Stream::Input, &null).context("standard input")?;
    replace(Stream::Error, log.unwrap_or(&null)).context("standard error")?;
    // A reader of the caller's output may wait for its end.
    replace(Stream::Output, &null).context("standard output")?;
    Ok(())
}

/// Opens the file that the server logs to.
fn open_log(path: &Path) -> anyhow::Result<File> {
    let opened = File::options().append(true).create(true).open(path);
    opened.with_context(|| format!("{}: cannot open the log", path.display()))
}
