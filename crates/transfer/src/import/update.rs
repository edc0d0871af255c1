//! Bringing a tree of the file system up to date with a directory of the host.
//!
//! Owns [`TreeUpdater`] and [`Updated`]. The updater compares each entry of the source with the
//! entry that is there. [`TreeWriter`] makes those that are missing or of another kind.
//!
//! **Invariants**
//! - Data is compared, never times alone: builds with equal times have different content.
//! - A name is removed only if the source was read to the end of its directory without a problem.
//! - An inode with several names is kept for one inode of the source. Other names get inodes of
//!   their own, so that no write shows under a name for which it was not meant.
//! - What an interrupted run did is found and kept by the next one.

use super::event::{ImportEvent, ImportedNode, LinkId, MemberAttributes};
use super::replacing::remove_tree;
use super::writer::TreeWriter;
use papilio_engine::errors::{Error, Result};
use papilio_format::items::inode::{FileKind, InodeFlags};
use papilio_format::{InodeNumber, TreeId};
use papilio_fs::{File, Inode};
use std::collections::HashSet;
use std::ops::Range;

/// The bytes that are compared at once.
const PIECE: usize = 1 << 20;
/// The unit of comparison and of writing in a file system that compresses, in bytes: the most that
/// one compressed extent has.
const COMPRESSED_UNIT: usize = 128 << 10;

/// The amount of work of an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Updated {
    /// Names that were made, where none was.
    pub created: u64,
    /// Entries whose data, attributes or kind were changed.
    pub changed: u64,
    /// Names that were removed. A directory counts as one, with all that was in it.
    pub removed: u64,
    /// Entries that were as they should be.
    pub unchanged: u64,
    /// Bytes of file data written, without holes.
    pub bytes_written: u64,
    /// Bytes of file data that were equal.
    pub bytes_equal: u64,
}

/// A directory of the source that is being visited.
#[derive(Default)]
struct VisitedDirectory {
    /// The names that the source has there.
    seen: HashSet<Vec<u8>>,
    /// Whether something of it could not be read, so that names may be missing from `seen`.
    incomplete: bool,
    /// Whether the directory was there before.
    existed: bool,
    /// The flags of which new files inherit NODATACOW.
    flags: InodeFlags,
}

/// A regular file that is compared.
struct ComparedFile {
    file: File,
    attributes: MemberAttributes,
    size: u64,
    /// The end of what was compared.
    end: u64,
    path_length: usize,
    changed: bool,
}

/// Applies the events of a walk to a tree that has content.
pub(super) struct TreeUpdater<'a> {
    pub(super) writer: TreeWriter<'a>,
    directories: Vec<VisitedDirectory>,
    comparison: Option<ComparedFile>,
    /// The inodes with several names that were kept.
    kept: HashSet<(TreeId, InodeNumber)>,
    unit: usize,
    buffer: Vec<u8>,
    done: Updated,
    /// Names that were removed in order to make them anew.
    replaced: u64,
}

impl<'a> TreeUpdater<'a> {
    /// Creates an updater of the writer's tree.
    pub(super) fn new(mut writer: TreeWriter<'a>, compresses: bool, sector: usize) -> Self {
        writer.keeps_equal = true;
        Self {
            writer,
            directories: Vec::new(),
            comparison: None,
            kept: HashSet::new(),
            unit: if compresses { COMPRESSED_UNIT } else { sector },
            buffer: vec![0; PIECE],
            done: Updated::default(),
            replaced: 0,
        }
    }

    /// Adds the amount of work to `total`. Only a walk that came to its end tells how much was
    /// equal, since another one begins anew.
    pub(super) fn add_to(&self, total: &mut Updated, is_whole: bool) {
        let made = self.writer.done;
        total.created += made.entries.saturating_sub(self.replaced);
        total.changed += self.done.changed + self.replaced;
        total.removed += self.done.removed;
        total.bytes_written += self.done.bytes_written + made.bytes;
        if is_whole {
            total.unchanged = self.done.unchanged;
            total.bytes_equal = self.done.bytes_equal;
        }
    }

