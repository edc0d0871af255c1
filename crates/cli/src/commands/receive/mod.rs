//! `papilio receive`.

mod dump;

use crate::context::Context;
use crate::output::{Output, escaped};
use crate::path::{ImagePath, Operand};
use crate::usage_error::UsageError;
use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use papilio::{Error, Receive, ReceiveObserver};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, IsTerminal, Read};
use std::path::PathBuf;

/// Receive subvolumes from a stream
///
/// The stream comes from `btrfs send` or `papilio send`. A subvolume becomes read-only and gets its
/// received UUID when its stream is complete; until then it is writable.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory that receives the subvolumes
    #[arg(value_name = "IMAGE:/DIRECTORY", required_unless_present = "dump",
        value_hint = clap::ValueHint::AnyPath)]
    directory: Option<OsString>,
    /// Read from FILE instead of standard input
    #[arg(short = 'f', value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Stop after the end command of the first subvolume
    #[arg(short = 'e')]
    stop_at_end: bool,
    /// Stop after N commands that failed; 0 means never
    #[arg(short = 'E', long, value_name = "N", default_value = "1")]
    max_errors: u64,
    /// Confine the receiver to the directory; always so in an image
    #[arg(short = 'C', long)]
    chroot: bool,
    /// The root of the mount that contains the directory; not needed for an image
    #[arg(short = 'm', value_name = "ROOT", value_hint = clap::ValueHint::DirPath)]
    root_mount: Option<PathBuf>,
    /// Print the commands of the stream, and change nothing
    #[arg(long, conflicts_with = "directory")]
    dump: bool,
}

impl Args {
    /// Receives the stream.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let mut input: Box<dyn Read> = match &self.file {
            Some(path) => {
                let file = File::open(path).with_context(|| format!("{}: cannot open", path.display()))?;
                Box::new(BufReader::with_capacity(1 << 20, file))
            }
            None => Box::new(BufReader::with_capacity(1 << 20, std::io::stdin().lock())),
        };
        if self.dump {
            let mut output = Output::new()?;
            dump::dump(&mut *input, &mut output, self.stop_at_end)?;
            return Ok(output.finish()?);
        }
        let argument = self.directory.as_ref().expect("clap requires it");
        if let Operand::Host(path) = Operand::parse(argument)
            && path.is_dir()
        {
            let text =
                format!("{}: only an image can receive so far: name it as IMAGE:/path", path.display());
            return Err(UsageError::new(text).into());
        }
        let path = ImagePath::parse(argument)?;
        let fs = context.change(&path.image)?;
        let receive = Receive::new().stop_at_end(self.stop_at_end).max_errors(self.max_errors);
        let mut received = Vec::new();
        let mut progress = Progress::new(context);
        let result = receive.receive(&fs, &path.path, &mut input, &mut received, &mut progress);
        progress.finish();
        let incomplete: Vec<String> = received
            .iter()
            .filter(|subvolume| !subvolume.complete)
            .map(|subvolume| {
                format!(
                    "{} is incomplete: it is writable and has no received UUID",
                    path.join(&subvolume.name)
                )
            })
            .collect();
        match result {
            Ok(_) => incomplete.iter().for_each(|line| context.error(line)),
            Err(error) if incomplete.is_empty() => context.error(format_args!("{path}: {error}")),
            Err(error) => context.error(format_args!("{path}: {error}; {}", incomplete.join("; "))),
        }
        Ok(())
    }
}

/// The messages and the bar on standard error.
struct Progress<'a> {
    context: &'a Context,
    bar: Option<ProgressBar>,
}

impl<'a> Progress<'a> {
    fn new(context: &'a Context) -> Self {
        let shown = context.verbosity >= 0 && std::io::stderr().is_terminal();
        let bar = shown.then(|| {
            let bar = ProgressBar::new_spinner();
            let form = "{elapsed_precise} {bytes} {bytes_per_sec}";
            if let Ok(style) = ProgressStyle::with_template(form) {
                bar.set_style(style);
            }
            bar
        });
        context.set_progress(bar.clone());
        Self { context, bar }
    }

    fn finish(&self) {
        self.context.set_progress(None);
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl ReceiveObserver for Progress<'_> {
    fn begins(&mut self, name: &[u8], snapshot: bool) {
        if self.context.verbosity >= 0 {
            let name = String::from_utf8_lossy(&escaped(name)).into_owned();
            self.context.note(format_args!("At {} {name}", if snapshot { "snapshot" } else { "subvol" }));
        }
    }

    fn progress(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
    }

    fn failed(&mut self, error: &Error) {
        self.context.error(error);
    }
}
