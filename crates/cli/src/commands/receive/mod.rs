//! `papilio receive`.

mod dump;

use crate::context::Context;
use crate::output::{Output, escaped};
use crate::path::{Operand, parse_image_path};
use anyhow::Context as _;
#[cfg(target_os = "linux")]
use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
#[cfg(target_os = "linux")]
use papilio::HostDirectory;
use papilio::{Error, Receive, ReceiveObserver, ReceivedSubvolume};
#[cfg(target_os = "linux")]
use papilio_ioctl::mount_table::MountEntry;
#[cfg(target_os = "linux")]
use std::ffi::OsStr;
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufReader, IsTerminal, Read};
#[cfg(target_os = "linux")]
use std::os::unix::ffi::{OsStrExt, OsStringExt};
#[cfg(target_os = "linux")]
use std::path::Path;
use std::path::PathBuf;

/// Receive subvolumes from a stream
///
/// The stream comes from `btrfs send` or `papilio send`. A subvolume becomes read-only and gets its
/// received UUID when its stream is complete; until then it is writable.
///
/// The directory may be in an image, in a mount of Papilio or of the kernel's Btrfs, or in any
/// other file system. There, subvolumes become plain directories: they are not read-only, an
/// extended attribute holds their UUID, and a snapshot is a copy of its parent, which must have
/// been received into the same directory.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory that receives the subvolumes
    #[arg(value_name = "IMAGE:/DIRECTORY|PATH", required_unless_present = "dump",
        value_hint = clap::ValueHint::AnyPath)]
    directory: Option<OsString>,
    /// Read from FILE instead of standard input
    #[arg(short = 'f', value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Stop after the end command of the first subvolume
    #[arg(short = 'e')]
    stop_at_end: bool,
    /// Stop after N commands that failed; 0 means never
    #[arg(short = 'E', long, value_name = "N", default_value = "1")]
    max_errors: u64,
    /// Change the root directory of this process to the directory, in addition to the checks of
    /// each path. For an image it has no effect
    #[arg(short = 'C', long)]
    chroot: bool,
    /// The root of the mount in which parents are looked up; without it, every mount of the file
    /// system
    #[arg(short = 'm', value_name = "ROOT", value_hint = clap::ValueHint::DirPath)]
    root_mount: Option<PathBuf>,
    /// Decompress encoded writes, even if the file system could store them compressed
    #[arg(long)]
    force_decompress: bool,
    /// Go on with subvolumes that an earlier run left incomplete, and pass over complete ones. The
    /// input is the same stream from its start, or its rest, which papilio send --resume writes
    #[arg(long)]
    resume: bool,
    /// Print the commands of the stream, and change nothing
    #[arg(long, conflicts_with = "directory")]
    dump: bool,
}

impl Args {
    /// Receives the stream.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let mut input: Box<dyn Read> = match &self.file {
            Some(path) => {
                let file = File::open(path).with_context(|| format!("{}: cannot open", path.display()))?;
                Box::new(BufReader::with_capacity(1 << 20, file))
            }
            None => Box::new(BufReader::with_capacity(1 << 20, std::io::stdin().lock())),
        };
        if self.dump {
            let mut output = Output::new()?;
            dump::dump(&mut *input, &mut output, self.stop_at_end)?;
            return Ok(output.finish()?);
        }
        let argument = self.directory.as_ref().expect("clap requires it");
        let receive = Receive::new()
            .stop_at_end(self.stop_at_end)
            .max_errors(self.max_errors)
            .force_decompress(self.force_decompress)
            .resume(self.resume);
        let mut received = Vec::new();
        let mut progress = ReceiveProgress::new(context);
        if let Operand::Host(path) = Operand::parse(argument)
            && path.is_dir()
        {
            #[cfg(target_os = "linux")]
            {
                if context.arguments().drop_in {
                    must_be_btrfs(&path)?;
                }
                let mut target = HostDirectory::open_with(&path, self.root_mount.as_deref(), self.chroot)?;
                let result = receive.receive_into(&mut target, &mut input, &mut received, &mut progress);
                progress.finish();
                let place = |name: &[u8]| path.join(OsStr::from_bytes(name)).into_os_string().into_vec();
                report(context, &path.display(), &place, result, &received);
                return Ok(());
            }
            // Only Linux confines a path of the stream to a directory (openat2).
            #[cfg(not(target_os = "linux"))]
            anyhow::bail!("{}: can receive into an image here, but not into a directory", path.display());
        }
        let path = parse_image_path(argument)?;
        let fs = context.change(&path.image)?;
        let result = receive.receive(&fs, &path.path, &mut input, &mut received, &mut progress);
        progress.finish();
        report(context, &path, &|name| path.join(name).to_bytes(), result, &received);
        Ok(())
    }
}

