//! The reader of a copy: walks the image, and reads and verifies ahead of the writer.
//!
//! Owns [`Source`] and [`read`].
//!
//! **Invariants**
//! - A directory is entered once. The walk ends even if a corrupt directory is its own ancestor.
//! - Names that could leave the destination (`..`, `a/b`) are reported and never sent.
//! - Bytes that cannot be read do not end the copy: each such range is sent as missing.
//! - The first link to an inode is sent as the file, the others as links.

use super::event::{Attributes, BUFFER, BufferPool, Event, InodeId, Special};
use super::problem::{ExportProblem, Missing};
use crate::batches::{Batches, HungUp};
use crate::image_path::ImagePath;
use crate::read_around::{Around, Gap, Receiver, read_around};
use papilio_engine::errors::Error;
use papilio_format::TreeId;
use papilio_format::items::inode::FileKind;
use papilio_fs::{Entries, File, Inode};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

/// Says whether a path is to be copied.
pub type PathFilter = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// Opens the same file in a mount. The mount must show the state that is copied.
pub type TwinFinder = Arc<dyn Fn(&ImagePath, &Inode) -> Option<std::fs::File> + Send + Sync>;

/// A file or tree to copy.
#[derive(Clone)]
pub struct Source {
    /// Its operand.
    pub path: ImagePath,
    /// Its inode.
    pub inode: Inode,
}

/// Options of the reader.
#[derive(Clone, Default)]
pub struct SourceOptions {
    /// Whether to enter directories, and to copy links and special files as such.
    pub recursive: bool,
    /// Whether to leave directories of other subvolumes than the source's empty.
    pub one_subvolume: bool,
    /// Whether to send all but the first link to an inode as links.
    pub links: bool,
    /// Whether to read extended attributes.
    pub xattrs: bool,
    /// Whether [`Event::File`] lists the ranges with data of a file with holes.
    pub segments: bool,
    /// Whether to copy data whose checksums are lost, and list it as unverified.
    pub unverified: bool,
    /// Whether to leave out directories of other subvolumes than the source's.
    pub skip_subvolumes: bool,
    /// Whether to leave out symbolic links and special files.
    pub only_files: bool,
    /// Copies only what has a path that matches, from the source on, with a slash in front.
    pub filter: Option<PathFilter>,
    /// Finds regular files in a mount whose data the copy can share.
    pub twins: Option<TwinFinder>,
    /// Counts the files that the filter let through, which are no directories.
    pub matched: Arc<AtomicU64>,
}

struct SourceReader<'a> {
    options: SourceOptions,
    batches: Batches<'a, Event>,
    pool: &'a BufferPool,
    /// The inodes with several links that were sent.
    sent: HashSet<InodeId>,
    images: Vec<std::path::PathBuf>,
}

/// The walk of one source.
struct Tree {
    home: TreeId,
    image: usize,
    entered: HashSet<InodeId>,
    stack: Vec<SourceDirectory>,
}

struct SourceDirectory {
    path: ImagePath,
    entries: Entries,
    inode: Inode,
}

/// Reads all sources. Returns early if the writer stops.
pub fn read(
    sources: Vec<Source>,
    options: SourceOptions,
    sender: &SyncSender<Vec<Event>>,
    pool: &BufferPool,
) {
    let mut reader = SourceReader {
        options,
        batches: Batches::new(sender),
        pool,
        sent: HashSet::new(),
        images: Vec::new(),
    };
    for (number, source) in sources.into_iter().enumerate() {
        let done = reader.send(Event::Begin { source: number }).and_then(|()| reader.tree(source));
        if done.is_err() {
            return;
        }
    }
    // An error means that the writer has stopped, which needs no handling here.
    let _ = reader.batches.flush();
}

