//! `papilio versions --diff`: the differences between two versions.
//!
//! Owns [`show`]. Extents that both versions share are not read. Texts of up to [`TEXT_LIMIT`] are
//! compared by lines with the crate `similar`; of other files the ranges are named that differ.

use super::shown_path::shown_path;
use crate::output::{Output, escaped, mode_letters};
use crate::sought::SoughtPath;
use crate::time;
use crate::units::Units;
use papilio::{File, FileExtentKind, FileKind, FileVersion, Inode};
use serde_json::{Map, Value, json};
use similar::TextDiff;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

/// The largest text that is compared by lines, in bytes.
const TEXT_LIMIT: u64 = 8 << 20;
/// How long the comparison looks for the shortest difference.
const PATIENCE: Duration = Duration::from_secs(5);
/// Lines around a change.
const CONTEXT_LINES: usize = 3;
/// Bytes that are compared at once.
const PIECE: u64 = 1 << 20;
/// Ranges that are printed; JSON has all.
const MOST_RANGES: usize = 20;
/// Extents that are read at once.
const EXTENTS_AT_ONCE: usize = 4096;

/// A property that differs, with both values.
type Property = (&'static str, String, String);

/// How contents differ.
enum Content {
    Same,
    /// A unified difference.
    Text(String),
    /// Offset and length of each range that differs, up to the shorter length.
    Ranges(Vec<(u64, u64)>),
}

/// Prints what differs between two versions.
pub fn show(
    place: &SoughtPath,
    versions: [&FileVersion; 2],
    numbers: [u64; 2],
    json: bool,
    units: Units,
) -> anyhow::Result<()> {
    let open = |version: &FileVersion| -> papilio::Result<(Inode, Vec<u8>)> {
        let holder = &version.holders[0];
        Ok((place.system.inode_at(holder.subvolume, holder.inode)?, shown_path(holder)))
    };
    let explain = |error| place.explain(error);
    let [old, new] = [open(versions[0]).map_err(explain)?, open(versions[1]).map_err(explain)?];
    let inodes = [&old.0, &new.0];
    let properties = properties(inodes).map_err(explain)?;
    let content = compare(inodes, [&old.1, &new.1]).map_err(explain)?;
    let mut output = Output::new()?;
    if json {
        let value = to_json(numbers, &properties, &content);
        output.text(format_args!("{value:#}\n"))?;
        return Ok(output.finish()?);
    }
    for (name, old, new) in &properties {
        output.text(format_args!("{name}: {old} -> {new}\n"))?;
    }
    match &content {
        Content::Same if properties.is_empty() => output.text(format_args!("no difference\n"))?,
        Content::Same => output.text(format_args!("the same content\n"))?,
        // A terminal gets no control characters from a file.
        Content::Text(text) if output.terminal => {
            for line in text.lines() {
                output.bytes(&escaped(line.as_bytes()))?;
                output.bytes(b"\n")?;
            }
        }
        Content::Text(text) => output.bytes(text.as_bytes())?,
        Content::Ranges(ranges) => {
            for (offset, length) in ranges.iter().take(MOST_RANGES) {
                output.text(format_args!("{} differ at {offset}\n", units.text(*length)))?;
            }
            if let Some(more @ 1..) = ranges.len().checked_sub(MOST_RANGES) {
                output.text(format_args!("{more} more ranges differ\n"))?;
            }
        }
    }
    Ok(output.finish()?)
}

fn to_json(numbers: [u64; 2], properties: &[Property], content: &Content) -> Value {
    let pair = |(name, old, new): &Property| ((*name).to_owned(), json!({ "old": old, "new": new }));
    let properties: Map<String, Value> = properties.iter().map(pair).collect();
    let range = |&(offset, length): &(u64, u64)| json!({ "offset": offset, "length": length });
    let (text, ranges) = match content {
        Content::Same => (Value::Null, Vec::new()),
        Content::Text(text) => (text.as_str().into(), Vec::new()),
        Content::Ranges(ranges) => (Value::Null, ranges.iter().map(range).collect()),
    };
    json!({
        "old": numbers[0],
        "new": numbers[1],
        "properties": properties,
        "same_content": matches!(content, Content::Same),
        "text": text,
        "ranges": ranges,
    })
}

/// Returns the properties that differ.
fn properties(inodes: [&Inode; 2]) -> papilio::Result<Vec<Property>> {
    let mut found = Vec::new();
    let mut note = |name, values: [String; 2]| {
        let [old, new] = values;
        if old != new {
            found.push((name, old, new));
        }
    };
    let metadata = inodes.map(Inode::metadata);
    note("modified", metadata.map(|data| time::full(data.mtime())));
    note("size", metadata.map(|data| data.size().to_string()));
    note("owner", metadata.map(|data| format!("{}:{}", data.uid(), data.gid())));
    note("mode", metadata.map(|data| mode_letters(data.file_type(), data.mode())));
    let sets = [attributes(inodes[0])?, attributes(inodes[1])?];
    let names: std::collections::BTreeSet<&Vec<u8>> = sets.iter().flat_map(BTreeMap::keys).collect();
    for name in names {
        let values = [sets[0].get(name), sets[1].get(name)];
        if values[0] != values[1] {
            let shown = values.map(|value| {
                let value = value.map_or_else(|| "none".to_owned(), |value| text_of(value));
                format!("{} {value}", text_of(name))
            });
            note("attribute", shown);
        }
    }
    if metadata.iter().all(|data| data.is_symlink()) {
        note("target", [text_of(&inodes[0].read_link()?), text_of(&inodes[1].read_link()?)]);
    }
    Ok(found)
}

fn attributes(inode: &Inode) -> papilio::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    Ok(inode.xattrs()?.into_iter().map(|xattr| (xattr.name, xattr.value)).collect())
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&escaped(bytes)).into_owned()
}

