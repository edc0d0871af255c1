//! `papilio stream verify`.

use super::operands::scan_or_load;
use crate::context::Context;
use crate::output::{Output, escaped};
use papilio::SentSubvolume;
use papilio::stream::{ChainDoubt, LoadOptions};
use serde_json::json;
use std::ffi::OsString;

/// Check streams: checksums, order, paths, parents, compressed data, ends
///
/// Every command is read and applied to a tree in memory, so a path or a parent that is missing is
/// found. An incremental stream without its parent is doubtful, unless --without-parents is given.
#[derive(Debug, clap::Args)]
pub struct Verify {
    /// The streams in their order; - means standard input
    #[arg(value_name = "STREAM", required = true, value_hint = clap::ValueHint::FilePath)]
    streams: Vec<OsString>,
    /// Accept that parents and sources of clones are not among the streams
    #[arg(long)]
    without_parents: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Verify {
    /// Checks the streams.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let options = LoadOptions::new().decompress(true);
        let loaded = scan_or_load(context, &self.streams, options)?;
        let chain = match (loaded, self.json) {
            (Ok(chain), _) => chain,
            (Err(error), false) => return Err(error.into()),
            (Err(error), true) => {
                let mut output = Output::new()?;
                output.text(format_args!("{}\n", json!({"good": false, "error": error.to_string()})))?;
                context.fail_silently();
                return Ok(output.finish()?);
            }
        };
        let accepted = |doubt: &&ChainDoubt| {
            !self.without_parents
                || !matches!(doubt, ChainDoubt::ParentMissing { .. } | ChainDoubt::SourceMissing { .. })
        };
        let doubts: Vec<String> = chain.doubts().iter().filter(accepted).map(text).collect();
        let commands: u64 = chain.parts().iter().map(papilio::stream::SentPart::command_count).sum();
        let subvolumes = chain.parts().len();
        let mut output = Output::new()?;
        if self.json {
            let good = doubts.is_empty();
            let result = json!({
                "good": good, "subvolumes": subvolumes, "commands": commands, "doubts": doubts
            });
            output.text(format_args!("{result}\n"))?;
            if !good {
                context.fail_silently();
            }
        } else {
            output.text(format_args!("{subvolumes} subvolumes, {commands} commands\n"))?;
            doubts.iter().for_each(|doubt| context.error(doubt));
        }
        Ok(output.finish()?)
    }
}

fn text(doubt: &ChainDoubt) -> String {
    let shown = |name: &[u8]| String::from_utf8_lossy(&escaped(name)).into_owned();
    match doubt {
        ChainDoubt::ParentMissing { name, parent: SentSubvolume { uuid, .. } } => format!(
            "{}: the parent {uuid} is not among the streams, so only checksums were checked",
            shown(name)
        ),
        ChainDoubt::ParentChanged { name, parent: SentSubvolume { uuid, ctransid }, found } => format!(
            "{}: the parent {uuid} was sent at transaction {}, the stream needs it at {}",
            shown(name),
            found.0,
            ctransid.0
        ),
        ChainDoubt::SourceMissing { name, source, bytes } => format!(
            "{}: {bytes} bytes are cloned from subvolume {source}, which is not among the streams",
            shown(name)
        ),
        ChainDoubt::NoData { name } => format!("{}: the stream was made without data", shown(name)),
        other => format!("{other:?}"),
    }
}
