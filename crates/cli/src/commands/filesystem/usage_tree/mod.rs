//! `papilio usage --tree`: the share of the used space that each directory has.
//!
//! Owns the samples and the tree of directories that they make. A sample is a random byte of the
//! data chunks. Back references lead from it to the files that contain it, so that space counts
//! once, however many snapshots and reflinks share it. It counts for one path: the shortest, and of
//! these the first. With `--exact` every extent is looked up instead.

use crate::commands::inspect::paths_of;
use crate::context::{Context, of_image};
use crate::mounted::Target;
use crate::output::{Output, escaped};
use crate::tree_source::{TreeSource, UsedChunk};
use crate::units::Units;
use crate::usage_error::UsageError;
use indicatif::ProgressBar;
use papilio::format::items::block_group::BlockGroupFlags;
use papilio::format::items::extent::{ExtentFlags, ExtentItem};
use papilio::format::{InodeNumber, ItemType, Key, LogicalAddress, TreeId, objectid};
use papilio::{AddressUse, FileSystem};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::path::Path;

/// Random addresses that are tried for each sample that is wanted, as long as they are unused.
const ATTEMPTS: u64 = 200;
/// The half width of the interval that holds the true value in 95 of 100 cases, in standard
/// deviations.
const DEVIATIONS: f64 = 1.96;

/// The options of the tree of directories.
#[derive(Debug, clap::Args)]
pub struct TreeArgs {
    /// Show how much of the data each directory has, estimated from random samples
    ///
    /// A byte counts once, however many snapshots share it: for the shortest of its paths.
    #[arg(long, conflicts_with = "table")]
    pub tree: bool,
    /// Take N samples
    #[arg(long, value_name = "N", default_value_t = 2000, requires = "tree")]
    samples: u64,
    /// Start the random numbers from N
    #[arg(long, value_name = "N", default_value_t = 0, requires = "tree")]
    seed: u64,
    /// Look up every extent instead of samples
    #[arg(long, requires = "tree", conflicts_with_all = ["samples", "seed"])]
    exact: bool,
    /// Show N levels of directories
    #[arg(long, value_name = "N", default_value_t = 3, requires = "tree")]
    depth: usize,
    /// Show what has at least P percent
    #[arg(long = "min", value_name = "P", default_value_t = 1.0, requires = "tree")]
    least: f64,
}

/// A file or directory.
#[derive(Debug, Default)]
struct Entry {
    /// Samples, or with `--exact` bytes, in it and below it.
    weight: u64,
    below: BTreeMap<Vec<u8>, Entry>,
}

impl Entry {
    fn add(&mut self, path: &[u8], weight: u64) {
        self.weight += weight;
        let mut at = self;
        for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
            at = at.below.entry(part.to_vec()).or_default();
            at.weight += weight;
        }
    }
}

/// The weights that were found.
struct Found {
    root: Entry,
    /// Parts of extents that no file uses any more.
    unreachable: u64,
    /// The sum of all weights.
    all: u64,
    /// Used bytes of data.
    data: u64,
    /// Used bytes of tree blocks.
    metadata: u64,
    exact: bool,
}

impl Found {
    /// Returns the bytes that a weight stands for, and the bytes by which they may be wrong.
    fn bytes(&self, weight: u64) -> (u64, u64) {
        if self.exact {
            return (weight, 0);
        }
        let all = self.all.max(1) as f64;
        let share = weight as f64 / all;
        // One sample more and less, so that a share of 0 or 1 is not called certain.
        let spread = (share * (1.0 - share) / all).sqrt() * DEVIATIONS + 1.0 / all;
        let data = self.data as f64;
        ((share * data).round() as u64, (spread * data).round() as u64)
    }
}

/// Finds the paths of addresses.
struct Resolver<'f> {
    fs: &'f FileSystem,
    known: HashMap<(TreeId, InodeNumber), Option<Vec<u8>>>,
}

