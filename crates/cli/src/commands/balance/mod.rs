//! `papilio balance`: writes block groups anew.
//!
//! Owns the command's arguments and its report; [`filters`] parses the filters.

mod filters;

use crate::context::{Context, of_image};
use crate::moving::MovingBar;
use crate::output::Output;
use crate::usage_error::UsageError;
use papilio::BalanceOptions;
use std::path::PathBuf;

/// Write block groups anew: spread them over the devices, convert them, or free those nearly empty
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    Start(Start),
}

/// Balance an image or device that is not mounted
///
/// Without -d, -m and -s, all block groups are moved. Interrupting the command loses nothing: each
/// batch is committed, and a new balance goes on. FILTERS is a comma-separated list:
///
/// usage=PERCENT|MIN..MAX, profiles=PROFILE[|PROFILE...], devid=ID, drange=START..END,
/// vrange=START..END, stripes=MIN..MAX, limit=NUMBER|MIN..MAX, convert=PROFILE, soft
#[derive(Debug, clap::Args)]
struct Start {
    /// Only data block groups that pass the filters; -dFILTERS is accepted, too
    #[arg(long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    data: Option<String>,
    /// Only metadata and system block groups that pass the filters; -mFILTERS
    #[arg(long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    metadata: Option<String>,
    /// Only system block groups that pass the filters; needs -f; -sFILTERS
    #[arg(long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    system: Option<String>,
    /// Allow system filters, and a conversion that tolerates fewer lost devices
    #[arg(short, long)]
    force: bool,
    /// Accepted: without filters, all block groups are moved anyway
    #[arg(long)]
    full_balance: bool,
    /// The image or device
    #[arg(value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        match self.command {
            Subcommand::Start(start) => start.run(context),
        }
    }
}

impl Start {
    fn options(&self) -> Result<BalanceOptions, UsageError> {
        let parse = |name: &str, text: &Option<String>| {
            let parsed = text.as_deref().map(filters::parse).transpose();
            parsed.map_err(|error| UsageError::new(format_args!("--{name}: {error}")))
        };
        let mut options = BalanceOptions {
            data: parse("data", &self.data)?,
            metadata: parse("metadata", &self.metadata)?,
            system: parse("system", &self.system)?,
            force: self.force,
        };
        if options.system.is_some() && !self.force {
            return Err(UsageError::new("--system: needs --force"));
        }
        if options.data.is_none() && options.metadata.is_none() && options.system.is_none() {
            let all = || Some(papilio::BalanceFilter::default());
            (options.data, options.metadata, options.system) = (all(), all(), all());
        } else if options.system.is_none() {
            options.system.clone_from(&options.metadata);
        }
        Ok(options)
    }

    fn run(&self, context: &Context) -> anyhow::Result<()> {
        let options = self.options()?;
        let fs = context.change(&self.image)?;
        let bar = MovingBar::new(context);
        let report =
            fs.balance(&options, |report| bar.show(report)).map_err(|error| of_image(&self.image, error));
        drop(bar);
        let report = report?;
        if context.verbosity >= 0 {
            let mut output = Output::new()?;
            output.text(format_args!(
                "Done, had to relocate {} out of {} chunks\n",
                report.completed, report.considered
            ))?;
            output.finish()?;
        }
        Ok(())
    }
}