impl SourceReader<'_> {
    fn send(&mut self, event: Event) -> Result<(), HungUp> {
        let weight = event.weight();
        self.batches.send(event, weight)
    }

    fn problem(&mut self, problem: ExportProblem) -> Result<(), HungUp> {
        self.send(Event::Problem(Box::new(problem)))
    }

    fn unreadable(&mut self, path: &ImagePath, error: Error) -> Result<(), HungUp> {
        self.problem(ExportProblem::Unreadable { path: path.clone(), error })
    }

    fn tree(&mut self, source: Source) -> Result<(), HungUp> {
        let mut tree = Tree {
            home: source.inode.tree(),
            image: self.image_number(&source.path),
            entered: HashSet::new(),
            stack: Vec::new(),
        };
        self.inode(&mut tree, source.path, Vec::new(), &source.inode)?;
        while let Some(frame) = tree.stack.last_mut() {
            let entry = match frame.entries.next() {
                Some(Ok(entry)) => entry,
                ended => {
                    if let Some(Err(error)) = ended {
                        let goes_on = frame.entries.skip_unreadable();
                        let path = frame.path.clone();
                        self.problem(match goes_on {
                            true => ExportProblem::EntriesMissing { path, error },
                            false => ExportProblem::Unreadable { path, error },
                        })?;
                        if goes_on {
                            continue;
                        }
                    }
                    self.warn_of_uncertain(&frame.path.clone(), &frame.inode.clone())?;
                    tree.stack.pop();
                    self.send(Event::LeaveDirectory)?;
                    continue;
                }
            };
            let name = entry.file_name();
            let path = frame.path.join(name);
            if !is_safe_name(name) {
                self.problem(ExportProblem::UnsafeName { path })?;
                continue;
            }
            if self.options.filter.as_ref().is_some_and(|filter| !filter(&path.path)) {
                continue;
            }
            match entry.inode() {
                Ok(inode) => {
                    if inode.metadata().file_type() != FileKind::Directory {
                        self.options.matched.fetch_add(1, Ordering::Relaxed);
                    }
                    let name = name.to_vec();
                    self.inode(&mut tree, path, name, &inode)?;
                }
                Err(error) => self.unreadable(&path, error)?,
            }
        }
        Ok(())
    }

    /// Reports an inode whose items a scan found without the blocks above them.
    fn warn_of_uncertain(&mut self, path: &ImagePath, inode: &Inode) -> Result<(), HungUp> {
        match inode.is_uncertain() {
            true => self.problem(ExportProblem::Uncertain { path: path.clone() }),
            false => Ok(()),
        }
    }

    /// Returns the index of an image, by which links are identified. Two operands may name one
    /// image.
    fn image_number(&mut self, path: &ImagePath) -> usize {
        let known = self.images.iter().position(|image| *image == path.image);
        known.unwrap_or_else(|| {
            self.images.push(path.image.clone());
            self.images.len() - 1
        })
    }

    fn inode(
        &mut self,
        tree: &mut Tree,
        path: ImagePath,
        name: Vec<u8>,
        inode: &Inode,
    ) -> Result<(), HungUp> {
        let metadata = inode.metadata();
        let kind = metadata.file_type();
        if self.options.only_files && !matches!(kind, FileKind::Regular | FileKind::Directory) {
            return Ok(());
        }
        if self.options.skip_subvolumes && inode.tree() != tree.home {
            return self.problem(ExportProblem::SubvolumeSkipped { path });
        }
        let own_id = (tree.image, inode.tree().0, inode.number().0);
        let mut id = None;
        if self.options.links && metadata.nlink() > 1 && metadata.file_type() != FileKind::Directory {
            if !self.sent.insert(own_id) {
                return self.send(Event::Link { name, id: own_id, size: metadata.size() });
            }
            id = Some(own_id);
        }
        let xattrs = match self.options.xattrs {
            true => inode.xattrs(),
            false => Ok(Vec::new()),
        };
        let xattrs = match xattrs {
            Ok(xattrs) => xattrs,
            Err(error) => {
                self.problem(ExportProblem::AttributesUnreadable { path: path.clone(), error })?;
                Vec::new()
            }
        };
        let attributes = Attributes::new(metadata, xattrs);
        let (major, minor) = metadata.rdev();
        let special = match metadata.file_type() {
            FileKind::Directory => {
                if !tree.entered.insert(own_id) {
                    return self.problem(ExportProblem::DirectoryTwice { path });
                }
                return self.directory(tree, path, name, inode, attributes);
            }
            FileKind::Regular => return self.file(&path, name, inode, attributes, id),
            FileKind::Symlink => {
                return match inode.read_link() {
                    Ok(target) => self.send(Event::Symlink { name, attributes, target, id }),
                    Err(error) => self.unreadable(&path, error),
                };
            }
            FileKind::Fifo => Special::Fifo,
            FileKind::Socket => Special::Socket,
            FileKind::BlockDevice => Special::Block { major, minor },
            FileKind::CharacterDevice => Special::Character { major, minor },
        };
        match self.options.recursive {
            true => self.send(Event::Special { name, attributes, special, id }),
            false => self.problem(ExportProblem::NotRecursive { path, kind: metadata.file_type() }),
        }
    }

    fn directory(
        &mut self,
        tree: &mut Tree,
        path: ImagePath,
        name: Vec<u8>,
        inode: &Inode,
        attributes: Attributes,
    ) -> Result<(), HungUp> {
        self.send(Event::EnterDirectory { name, attributes })?;
        if self.options.one_subvolume && inode.tree() != tree.home {
            return self.send(Event::LeaveDirectory);
        }
        match inode.read_dir() {
            Ok(entries) => {
                tree.stack.push(SourceDirectory { path, entries, inode: inode.clone() });
                Ok(())
            }
            Err(error) => {
                self.unreadable(&path, error)?;
                self.send(Event::LeaveDirectory)
            }
        }
    }

    fn file(
        &mut self,
        path: &ImagePath,
        name: Vec<u8>,
        inode: &Inode,
        attributes: Attributes,
        id: Option<InodeId>,
    ) -> Result<(), HungUp> {
        let file = match inode.open() {
            Ok(file) => file,
            Err(error) => return self.unreadable(path, error),
        };
        let size = file.len();
        let mut segments = None;
        if self.options.segments {
            let found = Segments::new(&file).take_while(Result::is_ok);
            let all: Vec<(u64, u64)> = found.flatten().collect();
            segments = (all.iter().map(|(_, length)| length).sum::<u64>() < size).then_some(all);
        }
        let twin = self.options.twins.as_ref().and_then(|find| find(path, inode));
        let has_twin = twin.is_some();
        self.send(Event::File { name, attributes, size, id, segments, twin })?;
        if has_twin {
            return self.send(Event::EndFile { missing: 0 });
        }
        let unverified = self.options.unverified;
        let how = Around { piece: BUFFER as u64, unverified };
        let mut sender = FileSender { reader: self, path, missing: 0 };
        read_around(&file, how, &mut sender)?;
        let missing = sender.missing;
        self.warn_of_uncertain(path, inode)?;
        self.send(Event::EndFile { missing })
    }
}

