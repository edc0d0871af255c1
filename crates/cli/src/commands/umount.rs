//! `papilio umount`: unmounts, and waits until the server has closed the image.
//!
//! The kernel's umount returns when the mount is gone, but only then the server writes and closes
//! the image. A program that opened the image next would race with it. The command therefore opens
//! a handle of the server's process before it unmounts, and waits for that process to end. Without
//! such a handle it waits for the server's lock on the image.

use crate::context::Context;
use anyhow::{Context as _, bail};
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::mount_table::MountEntry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Unmount a file system, and wait until its image is closed
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The mount points or images
    #[arg(value_name = "DIR", required = true, value_hint = clap::ValueHint::DirPath)]
    directories: Vec<PathBuf>,
    /// Detach a mount that is in use
    ///
    /// The command returns at once. The server exits when nothing uses the mount any more.
    #[arg(short, long)]
    lazy: bool,
    /// Abort requests that the server does not answer
    #[arg(long)]
    force: bool,
}

/// The interval between attempts to lock the image.
const PAUSE: Duration = Duration::from_millis(10);
/// The time after which a warning says that the command is waiting.
const TIMEOUT: Duration = Duration::from_secs(5);

impl Args {
    /// Unmounts the operands.
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
        // A dead server has no process to wait for.
        if let Ok(path) = MountedPath::open(point) {
            process = path.server_process().unwrap_or_default();
            // The server can report an error to this command now, but not after the unmount.
            if let Err(error) = path.sync()
                && !self.force
            {
                context.error(format_args!("{}: cannot write the last changes: {error}", point.display()));
            }
        }
        unmount(point, self.lazy, self.force)?;
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

/// Returns the mount that an argument names, by its mount point or by its image.
fn find(argument: &Path) -> anyhow::Result<MountEntry> {
    // Resolves only the parent, since the mount itself may be dead.
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
            bail!("{}: mounted as {}, not by Papilio; use umount(8)", argument.display(), mount.fstype);
        }
        return Ok(mount.clone());
    }
    let of_image = mounts.iter().rev().find(|mount| mount.is_papilio() && mount.source == linked());
    of_image.cloned().with_context(|| format!("{}: not mounted", argument.display()))
}

/// Unmounts with the system call or, without the privilege for that, with FUSE's helper.
fn unmount(point: &Path, lazy: bool, force: bool) -> anyhow::Result<()> {
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
        Err(Errno::BUSY) => bail!("{shown}: in use; close the open files there, or use --lazy"),
        Err(error) => Err(error).with_context(|| shown.to_string()),
    }
}

/// Returns whether the file system has another mount point, so that its server continues.
fn is_elsewhere(mount: &MountEntry) -> bool {
    MountEntry::all().is_ok_and(|all| all.iter().any(|other| other.device == mount.device))
}

/// Returns whether the kernel still has the connection to the server. Then there is another mount
/// in a different namespace.
fn is_alive(mount: &MountEntry) -> bool {
    let Some((_, minor)) = mount.device.split_once(':') else { return false };
    Path::new("/sys/fs/fuse/connections").join(minor).exists() || holder_of(mount).is_some()
}

/// Returns the first process whose table of mounts has the mount: the folder of connections need
/// not be mounted.
fn holder_of(mount: &MountEntry) -> Option<u32> {
    let device = format!(" {} ", mount.device);
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let holders = processes.filter_map(|entry| {
        let process = entry.file_name().to_str()?.parse().ok()?;
        let table = std::fs::read_to_string(entry.path().join("mountinfo")).ok()?;
        table.lines().any(|line| line.contains(&device)).then_some(process)
    });
    holders.min()
}

fn wait_for_process(context: &Context, mount: &MountEntry, process: &OwnedFd) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut warned = false;
    loop {
        let mut ends = [PollFd::new(process, PollFlags::IN)];
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        match poll(&mut ends, Some(&second)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error).context("cannot wait for the server"),
        }
        if !keep_waiting(context, mount, start, &mut warned) {
            return Ok(());
        }
    }
}

/// Waits until the lock on the image is released.
fn wait_for_lock(context: &Context, mount: &MountEntry) -> anyhow::Result<()> {
    let Ok(image) = File::open(&mount.source) else { return Ok(()) };
    let start = Instant::now();
    let mut warned = false;
    loop {
        match rustix::fs::flock(&image, rustix::fs::FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
            Err(Errno::INTR) => {}
            // The lock is free, or the file does not support locks.
            _ => return Ok(()),
        }
        if !keep_waiting(context, mount, start, &mut warned) {
            return Ok(());
        }
    }
}

/// Returns whether to keep waiting. Warns once if the wait is long.
fn keep_waiting(context: &Context, mount: &MountEntry, start: Instant, warned: &mut bool) -> bool {
    if start.elapsed() < TIMEOUT {
        return true;
    }
    let source = mount.source.display();
    if is_alive(mount) {
        let holder = match holder_of(mount) {
            Some(process) => format!(
                ", of process {process}; its server continues until that ends, or until this unmounts it: \
                 nsenter -t {process} -m umount {}",
                mount.point.display()
            ),
            None => "; its server continues".to_owned(),
        };
        context.warning(format_args!("{source}: still mounted in another namespace{holder}"));
        return false;
    }
    if !*warned {
        context.warning(format_args!("{source}: waiting for the server to write and close the image"));
        *warned = true;
    }
    true
}