impl Resolver<'_> {
    /// Returns the path that an address counts for; `None` inside if no file uses it.
    fn path(&mut self, address: u64, whole: bool) -> papilio::Result<Option<Option<Vec<u8>>>> {
        let owners = match self.fs.extent_owners(LogicalAddress(address), whole)? {
            AddressUse::Data(owners) => owners,
            AddressUse::Free | AddressUse::TreeBlock => return Ok(None),
        };
        let mut best: Option<Vec<u8>> = None;
        for owner in owners {
            let fs = self.fs;
            let path = match self.known.entry((owner.tree, owner.inode)) {
                std::collections::hash_map::Entry::Occupied(known) => known.get().clone(),
                std::collections::hash_map::Entry::Vacant(new) => {
                    let paths = paths_of(fs, owner.tree, owner.inode)?;
                    new.insert(paths.into_iter().min_by(|a, b| order(a, b))).clone()
                }
            };
            best = match (best, path) {
                (Some(best), Some(path)) if order(&path, &best).is_lt() => Some(path),
                (best, path) => best.or(path),
            };
        }
        Ok(Some(best))
    }
}

fn order(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

/// Shows the tree.
pub fn show(
    context: &Context,
    image: &Path,
    arguments: &TreeArgs,
    units: Units,
    json: bool,
) -> anyhow::Result<()> {
    let source = TreeSource::open(context, image.as_os_str())?;
    let fs = match Target::parse(image.as_os_str() as &OsStr)? {
        Target::Image(path) => context.open(&path.image)?,
        Target::Mounted(_) => {
            return Err(UsageError::new("--tree is for images that are not mounted").into());
        }
    };
    let chunks = source.chunks()?;
    let used = |kind: BlockGroupFlags| {
        chunks.iter().filter(|chunk| chunk.item.flags.intersects(kind)).map(|chunk| chunk.used).sum::<u64>()
    };
    let mut found = Found {
        root: Entry::default(),
        unreachable: 0,
        all: 0,
        data: used(BlockGroupFlags::DATA),
        metadata: chunks.iter().map(|chunk| chunk.used).sum::<u64>() - used(BlockGroupFlags::DATA),
        exact: arguments.exact,
    };
    let mut resolver = Resolver { fs: &fs, known: HashMap::new() };
    let bar = context.is_interactive().then(|| ProgressBar::new(arguments.samples));
    context.set_progress(bar.clone());
    let ran = match arguments.exact {
        true => look_up_all(&source, &mut resolver, &mut found, bar.as_ref()),
        false => sample(&chunks, arguments, &mut resolver, &mut found, bar.as_ref())
            .map_err(|error| of_image(image, error)),
    };
    context.set_progress(None);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    ran?;
    let mut output = Output::new()?;
    if json {
        output.text(format_args!("{:#}\n", to_json(&found, arguments)))?;
    } else {
        print(&mut output, &found, arguments, units)?;
    }
    Ok(output.finish()?)
}

/// Takes samples until there are enough of data, or next to no data is found.
fn sample(
    chunks: &[UsedChunk],
    arguments: &TreeArgs,
    resolver: &mut Resolver<'_>,
    found: &mut Found,
    bar: Option<&ProgressBar>,
) -> papilio::Result<()> {
    let is_data = |chunk: &&UsedChunk| chunk.item.flags.contains(BlockGroupFlags::DATA) && chunk.used > 0;
    let chunks: Vec<_> = chunks.iter().filter(is_data).collect();
    let length = chunks.iter().map(|chunk| chunk.item.length).sum::<u64>();
    if length == 0 {
        return Ok(());
    }
    let mut random = fastrand::Rng::with_seed(arguments.seed);
    for _ in 0..arguments.samples.saturating_mul(ATTEMPTS) {
        let mut at = random.u64(..length);
        let mut chunks = chunks.iter();
        let address = loop {
            let chunk = chunks.next().expect("the number is below the sum of lengths");
            match at.checked_sub(chunk.item.length) {
                Some(rest) => at = rest,
                None => break chunk.start.0 + at,
            }
        };
        let Some(path) = resolver.path(address, false)? else { continue };
        found.all += 1;
        match path {
            Some(path) => found.root.add(&path, 1),
            None => found.unreachable += 1,
        }
        if let Some(bar) = bar {
            bar.set_position(found.all);
        }
        if found.all >= arguments.samples {
            break;
        }
    }
    Ok(())
}

/// Looks up every extent.
fn look_up_all(
    source: &TreeSource,
    resolver: &mut Resolver<'_>,
    found: &mut Found,
    bar: Option<&ProgressBar>,
) -> anyhow::Result<()> {
    source.search(objectid::EXTENT_TREE, (Key::MIN, Key::MAX), 0, |key, item| {
        if key.item_type != ItemType::EXTENT_ITEM {
            return Ok(());
        }
        let extent = ExtentItem::parse(key.item_type, item)
            .map_err(|reason| anyhow::anyhow!("extent {}: {reason}", key.objectid))?;
        if !extent.header.flags.contains(ExtentFlags::DATA) {
            return Ok(());
        }
        let Some(path) = resolver.path(key.objectid, true)? else { return Ok(()) };
        found.all += key.offset;
        match path {
            Some(path) => found.root.add(&path, key.offset),
            None => found.unreachable += key.offset,
        }
        if let Some(bar) = bar {
            bar.inc(1);
        }
        Ok(())
    })
}

fn print(output: &mut Output, found: &Found, arguments: &TreeArgs, units: Units) -> anyhow::Result<()> {
    output.text(format_args!("{:>12} {:>12} {:>7}  PATH\n", "SIZE", "ERROR", "SHARE"))?;
    let mut pending = vec![(0, b"/".to_vec(), &found.root)];
    while let Some((depth, name, entry)) = pending.pop() {
        line(output, found, units, entry.weight, depth, &name)?;
        if depth >= arguments.depth {
            continue;
        }
        let mut below: Vec<_> = entry.below.iter().collect();
        below.sort_by_key(|(name, entry)| (Reverse(entry.weight), *name));
        for (name, entry) in below.into_iter().rev() {
            if share(found, entry.weight) * 100.0 >= arguments.least {
                pending.push((depth + 1, name.clone(), entry));
            }
        }
    }
    if found.unreachable > 0 {
        line(output, found, units, found.unreachable, 0, b"(parts of extents that no file uses)")?;
    }
    let (data, metadata) = (units.text(found.data), units.text(found.metadata));
    output.text(format_args!("data {data}, metadata {metadata}"))?;
    match found.exact {
        true => output.text(format_args!("\n"))?,
        false => output.text(format_args!(", {} samples\n", found.all))?,
    }
    Ok(())
}

fn share(found: &Found, weight: u64) -> f64 {
    weight as f64 / found.all.max(1) as f64
}

fn line(
    output: &mut Output,
    found: &Found,
    units: Units,
    weight: u64,
    depth: usize,
    name: &[u8],
) -> anyhow::Result<()> {
    let (bytes, error) = found.bytes(weight);
    let error = if found.exact { String::new() } else { format!("±{}", units.text(error)) };
    let share = share(found, weight) * 100.0;
    output.text(format_args!("{:>12} {error:>12} {share:>6.1}%  ", units.text(bytes)))?;
    output.text(format_args!("{:width$}", "", width = 2 * depth))?;
    output.name(name)?;
    Ok(output.text(format_args!("\n"))?)
}

fn to_json(found: &Found, arguments: &TreeArgs) -> Value {
    let (bytes, error) = found.bytes(found.unreachable);
    json!({
        "exact": found.exact,
        "samples": if found.exact { Value::Null } else { found.all.into() },
        "seed": if found.exact { Value::Null } else { arguments.seed.into() },
        "data": found.data,
        "metadata": found.metadata,
        "unreachable": { "bytes": bytes, "error": error },
        "tree": entry_json(found, b"/", &found.root),
    })
}

fn entry_json(found: &Found, name: &[u8], entry: &Entry) -> Value {
    let (bytes, error) = found.bytes(entry.weight);
    let below: Vec<_> = entry.below.iter().map(|(name, entry)| entry_json(found, name, entry)).collect();
    let name = String::from_utf8_lossy(&escaped(name)).into_owned();
    json!({ "name": name, "bytes": bytes, "error": error, "entries": below })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_to_the_root() {
        let mut root = Entry::default();
        root.add(b"/a/b", 3);
        root.add(b"/a/c", 2);
        root.add(b"/d", 1);
        assert_eq!(root.weight, 6);
        assert_eq!(root.below[&b"a"[..]].weight, 5);
        let found = Found { root, unreachable: 0, all: 6, data: 6000, metadata: 0, exact: false };
        let (bytes, error) = found.bytes(3);
        assert_eq!(bytes, 3000);
        assert!((3000..4500).contains(&error), "{error}");
        assert!(order(b"/b", b"/aa").is_lt() && order(b"/a", b"/b").is_lt());
    }
}
