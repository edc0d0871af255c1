//! The operands of `papilio stream`.
//!
//! Owns [`ChainArgs`], the options that most subcommands take, and [`open_streams`].

use crate::context::Context;
use crate::usage_error::UsageError;
use anyhow::Context as _;
use papilio::stream::{LoadOptions, StreamChain, StreamError, StreamIndex, StreamInput};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// The streams, and the subvolume that the command is about.
#[derive(Debug, clap::Args)]
pub struct ChainArgs {
    /// The streams in their order; - means standard input
    #[arg(value_name = "STREAM", required = true, value_hint = clap::ValueHint::FilePath)]
    pub streams: Vec<OsString>,
    #[command(flatten)]
    pub choice: SubvolumeChoice,
}

/// The subvolume that the command is about.
#[derive(Debug, clap::Args)]
pub struct SubvolumeChoice {
    /// The name of the subvolume in the streams; without it, the last one
    #[arg(long, value_name = "NAME")]
    pub subvolume: Option<OsString>,
}

impl SubvolumeChoice {
    /// Returns the index of the subvolume in a chain.
    ///
    /// # Errors
    /// The chain has none with the name.
    pub fn find(&self, chain: &StreamChain) -> anyhow::Result<usize> {
        let name = self.subvolume.as_deref().map(OsStr::as_encoded_bytes);
        Ok(chain.find(name)?)
    }
}

/// Returns whether a stream is standard input.
pub fn is_stdin(stream: &OsStr) -> bool {
    stream == "-"
}

/// Returns standard input as a file.
///
/// # Errors
/// The host's error.
pub fn stdin() -> anyhow::Result<File> {
    let owned = std::io::stdin().as_fd().try_clone_to_owned().context("standard input")?;
    Ok(File::from(owned))
}

/// Opens streams for reading at any place.
///
/// # Errors
/// Standard input twice; a file that cannot be opened.
pub fn open_streams(streams: &[OsString]) -> anyhow::Result<Vec<StreamInput>> {
    if streams.iter().filter(|stream| is_stdin(stream)).count() > 1 {
        return Err(UsageError::new("standard input (-) can be given once").into());
    }
    let open = |stream: &OsString| match is_stdin(stream) {
        true => Ok(StreamInput::of_file("standard input".into(), stdin()?)?),
        false => Ok(StreamInput::open(Path::new(stream))?),
    };
    streams.iter().map(open).collect()
}

/// Opens and loads streams.
///
/// # Errors
/// As [`open_streams`] and [`StreamChain::load`].
pub fn load(streams: &[OsString]) -> anyhow::Result<StreamChain> {
    Ok(StreamChain::load(open_streams(streams)?, LoadOptions::new())?)
}

/// Reads streams; a single one from standard input as it comes. The run only reads from here on.
///
/// # Errors
/// As [`open_streams`]; within, what [`StreamChain::load`] and [`StreamChain::scan`] find.
pub fn scan_or_load(
    context: &Context,
    streams: &[OsString],
    options: LoadOptions,
) -> anyhow::Result<Result<StreamChain, StreamError>> {
    if let [only] = streams
        && is_stdin(only)
    {
        context.confine_to_open_files();
        return Ok(StreamChain::scan("standard input", &mut stdin()?, options));
    }
    let inputs = open_streams(streams)?;
    context.confine_to_open_files();
    Ok(StreamChain::load(inputs, options))
}

/// A chain, or its index.
pub enum Loaded {
    /// An index that fits the streams.
    Index(Box<StreamIndex>),
    /// The streams, read in full.
    Chain(StreamChain),
}

/// Opens the index of streams, if there is one and it lists the chosen subvolume; else loads them.
/// The run only reads from here on.
///
/// # Errors
/// As [`load`].
pub fn load_or_index(
    context: &Context,
    streams: &[OsString],
    choice: &SubvolumeChoice,
) -> anyhow::Result<Loaded> {
    let mut inputs = open_streams(streams)?;
    context.confine_to_images([]);
    if let Some(path) = index_path(streams) {
        inputs = match StreamIndex::open(&path, inputs)? {
            Ok(index) => {
                let wanted = choice.subvolume.as_deref().map(OsStr::as_encoded_bytes);
                if wanted.is_none_or(|name| name == index.subvolume()) {
                    context.seal();
                    return Ok(Loaded::Index(Box::new(index)));
                }
                index.into_inputs()
            }
            Err((inputs, reason)) => {
                if let Some(reason) = reason {
                    context.warning(format_args!("{}: not used: {reason}", path.display()));
                }
                inputs
            }
        };
    }
    context.seal();
    Ok(Loaded::Chain(StreamChain::load(inputs, LoadOptions::new())?))
}

/// Returns the path of the index of streams, unless the last one is standard input.
pub fn index_path(streams: &[OsString]) -> Option<PathBuf> {
    let last = streams.last().filter(|last| !is_stdin(last))?;
    Some(StreamIndex::path_beside(Path::new(last)))
}

/// Returns a path in a subvolume as the library takes it.
pub fn inner_path(path: &OsStr) -> Vec<u8> {
    papilio::stream::plain_path(path.as_encoded_bytes())
}
