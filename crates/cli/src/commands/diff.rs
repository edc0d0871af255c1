//! `papilio diff`: the changes from one snapshot to another.

use crate::context::{Context, of_image};
use crate::output::{JsonArray, Output, escaped, json_bytes, kind_words};
use crate::path::{ImagePath, parse_image_path};
use crate::usage_error::UsageError;
use papilio::format::{TreeId, objectid};
use papilio::{FileKind, NameChange, PathError, SnapshotChange, snapshot_changes};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::ffi::OsString;

/// Show what changed from one snapshot to another
///
/// A line has a letter and a path: A for a file that was added, D for one that was deleted, R for
/// one that was renamed (OLD -> NEW), and M for one that was modified. R and M are followed by
/// content, metadata or both. Content counts as changed if data was written, even the same data.
/// Files below a renamed directory are not listed, nor are subvolumes inside.
///
/// Only what differs is read, as for papilio send, so large snapshots are compared quickly.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The old snapshot
    #[arg(value_name = "IMAGE:/OLD", value_hint = clap::ValueHint::FilePath)]
    old: OsString,
    /// The new snapshot, or the subvolume itself, in the same image
    #[arg(value_name = "IMAGE:/NEW", value_hint = clap::ValueHint::FilePath)]
    new: OsString,
    /// Print only the number of changes of each kind
    #[arg(short, long)]
    summarize: bool,
    /// Print one JSON array, or an object with -s
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Compares the snapshots.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let (old, new) = (parse_image_path(&self.old)?, parse_image_path(&self.new)?);
        if old.image != new.image {
            let text = format!("{new}: the snapshots must be in one file system");
            return Err(UsageError::new(text).into());
        }
        context.confine_to_images([old.image.clone()]);
        let trees = [subvolume(context, &old)?, subvolume(context, &new)?];
        let fs = context.open(&old.image)?;
        let changes =
            snapshot_changes(&fs, trees[0], trees[1]).map_err(|error| of_image(&old.image, error))?;
        let mut output = Output::new()?;
        match (self.summarize, self.json) {
            (true, json) => summarize(&changes, json, &mut output)?,
            (false, true) => {
                let mut array = JsonArray::begin(&mut output)?;
                for change in &changes {
                    array.push(&mut output, &to_json(change))?;
                }
                array.end(&mut output)?;
            }
            (false, false) => changes.iter().try_for_each(|change| print(change, &mut output))?,
        }
        Ok(output.finish()?)
    }
}

fn subvolume(context: &Context, path: &ImagePath) -> anyhow::Result<TreeId> {
    let inode = context.inode(path, true)?;
    if inode.number() != objectid::FIRST_INODE || inode.is_subvolume_stub() {
        anyhow::bail!("{path}: {}", PathError::NoSubvolume);
    }
    Ok(inode.tree())
}

fn letter(change: &SnapshotChange) -> char {
    match change.name {
        NameChange::Added => 'A',
        NameChange::Deleted => 'D',
        NameChange::Renamed(_) => 'R',
        _ => 'M',
    }
}

/// Returns a path as it is shown: from the snapshot's root, with a slash after a directory.
fn shown(path: &[u8], kind: FileKind) -> Vec<u8> {
    let slash: &[u8] = if kind == FileKind::Directory && !path.is_empty() { b"/" } else { b"" };
    [b"/", path, slash].concat()
}

pub(super) fn print(change: &SnapshotChange, output: &mut Output) -> anyhow::Result<()> {
    let name = |path: &[u8]| -> Vec<u8> {
        let path = shown(path, change.kind);
        // A line break in a name would look like another change.
        let breaks = path.contains(&b'\n');
        if breaks { escaped(&path).into_owned() } else { path }
    };
    output.text(format_args!("{} ", letter(change)))?;
    if let NameChange::Renamed(old) = &change.name {
        output.name(&name(old))?;
        output.bytes(b" -> ")?;
    }
    output.name(&name(&change.path))?;
    let what = what(change);
    if !what.is_empty() {
        output.text(format_args!(" ({})", what.join(", ")))?;
    }
    Ok(output.bytes(b"\n")?)
}

fn what(change: &SnapshotChange) -> Vec<&'static str> {
    let parts = [(change.content, "content"), (change.metadata, "metadata")];
    parts.into_iter().filter_map(|(changed, name)| changed.then_some(name)).collect()
}

fn word(change: &SnapshotChange) -> Cow<'static, str> {
    Cow::Borrowed(match letter(change) {
        'A' => "added",
        'D' => "deleted",
        'R' => "renamed",
        _ => "changed",
    })
}

pub(super) fn to_json(change: &SnapshotChange) -> Value {
    let mut object = Map::new();
    object.insert("change".into(), word(change).into());
    json_bytes(&mut object, "path", &[b"/", &change.path[..]].concat());
    if let NameChange::Renamed(old) = &change.name {
        json_bytes(&mut object, "old_path", &[b"/", &old[..]].concat());
    }
    object.insert("kind".into(), kind_words(change.kind).into());
    object.insert("size".into(), change.size.into());
    object.insert("content".into(), change.content.into());
    object.insert("metadata".into(), change.metadata.into());
    object.into()
}

/// Returns the number of changes of each kind.
pub(super) fn counts(changes: &[SnapshotChange]) -> Map<String, Value> {
    let count = |wanted: char| changes.iter().filter(|change| letter(change) == wanted).count();
    let kinds = [('A', "added"), ('D', "deleted"), ('R', "renamed"), ('M', "changed")];
    kinds.into_iter().map(|(letter, word)| (word.to_owned(), count(letter).into())).collect()
}

pub(super) fn summarize(changes: &[SnapshotChange], json: bool, output: &mut Output) -> anyhow::Result<()> {
    let counts = counts(changes);
    if json {
        return Ok(output.text(format_args!("{}\n", Value::Object(counts)))?);
    }
    let words = ["added", "deleted", "renamed", "changed"];
    let parts = words.map(|word| format!("{} {word}", counts[word]));
    Ok(output.text(format_args!("{}\n", parts.join(", ")))?)
}
