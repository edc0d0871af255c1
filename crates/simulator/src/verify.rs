//! Compares a whole file system with its model, and checks it.
//!
//! Owns [`compare`], which covers every path: kind, mode, owner, links, size, attributes and
//! content. It also checks that two names share an inode on one side exactly if they do on the
//! other.

use crate::model::{Content, Entry, Model, Node, NodeKind, Place, ROOT};
use crate::quota_numbers;
use papilio::{CheckOptions, File, FileKind, FileSystem, FindingKind, Inode, InodeFlags, OpenOptions};
use papilio_device::Device;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Files up to this size, in bytes, are read completely; of larger ones, only what either side
/// reports as data.
const WHOLE: u64 = 8 << 20;
const PIECE: u64 = 1 << 20;

/// Compares the tree below `base` with the model.
///
/// # Errors
/// The first difference.
pub fn compare(fs: &FileSystem, base: &[u8], model: &Model) -> Result<(), String> {
    let path = if base.is_empty() { b"/" } else { base };
    let root = fs.inode(path).map_err(|error| format!("{}: {error}", path.escape_ascii()))?;
    let mut numbers: HashMap<(u64, u64), Place> = HashMap::new();
    let mut places: HashMap<Place, (u64, u64)> = HashMap::new();
    let mut pending = vec![(base.to_vec(), root, Model::root())];
    let mut roots = Vec::new();
    while let Some((path, inode, place)) = pending.pop() {
        let differ = |what: String| format!("{}: {what}", path.escape_ascii());
        let node = model.node(place);
        let number = (inode.tree().0, inode.number().0);
        if *numbers.entry(number).or_insert(place) != place
            || *places.entry(place).or_insert(number) != number
        {
            return Err(differ(
                "the names of one inode lead to different inodes on the other side".to_owned(),
            ));
        }
        metadata(&inode, node).map_err(&differ)?;
        content(&inode, node).map_err(&differ)?;
        if place.node == ROOT {
            roots.push((place, inode.clone()));
        }
        if let Some(entries) = node.entries() {
            let mut found = BTreeMap::new();
            for entry in inode.read_dir().map_err(|error| differ(error.to_string()))? {
                let entry = entry.map_err(|error| differ(error.to_string()))?;
                let below = entry.inode().map_err(|error| differ(error.to_string()))?;
                if found.insert(entry.file_name().to_vec(), below).is_some() {
                    return Err(differ(format!("\"{}\" is listed twice", entry.file_name().escape_ascii())));
                }
            }
            for (name, entry) in entries {
                let shown = name.escape_ascii();
                let Some(below) = found.remove(name) else {
                    return Err(differ(format!("\"{shown}\" is missing")));
                };
                let looked_up = inode.lookup(name).map_err(|error| differ(error.to_string()))?;
                if looked_up.as_ref().map(|looked_up| (looked_up.tree(), looked_up.number()))
                    != Some((below.tree(), below.number()))
                {
                    return Err(differ(format!(
                        "\"{shown}\" is listed as {below:?}, looked up as {looked_up:?}"
                    )));
                }
                let path = [&path[..], b"/", name].concat();
                match (model.target(place, *entry), entry) {
                    (Some(target), _) => pending.push((path, below, target)),
                    (None, Entry::Stub) if below.is_subvolume_stub() => {}
                    (None, _) => {
                        return Err(differ(format!("\"{shown}\" is not the stub of a subvolume")));
                    }
                }
            }
            if let Some(name) = found.keys().next() {
                return Err(differ(format!("\"{}\" should not exist", name.escape_ascii())));
            }
        }
    }
    match base {
        b"" => quota_numbers::compare(fs, model, &roots),
        _ => Ok(()),
    }
}

pub(crate) fn metadata(inode: &Inode, node: &Node) -> Result<(), String> {
    let metadata = inode.metadata();
    let mut facts = vec![
        ("mode", u64::from(metadata.permissions()), u64::from(node.mode)),
        ("uid", metadata.uid().into(), node.uid.into()),
        ("gid", metadata.gid().into(), node.gid.into()),
        ("nlink", metadata.nlink().into(), node.nlink.into()),
        ("size", metadata.size(), node.size()),
    ];
    if metadata.file_type() != node.file_kind() {
        return Err(format!("kind {:?}, expected {:?}", metadata.file_type(), node.file_kind()));
    }
    if let NodeKind::Special(_, major, minor) = node.kind {
        facts.push(("major", metadata.rdev().0.into(), major.into()));
        facts.push(("minor", metadata.rdev().1.into(), minor.into()));
    }
    let flags = metadata.flags();
    if matches!(node.file_kind(), FileKind::Regular | FileKind::Directory) {
        facts.push(("NODATACOW", flags.contains(InodeFlags::NODATACOW).into(), node.nodatacow.into()));
    }
    if node.file_kind() == FileKind::Regular {
        facts.push(("NODATASUM", flags.contains(InodeFlags::NODATASUM).into(), node.nodatacow.into()));
    }
    if let Some((fact, found, expected)) = facts.into_iter().find(|(_, found, expected)| found != expected) {
        return Err(format!("{fact} {found:#o}, expected {expected:#o}"));
    }
    let xattrs = inode.xattrs().map_err(|error| error.to_string())?;
    let found: BTreeMap<Vec<u8>, Vec<u8>> = xattrs
        .into_iter()
        .map(|xattr| (xattr.name, xattr.value))
        .filter(|(name, _)| !name.starts_with(b"btrfs."))
        .collect();
    if found != node.xattrs {
        let list = |xattrs: &BTreeMap<Vec<u8>, Vec<u8>>| {
            let each =
                xattrs.iter().map(|(name, value)| format!("{} ({} bytes)", name.escape_ascii(), value.len()));
            each.collect::<Vec<_>>().join(", ")
        };
        return Err(format!("attributes {}, expected {}", list(&found), list(&node.xattrs)));
    }
    Ok(())
}