/// Refuses a directory on another file system than Btrfs. A script that calls `btrfs receive` may
/// name a mount point whose file system is not mounted.
#[cfg(target_os = "linux")]
fn must_be_btrfs(directory: &Path) -> anyhow::Result<()> {
    let shown = directory.display();
    let mount = MountEntry::of(directory).with_context(|| shown.to_string())?;
    match mount {
        Some(mount) if mount.fstype != "btrfs" && !mount.is_papilio() => bail!(
            "{shown}: not on a Btrfs file system but on {}; papilio receive makes plain directories there",
            mount.fstype
        ),
        _ => Ok(()),
    }
}

/// Reports the error of a run, and the subvolumes that it left incomplete.
fn report(
    context: &Context,
    directory: &dyn Display,
    place: &dyn Fn(&[u8]) -> Vec<u8>,
    result: papilio::Result<()>,
    received: &[ReceivedSubvolume],
) {
    let incomplete: Vec<String> = received
        .iter()
        .filter(|subvolume| !subvolume.complete)
        .map(|subvolume| {
            let name = escaped(&place(&subvolume.name)).into_owned();
            let advice = match subvolume.resumable {
                true => "; with the same stream, --resume completes it",
                false => "",
            };
            let token = match subvolume.token {
                Some(token) => format!(", or with what papilio send --resume {token} sends"),
                None => String::new(),
            };
            format!(
                "{} is incomplete: it is writable and has no received UUID{advice}{token}",
                String::from_utf8_lossy(&name)
            )
        })
        .collect();
    match result {
        Ok(()) => incomplete.iter().for_each(|line| context.error(line)),
        Err(error) if incomplete.is_empty() => context.error(format_args!("{directory}: {error}")),
        Err(error) => context.error(format_args!("{directory}: {error}; {}", incomplete.join("; "))),
    }
}

/// The messages and the bar on standard error.
struct ReceiveProgress<'a> {
    context: &'a Context,
    bar: Option<ProgressBar>,
}

impl<'a> ReceiveProgress<'a> {
    fn new(context: &'a Context) -> Self {
        let shown = context.verbosity >= 0 && std::io::stderr().is_terminal();
        let bar = shown.then(|| {
            let bar = ProgressBar::new_spinner();
            let form = "{elapsed_precise} {bytes} {bytes_per_sec}";
            if let Ok(style) = ProgressStyle::with_template(form) {
                bar.set_style(style);
            }
            bar
        });
        context.set_progress(bar.clone());
        Self { context, bar }
    }

    fn finish(&self) {
        self.context.set_progress(None);
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl ReceiveObserver for ReceiveProgress<'_> {
    fn begins(&mut self, name: &[u8], snapshot: bool) {
        if self.context.verbosity >= 0 {
            let name = String::from_utf8_lossy(&escaped(name)).into_owned();
            if snapshot && self.context.arguments().drop_in {
                // Scripts read it on standard output.
                if let Err(error) = self.context.announce(format_args!("At snapshot {name}")) {
                    self.context.failure(&error);
                }
                return;
            }
            self.context.note(format_args!("At {} {name}", if snapshot { "snapshot" } else { "subvol" }));
        }
    }

    fn progress(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
    }

    fn failed(&mut self, error: &Error) {
        self.context.error(error);
    }
}