    /// Applies an event.
    ///
    /// # Errors
    /// Errors that end the work, as of [`TreeWriter::take`].
    pub(super) fn take(&mut self, event: ImportEvent) -> Result<()> {
        if self.comparison.is_some() {
            self.writer.proceed()?;
        }
        match event {
            ImportEvent::Enter { name, attributes } => self.enter(name, attributes),
            ImportEvent::Leave => self.leave(),
            ImportEvent::Problem(_) => {
                if let Some(directory) = self.directories.last_mut() {
                    directory.incomplete = true;
                }
                self.writer.take(event)
            }
            event if self.writer.is_skipping() => self.writer.take(event),
            ImportEvent::File { name, attributes, size, link, content, complete } => {
                match self.file_there(&name, link)? {
                    Some(there) => {
                        self.begin(&name, there, attributes, size, link)?;
                        if !content.is_empty() {
                            self.compare(0, &content)?;
                        }
                        if complete { self.end(None) } else { Ok(()) }
                    }
                    None => self.writer.take(ImportEvent::File {
                        name,
                        attributes,
                        size,
                        link,
                        content,
                        complete,
                    }),
                }
            }
            ImportEvent::Data { offset, ref bytes } if self.comparison.is_some() => {
                self.compare(offset, bytes)
            }
            ImportEvent::EndFile { error } if self.comparison.is_some() => self.end(error),
            ImportEvent::Node { name, attributes, node, link } => self.node(name, attributes, node, link),
            ImportEvent::Link { name, link } => self.link(name, link),
            event => self.writer.take(event),
        }
    }

    /// Notes a name of the source, and returns the entry of that name.
    fn see(&mut self, name: &[u8]) -> Result<Option<Inode>> {
        if let Some(directory) = self.directories.last_mut() {
            directory.seen.insert(name.to_vec());
        }
        self.writer.parent().lookup(name)
    }

    /// Removes an entry that another replaces.
    fn replace(&mut self, name: &[u8]) -> Result<()> {
        self.replaced += 1;
        remove_tree(&self.writer.parent(), name)
    }

    fn enter(&mut self, name: Vec<u8>, attributes: MemberAttributes) -> Result<()> {
        let mut existed = name.is_empty();
        if !self.writer.is_skipping() && !name.is_empty() {
            let path = self.writer.path_of(&name);
            let is_subvolume = self.writer.makes_subvolume(&path);
            if let Some(there) = self.see(&name)? {
                let fits = there.file_type() == FileKind::Directory
                    && there.is_subvolume_root() == is_subvolume
                    && self.flags_fit(&there, &path, None);
                match (fits, is_subvolume) {
                    (true, true) => self.writer.take_over_subvolume(path, &there)?,
                    (true, false) => {}
                    (false, _) => self.replace(&name)?,
                }
                existed = fits;
            }
        }
        self.writer.take(ImportEvent::Enter { name, attributes })?;
        let flags = self.writer.parent().metadata().flags();
        self.directories.push(VisitedDirectory { existed, flags, ..VisitedDirectory::default() });
        Ok(())
    }

    fn leave(&mut self) -> Result<()> {
        let directory = self.directories.pop().expect("each Leave follows its Enter");
        if self.writer.is_skipping() {
            return self.writer.take(ImportEvent::Leave);
        }
        let there = self.writer.parent();
        if directory.existed && !directory.incomplete {
            let mut extra = Vec::new();
            for entry in there.read_dir()? {
                let entry = entry?;
                if !directory.seen.contains(entry.file_name()) {
                    extra.push(entry.file_name().to_vec());
                }
            }
            for name in extra {
                self.writer.proceed()?;
                remove_tree(&there, &name)?;
                self.done.removed += 1;
            }
        }
        let before = self.writer.settled;
        self.writer.take(ImportEvent::Leave)?;
        match self.writer.settled != before {
            _ if !directory.existed => {}
            true => self.done.changed += 1,
            false => self.done.unchanged += 1,
        }
        Ok(())
    }

