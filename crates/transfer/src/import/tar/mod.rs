//! Filling from a tar archive.
//!
//! Owns [`unpack`] and [`estimate`]. The inode of each directory is kept by path, so that no path
//! is resolved twice (`places`).
//!
//! **Invariants**
//! - No member is created outside the directory to fill, neither by `..` nor through a symbolic
//!   link.
//! - A later member replaces an earlier one with the same name, a directory a link, too.
//! - Directories get their attributes at the end.
//!
//! Counterpart: btrfs-progs' `mkfs/rootdir.c` with libarchive.

mod header;
pub(super) mod members;
mod places;
mod whiteouts;

use super::decompressed::decompressed;
use super::estimate::Estimate;
use super::event::{ImportedNode, MemberAttributes};
use super::replacing::Replacing;
use super::writer::TreeWriter;
use members::{Member, MemberKind, Members};
use papilio_engine::errors::{Error, PathError, Result};
use papilio_fs::{File, Inode};
use places::{Directory, Places, joined, split};
use std::io::Read;
use std::path::Path;
use whiteouts::{Whiteouts, is_whiteout};

/// Bytes of data to read and write at once.
const PIECE: usize = 4 << 20;
/// Alignment in bytes of the ends of pieces.
const BLOCK: usize = 4096;

/// An archive that is being unpacked.
struct Unpacking<'a, 'w> {
    writer: &'a mut TreeWriter<'w>,
    places: Places,
    /// Set for a layer on top of others.
    whiteouts: Option<Whiteouts>,
}

/// Unpacks an archive into `top`. Archives that follow one another in one stream are unpacked one
/// after the other. Whiteouts are applied if the writer replaces as layers do.
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
    let whiteouts = (writer.replacing == Replacing::ByLayer).then(Whiteouts::default);
    let mut unpacking = Unpacking { writer, places: Places::new(top), whiteouts };
    while let Some(member) = members.next()? {
        unpacking.writer.proceed()?;
        if !member.path.is_empty() {
            unpacking.writer.report_entry(&member.path);
        }
        match unpacking.member(&mut members, &member) {
            Ok(()) if unpacking.whiteouts.is_none() && is_whiteout_file(&member) => {
                let path = String::from_utf8_lossy(&member.path);
                let text = format!(
                    "{path}: a whiteout of an image layer: it deletes nothing here, and is a file of this name; give the layers together, the lowest first"
                );
                unpacking.writer.report_at(&member.path, Error::Invalid(text))?;
            }
            Ok(()) => {}
            // The archive itself is invalid or cannot be read, so nothing after it can be trusted.
            Err(error) if members.has_failed() => return Err(error),
            Err(error) => unpacking.writer.report_at(&member.path, error)?,
        }
    }
    unpacking.finish()
}

/// Returns whether a member is a whiteout of an OCI image layer: an empty file whose name tells
/// which file of a lower layer is deleted.
fn is_whiteout_file(member: &Member) -> bool {
    matches!(member.kind, MemberKind::File { size: 0, .. }) && is_whiteout(split(&member.path).1)
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
            MemberKind::Node(ImportedNode::Symlink(target)) => estimate.add_content(target.len() as u64),
            _ => {}
        }
    }
    Ok(estimate)
}

impl Unpacking<'_, '_> {
    fn member(&mut self, members: &mut Members<'_>, member: &Member) -> Result<()> {
        let (above, name) = split(&member.path);
        if name.is_empty() {
            return match member.kind {
                MemberKind::Directory => {
                    let attributes = self.writer.attributes_at(b"", member.attributes.clone());
                    let top = self.places.get_mut(b"").expect("the top is always there");
                    top.attributes = Some(attributes);
                    Ok(())
                }
                _ => Err(Error::path(&member.path, PathError::InvalidName)),
            };
        }
        let (directory, parent) = self.places.directory(above, self.writer)?;
        if let Some(whiteouts) = &self.whiteouts
            && is_whiteout_file(member)
        {
            return whiteouts.apply(&directory, &parent, name, &mut self.places);
        }
        let path = joined(&directory, name);
        let attributes = self.writer.attributes_at(&path, member.attributes.clone());
        let made = match member.kind {
            MemberKind::Directory => self.directory(&path, &parent, name, attributes),
            _ => self.file(members, member, &path, &parent, name, &attributes),
        };
        if let (Ok(()), Some(whiteouts)) = (&made, &mut self.whiteouts) {
            whiteouts.note(&path);
        }
        made
    }

    fn directory(
        &mut self,
        path: &[u8],
        parent: &Inode,
        name: &[u8],
        attributes: MemberAttributes,
    ) -> Result<()> {
        if let Some(known) = self.places.get_mut(path) {
            known.attributes = Some(attributes);
            return Ok(());
        }
        if let Some(made) = self.writer.make_directory(parent, name, path, &attributes)? {
            let directory =
                Directory { inode: made.inode, attributes: Some(attributes), is_new: made.is_new };
            self.places.insert(path.to_vec(), directory);
        }
        Ok(())
    }

    /// Unpacks a member that is no directory.
    fn file(
        &mut self,
        members: &mut Members<'_>,
        member: &Member,
        path: &[u8],
        parent: &Inode,
        name: &[u8],
        attributes: &MemberAttributes,
    ) -> Result<()> {
        let target = match &member.kind {
            MemberKind::Link(target) => Some(self.places.find(target)?),
            _ => None,
        };
        let writer = &mut *self.writer;
        let made = match (&member.kind, target) {
            (_, Some(target)) => writer.make_link(parent, name, &target),
            (MemberKind::Node(node), _) => writer.make_node(parent, name, attributes, node).map(drop),
            (MemberKind::File { size, map }, _) => {
                match writer.make_file(parent, name, path, None, attributes)? {
                    Some((_, file)) => fill(members, &file, *size, map.as_deref(), attributes, writer),
                    None => Ok(()),
                }
            }
            (MemberKind::Directory | MemberKind::Link(_), None) => Ok(()),
        };
        // The name may have been that of a directory.
        self.places.forget(path);
        made
    }

    /// Gives the directories their attributes.
    fn finish(self) -> Result<()> {
        for (path, directory) in self.places.into_deepest_first() {
            let Some(attributes) = directory.attributes else { continue };
            if let Err(error) = self.writer.finish(&directory.inode, &attributes, directory.is_new) {
                self.writer.report_at(&path, error)?;
            }
        }
        Ok(())
    }
}

/// Writes the data of a regular file, and gives it its attributes.
fn fill(
    members: &mut Members<'_>,
    file: &File,
    size: u64,
    map: Option<&[(u64, u64)]>,
    attributes: &MemberAttributes,
    writer: &mut TreeWriter<'_>,
) -> Result<()> {
    let end = match map {
        None => copy(members, file, 0, size, writer)?,
        Some(map) => {
            let mut end = 0;
            // An empty segment marks the end of the file only.
            for &(offset, length) in map.iter().filter(|(_, length)| *length > 0) {
                end = end.max(copy(members, file, offset, length, writer)?);
            }
            end
        }
    };
    writer.finish_file(file, attributes, size, end)
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
        writer.report_bytes(step as u64)?;
        offset += step as u64;
        left -= step as u64;
    }
    Ok(offset)
}