/// Compares the contents of two files.
fn compare(inodes: [&Inode; 2], paths: [&Vec<u8>; 2]) -> papilio::Result<Content> {
    if inodes.iter().any(|inode| inode.file_type() != FileKind::Regular) {
        return Ok(Content::Same);
    }
    let files = [inodes[0].open()?, inodes[1].open()?];
    if files.iter().all(|file| file.len() <= TEXT_LIMIT) {
        let [old, new] = [files[0].read_all()?, files[1].read_all()?];
        if old == new {
            return Ok(Content::Same);
        }
        if let (Ok(old), Ok(new)) = (std::str::from_utf8(&old), std::str::from_utf8(&new))
            && !old.contains('\0')
            && !new.contains('\0')
        {
            return Ok(Content::Text(unified(old, new, paths)));
        }
    }
    let ranges = ranges([&files[0], &files[1]])?;
    let same = ranges.is_empty() && files[0].len() == files[1].len();
    Ok(if same { Content::Same } else { Content::Ranges(ranges) })
}

fn unified(old: &str, new: &str, paths: [&Vec<u8>; 2]) -> String {
    let difference = TextDiff::configure().timeout(PATIENCE).diff_lines(old, new);
    let [old, new] = paths.map(|path| text_of(path));
    difference.unified_diff().context_radius(CONTEXT_LINES).header(&old, &new).to_string()
}

/// Returns the ranges that differ, up to the shorter length.
fn ranges(files: [&File; 2]) -> papilio::Result<Vec<(u64, u64)>> {
    let size = files[0].len().min(files[1].len());
    let shared = shared_ranges(files)?;
    let mut found: Vec<(u64, u64)> = Vec::new();
    let mut note = |at: u64| match found.last_mut() {
        Some((start, length)) if *start + *length == at => *length += 1,
        _ => found.push((at, 1)),
    };
    let mut at = 0;
    while at < size {
        // The range that contains the position, or the one behind it.
        let before = shared.range(..=at).next_back();
        if let Some((_, end)) = before.filter(|(_, end)| **end > at) {
            at = *end;
            continue;
        }
        let next = shared.range(at + 1..).next().map_or(size, |(start, _)| *start);
        let length = PIECE.min(size - at).min(next - at) as usize;
        let mut pieces = [vec![0; length], vec![0; length]];
        for (file, piece) in files.iter().zip(&mut pieces) {
            file.read_exact_at(piece, at)?;
        }
        if pieces[0] != pieces[1] {
            let pairs = pieces[0].iter().zip(&pieces[1]).enumerate();
            pairs.filter(|(_, (old, new))| old != new).for_each(|(offset, _)| note(at + offset as u64));
        }
        at += length as u64;
    }
    Ok(found)
}

/// Returns start and end of the ranges whose extents both files share.
fn shared_ranges(files: [&File; 2]) -> papilio::Result<BTreeMap<u64, u64>> {
    let extents = |file: &File| -> papilio::Result<Vec<(u64, u64, u64, u64)>> {
        let (mut all, mut at) = (Vec::new(), 0);
        loop {
            let some = file.extents(at, EXTENTS_AT_ONCE)?;
            let Some(last) = some.last() else { break };
            at = last.start.0.saturating_add(last.length.max(1));
            let is_last = some.len() < EXTENTS_AT_ONCE;
            all.extend(
                some.iter()
                    .filter(|extent| extent.kind == FileExtentKind::Regular)
                    .map(|extent| (extent.start.0, extent.length, extent.address.0, extent.offset)),
            );
            if is_last {
                break;
            }
        }
        Ok(all)
    };
    let old: HashSet<_> = extents(files[0])?.into_iter().collect();
    let both = extents(files[1])?.into_iter().filter(|extent| old.contains(extent));
    Ok(both.map(|(start, length, ..)| (start, start + length)).collect())
}