    /// Returns the regular file at a name if it can be given the content of the source's. Any other
    /// entry there is removed.
    fn file_there(&mut self, name: &[u8], link: Option<LinkId>) -> Result<Option<Inode>> {
        let Some(there) = self.see(name)? else { return Ok(None) };
        let path = self.writer.path_of(name);
        let is_kept = there.file_type() == FileKind::Regular
            && self.flags_fit(&there, &path, link)
            && self.keep(&there, link);
        if !is_kept {
            self.replace(name)?;
        }
        Ok(is_kept.then_some(there))
    }

    /// Returns whether an inode is free to become that of the source's entry.
    fn keep(&mut self, there: &Inode, link: Option<LinkId>) -> bool {
        let id = (there.tree(), there.number());
        if there.metadata().nlink() > 1 && !self.kept.insert(id) {
            return false;
        }
        if let Some(link) = link {
            self.writer.note_link(link, there);
        }
        true
    }

    /// Returns whether an entry has the flags NODATACOW and NODATASUM that it would be made with.
    fn flags_fit(&self, there: &Inode, path: &[u8], link: Option<LinkId>) -> bool {
        let parent = self.directories.last().filter(|_| !there.is_subvolume_root());
        let inherited = parent.map_or(InodeFlags::empty(), |parent| parent.flags);
        let mut wanted = self.writer.wanted_flags(path, link) | (inherited & InodeFlags::NODATACOW);
        if wanted.contains(InodeFlags::NODATACOW) && there.file_type() == FileKind::Regular {
            wanted |= InodeFlags::NODATASUM;
        }
        let both = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
        there.metadata().flags() & both == wanted & both
    }

    fn begin(
        &mut self,
        name: &[u8],
        there: Inode,
        attributes: MemberAttributes,
        size: u64,
        link: Option<LinkId>,
    ) -> Result<()> {
        let path_length = self.writer.step(name);
        let attributes = self.writer.resolve(attributes);
        self.writer.note_flags(link);
        let opened = there.open();
        match self.writer.report(opened)? {
            Some(file) => {
                let comparison = ComparedFile { file, attributes, size, end: 0, path_length, changed: false };
                self.comparison = Some(comparison);
            }
            None => self.writer.truncate_path(path_length),
        }
        Ok(())
    }

    /// Compares data of the source's file at an offset, and writes the units that differ.
    fn compare(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let Some(mut comparison) = self.comparison.take() else { return Ok(()) };
        let mut work = || {
            comparison.hole(comparison.end..offset, &mut self.buffer)?;
            let mut at = offset;
            for piece in bytes.chunks(PIECE) {
                let different = different_units(&comparison.file, piece, at, self.unit, &mut self.buffer);
                let mut written = 0;
                for range in different {
                    comparison.file.write_all_at(&piece[range.clone()], at + range.start as u64)?;
                    written += range.len() as u64;
                }
                comparison.changed |= written > 0;
                self.done.bytes_written += written;
                self.done.bytes_equal += piece.len() as u64 - written;
                self.writer.tell_bytes(piece.len() as u64);
                at += piece.len() as u64;
            }
            comparison.end = at;
            Ok(())
        };
        let worked = work();
        if self.writer.report(worked)?.is_some() {
            self.comparison = Some(comparison);
        }
        Ok(())
    }

    /// Completes a file that was compared.
    fn end(&mut self, error: Option<Error>) -> Result<()> {
        let Some(mut comparison) = self.comparison.take() else { return Ok(()) };
        // A file of the source that could not be read to its end says nothing about the rest.
        if error.is_none() {
            let completed = comparison.complete(&mut self.buffer);
            self.writer.report(completed)?;
        }
        let settled = self.writer.settle(comparison.file.inode(), &comparison.attributes);
        comparison.changed |= self.writer.report(settled)?.unwrap_or(true);
        self.count(comparison.changed);
        self.writer.truncate_path(comparison.path_length);
        match error {
            Some(error) => self.writer.take(ImportEvent::Problem(error)),
            None => Ok(()),
        }
    }

