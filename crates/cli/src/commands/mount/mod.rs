//! `papilio mount`: mounting through FUSE.
//!
//! Owns the command's two halves. The one that was called starts the server as another process, whose errors go
//! to the terminal, and returns when the server says that the mount can be used; the server ([`serve`]) is this
//! program once more. With `--foreground` there is only the server. Nothing is forked, so that no thread and no
//! lock is lost on the way.

mod serve;

use crate::args::GlobalArgs;
use crate::context::Context;
use anyhow::Context as _;
use papilio_fuse::MountOptions;
use serve::{READY, Server};
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The options of `-o`, for the help and the manual page.
const MOUNT_OPTIONS: &str = "\
Mount options, named as in btrfs(5) where Btrfs has them:
  ro, rw                    Whether anything may change (rw)
  subvol=PATH, subvolid=ID  The subvolume to show
  degraded                  Mount although devices are missing
  device=PATH               A further device of the file system
  compress[=ALGORITHM[:LEVEL]], compress-force
                            Compress with zlib (default), lzo, zstd or no
  nodatacow, nodatasum      Overwrite new files in place; write no checksums
  commit=SECONDS            The longest time from a change to its commit (30)
  discard, nodiscard        Whether commits discard freed space (nodiscard)
  max_inline=BYTES          The largest file to store in a tree (2048)
  treelog, notreelog        Whether fsync may log instead of commit (treelog)
  rescue=usebackuproot      Fall back to older tree roots
  rescue=ignoredatacsums    Ignore wrong checksums of data; needs ro
  rescue=nologreplay        Do not replay the log; needs ro
  rescue=all                All of these; needs ro
  user_subvol_rm_allowed    Users may delete subvolumes that they may write
  noatime, relatime, strictatime, nodiratime
                            When access times change (relatime)
  nodev, nosuid, noexec, sync, dirsync
                            As in mount(8)
  allow_other               Other users may use the mount
  fsname=NAME               The source that the table of mounts shows
  cache=BYTES               The size of the server's own page cache (0)
  threads=N                 The most threads that serve
  transport=classic|ring|auto
                            How requests arrive: from /dev/fuse or io_uring
  nowriteback_cache         The kernel passes on each write immediately";

/// Mount a file system through FUSE
///
/// The command returns when the mount can be used, and a server goes on in the background until it is unmounted
/// (papilio umount DIR). Without subvol= and subvolid= the default subvolume is shown. A file system of several
/// devices wants one --device for each further one. With the helpers that make install puts in place,
/// mount -t fuse.papilio IMAGE DIR -o OPTIONS does the same, and fstab knows it too.
#[derive(Debug, clap::Args)]
#[command(after_help = MOUNT_OPTIONS)]
pub struct Args {
    /// The image or device
    #[arg(value_name = "IMAGE", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Where
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    directory: PathBuf,
    /// Mount options, separated by commas
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// Read-only: the same as -o ro
    #[arg(short = 'r', long = "read-only")]
    read_only: bool,
    /// Serve in the foreground, until it is unmounted or a signal asks for the end
    #[arg(short = 'f', long)]
    foreground: bool,
    /// The server's warnings go to this file, behind what is there; without it the background's go nowhere
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    log: Option<PathBuf>,
    /// Options that are not known are passed over (mount -s)
    #[arg(long, hide = true)]
    sloppy: bool,
    /// Everything but the mount itself (mount -f)
    #[arg(long, hide = true)]
    fake: bool,
    /// Tells standard output when the mount can be used, and leaves the terminal
    #[arg(long, hide = true, conflicts_with = "foreground")]
    serve: bool,
}

