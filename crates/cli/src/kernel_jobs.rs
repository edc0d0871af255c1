//! Work that takes long on a mount of the kernel's Btrfs.
//!
//! The kernel's ioctls return at the end of the work, so a command waits, or leaves a copy of
//! itself behind that does. Others look at the progress, pause it or cancel it.
//!
//! **Invariant**: a new device is asked for its content before the kernel gets it, which asks
//! nothing.

use crate::context::Context;
use crate::mounted::Mounted;
use anyhow::{Context as _, bail};
use papilio::device::{Access, Device, FileDevice};
use papilio::format::{DeviceId, PhysicalAddress};
use papilio::{BalanceControl, BalanceOptions, BalanceReport, DevReplaceState, Error, ReplaceOptions};
use papilio::{ReplaceReport, find_signature};
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::job::JobKind;
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time between two attempts of work that waits for other work.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes at the start of a new device that are cleared.
const CLEARED: usize = 1 << 20;

fn errno_of(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}

/// Runs this command once more in the background, without the arguments `but`.
fn spawn(but: &[&str]) -> anyhow::Result<()> {
    let arguments = std::env::args_os().skip(1);
    let arguments: Vec<OsString> = arguments.filter(|given| !but.iter().any(|word| given == word)).collect();
    Command::new(std::env::current_exe()?)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    Ok(())
}

/// Runs work, with `enqueue` once no other work runs.
fn when_free<R>(enqueue: bool, work: impl Fn() -> io::Result<R>) -> io::Result<R> {
    loop {
        match work() {
            Err(error) if enqueue && errno_of(&error) == Some(Errno::INPROGRESS) => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
}

/// As [`when_free`], with a message for each error.
fn run<R>(
    mounted: &Mounted,
    kind: JobKind,
    enqueue: bool,
    work: impl Fn() -> io::Result<R>,
) -> anyhow::Result<R> {
    when_free(enqueue, work).map_err(|error| failed(mounted, kind, &error))
}

/// Returns the message for work that could not be started or stopped.
pub fn refused(mounted: &Mounted, kind: JobKind, error: &io::Error) -> anyhow::Error {
    let kind = kind.name();
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::INPROGRESS) => {
            anyhow::anyhow!("{mounted}: {kind} cannot start: another operation runs, or a balance is paused")
        }
        Some(Errno::NOTCONN) => anyhow::anyhow!("{mounted}: {kind} is not running"),
        _ => mounted.at(error),
    }
}

fn failed(mounted: &Mounted, kind: JobKind, error: &io::Error) -> anyhow::Error {
    match errno_of(error) {
        Some(Errno::CANCELED) => anyhow::anyhow!("{mounted}: {} was cancelled", kind.name()),
        Some(Errno::NOSPC) => {
            anyhow::anyhow!("{mounted}: {}: there is no room for what has to move", kind.name())
        }
        _ => refused(mounted, kind, error),
    }
}

/// Starts a balance, or resumes the stored one (`None`), and waits for its end; with `background`
/// another process waits. Returns nothing if it is not complete.
pub fn balance(
    context: &Context,
    mounted: &Mounted,
    options: Option<&BalanceOptions>,
    enqueue: bool,
    background: bool,
) -> anyhow::Result<Option<BalanceReport>> {
    let mount = mounted.open()?;
    let stored = || mount.balance_progress().map_err(|error| mounted.at(&error));
    if background {
        let known = stored()?;
        if options.is_some() && known.is_some() && !enqueue {
            let busy = Errno::INPROGRESS.into();
            return Err(refused(mounted, JobKind::Balance, &busy));
        }
        if options.is_none() && known.is_none() {
            return Err(refused(mounted, JobKind::Balance, &Errno::NOTCONN.into()));
        }
        return spawn(&["--background", "--bg"]).map(|()| None);
    }
    match when_free(enqueue, || mount.balance_by_kernel(options)) {
        Ok(report) => Ok(Some(report)),
        Err(error) if errno_of(&error) == Some(Errno::CANCELED) => {
            let end = if stored()?.is_some() { "paused" } else { "cancelled" };
            context.error(format_args!("{mounted}: a balance was {end}"));
            Ok(None)
        }
        Err(error) => Err(failed(mounted, JobKind::Balance, &error)),
    }
}

