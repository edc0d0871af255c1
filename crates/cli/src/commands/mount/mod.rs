//! `papilio mount`: mounts a file system through FUSE.
//!
//! The command starts this program again as the server ([`serve`]), and returns when the server
//! reports that the mount is usable. Until then the server prints its errors on the terminal. With
//! `--foreground` the command is the server. A fork without exec would lose threads and locks.

mod access;
mod join;
mod remount;
mod serve;
mod tag;

use crate::args::GlobalArgs;
use crate::context::Context;
use anyhow::Context as _;
use papilio::device::{
    Access, DeviceOptions, ImageOptions, OpenError, PartitionChoice, RemoteCache, is_url, split_partition,
};
use papilio_fuse::MountOptions;
use papilio_layers::KeySource;
use remount::Remount;
use serve::{READY, Server};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The options of `-o`, for the help and the manual page.
const MOUNT_OPTIONS: &str = "\
Mount options, named as in btrfs(5) where Btrfs has them:
  ro, rw                    Mount read-only or writable (rw)
  subvol=PATH, subvolid=ID  The subvolume to show
  degraded                  Mount although devices are missing
  device=PATH               A further device of the file system
  ignore_signatures         Write to a device that has the signature of something else
  compress[=ALGORITHM[:LEVEL]], compress-force
                            Compress with zlib (default), lzo, zstd or no
  nodatacow, nodatasum      Overwrite data of new files in place; write no checksums
  commit=SECONDS            The longest time from a change to its commit (30)
  discard=async, discard=sync, nodiscard
                            When to discard freed space on the device (async)
  max_inline=BYTES          The largest file to store in a tree (2048)
  treelog, notreelog        Let fsync write the log tree, or always commit (treelog)
  rescue=usebackuproot      Fall back to older tree roots
  rescue=ignoredatacsums    Ignore wrong checksums of data; needs ro
  rescue=ignoremetacsums    Ignore wrong checksums of tree blocks; needs ro
  rescue=ignorebadroots     Do without trees whose roots are bad; needs ro
  rescue=nologreplay        Do not replay the log; needs ro
  rescue=all                All rescue options except nologreplay; needs ro
  follow=SECONDS            Show what the writer of a device in a store has flushed, at
                            most so much later; needs ro
  replay_bytes=BYTES        Maximum memory for replaying the log with ro (256m)
  user_subvol_rm_allowed    Users may delete subvolumes that they may write
  noatime, relatime, strictatime, nodiratime
                            When to update access times (relatime)
  nodev, nosuid, noexec, sync, dirsync
                            As in mount(8)
  allow_other               Other users may use the mount, as permissions allow
                            (a mount by root has it, unless allow_root is given)
  allow_root                Only root may use the mount beside its owner
  uid=ID, gid=ID            Show one owner, one group for all files
  umask=MASK, fmask=MASK, dmask=MASK
                            Clear these permission bits (octal)
  idmap=[u:|g:]IMAGE:MOUNT:COUNT
                            Map ids of the image to ids of the mount; may be repeated
  remount                   Change a running mount to ro or rw
  fsname=NAME               The source to show in the mount table
  cache=BYTES               The size of the server's own page cache (0)
  device_io=auto|direct|cached
                            Let the server choose (auto), bypass the host's page cache, or
                            use it
  device_timeout=SECONDS    Fail requests that a device does not answer in time
  threads=N                 Maximum number of server threads
  transport=classic|ring|auto
                            Receive requests through /dev/fuse or io_uring
  writeback_cache, nowriteback_cache
                            Let the kernel cache writes, or pass each one on at once
                            (cached, unless free space is short; never with ro)
  opens=server|kernel       Let the server answer opens, or the kernel open files by
                            itself (server; kernel with ro)";

/// Mount a file system through FUSE
///
/// The command returns when the mount is usable. A server runs in the background until the file
/// system is unmounted with papilio umount DIR. Without subvol= and subvolid= the mount shows the
/// default subvolume. Further devices are found among the block devices; image files need --device.
/// If the file system is mounted already, root gets a further mount of the same server.
/// With the helpers that make install installs, mount -t fuse.papilio IMAGE DIR -o OPTIONS does the
/// same, also from fstab(5).
#[derive(Debug, clap::Args)]
#[command(after_help = MOUNT_OPTIONS)]
pub struct Args {
    /// The image or device, or UUID=... or LABEL=... of a file system on block devices
    #[arg(value_name = "IMAGE", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// The mount point
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    directory: PathBuf,
    /// Mount options, separated by commas
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// Mount read-only, like -o ro
    #[arg(short = 'r', long = "read-only")]
    read_only: bool,
    /// Serve in the foreground, until the file system is unmounted or a signal arrives
    #[arg(short = 'f', long)]
    foreground: bool,
    /// Append the server's warnings to this file; without it, a server in the background discards
    /// them
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    log: Option<PathBuf>,
    /// Ignore unknown mount options (mount -s)
    #[arg(long, hide = true)]
    sloppy: bool,
    /// Do everything except the mount itself (mount -f)
    #[arg(long, hide = true)]
    fake: bool,
    /// Serve in the background, and report on standard output when the mount is usable
    #[arg(long, hide = true, conflicts_with = "foreground")]
    serve: bool,
}

