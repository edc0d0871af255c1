//! `papilio quota`: quotas of a file system as a whole.
//!
//! Owns [`Quotas`], a file system on an image or in a mount whose quotas a command changes;
//! `qgroup` uses it, too.

use crate::context::{Context, of_image};
use crate::mounted::{Mounted, Target};
use crate::output::Output;
use indicatif::{ProgressBar, ProgressStyle};
use papilio::{FileSystem, QgroupId, QgroupUsage, QuotaError, QuotaStatus};
use papilio_ioctl::client::MountedPath;
use rustix::io::Errno;
use serde_json::json;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The errno of an operation on quotas that are off.
const NOT_CONNECTED: i32 = Errno::NOTCONN.raw_os_error();

/// Count the bytes that subvolumes use, and limit them
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// Turn quotas on, and count all extents
    ///
    /// On an image, the command ends when all extents are counted. A mount counts in the
    /// background.
    Enable {
        /// The image or device, or a directory in a mount
        #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
        image: PathBuf,
        /// Charge each extent to the subvolume that allocates it (simple quotas)
        ///
        /// Extents that exist already are charged to nobody, and nothing is ever counted anew.
        /// Kernels before 6.7 do not mount the file system afterwards.
        #[arg(short, long)]
        simple: bool,
    },
    /// Disable quotas, and delete all qgroups and limits
    Disable {
        /// The image or device, or a directory in a mount
        #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
        image: PathBuf,
    },
    /// Count all extents again
    Rescan(Rescan),
    /// Show whether quotas are on, and whether their numbers are right
    Status {
        /// The image or device, or a directory in a mount
        #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
        image: PathBuf,
        /// Print nothing, and exit with 1 if quotas are off
        #[arg(long, conflicts_with = "json")]
        is_enabled: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Rescan {
    /// The image or device, or a directory in a mount
    #[arg(value_name = "IMAGE|PATH", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Only show whether a rescan is under way
    #[arg(short, long, conflicts_with_all = ["wait", "wait_norescan"])]
    status: bool,
    /// Wait until a mount has counted all; on an image the command always does
    #[arg(short, long)]
    wait: bool,
    /// Only wait for a rescan that is under way
    #[arg(short = 'W', long, conflicts_with = "wait")]
    wait_norescan: bool,
}

/// A file system whose quotas a command reads or changes.
pub enum Quotas {
    /// On an image.
    Image(PathBuf, FileSystem),
    /// In a mount.
    Mounted(Mounted, MountedPath),
}

impl Quotas {
    /// Opens an image, for writing if `change` is set, or a directory in a mount.
    pub fn open(context: &Context, path: &Path, change: bool) -> anyhow::Result<Self> {
        Ok(match Target::parse(path.as_os_str())? {
            Target::Image(path) if change => Self::Image(path.image.clone(), context.change(&path.image)?),
            Target::Image(path) => Self::Image(path.image.clone(), context.open(&path.image)?),
            Target::Mounted(mounted) => {
                let mount = mounted.open()?;
                Self::Mounted(mounted, mount)
            }
        })
    }

    /// Runs the operation for an image or that for a mount, and names the file system in an error.
    pub fn run<R>(
        &self,
        image: impl FnOnce(&FileSystem) -> papilio::Result<R>,
        mount: impl FnOnce(&MountedPath) -> std::io::Result<R>,
    ) -> anyhow::Result<R> {
        match self {
            Self::Image(path, fs) => image(fs).map_err(|error| match error {
                papilio::Error::Quota(reason) => anyhow::anyhow!("{}: {reason}", path.display()),
                error => of_image(path, error),
            }),
            Self::Mounted(mounted, path) => mount(path).map_err(|error| match error.raw_os_error() {
                // For other commands, this number says that the server is gone.
                Some(NOT_CONNECTED) if path.is_directory().is_ok() => {
                    anyhow::anyhow!("{mounted}: {}", QuotaError::Off)
                }
                _ => mounted.at(&error),
            }),
        }
    }

    /// Returns the state and all qgroups.
    pub fn read(&self) -> anyhow::Result<(QuotaStatus, Vec<QgroupUsage>)> {
        self.run(
            |fs| {
                let status = fs.quota_status()?.ok_or(QuotaError::Off)?;
                Ok((status, fs.qgroups()?))
            },
            |mount| mount.qgroups(),
        )
    }

    /// Counts all extents of an image; has a mount begin to.
    pub fn rescan(&self, context: &Context, wait: bool) -> anyhow::Result<()> {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("counting {msg} {spinner}");
            let bar = ProgressBar::new_spinner().with_style(style.expect("the template is valid"));
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        context.set_progress(bar.clone());
        let progress = |address: papilio::LogicalAddress| {
            if let Some(bar) = &bar {
                bar.set_message(format!("up to address {address}"));
            }
        };
        let done = self.run(
            |fs| fs.rescan_quotas(progress),
            |mount| {
                match mount.start_quota_rescan() {
                    Err(error) if wait && error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
                    result => result?,
                }
                if wait { mount.wait_for_quota_rescan() } else { Ok(()) }
            },
        );
        context.set_progress(None);
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        done
    }
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Enable { image, simple } => {
                let quotas = Quotas::open(context, &image, true)?;
                let enable = |fs: &FileSystem| match simple {
                    true => fs.enable_simple_quotas(),
                    false => fs.enable_quotas(),
                };
                quotas.run(enable, |mount| mount.enable_quotas(simple))?;
                if let Quotas::Image(_, fs) = &quotas
                    && fs.quota_status()?.is_some_and(|status| status.is_inconsistent())
                {
                    quotas.rescan(context, true)?;
                }
                Ok(())
            }
            Subcommand::Disable { image } => Quotas::open(context, &image, true)?
                .run(FileSystem::disable_quotas, |mount| mount.disable_quotas()),
            Subcommand::Rescan(rescan) => rescan.run(context),
            Subcommand::Status { image, is_enabled, json } => status(context, &image, is_enabled, json),
        }
    }
}