/// Pauses or cancels work, and waits until it has stopped.
pub fn stop(mounted: &Mounted, kind: JobKind, control: BalanceControl) -> anyhow::Result<()> {
    let mount = mounted.open()?;
    let stopped = match kind {
        JobKind::Balance => mount.stop_kernel_balance(control),
        JobKind::RemoveDevice => mount.cancel_kernel_removal(),
        JobKind::ReplaceDevice => mount.cancel_kernel_replace(),
        JobKind::Resize => mount.resize("cancel"),
        JobKind::Scrub => mount.cancel_kernel_scrub().map(drop),
    };
    stopped.map_err(|error| refused(mounted, kind, &error))
}

/// Returns the id of a device that is named by its id or its path.
fn device_id(mounted: &Mounted, mount: &MountedPath, name: &Path) -> anyhow::Result<DeviceId> {
    let devices = mount.device_paths().map_err(|error| mounted.at(&error))?;
    let whole = name.canonicalize().unwrap_or_else(|_| name.to_path_buf());
    let is_named = |(devid, path): &&(DeviceId, Option<Vec<u8>>)| {
        name.to_str() == Some(&*devid.to_string())
            || path.as_deref().is_some_and(|path| path == whole.as_os_str().as_bytes())
    };
    match devices.iter().find(is_named) {
        Some((devid, _)) => Ok(*devid),
        None => bail!("{}: is not a device of the file system", name.display()),
    }
}

/// Removes one device, and waits until all of it has moved. Returns its id; `None` for a missing
/// one.
pub fn remove(
    mounted: &Mounted,
    mount: &MountedPath,
    name: &Path,
    missing: bool,
    enqueue: bool,
) -> anyhow::Result<Option<DeviceId>> {
    if missing {
        run(mounted, JobKind::RemoveDevice, enqueue, || mount.remove_missing_by_kernel())?;
        return Ok(None);
    }
    let devid = device_id(mounted, mount, name)?;
    run(mounted, JobKind::RemoveDevice, enqueue, || mount.remove_device_and_wait(devid))?;
    Ok(Some(devid))
}

/// Checks that a new device is a block device of at least `least` bytes, in no use, and empty
/// unless `force`. Returns its whole path.
fn new_device(path: &Path, least: u64, force: bool, clears: bool) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::FileTypeExt;
    let whole = path.canonicalize().with_context(|| path.display().to_string())?;
    if !whole.metadata()?.file_type().is_block_device() {
        bail!("{}: is not a block device, which the kernel needs", path.display());
    }
    let device = FileDevice::open(&whole, Access::ReadWrite)?;
    if device.size() < least {
        bail!("{}: has {} bytes, the file system needs {least}", path.display(), device.size());
    }
    if !force && let Some(found) = find_signature(&device)? {
        return Err(Error::Occupied { device: path.display().to_string(), found }.into());
    }
    if clears {
        let length = CLEARED.min(device.size() as usize);
        device.write_at(&vec![0; length], PhysicalAddress(0)).with_context(|| path.display().to_string())?;
        device.flush().with_context(|| path.display().to_string())?;
    }
    Ok(whole)
}

/// Adds a device.
pub fn add(mounted: &Mounted, path: &Path, force: bool, enqueue: bool) -> anyhow::Result<()> {
    let mount = mounted.open()?;
    let shown = path.display();
    let whole = new_device(path, 0, force, true)?;
    let Err(error) = when_free(enqueue, || mount.add_device_by_kernel(&whole)) else { return Ok(()) };
    match errno_of(&error) {
        Some(Errno::INPROGRESS) => bail!("{mounted}: another operation runs"),
        Some(Errno::INVAL) => bail!("{shown}: is too small"),
        Some(Errno::EXIST | Errno::BUSY) => bail!("{shown}: is in use"),
        _ => Err(mounted.at(&error).context(shown.to_string())),
    }
}

/// Replaces a device, and waits for the end.
pub fn replace(
    mounted: &Mounted,
    source: &Path,
    target: &Path,
    how: ReplaceOptions,
    enqueue: bool,
) -> anyhow::Result<ReplaceReport> {
    let mount = mounted.open()?;
    let devid = device_id(mounted, &mount, source)?;
    let least = mount.device_size(devid).map_err(|error| mounted.at(&error))?;
    let whole = new_device(target, least, how.force, false)?;
    run(mounted, JobKind::ReplaceDevice, enqueue, || mount.replace_by_kernel(devid, &whole, how))?;
    let (report, _) = mount.replace_status().map_err(|error| mounted.at(&error))?;
    if report.state == DevReplaceState::Canceled {
        bail!("{mounted}: {} was cancelled", JobKind::ReplaceDevice.name());
    }
    Ok(ReplaceReport { source: devid, ..report })
}
