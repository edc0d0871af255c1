//! Filling from a tar archive.
//!
//! Owns [`unpack`] and [`estimate`]. The inode of each directory is kept by path, so that no path
//! is resolved twice.
//!
//! **Invariants**
//! - No member is created outside the directory to fill, neither by `..` nor through a symbolic
//!   link.
//! - A later member replaces an earlier one with the same name.
//! - Directories get their attributes at the end.
//!
//! Counterpart: btrfs-progs' `mkfs/rootdir.c` with libarchive.

mod header;
mod members;

use super::estimate::Estimate;
use super::event::{Attributes, Node};
use super::writer::TreeWriter;
use members::{Member, MemberKind, Members};
use papilio_engine::errors::{Error, PathError, Result};
use papilio_format::items::inode::FileKind;
use papilio_fs::{File, Inode};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Bytes of data to read and write at once.
const PIECE: usize = 4 << 20;
/// Alignment in bytes of the ends of pieces.
const BLOCK: usize = 4096;
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// A directory with members.
struct Directory {
    inode: Inode,
    /// The attributes of its own member, if it had one.
    attributes: Option<Attributes>,
    is_new: bool,
}

/// Directories by path. The directory to fill has the empty path.
type Directories = BTreeMap<Vec<u8>, Directory>;

/// Unpacks an archive into `top`.
///
/// # Errors
/// As `Populate::tar`.
pub(super) fn unpack(
    name: &Path,
    archive: impl Read,
    top: &Inode,
    writer: &mut TreeWriter<'_>,
) -> Result<()> {
    let mut members = Members::new(name, decompressed(name, archive)?);
    let mut directories = Directories::new();
    directories.insert(Vec::new(), Directory { inode: top.clone(), attributes: None, is_new: false });
    while let Some(member) = members.next()? {
        if !member.path.is_empty() {
            writer.report_entry(&member.path);
        }
        match unpack_member(&mut members, &member, &mut directories, writer) {
            Ok(()) if is_whiteout(&member) => {
                let path = String::from_utf8_lossy(&member.path);
                let text = format!(
                    "{path}: a whiteout of an image layer: it deletes nothing here, and is a file of this name"
                );
                writer.report_at(&member.path, Error::Invalid(text))?;
            }
            Ok(()) => {}
            // The archive itself is invalid or cannot be read, so nothing after it can be trusted.
            Err(error) if members.has_failed() => return Err(error),
            Err(error) => writer.report_at(&member.path, error)?,
        }
    }
    if let Some(at) = members.another_archive()? {
        let name = name.display();
        let text = format!("{name}: another archive begins at byte {at}: it was left out");
        writer.report_at(b"", Error::Invalid(text))?;
    }
    // In reverse order of paths, so that each directory comes before its parent.
    for (path, directory) in directories.into_iter().rev() {
        let Some(attributes) = directory.attributes else { continue };
        if let Err(error) = writer.finish(&directory.inode, &attributes, directory.is_new) {
            writer.report_at(&path, error)?;
        }
    }
    Ok(())
}

/// Returns whether a member is a whiteout of an OCI image layer: an empty file whose name tells
/// which file of a lower layer is deleted.
fn is_whiteout(member: &Member) -> bool {
    let (_, name) = split(&member.path);
    matches!(member.kind, MemberKind::File { size: 0, .. }) && name.starts_with(b".wh.")
}

/// Sums up the content of an archive.
///
/// # Errors
/// An archive that cannot be read or is invalid.
pub(super) fn estimate(name: &Path, archive: impl Read) -> Result<Estimate> {
    let mut members = Members::new(name, decompressed(name, archive)?);
    let mut estimate = Estimate::default();
    while let Some(member) = members.next()? {
        let last = member.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let xattrs = member.attributes.xattrs.iter();
        let xattr_bytes = xattrs.map(|xattr| 64 + (xattr.name.len() + xattr.value.len()) as u64).sum();
        estimate.add_entry(last.len(), xattr_bytes);
        match &member.kind {
            MemberKind::File { .. } => estimate.add_content(member.archived),
            MemberKind::Node(Node::Symlink(target)) => estimate.add_content(target.len() as u64),
            _ => {}
        }
    }
    Ok(estimate)
}

fn decompressed<'r>(name: &Path, archive: impl Read + 'r) -> Result<Box<dyn Read + 'r>> {
    let host = |source| Error::Host { path: name.to_path_buf(), source };
    let mut archive = BufReader::with_capacity(1 << 20, archive);
    let start = archive.fill_buf().map_err(host)?;
    Ok(match start {
        start if start.starts_with(GZIP_MAGIC) => Box::new(flate2::bufread::MultiGzDecoder::new(archive)),
        start if start.starts_with(ZSTD_MAGIC) => {
            Box::new(zstd::stream::read::Decoder::with_buffer(archive).map_err(host)?)
        }
        _ => Box::new(archive),
    })
}

