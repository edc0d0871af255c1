//! `papilio stream diff`.

use super::list::to_json as entry_json;
use super::operands::{ChainArgs, open_streams};
use crate::context::Context;
use crate::output::{JsonArray, Output, escaped};
use anyhow::Context as _;
use papilio::FileKind;
use papilio::stream::{LoadOptions, StreamChain, StreamDifference, StreamError, compare};
use serde_json::Value;
use std::ffi::OsString;

/// Show how two subvolumes in streams differ
///
/// Without --to, the subvolume is compared with its parent in the same chain. With it, the last
/// subvolume of the first chain is the old one, and the last of the other chain the new one.
///
/// A line has a letter and a path: A for a file that was added, D for one that was deleted, and M
/// for one that was changed, followed by content, metadata or both. Bytes are compared.
#[derive(Debug, clap::Args)]
pub struct Diff {
    #[command(flatten)]
    chain: ChainArgs,
    /// The streams of the new subvolume
    #[arg(long, value_name = "STREAM", num_args = 1.., value_hint = clap::ValueHint::FilePath)]
    to: Vec<OsString>,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

impl Diff {
    /// Compares the subvolumes.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let inputs = open_streams(&self.chain.streams)?;
        let others = if self.to.is_empty() { None } else { Some(open_streams(&self.to)?) };
        context.confine_to_open_files();
        let chain = StreamChain::load(inputs, LoadOptions::new())?;
        let part = self.chain.choice.find(&chain)?;
        let other = others.map(|inputs| StreamChain::load(inputs, LoadOptions::new())).transpose()?;
        let mut output = Output::new()?;
        let mut array = self.json.then(|| JsonArray::begin(&mut output)).transpose()?;
        let each = |difference: StreamDifference| -> Result<(), DiffError> {
            match &mut array {
                Some(array) => array.push(&mut output, &to_json(&difference)).map_err(anyhow::Error::from)?,
                None => print(&mut output, &difference)?,
            }
            Ok(())
        };
        let compared = match &other {
            Some(other) => compare((&chain, part), (other, other.find(None)?), each),
            None => {
                let parent = chain.parts()[part].parent.context("the stream is a full one: give --to")?;
                let same = |sent: papilio::SentSubvolume| sent.uuid == parent.uuid;
                let old = chain.parts().iter().rposition(|part| same(part.identity));
                compare((&chain, old.unwrap_or(part)), (&chain, part), each)
            }
        };
        compared.map_err(|DiffError(error)| error)?;
        if let Some(array) = array {
            array.end(&mut output)?;
        }
        Ok(output.finish()?)
    }
}

/// An error of a comparison: of the streams, or of the output.
struct DiffError(anyhow::Error);

impl From<StreamError> for DiffError {
    fn from(error: StreamError) -> Self {
        Self(error.into())
    }
}

impl From<anyhow::Error> for DiffError {
    fn from(error: anyhow::Error) -> Self {
        Self(error)
    }
}

fn words(difference: &StreamDifference) -> (char, &'static str, &'static str) {
    match difference {
        StreamDifference::Added(_) => ('A', "added", ""),
        StreamDifference::Deleted(_) => ('D', "deleted", ""),
        StreamDifference::Changed { content: true, metadata: true, .. } => {
            ('M', "changed", " (content, metadata)")
        }
        StreamDifference::Changed { content: true, .. } => ('M', "changed", " (content)"),
        _ => ('M', "changed", " (metadata)"),
    }
}

fn print(output: &mut Output, difference: &StreamDifference) -> anyhow::Result<()> {
    let entry = difference.entry();
    let slash: &[u8] = match entry.kind {
        FileKind::Directory if !entry.path.is_empty() => b"/",
        _ => b"",
    };
    let path = [b"/", &entry.path[..], slash].concat();
    let (letter, _, parts) = words(difference);
    output.text(format_args!("{letter} "))?;
    // A line break in a name would look like another change.
    output.name(&if path.contains(&b'\n') { escaped(&path).into_owned() } else { path })?;
    Ok(output.text(format_args!("{parts}\n"))?)
}

fn to_json(difference: &StreamDifference) -> Value {
    let mut value = entry_json(difference.entry());
    if let Value::Object(object) = &mut value {
        object.insert("change".into(), words(difference).1.into());
        if let StreamDifference::Changed { content, metadata, .. } = difference {
            object.insert("content".into(), (*content).into());
            object.insert("metadata".into(), (*metadata).into());
        }
    }
    value
}