/// Returns whether the superblock says that the device is a seed, which nobody changes.
fn is_seed(image: &Path) -> bool {
    let seeding = papilio::format::features::SuperblockFlags::SEEDING;
    let copy = papilio::SuperblockCopy::read(image, 0);
    matches!(copy, Ok(Some(copy)) if copy.has_magic() && copy.raw.flags.contains(seeding))
}

impl Args {
    /// Mounts the file system.
    pub fn run(mut self, context: &Context) -> anyhow::Result<()> {
        if let Some(remount) = Remount::of(&self.given_options()) {
            return if self.fake { Ok(()) } else { remount.run(&self.directory) };
        }
        let global = context.arguments();
        if global.chooses_roots() {
            let text = "mount: roots are chosen and devices scanned by commands that read only; a mount \
                        has the option rescue=";
            return Err(crate::UsageError::new(text).into());
        }
        let options = self.mount_options(global)?;
        let resolved = tag::resolve(&self.image);
        let resolved = resolved.and_then(|image| with_partition(image, &global.image_options()));
        if !self.serve
            && let Ok(image) = &resolved
            && join::is_mounted(image, &self.directory, &options)
        {
            return Ok(());
        }
        check_mount_point(&self.directory)?;
        if self.fake {
            return Ok(());
        }
        self.image = resolved?;
        let options = match !options.read_only && is_seed(&self.image) {
            true => {
                let image = self.image.display();
                context.warning(format_args!("{image}: a seed file system: it is mounted read-only"));
                self.options.push("ro".to_owned());
                self.mount_options(global)?
            }
            false => options,
        };
        if self.foreground || self.serve {
            let (image, directory, log) = (&self.image, &self.directory, self.log.as_deref());
            return Server { image, directory, log, background: self.serve }.run(context, options);
        }
        // A mount that follows a writer has a state of its own, also beside the writer's.
        if options.follow.is_none() && join::join(&self.image, &self.directory, &options)? {
            return Ok(());
        }
        self.start_server(context)
    }

    /// Returns the options of `-o` and `-r` in the order in which they apply.
    fn given_options(&self) -> String {
        let read_only = self.read_only.then_some("ro");
        read_only.into_iter().chain(self.options.iter().map(String::as_str)).collect::<Vec<_>>().join(",")
    }

