//! `papilio stream cat` and `extract`.

use super::operands::{ChainArgs, Loaded, SubvolumeChoice, inner_path, load_or_index, open_streams};
use crate::context::Context;
use crate::host_output::HostOutput;
use crate::output::Output;
use crate::usage_error::UsageError;
use papilio::stream::{Extract, LoadOptions, StreamChain, StreamError};
use papilio::{ExportObserver, ExportProblem};
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Write the content of one file to standard output
#[derive(Debug, clap::Args)]
pub struct Cat {
    /// The streams in their order, - meaning standard input, and then the path of the file
    #[arg(value_name = "STREAM... PATH", required = true, num_args = 2.., value_hint = clap::ValueHint::FilePath)]
    operands: Vec<OsString>,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

impl Cat {
    /// Writes the file.
    pub fn run(mut self, context: &Context) -> anyhow::Result<()> {
        let path = inner_path(&self.operands.pop().expect("clap requires two operands"));
        let loaded = load_or_index(context, &self.operands, &self.choice)?;
        let mut output = Output::new()?;
        let mut out = OutputWriter(&mut output);
        match loaded {
            Loaded::Index(index) => index.copy_file(&path, &mut out)?,
            Loaded::Chain(chain) => chain.copy_file(self.choice.find(&chain)?, &path, &mut out)?,
        };
        Ok(output.finish()?)
    }
}

/// Standard output as a writer.
struct OutputWriter<'a>(&'a mut Output);

impl Write for OutputWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.bytes(bytes).map_err(crate::output::OutputError::into_io)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Copy a subvolume in streams to a directory or into a tar archive
///
/// The files go to a new directory with the subvolume's name. Only root can give files their owners
/// and make device files. An entry that the host refuses is left
/// out and reported.
#[derive(Debug, clap::Args)]
pub struct ExtractArgs {
    #[command(flatten)]
    chain: ChainArgs,
    /// Make the subvolume's directory in DIRECTORY
    #[arg(short = 'C', long = "directory", value_name = "DIRECTORY", default_value = ".",
        value_hint = clap::ValueHint::DirPath)]
    directory: PathBuf,
    /// Write a tar archive to FILE, - meaning standard output
    #[arg(long, value_name = "FILE", conflicts_with = "directory", value_hint = clap::ValueHint::FilePath)]
    to_tar: Option<PathBuf>,
    /// Extract only this path and all below it; may be repeated
    #[arg(long, value_name = "PATH")]
    path: Vec<OsString>,
    /// Leave owners as they are made; the default unless run by root
    #[arg(long, conflicts_with = "to_tar")]
    no_owner: bool,
}

impl ExtractArgs {
    /// Extracts.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        if self.to_tar.as_deref() == Some(Path::new("-")) && io::stdout().is_terminal() {
            let text = "an archive is not for a terminal: name a file, or redirect standard output";
            return Err(UsageError::new(text).into());
        }
        let inputs = open_streams(&self.chain.streams)?;
        match self.to_tar.as_deref() {
            Some(path) if path == Path::new("-") => context.confine_to_images([]),
            Some(path) => context.confine_to_output(path, []),
            None => context.confine_to_output(&self.directory, []),
        }
        context.seal();
        let chain = StreamChain::load(inputs, LoadOptions::new())?;
        let part = self.chain.choice.find(&chain)?;
        let paths = self.path.iter().map(|path| inner_path(path)).collect();
        let extract = Extract::new().within(paths);
        match &self.to_tar {
            Some(path) if path == Path::new("-") => {
                let mut out = io::BufWriter::with_capacity(1 << 20, io::stdout());
                extract.to_tar(&chain, part, &mut out, "standard output", &Problems(context))?;
                Ok(out.flush()?)
            }
            Some(path) => {
                let mut out = io::BufWriter::with_capacity(1 << 20, HostOutput::open(path)?);
                let name = path.display().to_string();
                extract.to_tar(&chain, part, &mut out, &name, &Problems(context))?;
                out.into_inner().map_err(io::IntoInnerError::into_error)?.finish()
            }
            None => self.to_host(context, &chain, part, extract),
        }
    }

    #[cfg(target_os = "linux")]
    fn to_host(
        &self,
        context: &Context,
        chain: &papilio::stream::StreamChain,
        part: usize,
        extract: Extract,
    ) -> anyhow::Result<()> {
        let owners = !self.no_owner && rustix::process::geteuid().is_root();
        let mut target = papilio::HostDirectory::open_plain(&self.directory)?;
        let mut failed = |error: &papilio::Error| context.error(error);
        let done = extract.owners(owners).to_target(chain, part, &mut target, &mut failed);
        done.map_err(|error| match error {
            StreamError::Other(error) => anyhow::anyhow!("{}: {error}", self.directory.display()),
            other => other.into(),
        })
    }

    // Only Linux confines a path of the stream to a directory (openat2).
    #[cfg(not(target_os = "linux"))]
    fn to_host(
        &self,
        _context: &Context,
        _chain: &papilio::stream::StreamChain,
        _part: usize,
        _extract: Extract,
    ) -> anyhow::Result<()> {
        anyhow::bail!("{}: can extract with --to-tar here, not into a directory", self.directory.display())
    }
}

/// Reports what an archive lacks.
struct Problems<'a>(&'a Context);

impl ExportObserver for Problems<'_> {
    fn problem(&self, problem: ExportProblem) {
        self.0.error(problem);
    }
}
