//! `papilio umount`: ending a mount, and waiting until its image is closed.
//!
//! The kernel's umount returns when the mount is gone; the server writes and closes only then. Whoever opens the
//! image next would race with it. So the server's process is held by a handle before, which tells when it has
//! ended; where that cannot be had, the server's lock on the image is waited for.

use crate::context::Context;
use anyhow::{Context as _, bail};
use papilio_fuse::ioctl::client::MountedPath;
use papilio_fuse::mount_table::MountEntry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Unmount, and wait until the server has written everything and closed the image
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directories that are mounted on, or the images
    #[arg(value_name = "DIR", required = true, value_hint = clap::ValueHint::DirPath)]
    directories: Vec<PathBuf>,
    /// Take it out of sight now, though it is in use; the server ends with the last user, which is not waited for
    #[arg(short, long)]
    lazy: bool,
    /// End requests that the server does not answer
    #[arg(long)]
    force: bool,
}

/// How often what has no handle is looked at.
const PAUSE: Duration = Duration::from_millis(10);
/// When a wait is told of.
const PATIENCE: Duration = Duration::from_secs(5);

impl Args {
    /// Unmounts.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        for directory in &self.directories {
            if let Err(error) = self.unmount(context, directory) {
                context.failure(&error);
            }
        }
        Ok(())
    }

    fn unmount(&self, context: &Context, directory: &Path) -> anyhow::Result<()> {
        let mount = find(directory)?;
        let point = &mount.point;
        let mut process = None;
        // Of a server that is gone nothing is to be had.
        if let Ok(path) = MountedPath::open(point) {
            process = path.server_process().unwrap_or_default();
            // Said here, as nobody hears it later.
            if let Err(error) = path.sync()
                && !self.force
            {
                context.error(format_args!("{}: the last changes: {error}", point.display()));
            }
        }
        end(point, self.lazy, self.force)?;
        if context.verbosity > 0 {
            context.note(format_args!("{}: unmounted", point.display()));
        }
        if self.lazy || is_elsewhere(&mount) {
            return Ok(());
        }
        match process {
            Some(process) => wait_for_process(context, &mount, &process),
            None => wait_for_lock(context, &mount),
        }
    }
}

/// The mount that an argument names: by its directory, or by what is mounted there.
fn find(argument: &Path) -> anyhow::Result<MountEntry> {
    // Not through the mount itself, which may be dead.
    let parent = argument.parent().filter(|parent| !parent.as_os_str().is_empty());
    let resolved = match (parent.unwrap_or(Path::new(".")).canonicalize(), argument.file_name()) {
        (Ok(parent), Some(name)) => parent.join(name),
        _ => argument.canonicalize().unwrap_or_else(|_| argument.to_path_buf()),
    };
    let linked = || argument.canonicalize().unwrap_or_else(|_| resolved.clone());
    let mounts = MountEntry::all().context("/proc/self/mountinfo")?;
    let on = |path: &Path| mounts.iter().rev().find(|mount| mount.point == path);
    if let Some(mount) = on(&resolved).or_else(|| on(&linked())) {
        if !mount.is_papilio() {
            bail!("{}: a mount of {}, not of Papilio: use umount(8)", argument.display(), mount.fstype);
        }
        return Ok(mount.clone());
    }
    let of_image = mounts.iter().rev().find(|mount| mount.is_papilio() && mount.source == linked());
    of_image.cloned().with_context(|| format!("{}: not mounted", argument.display()))
}

/// Unmounts by the system call, or where only root may, by the helper that FUSE brings along.
fn end(point: &Path, lazy: bool, force: bool) -> anyhow::Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazy);
    flags.set(UnmountFlags::FORCE, force);
    let shown = point.display();
    match rustix::mount::unmount(point, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => {
            let arguments: &[&str] = if lazy { &["-u", "-z", "--"] } else { &["-u", "--"] };
            let helper = Command::new("fusermount3").args(arguments).arg(point).output();
            let helper = helper.with_context(|| format!("{shown}: unmounting needs root or fusermount3"))?;
            if !helper.status.success() {
                let message = String::from_utf8_lossy(&helper.stderr);
                let line = message.lines().next().unwrap_or("fusermount3 refused").trim();
                bail!("{shown}: {}", line.strip_prefix("fusermount3: ").unwrap_or(line));
            }
            Ok(())
        }
        Err(Errno::BUSY) => bail!("{shown}: it is in use; close what is open there, or use --lazy"),
        Err(error) => Err(error).with_context(|| shown.to_string()),
    }
}

/// Whether the file system is still mounted somewhere else, so that its server goes on.
fn is_elsewhere(mount: &MountEntry) -> bool {
    MountEntry::all().is_ok_and(|all| all.iter().any(|other| other.device == mount.device))
}

/// Whether the kernel still has the connection to the server although the mount is gone from here: in another
/// namespace there is one more.
fn is_alive(mount: &MountEntry) -> bool {
    let Some((_, minor)) = mount.device.split_once(':') else { return false };
    Path::new("/sys/fs/fuse/connections").join(minor).exists()
}

fn wait_for_process(context: &Context, mount: &MountEntry, process: &OwnedFd) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut told = false;
    loop {
        let mut ends = [PollFd::new(process, PollFlags::IN)];
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        match poll(&mut ends, Some(&second)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error).context("waiting for the server"),
        }
        if !tell(context, mount, begun, &mut told) {
            return Ok(());
        }
    }
}

/// Waits until whoever has the image lets others look at it.
fn wait_for_lock(context: &Context, mount: &MountEntry) -> anyhow::Result<()> {
    let Ok(image) = File::open(&mount.source) else { return Ok(()) };
    let begun = Instant::now();
    let mut told = false;
    loop {
        match rustix::fs::flock(&image, rustix::fs::FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
            Err(Errno::INTR) => {}
            // It is free, or of a kind that has no locks.
            _ => return Ok(()),
        }
        if !tell(context, mount, begun, &mut told) {
            return Ok(());
        }
    }
}

/// Says once that it takes long; whether it makes sense to wait on.
fn tell(context: &Context, mount: &MountEntry, begun: Instant, told: &mut bool) -> bool {
    if begun.elapsed() < PATIENCE {
        return true;
    }
    let source = mount.source.display();
    if is_alive(mount) {
        context.warning(format_args!("{source}: still mounted in another namespace; its server goes on"));
        return false;
    }
    if !*told {
        context.warning(format_args!("{source}: waiting for the server to write and close it"));
        *told = true;
    }
    true
}