/// Sends what is read of one file.
struct FileSender<'r, 's> {
    reader: &'r mut SourceReader<'s>,
    path: &'r ImagePath,
    missing: u64,
}

impl Receiver for FileSender<'_, '_> {
    type Stop = HungUp;

    fn buffer(&mut self, length: usize) -> Vec<u8> {
        self.reader.pool.get(length)
    }

    fn data(&mut self, offset: u64, bytes: Vec<u8>) -> Result<(), HungUp> {
        self.reader.send(Event::Data { offset, bytes })
    }

    fn gap(&mut self, gap: Gap) -> Result<(), HungUp> {
        let Gap { range, reason, is_unverified } = gap;
        let length = range.end.saturating_sub(range.start);
        if !is_unverified {
            self.missing += length;
        }
        let (path, offset) = (self.path.to_string(), range.start);
        self.reader.send(Event::Missing(Missing { path, offset, length, reason, is_unverified }))
    }
}

/// Iterates over the ranges with data of a file, as (offset, length). Ends after an error.
struct Segments<'a> {
    file: &'a File,
    at: u64,
}

impl<'a> Segments<'a> {
    fn new(file: &'a File) -> Self {
        Self { file, at: 0 }
    }

    fn find(&mut self) -> Result<Option<(u64, u64)>, Error> {
        let size = self.file.len();
        if self.at >= size {
            return Ok(None);
        }
        let Some(start) = self.file.seek_data(self.at)? else { return Ok(None) };
        let end = self.file.seek_hole(start)?.min(size);
        Ok((end > start).then_some((start, end.saturating_sub(start))))
    }
}

impl Iterator for Segments<'_> {
    type Item = Result<(u64, u64), String>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.find();
        self.at = match found {
            Ok(Some((start, length))) => start + length,
            _ => u64::MAX,
        };
        found.map_err(|error| error.to_string()).transpose()
    }
}

/// Returns whether a name can only mean an entry of its directory.
pub fn is_safe_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

#[cfg(test)]
mod tests {
    use super::is_safe_name;

    #[test]
    fn names_that_leave_their_directory_are_unsafe() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0"] {
            assert!(!is_safe_name(name), "{name:?}");
        }
        for name in [&b"..."[..], b".a", b"\xff", b"a\nb"] {
            assert!(is_safe_name(name), "{name:?}");
        }
    }
}