    /// Returns all mount options. Those of the command come first, so that those of `-o` win.
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
        if global.ignores_signatures() {
            texts.push("ignore_signatures".to_owned());
        }
        if let Some(bytes) = global.replay_bytes {
            texts.push(format!("replay_bytes={bytes}"));
        }
        if global.backup_root == Some(None) {
            texts.push("usebackuproot".to_owned());
        }
        let given = self.options.join(",");
        match self.sloppy {
            false => texts.push(given),
            // Parses each option alone and omits unknown ones.
            true => {
                texts.extend(given.split(',').filter(|one| known(one)).map(str::to_owned));
            }
        }
        let mut options = MountOptions::parse(&texts.join(",")).map_err(anyhow::Error::msg)?;
        // As on every file system that root mounts; permissions hold.
        options.allow_other |= rustix::process::geteuid().is_root() && !options.allow_root;
        // Paths are bytes and need not be UTF-8.
        for device in &global.device {
            // The server leaves its working directory.
            let path = match is_url(device) {
                true => device.clone(),
                false => std::path::absolute(device).unwrap_or_else(|_| device.clone()),
            };
            options.open = options.open.device(&path);
            options.devices.push(path);
        }
        if global.partition == Some(PartitionChoice::Whole) {
            options.open = options.open.partition(PartitionChoice::Whole);
        }
        options.open = options.open.allow_backing(global.allow_backing).remote(global.remote_options());
        if let Some(copy) = global.superblock {
            options.open = options.open.superblock_mirror(usize::from(copy));
        }
        if let Some(path) = &global.subvol {
            use std::os::unix::ffi::OsStrExt;
            let path = papilio::SubvolumeChoice::Path(path.as_bytes().to_vec());
            options.open = options.open.subvolume(path.clone());
            options.subvolume = path;
        }
        Ok(options)
    }

    /// Starts this program again as the server, and waits until the mount is usable.
    fn start_server(&self, context: &Context) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("cannot start the server: finding this program")?;
        let mut command = Command::new(program);
        command.arg("mount").arg("--serve");
        // A passphrase that was asked for is not asked for again. It passes through a pipe.
        let secret = papilio_layers::known_secret();
        let global = context.arguments();
        let input = match (&secret, global.layer_options().key) {
            (Some(_), _) => {
                command.args(["--key-file", "-"]);
                Stdio::piped()
            }
            (None, KeySource::File(path)) if path.as_os_str() != "-" => {
                command.arg("--key-file").arg(path);
                Stdio::null()
            }
            (None, KeySource::File(_)) => {
                command.args(["--key-file", "-"]);
                Stdio::inherit()
            }
            (None, KeySource::Command(key)) => {
                command.arg("--key-command").arg(key);
                Stdio::null()
            }
            (None, _) => Stdio::null(),
        };
        command.args(self.server_arguments(global));
        let mut server =
            command.stdin(input).stdout(Stdio::piped()).spawn().context("cannot start the server")?;
        if let (Some(secret), Some(mut input)) = (secret, server.stdin.take()) {
            // A server that does not read it reports its own error.
            let _ = input.write_all(&secret);
        }
        let mut byte = Vec::new();
        // Returns at the first byte, or when the server exits.
        let mut output = server.stdout.take().context("the server has no output")?;
        let read = output.by_ref().take(1).read_to_end(&mut byte);
        if read.is_ok() && byte == [READY] {
            return Ok(());
        }
        let status = server.wait().context("cannot wait for the server")?;
        match status.code() {
            // The server has printed its error.
            Some(1 | 2) => context.fail_silently(),
            _ => anyhow::bail!(
                "{}: the server exited before the mount was usable: {status}",
                self.image.display()
            ),
        }
        Ok(())
    }

    fn server_arguments(&self, global: &GlobalArgs) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        if let Some(mode) = global.sandbox {
            arguments.extend(["--sandbox".into(), mode.name().into()]);
        }
        for device in &global.device {
            arguments.extend(["--device".into(), device.into()]);
        }
        let layers = global.layer_options();
        for member in layers.members {
            arguments.extend(["--member".into(), member.into()]);
        }
        if let Some(slot) = layers.key_slot {
            arguments.extend(["--key-slot".into(), slot.to_string().into()]);
        }
        if let Some(header) = layers.header {
            arguments.extend(["--luks-header".into(), header.into()]);
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
        match &global.remote_cache {
            None | Some(RemoteCache::User) => {}
            Some(RemoteCache::Memory) => arguments.push("--remote-cache=none".into()),
            Some(RemoteCache::Directory(path)) => {
                arguments.extend(["--remote-cache".into(), path.clone().into()]);
            }
        }
        if let Some(bytes) = global.remote_cache_size {
            arguments.extend(["--remote-cache-size".into(), bytes.to_string().into()]);
        }
        if let Some(bytes) = global.replay_bytes {
            arguments.extend(["--replay-bytes".into(), bytes.to_string().into()]);
        }
        let switches = [
            (global.partition == Some(PartitionChoice::Whole), "--partition=none"),
            (global.allow_backing, "--allow-backing"),
            (global.degraded, "--degraded"),
            (global.ignore_signatures, "--ignore-signatures"),
            (global.backup_root == Some(None), "--backup-root"),
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

/// Returns `IMAGE@N` for the partition that the options choose, so that the table of mounts tells
/// the mounts of one image apart.
fn with_partition(image: PathBuf, options: &ImageOptions) -> anyhow::Result<PathBuf> {
    let (file, given) = split_partition(&image);
    let number = match &options.partition {
        _ if given.is_some() => return Ok(image),
        PartitionChoice::Found | PartitionChoice::Whole => return Ok(image),
        PartitionChoice::Number(number) => *number,
        choice => {
            // Without the lock: the image may be mounted already.
            let disk = DeviceOptions::new(Access::ReadOnly).lock(false).open_disk(file, options)?;
            let found = disk.partition(choice).map_err(|kind| OpenError { path: file.to_owned(), kind })?;
            found.map_or(0, |partition| partition.number)
        }
    };
    let mut name = file.as_os_str().to_owned();
    name.push(format!("@{number}"));
    Ok(name.into())
}

fn known(option: &str) -> bool {
    match MountOptions::parse(option) {
        Ok(_) => true,
        Err(error) => !error.is_unknown(),
    }
}

/// Checks the mount point before anything is opened.
///
/// # Errors
/// It does not exist, is not a directory, or has a Papilio mount already.
fn check_mount_point(directory: &Path) -> anyhow::Result<()> {
    let shown = directory.display();
    let metadata = match std::fs::metadata(directory) {
        Ok(metadata) => metadata,
        // A stat of a dead mount fails with ENOTCONN.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()) => {
            anyhow::bail!(
                "{shown}: busy: a mount whose server has died; unmount it with: papilio umount {shown}"
            );
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            anyhow::bail!("{shown}: the mount point does not exist");
        }
        Err(error) => return Err(error).with_context(|| shown.to_string()),
    };
    if !metadata.is_dir() {
        anyhow::bail!("{shown}: the mount point is not a directory");
    }
    let point = directory.canonicalize().with_context(|| shown.to_string())?;
    if let Ok(Some(mount)) = papilio_ioctl::mount_table::MountEntry::of_papilio_on(&point) {
        anyhow::bail!("{shown}: busy: {} is mounted on it", mount.source.display());
    }
    Ok(())
}
