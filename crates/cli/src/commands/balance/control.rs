//! `papilio balance pause`, `cancel`, `resume` and `status`.

use crate::commands::filesystem::warn_of_profiles;
use crate::context::{Context, of_image};
use crate::jobs;
use crate::kernel_jobs;
use crate::mounted::Target;
use crate::moving::MovingBar;
use crate::output::Output;
use anyhow::bail;
use papilio::{BalanceControl, BalanceReport};
use papilio_ioctl::job::{JobKind, JobState};
use std::path::PathBuf;

/// Exit code of the status of a balance that is paused; a running one has 1.
const PAUSED: u8 = 2;

/// Pause the balance of a mount
///
/// Returns when it has stopped. `papilio balance resume` continues it, and so does the next mount,
/// unless that has the option skip_balance. The balance of an image that is not mounted is paused
/// when its command is interrupted.
#[derive(Debug, clap::Args)]
pub struct Pause {
    /// A directory in the mount
    #[arg(value_hint = clap::ValueHint::FilePath)]
    path: PathBuf,
}

/// Cancel a balance that runs or is paused
///
/// Extents that were moved stay where they are.
#[derive(Debug, clap::Args)]
pub struct Cancel {
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
}

/// Resume a balance that is paused, or that was interrupted
#[derive(Debug, clap::Args)]
pub struct Resume {
    /// Return at once; a mount goes on in the background
    #[arg(long, visible_alias = "bg")]
    background: bool,
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
}

/// Show whether a balance runs or is paused
///
/// The exit status is 0 if there is none, 1 if one is running and 2 if one is paused.
#[derive(Debug, clap::Args)]
pub struct Status {
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
}

/// Prints the result of a balance.
pub fn print_done(context: &Context, report: &BalanceReport) -> anyhow::Result<()> {
    if context.verbosity < 0 {
        return Ok(());
    }
    let mut output = Output::new()?;
    let BalanceReport { completed, considered, .. } = report;
    output.text(format_args!("Done, had to relocate {completed} out of {considered} chunks\n"))?;
    Ok(output.finish()?)
}

impl Pause {
    /// Pauses the balance.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match Target::parse(self.path.as_os_str())? {
            Target::Mounted(mounted) => {
                let stopped = jobs::stop(&mounted, JobKind::Balance, BalanceControl::Pause);
                warn_of_profiles(context, &self.path)?;
                stopped
            }
            Target::Image(path) => {
                bail!("{}: it is not mounted; interrupt the command that balances it", path.image.display())
            }
        }
    }
}

impl Cancel {
    /// Cancels the balance.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match Target::parse(self.image.as_os_str())? {
            Target::Mounted(mounted) => {
                let stopped = jobs::stop(&mounted, JobKind::Balance, BalanceControl::Cancel);
                warn_of_profiles(context, &self.image)?;
                stopped
            }
            Target::Image(path) => {
                let fs = context.change(&path.image)?;
                fs.cancel_balance().map_err(|error| of_image(&path.image, error))
            }
        }
    }
}

impl Resume {
    /// Resumes the balance.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let report = match Target::parse(self.image.as_os_str())? {
            Target::Mounted(mounted) if !mounted.mount.is_papilio() => {
                let done = kernel_jobs::balance(context, &mounted, None, false, self.background)?;
                let Some(report) = done else { return Ok(()) };
                report
            }
            Target::Mounted(mounted) => {
                let mount = jobs::open(&mounted)?;
                let started = mount.start_balance(None);
                started.map_err(|error| jobs::refused(&mounted, JobKind::Balance, &error))?;
                if self.background {
                    return Ok(());
                }
                jobs::follow_moves(context, &mounted, &mount)?.moved
            }
            Target::Image(path) => {
                let fs = context.change(&path.image)?;
                let bar = MovingBar::new(context);
                let resumed = fs.resume_balance(|report| bar.show(report));
                resumed.map_err(|error| of_image(&path.image, error))?
            }
        };
        print_done(context, &report)
    }
}

impl Status {
    /// Prints the state.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let mut output = Output::new()?;
        let shown = self.image.display().to_string();
        let (stored, moved) = match Target::parse(self.image.as_os_str())? {
            Target::Image(path) => (context.open(&path.image)?.stored_balance()?.is_some(), None),
            Target::Mounted(mounted) if !mounted.mount.is_papilio() => {
                let progress = mounted.open()?.balance_progress().map_err(|error| mounted.at(&error))?;
                (progress.is_some(), progress.and_then(|(report, runs)| runs.then_some(report)))
            }
            Target::Mounted(mounted) => {
                let mount = jobs::open(&mounted)?;
                let named = |error: std::io::Error| mounted.at(&error);
                let job = mount.job().map_err(named)?;
                let runs = job.filter(|job| (job.kind, job.state) == (JobKind::Balance, JobState::Running));
                (mount.stored_balance().map_err(named)?.is_some(), runs.map(|job| job.moved))
            }
        };
        if !stored {
            output.text(format_args!("No balance found on '{shown}'\n"))?;
            return Ok(output.finish()?);
        }
        let Some(moved) = moved else {
            output.text(format_args!("Balance on '{shown}' is paused\n"))?;
            context.set_code(PAUSED);
            return Ok(output.finish()?);
        };
        let left = 100 - 100 * u64::from(moved.completed) / u64::from(moved.expected.max(1));
        output.text(format_args!(
            "Balance on '{shown}' is running\n{} out of about {} chunks balanced ({} considered), {left}% left\n",
            moved.completed, moved.expected, moved.considered
        ))?;
        context.fail_silently();
        Ok(output.finish()?)
    }
}