pub(crate) fn content(inode: &Inode, node: &Node) -> Result<(), String> {
    match &node.kind {
        NodeKind::Symlink(target) => {
            let found = inode.read_link().map_err(|error| error.to_string())?;
            if found == *target { Ok(()) } else { Err(difference(&found, target)) }
        }
        NodeKind::File(expected) => {
            let file = inode.open().map_err(|error| error.to_string())?;
            let size = expected.size();
            let mut stretches = vec![(0, size)];
            if size > WHOLE {
                stretches = data_of(&file, size).map_err(|error| error.to_string())?;
                stretches.extend(expected.stretches());
            }
            for (start, end) in stretches {
                for at in (start..end).step_by(PIECE as usize) {
                    let length = PIECE.min(end - at);
                    let mut found = vec![0xa5; length as usize];
                    let read = file.read_at(&mut found, at).map_err(|error| error.to_string())?;
                    found.truncate(read);
                    let expected = expected.bytes(at, length);
                    if found != expected {
                        return Err(format!("at {at}: {}", difference(&found, &expected)));
                    }
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn data_of(file: &File, size: u64) -> papilio::Result<Vec<(u64, u64)>> {
    let (mut stretches, mut at) = (Vec::new(), 0);
    while at < size {
        let Some(start) = file.seek_data(at)? else { break };
        at = file.seek_hole(start)?;
        stretches.push((start, at));
    }
    Ok(stretches)
}

/// Returns the state of a file system that holds a part of a change of one file from its content in
/// `model` to `after`, and is as the model in all else; `None` if it is not so.
pub(crate) fn partial_state(fs: &FileSystem, model: &Model, place: Place, after: &Content) -> Option<Model> {
    let found = fs.read(model.path_of(place)?).ok()?;
    let mut state = model.clone();
    state.set_content(place, mixed_content(model.content(place), after, &found).ok()?);
    compare(fs, b"", &state).ok()?;
    Some(state)
}

/// Builds the content left by a change from `before` to `after` that stopped half-way. Each sector
/// must equal one or the other, and the size must lie between theirs.
pub(crate) fn mixed_content(before: &Content, after: &Content, found: &[u8]) -> Result<Content, String> {
    let size = found.len() as u64;
    let (least, most) = (before.size().min(after.size()), before.size().max(after.size()));
    if !(least..=most).contains(&size) {
        return Err(format!("a size of {size}, outside of {} to {}", before.size(), after.size()));
    }
    let (mut old, mut new) = (vec![0; 4096], vec![0; 4096]);
    for (index, sector) in found.chunks(4096).enumerate() {
        let offset = index as u64 * 4096;
        for (side, buffer) in [(before, &mut old), (after, &mut new)] {
            buffer.fill(0);
            side.read(buffer, offset);
        }
        if sector != &old[..sector.len()] && sector != &new[..sector.len()] {
            return Err(format!("neither the old nor the new bytes in the sector at {offset}"));
        }
    }
    let mut content = Content::default();
    content.write(0, found);
    Ok(content)
}

/// Describes the difference between two byte strings.
pub fn difference(found: &[u8], expected: &[u8]) -> String {
    let at = found.iter().zip(expected).position(|(a, b)| a != b);
    let (lengths, differing) = (
        format!("{} bytes, expected {}", found.len(), expected.len()),
        found.iter().zip(expected).filter(|(a, b)| a != b).count(),
    );
    match at {
        Some(at) => {
            format!("{lengths}; {differing} differ, at {at}: {:#x}, expected {:#x}", found[at], expected[at])
        }
        None => lengths,
    }
}

/// Opens devices read-only and compares their content with the model.
///
/// # Errors
/// An error on opening, or the first difference.
pub fn compare_devices(devices: &[Arc<dyn Device>], model: &Model) -> Result<(), String> {
    let fs =
        FileSystem::from_devices(devices.to_vec(), &OpenOptions::new()).map_err(|error| error.to_string())?;
    compare(&fs, b"", model)
}

/// Checks the file system on the devices, including data checksums.
///
/// # Errors
/// The findings.
pub fn check(devices: &[Arc<dyn Device>]) -> Result<(), String> {
    let options = CheckOptions::new().data_csum(true);
    let report = papilio::check_devices(devices.to_vec(), &OpenOptions::new(), &options)
        .map_err(|error| format!("check: {error}"))?;
    if report.is_clean() {
        return Ok(());
    }
    let findings: Vec<String> =
        report.findings.iter().take(10).map(|finding| format!("{finding:?}")).collect();
    Err(format!("{} findings:\n    {}", report.findings.len(), findings.join("\n    ")))
}

/// Checks the file system, including data checksums. Copies of the superblock may differ, because
/// the interruption may have come between their writes.
///
/// # Errors
/// The first other finding.
pub fn check_interrupted(devices: &[Arc<dyn Device>], options: &OpenOptions) -> Result<(), String> {
    let report = papilio::check_devices(devices.to_vec(), options, &CheckOptions::new().data_csum(true))
        .map_err(|error| format!("check: {error}"))?;
    let copies = [FindingKind::SuperblockCopy, FindingKind::SuperblockFirst, FindingKind::DeviceItemDiffers];
    let other = report.findings.iter().find(|finding| !copies.contains(&finding.kind));
    other.map_or(Ok(()), |finding| Err(format!("check: {finding:?}")))
}