impl Rescan {
    fn run(&self, context: &Context) -> anyhow::Result<()> {
        let quotas = Quotas::open(context, &self.image, !self.status)?;
        let progress = || {
            quotas.run(
                |fs| {
                    let status = fs.quota_status()?.filter(|status| status.is_rescanning());
                    Ok(status.map(|status| status.rescanned.0))
                },
                |mount| mount.quota_rescan_status(),
            )
        };
        if self.status {
            let mut output = Output::new()?;
            match progress()? {
                Some(address) => {
                    output.text(format_args!("rescan operation running (current key {address})\n"))?;
                }
                None => output.text(format_args!("no rescan operation in progress\n"))?,
            }
            return Ok(output.finish()?);
        }
        if self.wait_norescan && progress()?.is_none() {
            return Ok(());
        }
        if let (true, Quotas::Mounted(..)) = (self.wait_norescan, &quotas) {
            return quotas.run(|_| Ok(()), |mount| mount.wait_for_quota_rescan());
        }
        quotas.rescan(context, self.wait)?;
        if context.verbosity >= 0 && !self.wait_norescan {
            let mut output = Output::new()?;
            let is_done = self.wait || matches!(quotas, Quotas::Image(..));
            let what = if is_done && context.tells_more() { "finished" } else { "started" };
            output.text(format_args!("quota rescan {what}\n"))?;
            output.finish()?;
        }
        Ok(())
    }
}

fn status(context: &Context, image: &Path, is_enabled: bool, json: bool) -> anyhow::Result<()> {
    let quotas = Quotas::open(context, image, false)?;
    let status = quotas.run(FileSystem::quota_status, |mount| match mount.qgroups() {
        Ok((status, _)) => Ok(Some(status)),
        Err(error) if error.raw_os_error() == Some(NOT_CONNECTED) => Ok(None),
        Err(error) => Err(error),
    })?;
    if is_enabled {
        if status.is_none() {
            context.fail_silently();
        }
        return Ok(());
    }
    let mut output = Output::new()?;
    let (inconsistent, rescanning) =
        status.map_or((false, false), |status| (status.is_inconsistent(), status.is_rescanning()));
    let simple = status.is_some_and(|s| s.flags.contains(papilio::QgroupStatusFlags::SIMPLE_MODE));
    let mode = if simple { "squota" } else { "qgroup" };
    if json {
        let object = json!({
            "enabled": status.is_some(),
            "mode": status.map(|_| mode),
            "inconsistent": inconsistent,
            "rescanning": rescanning,
            "rescanned": status.filter(|_| rescanning).map(|status| status.rescanned.0),
            "total_count": status.map(|status| status.qgroups),
        });
        output.text(format_args!("{object:#}\n"))?;
        return Ok(output.finish()?);
    }
    let yes = |flag| if flag { "yes" } else { "no" };
    output.text(format_args!("{:<24}{}\n", "Enabled:", yes(status.is_some())))?;
    if let Some(status) = status {
        output.text(format_args!("{:<24}{mode}\n", "Mode:"))?;
        output.text(format_args!("{:<24}{}\n", "Inconsistent:", yes(inconsistent)))?;
        output.text(format_args!("{:<24}{}\n", "Rescan under way:", yes(rescanning)))?;
        output.text(format_args!("{:<24}{}\n", "Total count:", status.qgroups))?;
    }
    Ok(output.finish()?)
}

/// Parses a qgroup's id: `LEVEL/ID`, or a subvolume's id.
pub fn parse_qgroup(text: &str) -> Result<QgroupId, String> {
    let wrong = || "not a qgroup: give LEVEL/ID, such as 1/100, or a subvolume's id".to_owned();
    let (level, number) = text.split_once('/').unwrap_or(("0", text));
    let level: u16 = level.parse().map_err(|_| wrong())?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    QgroupId::new(level, number).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_qgroups_are_parsed() {
        assert_eq!(parse_qgroup("0/257"), Ok(QgroupId(257)));
        assert_eq!(parse_qgroup("257"), Ok(QgroupId(257)));
        assert_eq!(parse_qgroup("1/100"), Ok(QgroupId::new(1, 100).unwrap()));
        for wrong in ["", "/", "1/", "/1", "a/1", "1/b", "65536/1", "0/281474976710656", "-1"] {
            assert!(parse_qgroup(wrong).is_err(), "{wrong}");
        }
    }
}
