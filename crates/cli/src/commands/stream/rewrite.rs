//! `papilio stream join`, `split` and `recompress`.

use super::operands::{ChainArgs, is_stdin, load, open_streams, stdin};
use crate::context::Context;
use crate::host_output::HostOutput;
use crate::stream_output::StreamOutput;
use crate::usage_error::UsageError;
use papilio::stream::{
    JoinOptions, LoadOptions, Recompress, Recompression, StreamChain, StreamInput, WrittenStream, split,
};
use papilio::{CompressionChoice, Generation, SendProtocol, Uuid};
use std::ffi::OsString;
use std::path::PathBuf;

/// Returns the protocol with a number.
fn protocol(number: Option<u32>) -> Option<SendProtocol> {
    number.map(|number| if number == 1 { SendProtocol::V1 } else { SendProtocol::V2 })
}

/// Join a chain into one stream
///
/// A chain that begins with a full stream becomes one full stream of its last subvolume, without
/// the data that was replaced on the way. Incremental streams alone become one incremental stream
/// from the first parent to the last subvolume.
#[derive(Debug, clap::Args)]
pub struct Join {
    #[command(flatten)]
    chain: ChainArgs,
    /// Write to FILE instead of standard output
    #[arg(short = 'f', value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// The protocol, 1 or 2; without it, the highest of the streams
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2))]
    proto: Option<u32>,
    /// Write compressed data as plain bytes
    #[arg(long)]
    decompress: bool,
    /// Name the subvolume NAME
    #[arg(long, value_name = "NAME")]
    name: Option<OsString>,
}

impl Join {
    /// Joins the streams.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let name = self.name.map(OsString::into_encoded_bytes);
        if name.as_deref().is_some_and(|name| matches!(name, b"" | b"." | b"..") || name.contains(&b'/')) {
            return Err(UsageError::new("--name: not the name of a subvolume").into());
        }
        StreamOutput::check(self.file.as_deref())?;
        let chain = load(&self.chain.streams)?;
        let part = self.chain.choice.find(&chain)?;
        let mut out = StreamOutput::open(self.file.as_deref())?;
        let options =
            JoinOptions::new().protocol(protocol(self.proto)).decompress(self.decompress).name(name);
        let written = options.join(&chain, part, &mut out)?;
        out.finish()?;
        report(context, "", written);
        Ok(())
    }
}

/// Write one stream for each subvolume of streams
///
/// The files are DIRECTORY/NAME.stream. Existing files are not replaced.
#[derive(Debug, clap::Args)]
pub struct Split {
    /// The streams; - means standard input
    #[arg(value_name = "STREAM", required = true, value_hint = clap::ValueHint::FilePath)]
    streams: Vec<OsString>,
    /// The directory for the new streams
    #[arg(short = 'C', long, value_name = "DIRECTORY", default_value = ".", value_hint = clap::ValueHint::DirPath)]
    directory: PathBuf,
}

impl Split {
    /// Splits the streams.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let chain = StreamChain::load(open_streams(&self.streams)?, LoadOptions::new().trees(false))?;
        let path = |part: &papilio::stream::SentPart| {
            let mut name = part.name.clone();
            name.extend(b".stream");
            // The name has no slash, which loading checks.
            self.directory.join(os_string(name))
        };
        let paths: Vec<PathBuf> = chain.parts().iter().map(path).collect();
        for (number, path) in paths.iter().enumerate() {
            if paths[..number].contains(path) {
                anyhow::bail!("{}: two subvolumes have this name", path.display());
            }
            if path.symlink_metadata().is_ok() {
                anyhow::bail!("{}: exists already", path.display());
            }
        }
        for (part, path) in paths.iter().enumerate() {
            let mut out = HostOutput::open(path)?;
            let written = split(&chain, part, &mut out)?;
            out.finish()?;
            report(context, &format!("{}: ", path.display()), written);
        }
        Ok(())
    }
}

/// Tells the size of a stream, unless the run is quiet.
fn report(context: &Context, start: &str, written: WrittenStream) {
    if context.verbosity >= 0 {
        context.note(format_args!("{start}{} commands, {} bytes", written.commands, written.bytes));
    }
}

fn os_string(bytes: Vec<u8>) -> OsString {
    use std::os::unix::ffi::OsStringExt;
    OsString::from_vec(bytes)
}

/// Rewrite a stream: protocol, compression, parent
///
/// The stream may be a pipe, and keeps the order of its commands. In protocol 1, holes that replace
/// data become zeros.
#[derive(Debug, clap::Args)]
pub struct RecompressArgs {
    /// The stream; - means standard input
    #[arg(value_name = "STREAM", value_hint = clap::ValueHint::FilePath)]
    stream: OsString,
    /// Write to FILE instead of standard output
    #[arg(short = 'f', value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// The protocol, 1 or 2; without it, that of the stream, or 2 with --compress
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2))]
    proto: Option<u32>,
    /// Compress data by zlib, lzo or zstd, as in zstd:9
    #[arg(long, value_name = "ALGORITHM[:LEVEL]", conflicts_with = "decompress")]
    compress: Option<CompressionChoice>,
    /// Write compressed data as plain bytes
    #[arg(long)]
    decompress: bool,
    /// Name the parent, or source of clones, with UUID FROM by the UUID TO, and by another
    /// transaction if one is given; may be repeated
    #[arg(long, value_name = "FROM=TO[:TRANSACTION]")]
    parent: Vec<String>,
}

impl RecompressArgs {
    /// Rewrites the stream.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let compression = match self.compress {
            Some(choice) => Recompression::Compress(choice),
            None if self.decompress => Recompression::Decompress,
            None => Recompression::Keep,
        };
        if self.compress.is_some() && self.proto == Some(1) {
            return Err(UsageError::new("compressed data needs protocol 2").into());
        }
        let mut rewrite = Recompress::new().protocol(protocol(self.proto)).compression(compression);
        for text in &self.parent {
            let parent = parse_parent(text);
            let wrong = || UsageError::new(format!("--parent {text}: not two UUIDs with = between"));
            let (from, to, ctransid) = parent.ok_or_else(wrong)?;
            rewrite = rewrite.parent(from, to, ctransid);
        }
        StreamOutput::check(self.file.as_deref())?;
        let written = match is_stdin(&self.stream) {
            true => {
                let mut input = std::io::BufReader::with_capacity(1 << 20, stdin()?);
                let mut out = StreamOutput::open(self.file.as_deref())?;
                let written = rewrite.rewrite("standard input", &mut input, &mut out)?;
                out.finish()?;
                written
            }
            false => {
                let input = StreamInput::open(self.stream.as_ref())?;
                let mut out = StreamOutput::open(self.file.as_deref())?;
                let written = rewrite.rewrite(input.name(), &mut input.reader(), &mut out)?;
                out.finish()?;
                written
            }
        };
        report(context, "", written);
        Ok(())
    }
}

/// Parses `FROM=TO[:TRANSACTION]`.
fn parse_parent(text: &str) -> Option<(Uuid, Uuid, Option<Generation>)> {
    let (from, to) = text.split_once('=')?;
    let (to, ctransid) = match to.split_once(':') {
        Some((to, ctransid)) => (to, Some(Generation(ctransid.parse().ok()?))),
        None => (to, None),
    };
    Some((from.parse().ok()?, to.parse().ok()?, ctransid))
}
