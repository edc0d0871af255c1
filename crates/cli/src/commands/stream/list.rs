//! `papilio stream ls` and `index`.

use super::operands::{ChainArgs, Loaded, index_path, inner_path, load, load_or_index};
use crate::context::Context;
use crate::output::{JsonArray, Output, escaped, json_bytes, kind_words, mode_letters};
use crate::time;
use crate::usage_error::UsageError;
use anyhow::Context as _;
use papilio::FileKind;
use papilio::stream::{SentEntry, StreamError, StreamIndex};
use serde_json::{Map, Value, json};
use std::ffi::OsString;

/// List the files of a subvolume in streams
///
/// Each directory is followed by its entries. Owners are numbers.
#[derive(Debug, clap::Args)]
pub struct List {
    #[command(flatten)]
    chain: ChainArgs,
    /// List this path and all below it
    #[arg(long, value_name = "PATH", default_value = "/")]
    path: OsString,
    /// Show mode, links, owner, group, size and time of modification
    #[arg(short, long)]
    long: bool,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

impl List {
    /// Prints the entries.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let loaded = load_or_index(context, &self.chain.streams, &self.chain.choice)?;
        let path = inner_path(&self.path);
        let mut output = Output::new()?;
        let mut array = self.json.then(|| JsonArray::begin(&mut output)).transpose()?;
        let each = |entry: SentEntry| -> Result<(), ListError> {
            match &mut array {
                Some(array) => array.push(&mut output, &to_json(&entry)).map_err(anyhow::Error::from)?,
                None => print_entry(&mut output, &entry, self.long)?,
            }
            Ok(())
        };
        let listed = match &loaded {
            Loaded::Index(index) => index.for_each_entry(&path, each),
            Loaded::Chain(chain) => chain.for_each_entry(self.chain.choice.find(chain)?, &path, each),
        };
        listed.map_err(|ListError(error)| error)?;
        if let Some(array) = array {
            array.end(&mut output)?;
        }
        Ok(output.finish()?)
    }
}

/// Prints an entry, with `long` as `ls -l` does.
pub fn print_entry(output: &mut Output, entry: &SentEntry, long: bool) -> anyhow::Result<()> {
    if long {
        let size = match entry.device {
            Some((major, minor)) => format!("{major}, {minor}"),
            None => entry.size.to_string(),
        };
        output.text(format_args!(
            "{} {:>3} {:>5} {:>5} {size:>12} {:<19} ",
            mode_letters(entry.kind, entry.mode),
            entry.links,
            entry.uid,
            entry.gid,
            entry.mtime.map_or_else(|| "-".to_owned(), time::to_second),
        ))?;
    }
    let slash: &[u8] = match entry.kind {
        FileKind::Directory if !entry.path.is_empty() => b"/",
        _ => b"",
    };
    let path = [b"/", &entry.path[..], slash].concat();
    // A line break in a name would look like another entry.
    output.name(&if path.contains(&b'\n') { escaped(&path).into_owned() } else { path })?;
    if long && let Some(target) = &entry.target {
        output.bytes(b" -> ")?;
        output.name(target)?;
    }
    Ok(output.bytes(b"\n")?)
}

/// An error of a listing: of the streams, or of the output.
struct ListError(anyhow::Error);

impl From<StreamError> for ListError {
    fn from(error: StreamError) -> Self {
        Self(error.into())
    }
}

impl From<anyhow::Error> for ListError {
    fn from(error: anyhow::Error) -> Self {
        Self(error)
    }
}

/// Returns the JSON object of an entry.
pub fn to_json(entry: &SentEntry) -> Value {
    let mut object = Map::new();
    json_bytes(&mut object, "path", &[b"/", &entry.path[..]].concat());
    object.insert("kind".into(), kind_words(entry.kind).into());
    object.insert("inode".into(), entry.inode.into());
    object.insert("links".into(), entry.links.into());
    object.insert("mode".into(), entry.mode.into());
    object.insert("uid".into(), entry.uid.into());
    object.insert("gid".into(), entry.gid.into());
    object.insert("size".into(), entry.size.into());
    object.insert("data_bytes".into(), entry.data.into());
    object.insert("modified".into(), entry.mtime.map_or(Value::Null, |mtime| time::rfc3339(mtime).into()));
    if let Some(target) = &entry.target {
        json_bytes(&mut object, "target", target);
    }
    if let Some((major, minor)) = entry.device {
        object.insert("device".into(), json!([major, minor]));
    }
    let names = entry.xattrs.iter().map(|name| String::from_utf8_lossy(&escaped(name)).into_owned());
    object.insert("xattrs".into(), names.collect::<Vec<_>>().into());
    object.into()
}

/// Make an index beside a stream, with which cat and ls read only what they need
///
/// The index is about the last subvolume of the chain, or the one that --subvolume names. It is
/// used when the same streams are given again, and ignored when one of them changed. Its name is
/// that of the last stream with .index at the end.
#[derive(Debug, clap::Args)]
pub struct Index {
    #[command(flatten)]
    chain: ChainArgs,
}

impl Index {
    /// Makes the index.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let Some(path) = index_path(&self.chain.streams) else {
            return Err(UsageError::new("an index lies beside a file; standard input is none").into());
        };
        let chain = load(&self.chain.streams)?;
        let part = self.chain.choice.find(&chain)?;
        let paths = StreamIndex::create(&chain, part, &path)?;
        let size = std::fs::metadata(&path).with_context(|| path.display().to_string())?.len();
        if context.verbosity >= 0 {
            context.note(format_args!("{}: {paths} paths, {size} bytes", path.display()));
        }
        Ok(())
    }
}