impl Args {
    /// Mounts.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let options = self.mount_options(context.arguments())?;
        check_mount_point(&self.directory)?;
        if self.fake {
            return Ok(());
        }
        if self.foreground || self.serve {
            let (image, directory, log) = (&self.image, &self.directory, self.log.as_deref());
            return Server { image, directory, log, background: self.serve }.run(context, options);
        }
        self.start_server(context)
    }

    /// The options as a whole: the command's own first, so that those of `-o` win.
    fn mount_options(&self, global: &GlobalArgs) -> anyhow::Result<MountOptions> {
        let mut texts = Vec::new();
        if self.read_only {
            texts.push("ro".to_owned());
        }
        if let Some(id) = global.subvolid {
            texts.push(format!("subvolid={id}"));
        }
        if global.degraded {
            texts.push("degraded".to_owned());
        }
        if global.backup_root {
            texts.push("usebackuproot".to_owned());
        }
        let given = self.options.join(",");
        match self.sloppy {
            false => texts.push(given),
            // Each alone: what is not known by itself is left out.
            true => {
                texts.extend(given.split(',').filter(|one| known(one)).map(str::to_owned));
            }
        }
        let mut options = MountOptions::parse(&texts.join(",")).map_err(anyhow::Error::msg)?;
        // These are bytes, which need be no text.
        for device in &global.device {
            // The server leaves the directory that it was called in.
            options.open =
                options.open.device(std::path::absolute(device).unwrap_or_else(|_| device.clone()));
        }
        if let Some(copy) = global.superblock {
            options.open = options.open.superblock_mirror(usize::from(copy));
        }
        if let Some(path) = &global.subvol {
            use std::os::unix::ffi::OsStrExt;
            let path = papilio::SubvolumeChoice::Path(path.as_bytes().to_vec());
            options.open = options.open.subvolume(path);
        }
        Ok(options)
    }

    /// Starts this program again as the server, and waits for its word.
    fn start_server(&self, context: &Context) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("finding this program to start the server")?;
        let mut command = Command::new(program);
        command.arg("mount").arg("--serve").args(self.server_arguments(context.arguments()));
        let mut server =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("starting the server")?;
        let mut word = Vec::new();
        // Up to the end where it ends before, and else to its one byte.
        let mut output = server.stdout.take().context("the server's output")?;
        let heard = output.by_ref().take(1).read_to_end(&mut word);
        if heard.is_ok() && word == [READY] {
            return Ok(());
        }
        let status = server.wait().context("waiting for the server")?;
        match status.code() {
            // It has said why.
            Some(1 | 2) => context.fail_silently(),
            _ => anyhow::bail!(
                "{}: the server ended before the mount was there: {status}",
                self.image.display()
            ),
        }
        Ok(())
    }

    fn server_arguments(&self, global: &GlobalArgs) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        for device in &global.device {
            arguments.extend(["--device".into(), device.into()]);
        }
        if let Some(path) = &global.subvol {
            arguments.extend(["--subvol".into(), path.clone()]);
        }
        if let Some(id) = global.subvolid {
            arguments.extend(["--subvolid".into(), id.to_string().into()]);
        }
        if let Some(copy) = global.superblock {
            arguments.extend(["--superblock".into(), copy.to_string().into()]);
        }
        let switches = [
            (global.degraded, "--degraded"),
            (global.backup_root, "--backup-root"),
            (self.read_only, "--read-only"),
            (self.sloppy, "--sloppy"),
        ];
        arguments.extend(switches.iter().filter(|(given, _)| *given).map(|(_, name)| name.into()));
        arguments.extend((0..global.verbose).map(|_| "-v".into()));
        arguments.extend((0..global.quiet).map(|_| "-q".into()));
        for options in &self.options {
            arguments.extend(["-o".into(), options.into()]);
        }
        if let Some(log) = &self.log {
            arguments.extend(["--log".into(), log.into()]);
        }
        arguments.extend(["--".into(), self.image.clone().into(), self.directory.clone().into()]);
        arguments
    }
}

fn known(option: &str) -> bool {
    match MountOptions::parse(option) {
        Ok(_) => true,
        Err(error) => !error.is_unknown(),
    }
}

/// Refuses a mount point before anything is opened: one that is not there, is none, or has a mount of ours.
fn check_mount_point(directory: &Path) -> anyhow::Result<()> {
    let shown = directory.display();
    let metadata = match std::fs::metadata(directory) {
        Ok(metadata) => metadata,
        // The mount itself says it better.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()) => {
            anyhow::bail!("{shown}: busy: a mount whose server is gone; end it with: papilio umount {shown}");
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            anyhow::bail!("{shown}: no such directory to mount on");
        }
        Err(error) => return Err(error).with_context(|| shown.to_string()),
    };
    if !metadata.is_dir() {
        anyhow::bail!("{shown}: not a directory, nothing can be mounted on it");
    }
    let point = directory.canonicalize().with_context(|| shown.to_string())?;
    if let Ok(Some(mount)) = papilio_fuse::mount_table::MountEntry::of_papilio_on(&point) {
        anyhow::bail!("{shown}: busy: {} is mounted on it", mount.source.display());
    }
    Ok(())
}
