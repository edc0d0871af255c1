//! Work that the server of a mount does in the background: balance, scrub, removal of a device.
//!
//! Owns [`follow`], [`stop`] and the messages for their errors.

use crate::context::Context;
use crate::kernel_jobs;
pub use crate::kernel_jobs::refused;
use crate::mounted::Mounted;
use crate::moving::MovingBar;
use anyhow::bail;
use papilio::BalanceControl;
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::job::{JobKind, JobState, JobStatus};
use rustix::io::Errno;
use std::io;
use std::time::Duration;

/// Time between two looks at the work.
const LOOK: Duration = Duration::from_millis(50);

/// Opens a path in a mount of ours.
pub fn open(mounted: &Mounted) -> anyhow::Result<MountedPath> {
    if !mounted.mount.is_papilio() {
        bail!("{mounted}: not supported on a mount of the kernel's Btrfs; use btrfs(8)");
    }
    mounted.open()
}

/// Starts work. With `enqueue` it waits while other work runs.
pub fn start(
    mounted: &Mounted,
    mount: &MountedPath,
    kind: JobKind,
    enqueue: bool,
    start: impl Fn() -> io::Result<()>,
) -> anyhow::Result<()> {
    loop {
        let refusal = match start() {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let busy = refusal.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error());
        let runs = || mount.job().is_ok_and(|job| job.is_some_and(|job| job.state == JobState::Running));
        if !(enqueue && busy && runs()) {
            return Err(refused(mounted, kind, &refusal));
        }
        std::thread::sleep(LOOK);
    }
}

/// Shows the progress of the work that was started last, until it ends. If this command is
/// interrupted, the work goes on.
pub fn follow(
    context: &Context,
    mounted: &Mounted,
    mount: &MountedPath,
    mut look: impl FnMut(&JobStatus),
) -> anyhow::Result<JobStatus> {
    loop {
        let Some(status) = mount.job().map_err(|error| mounted.at(&error))? else {
            bail!("{mounted}: the server has forgotten the work");
        };
        look(&status);
        match status.state {
            JobState::Running => std::thread::sleep(LOOK),
            JobState::Failed => bail!("{mounted}: {}", status.error),
            JobState::Paused => {
                context.error(format_args!("{mounted}: {} was paused", status.kind.name()));
                return Ok(status);
            }
            JobState::Cancelled => {
                context.error(format_args!("{mounted}: {} was cancelled", status.kind.name()));
                return Ok(status);
            }
            JobState::Done => return Ok(status),
        }
    }
}

/// As [`follow`], with a bar for moved bytes.
pub fn follow_moves(context: &Context, mounted: &Mounted, mount: &MountedPath) -> anyhow::Result<JobStatus> {
    let bar = MovingBar::new(context);
    follow(context, mounted, mount, |status| {
        bar.show(&status.moved);
    })
}

/// Pauses or cancels work, and waits until it has stopped.
pub fn stop(mounted: &Mounted, kind: JobKind, control: BalanceControl) -> anyhow::Result<()> {
    if !mounted.mount.is_papilio() {
        return kernel_jobs::stop(mounted, kind, control);
    }
    open(mounted)?.stop_job(kind, control).map_err(|error| refused(mounted, kind, &error))
}