fn unpack_member(
    members: &mut Members<'_>,
    member: &Member,
    directories: &mut Directories,
    writer: &mut TreeWriter<'_>,
) -> Result<()> {
    let attributes = writer.attributes_at(&member.path, member.attributes.clone());
    if let MemberKind::Directory = member.kind {
        return directory(&member.path, attributes, directories, writer);
    }
    let (parent_path, name) = split(&member.path);
    if name.is_empty() {
        return Err(Error::path(&member.path, PathError::InvalidName));
    }
    let parent = parent(parent_path, directories, writer)?;
    match &member.kind {
        MemberKind::Directory => Ok(()),
        MemberKind::Node(node) => writer.make_node(&parent, name, &attributes, node).map(drop),
        MemberKind::Link(target) => {
            let target = find(target, directories)?;
            writer.make_link(&parent, name, &target)
        }
        MemberKind::File { size, map } => {
            let Some((_, file)) = writer.make_file(&parent, name, &member.path, None, &attributes)? else {
                return Ok(());
            };
            let end = match map {
                None => copy(members, &file, 0, *size, writer)?,
                Some(map) => {
                    let mut end = 0;
                    // An empty segment marks the end of the file only.
                    for &(offset, length) in map.iter().filter(|(_, length)| *length > 0) {
                        end = end.max(copy(members, &file, offset, length, writer)?);
                    }
                    end
                }
            };
            writer.finish_file(&file, &attributes, *size, end)
        }
    }
}

/// Writes `length` bytes of the archive to the file at `offset`, and returns the end of the range.
fn copy(
    members: &mut Members<'_>,
    file: &File,
    mut offset: u64,
    length: u64,
    writer: &mut TreeWriter<'_>,
) -> Result<u64> {
    let mut left = length;
    // Most files are smaller than a piece.
    let mut buffer = vec![0; usize::try_from(left).map_or(PIECE, |left| left.min(PIECE))];
    while left > 0 {
        // Pieces end at block boundaries, so that no block is written twice.
        let aligned = PIECE - offset as usize % BLOCK;
        let step = usize::try_from(left).map_or(aligned, |left| left.min(aligned)).min(buffer.len());
        members.read_exact(&mut buffer[..step])?;
        file.write_all_at(&buffer[..step], offset)?;
        writer.report_bytes(step as u64);
        offset += step as u64;
        left -= step as u64;
    }
    Ok(offset)
}

fn directory(
    path: &[u8],
    attributes: Attributes,
    directories: &mut Directories,
    writer: &mut TreeWriter<'_>,
) -> Result<()> {
    if let Some(known) = directories.get_mut(path) {
        known.attributes = Some(attributes);
        return Ok(());
    }
    let (parent_path, name) = split(path);
    let parent = parent(parent_path, directories, writer)?;
    if let Some(made) = writer.make_directory(&parent, name, path, &attributes)? {
        let directory = Directory { inode: made.inode, attributes: Some(attributes), is_new: made.is_new };
        directories.insert(path.to_vec(), directory);
    }
    Ok(())
}

/// Returns the directory at a path. Creates it and its parents, owned by root, if no member did.
fn parent(path: &[u8], directories: &mut Directories, writer: &mut TreeWriter<'_>) -> Result<Inode> {
    if let Some(known) = directories.get(path) {
        return Ok(known.inode.clone());
    }
    let (above, name) = split(path);
    let above = parent(above, directories, writer)?;
    let (inode, is_new) = match above.lookup(name)? {
        Some(there) if there.file_type() == FileKind::Directory => (there, false),
        Some(_) => return Err(Error::path(path, PathError::NotADirectory)),
        None => {
            let attributes = Attributes { mode: 0o755, ..Attributes::default() };
            let attributes = writer.attributes_at(path, attributes);
            let made = writer.make_directory(&above, name, path, &attributes)?;
            let made = made.ok_or_else(|| Error::path(path, PathError::Exists))?;
            writer.finish(&made.inode, &attributes, true)?;
            (made.inode, true)
        }
    };
    directories.insert(path.to_vec(), Directory { inode: inode.clone(), attributes: None, is_new });
    Ok(inode)
}

/// Returns the target of a hard link.
fn find(path: &[u8], directories: &Directories) -> Result<Inode> {
    let missing =
        || Error::Invalid(format!("hard link to {}: no such member", String::from_utf8_lossy(path)));
    let (above, name) = split(path);
    if let Some(directory) = directories.get(above) {
        return directory.inode.lookup(name)?.ok_or_else(missing);
    }
    let mut inode = directories[&b""[..]].inode.clone();
    for name in path.split(|&byte| byte == b'/') {
        if inode.file_type() != FileKind::Directory {
            return Err(missing());
        }
        inode = inode.lookup(name)?.ok_or_else(missing)?;
    }
    Ok(inode)
}

/// Splits a path into directory and name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}