    fn count(&mut self, changed: bool) {
        match changed {
            true => self.done.changed += 1,
            false => self.done.unchanged += 1,
        }
    }

    fn node(
        &mut self,
        name: Vec<u8>,
        attributes: MemberAttributes,
        node: ImportedNode,
        link: Option<LinkId>,
    ) -> Result<()> {
        if let Some(there) = self.see(&name)? {
            if is_node(&there, &node)? && self.keep(&there, link) {
                let path_length = self.writer.step(&name);
                let attributes = self.writer.resolve(attributes);
                let settled = self.writer.settle(&there, &attributes);
                let changed = self.writer.report(settled)?.unwrap_or(true);
                self.count(changed);
                self.writer.truncate_path(path_length);
                return Ok(());
            }
            self.replace(&name)?;
        }
        self.writer.take(ImportEvent::Node { name, attributes, node, link })
    }

    fn link(&mut self, name: Vec<u8>, link: LinkId) -> Result<()> {
        if let Some(there) = self.see(&name)? {
            match self.writer.is_linked(&there, link) {
                true => self.done.unchanged += 1,
                false => self.replace(&name)?,
            }
        }
        self.writer.take(ImportEvent::Link { name, link })
    }
}

impl ComparedFile {
    /// Makes a range read as zeros.
    fn hole(&mut self, range: Range<u64>, buffer: &mut [u8]) -> Result<()> {
        let end = range.end.min(self.file.len());
        let mut at = range.start;
        while at < end {
            let Some(data) = self.file.seek_data(at)?.filter(|data| *data < end) else { break };
            let upper = self.file.seek_hole(data)?.min(end).min(data + buffer.len() as u64);
            let piece = &mut buffer[..(upper - data) as usize];
            let read = self.file.read_exact_at(piece, data);
            // Old content that cannot be read is replaced as well.
            if read.is_err() || piece.iter().any(|byte| *byte != 0) {
                self.file.punch_hole(data, upper - data)?;
                self.changed = true;
            }
            at = upper;
        }
        Ok(())
    }

    /// Gives the file its size, after all its data.
    fn complete(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.hole(self.end..self.size, buffer)?;
        if self.file.len() != self.size {
            self.file.set_len(self.size)?;
            self.changed = true;
        }
        Ok(())
    }
}

/// Returns the ranges of `bytes` that differ from the file's content at `offset`, in whole units of
/// the file.
fn different_units(
    file: &File,
    bytes: &[u8],
    offset: u64,
    unit: usize,
    buffer: &mut [u8],
) -> Vec<Range<usize>> {
    let there = file.len().saturating_sub(offset).min(bytes.len() as u64) as usize;
    let old = &mut buffer[..there];
    let is_whole = old.is_empty() || file.read_exact_at(old, offset).is_ok();
    let mut different: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let into_unit = ((offset + at as u64) % unit as u64) as usize;
        let end = (at + unit - into_unit).min(bytes.len());
        // Old content that cannot be read is written anew.
        let is_read =
            is_whole || (end <= there && file.read_exact_at(&mut old[at..end], offset + at as u64).is_ok());
        let equal = is_read && end <= there && old[at..end] == bytes[at..end];
        match different.last_mut() {
            _ if equal => {}
            Some(last) if last.end == at => last.end = end,
            _ => different.push(at..end),
        }
        at = end;
    }
    different
}

/// Returns whether an inode without data is as in the source, apart from its attributes.
fn is_node(there: &Inode, node: &ImportedNode) -> Result<bool> {
    let (kind, metadata) = (there.file_type(), there.metadata());
    Ok(match node {
        ImportedNode::Symlink(target) => kind == FileKind::Symlink && there.read_link()? == *target,
        ImportedNode::Fifo => kind == FileKind::Fifo,
        ImportedNode::Socket => kind == FileKind::Socket,
        &ImportedNode::Block { major, minor } => {
            kind == FileKind::BlockDevice && metadata.rdev() == (major, minor)
        }
        &ImportedNode::Character { major, minor } => {
            kind == FileKind::CharacterDevice && metadata.rdev() == (major, minor)
        }
    })
}
