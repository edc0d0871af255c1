//! Scrubbing a mount: its server does the work in the background.

use super::code::{NOTHING, UNCORRECTABLE};
use super::kernel::{self, MountScrub, fsid_of};
use super::state::{Folder, State};
use crate::context::Context;
use crate::jobs;
use crate::mounted::Mounted;
use papilio::BalanceControl;
use papilio::format::Uuid;
use papilio_ioctl::ScrubStart;
use papilio_ioctl::job::{JobKind, JobState, JobStatus};
use std::collections::BTreeMap;

fn state_of(job: JobStatus, read_only: bool) -> State {
    State {
        cancelled: matches!(job.state, JobState::Cancelled | JobState::Paused),
        report: job.scrub,
        started: i64::try_from(job.started).unwrap_or(i64::MAX),
        resumed: None,
        duration: job.duration.as_secs_f64(),
        read_only,
        stopped: BTreeMap::new(),
    }
}

/// Returns the last scrub of a mount; `None`, with the file system, if there was none.
pub fn last(mounted: &Mounted) -> anyhow::Result<(Uuid, Option<MountScrub>)> {
    if !mounted.mount.is_papilio() {
        return kernel::last(mounted);
    }
    let mount = jobs::open(mounted)?;
    let fsid = fsid_of(mounted, &mount)?;
    let job = mount.job().map_err(|error| mounted.at(&error))?;
    let scrub = job.filter(|job| job.kind == JobKind::Scrub).map(|job| {
        let running = job.state == JobState::Running;
        MountScrub { fsid, running, state: state_of(job, false) }
    });
    Ok((fsid, scrub))
}

/// Starts a scrub, or continues the last one with `resumes`. `own_limit` takes the place of the
/// limit that is set for all scrubs. Follows it with `foreground`, and returns its end.
pub fn start(
    context: &Context,
    mounted: &Mounted,
    mut wanted: ScrubStart,
    own_limit: Option<u64>,
    resumes: bool,
    foreground: bool,
) -> anyhow::Result<Option<MountScrub>> {
    let mount = jobs::open(mounted)?;
    let fsid = fsid_of(mounted, &mount)?;
    wanted.limit = own_limit.unwrap_or_else(|| Folder::of(fsid).map_or(0, |folder| folder.limit()));
    if resumes {
        let last = last(mounted)?.1.filter(|last| last.state.cancelled);
        let Some(last) = last else {
            context.fail_with(NOTHING, format_args!("{mounted}: there is no scrub to resume"));
            return Ok(None);
        };
        wanted.from = last.state.report.position;
    }
    let started = mount.start_scrub(&wanted);
    started.map_err(|error| jobs::refused(mounted, JobKind::Scrub, &error))?;
    if !foreground {
        return Ok(None);
    }
    let bar = context.is_interactive().then(super::bar::new_bar);
    context.set_progress(bar.clone());
    let status = jobs::follow(context, mounted, &mount, |status| {
        if let Some(bar) = &bar {
            bar.set_length(status.scrub.bytes_total);
            bar.set_position(status.scrub.bytes_done);
        }
    });
    context.set_progress(None);
    drop(bar);
    let state = state_of(status?, wanted.read_only);
    if state.is_uncorrectable() {
        context.fail_with(UNCORRECTABLE, format_args!("{mounted}: {}", state.uncorrectable_text()));
    }
    Ok(Some(MountScrub { fsid, state, running: false }))
}

/// Sets the limit of the running scrub, if there is one to set. Returns the folder of the file
/// system, which has the limit of later ones.
pub fn limit(mounted: &Mounted, limit: Option<u64>) -> anyhow::Result<Folder> {
    let mount = jobs::open(mounted)?;
    let fsid = fsid_of(mounted, &mount)?;
    if let Some(limit) = limit {
        mount.limit_scrub(limit).map_err(|error| mounted.at(&error))?;
    }
    Folder::of(fsid)
}

/// Stops the scrub. Returns whether one was running.
pub fn cancel(mounted: &Mounted) -> anyhow::Result<bool> {
    if !mounted.mount.is_papilio() {
        return mounted.open()?.cancel_kernel_scrub().map_err(|error| mounted.at(&error));
    }
    if !last(mounted)?.1.is_some_and(|last| last.running) {
        return Ok(false);
    }
    jobs::stop(mounted, JobKind::Scrub, BalanceControl::Cancel).map(|()| true)
}
