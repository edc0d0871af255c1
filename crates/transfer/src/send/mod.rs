//! Sending: the stream that turns one snapshot into another, or into being.
//!
//! Owns [`SendOptions`], the options and the run. [`compare`] finds the inodes that differ and
//! passes over shared blocks; [`names`] knows the names at the receiver, and [`moves`] brings them
//! to those of the new tree; [`content`] brings attributes and data; [`clones`] finds data that the
//! receiver has already; [`directory_times`] delays the times of directories; [`stream`] writes.
//! [`rest`] passes on the rest of a stream that something else sends.
//!
//! **Order:** that of the kernel: inodes by number, each with names, xattrs, data, owner, mode and
//! times. It differs where the kernel's order leaves a receiver with wrong attributes or times:
//! - Attributes of the root that new inodes would inherit are set last.
//! - The times of the root are sent again if names passed through it afterwards.
//!
//! **Invariants**
//! - Only read-only subvolumes are sent, and their trees do not change meanwhile.
//! - Each command finds the receiver as the commands before it left it.
//!
//! **Locks:** those of reading.
//!
//! Kernel counterpart: `fs/btrfs/send.c`.

pub mod changes;
mod clones;
mod compare;
mod content;
mod directory_times;
mod id;
mod moves;
mod names;
mod rest;
mod sender;
mod stream;
mod symlink;
mod waiting;

use crate::receive::{ResumeToken, SentSubvolume};
use compare::{Changes, Differs, all_inodes, differences};
use content::{Content, is_inherited};
use directory_times::DirectoryTimes;
use id::Id;
use names::{Fate, Names};
use papilio_engine::errors::{Error, PathError, Result};
use papilio_engine::items::inode;
use papilio_engine::items::trees::OpenTree;
use papilio_engine::items::xattr::{self, Xattr};
use papilio_format::items::inode::{FileKind, InodeItem};
use papilio_format::items::root::RootFlags;
use papilio_format::send_stream::{Command, Protocol};
use papilio_format::{InodeNumber, TreeId, objectid};
use papilio_fs::FileSystem;
pub use rest::pass_rest;
use sender::{CloneSource, Sender};
use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
pub(crate) use stream::StreamWriter;

/// Sends subvolumes as `btrfs send` does.
#[derive(Clone, Debug)]
pub struct SendOptions {
    parent: Option<TreeId>,
    clone_sources: Vec<TreeId>,
    no_data: bool,
    protocol: Protocol,
    compressed_data: bool,
    omit_header: bool,
    omit_end: bool,
    resume: Option<ResumeToken>,
}

/// The size of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// Commands.
    pub commands: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Watches a send.
pub trait SendObserver {
    /// `done` of `all` inodes are sent, and the stream has `bytes`.
    fn progress(&mut self, done: u64, all: u64, bytes: u64);
}

/// Watches nothing.
impl SendObserver for () {
    fn progress(&mut self, _done: u64, _all: u64, _bytes: u64) {}
}

impl Default for SendOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl SendOptions {
    /// A full stream in protocol 1, with data.
    pub const fn new() -> Self {
        Self {
            parent: None,
            clone_sources: Vec::new(),
            no_data: false,
            protocol: Protocol::V1,
            compressed_data: false,
            omit_header: false,
            omit_end: false,
            resume: None,
        }
    }

    /// Sends the difference from this snapshot, which the receiver has.
    pub fn parent(mut self, parent: Option<TreeId>) -> Self {
        self.parent = parent;
        self
    }

    /// Lets the stream clone from this snapshot, which the receiver has.
    pub fn clone_source(mut self, source: TreeId) -> Self {
        self.clone_sources.push(source);
        self
    }

    /// Sends which ranges changed in place of the data.
    pub fn no_data(mut self, no_data: bool) -> Self {
        self.no_data = no_data;
        self
    }

    /// Chooses the protocol.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// Sends compressed extents as they lie, which needs protocol 2.
    pub fn compressed_data(mut self, compressed: bool) -> Self {
        self.compressed_data = compressed;
        self
    }

    /// Leaves out the stream's header, as for the second of several streams that are to be one.
    pub fn omit_header(mut self, omit: bool) -> Self {
        self.omit_header = omit;
        self
    }

    /// Leaves out the command that ends the stream.
    pub fn omit_end(mut self, omit: bool) -> Self {
        self.omit_end = omit;
        self
    }

    /// Writes only the rest of the stream, behind the position where a receive was interrupted. The
    /// other options must be those of the interrupted stream. Data that the receiver has is not
    /// read. [`Receive::resume`](crate::receive::Receive::resume) takes the rest.
    pub fn resume(mut self, token: Option<ResumeToken>) -> Self {
        self.resume = token;
        self
    }

    /// Writes the stream of a subvolume to `out`.
    ///
    /// # Errors
    /// A subvolume that is missing or not read-only; a tree or data that cannot be read; an error
    /// of `out`; a token of another stream, or of a snapshot that changed.
    pub fn send(
        &self,
        fs: &FileSystem,
        subvolume: TreeId,
        out: &mut dyn Write,
        observer: &mut dyn SendObserver,
    ) -> Result<Sent> {
        if self.compressed_data && self.protocol < Protocol::V2 {
            return Err(Error::Invalid("compressed data needs protocol 2".into()));
        }
        let _running = fs.info.exclusive.begin_send()?;
        let new = read_only(fs, subvolume)?;
        let old = self.parent.map(|parent| read_only(fs, parent)).transpose()?;
        let mut sources = vec![CloneSource::of(&new)];
        for id in self.parent.iter().chain(&self.clone_sources) {
            if sources.iter().all(|source| source.tree.id() != *id) {
                sources.push(CloneSource::of(&*read_only(fs, *id)?));
            }
        }
        if let Some(token) = &self.resume {
            let CloneSource { uuid, ctransid, .. } = sources[0];
            token.check(SentSubvolume { uuid, ctransid })?;
        }
        let changes = match &old {
            Some(old) => differences(&old.tree, &new.tree)?,
            None => all_inodes(&new.tree)?,
        };
        let name = fs.subvolume(subvolume)?.name;
        let (new_tree, old_tree) = (new.tree.clone(), old.as_ref().map(|old| old.tree.clone()));
        let (changes, fates) = decide(&new, old.as_deref(), changes)?;
        let mut sender = Sender {
            fs,
            names: Names::new(old_tree.as_ref(), &new_tree, fates),
            sector_size: fs.info.sector_size() as u32,
            no_data: self.no_data,
            compressed: self.compressed_data,
            out: match self.resume {
                Some(token) => StreamWriter::rest(out, self.protocol, token),
                None => StreamWriter::new(out, self.protocol, !self.omit_header),
            },
            sources,
            last_hints: None,
            times: DirectoryTimes::default(),
            postponed: Vec::new(),
            new: Arc::clone(&new),
            old,
        };
        sender.begin(name)?;
        sender.run(&changes, observer)?;
        sender.out.check_end()?;
        if !self.omit_end {
            sender.out.put(&Command::End)?;
        }
        sender.out.flush()?;
        Ok(Sent { commands: sender.out.commands(), bytes: sender.out.bytes() })
    }
}

/// Returns a subvolume that must be read-only.
fn read_only(fs: &FileSystem, id: TreeId) -> Result<Arc<OpenTree>> {
    let open = fs.info.trees.subvolume(id)?;
    if !open.item().flags.contains(RootFlags::RDONLY) {
        return Err(Error::Invalid(format!("subvolume {id} is not read-only, which send needs")));
    }
    if open.root_directory() != objectid::FIRST_INODE {
        return Err(Error::path(format!("subvolume {id}").as_bytes(), PathError::NotSupported));
    }
    Ok(open)
}

/// An inode with a name.
fn living(open: &OpenTree, number: u64) -> Result<Option<InodeItem>> {
    Ok(inode::inode(&open.tree, InodeNumber(number))?.filter(|item| item.nlink > 0))
}

/// Decides which inodes are created and removed. Adds inodes whose directory was replaced: their
/// items are alike in both trees, but their names are lost.
fn decide(
    new: &OpenTree,
    old: Option<&OpenTree>,
    mut changes: Changes,
) -> Result<(Changes, HashMap<u64, Fate>)> {
    let mut fates = HashMap::new();
    let mut orphaned = Vec::new();
    for &number in changes.keys() {
        if number == Id::ROOT.number {
            continue;
        }
        let after = living(new, number)?;
        let before = old.map(|old| living(old, number)).transpose()?.flatten();
        let lasts = match (&before, &after) {
            (Some(before), Some(after)) => {
                (before.generation, before.kind(), before.rdev)
                    == (after.generation, after.kind(), after.rdev)
            }
            _ => false,
        };
        if lasts {
            continue;
        }
        if let (Some(old), Some(item)) = (old, &before)
            && item.kind() == Some(FileKind::Directory)
            && after.is_some()
        {
            orphaned.extend(children(old, number)?);
        }
        fates.insert(number, Fate { removed: before, created: after.is_some() });
    }
    for number in orphaned {
        changes.entry(number).or_default().names = true;
    }
    Ok((changes, fates))
}

/// Returns the inodes that a directory has entries for.
fn children(open: &OpenTree, number: u64) -> Result<Vec<u64>> {
    use papilio_engine::items::dir::{EntryTarget, entries_of, index_first_key, index_last_key};
    let number = InodeNumber(number);
    let mut found = Vec::new();
    for item in open.tree.range(index_first_key(number, 0)..=index_last_key(number)) {
        for entry in entries_of(&open.tree, &item?)? {
            if let EntryTarget::Inode(child) = EntryTarget::of(&entry.location) {
                found.push(child.0);
            }
        }
    }
    Ok(found)
}

impl Sender<'_> {
    fn begin(&mut self, path: Vec<u8>) -> Result<()> {
        let CloneSource { uuid, ctransid, .. } = self.sources[0];
        let ctransid = ctransid.0;
        let Some(old) = &self.old else {
            return self.out.put(&Command::Subvol { path, uuid, ctransid });
        };
        let parent = CloneSource::of(old);
        self.out.put(&Command::Snapshot {
            path,
            uuid,
            ctransid,
            clone_uuid: parent.uuid,
            clone_ctransid: parent.ctransid.0,
        })
    }

    fn run(&mut self, changes: &Changes, observer: &mut dyn SendObserver) -> Result<()> {
        let all = changes.len() as u64;
        self.strip_root()?;
        for (done, (&number, &differs)) in changes.iter().enumerate() {
            self.send_inode(number, differs)?;
            self.send_surplus_times()?;
            if done % 256 == 0 {
                observer.progress(done as u64, all, self.out.bytes());
            }
        }
        self.names.move_rest(&mut self.out, &mut self.times)?;
        self.restore_root()?;
        let root_is_left = self.names.passed_root && !self.times.contains(Id::ROOT.number);
        while let Some(directory) = self.times.take_last() {
            self.send_times(directory)?;
        }
        if root_is_left {
            self.send_times(Id::ROOT.number)?;
        }
        observer.progress(all, all, self.out.bytes());
        Ok(())
    }

    /// Takes the attributes of the root away that new inodes would inherit.
    fn strip_root(&mut self) -> Result<()> {
        if !self.names.creates_any() {
            return Ok(());
        }
        let root = InodeNumber(Id::ROOT.number);
        let inherited = |tree| -> Result<Vec<Xattr>> {
            let attributes = xattr::list(tree, root)?;
            Ok(attributes.into_iter().filter(|attribute| is_inherited(&attribute.name)).collect())
        };
        if let Some(old) = &self.old {
            for Xattr { name, .. } in inherited(&old.tree)? {
                self.out.put(&Command::RemoveXattr { path: Vec::new(), name })?;
            }
        }
        self.postponed = inherited(&self.new.tree)?;
        Ok(())
    }

    /// Sets the attributes of the root that new inodes would have inherited.
    fn restore_root(&mut self) -> Result<()> {
        for Xattr { name, value } in std::mem::take(&mut self.postponed) {
            self.out.put(&Command::SetXattr { path: Vec::new(), name, value })?;
        }
        Ok(())
    }

    /// Sends the times of directories that were not touched for a while.
    fn send_surplus_times(&mut self) -> Result<()> {
        while let Some(directory) = self.times.take_surplus() {
            self.send_times(directory)?;
        }
        Ok(())
    }

    /// Sends one inode, except for the times of a directory.
    fn send_inode(&mut self, number: u64, differs: Differs) -> Result<()> {
        self.names.turn = number;
        let fate = self.names.fate(number);
        if fate.is_some_and(|fate| fate.removed.is_some()) {
            self.names.remove(&mut self.out, &mut self.times, Id { number, doomed: true })?;
        }
        let Some(item) = living(&self.new, number)? else { return Ok(()) };
        let created = fate.is_some_and(|fate| fate.created);
        let differs = if created { Differs::ALL } else { differs };
        let id = Id::lasting(number);
        let renamed =
            id != Id::ROOT && differs.names && self.names.settle(&mut self.out, &mut self.times, number)?;
        self.send_surplus_times()?;
        // The same names may have another order in the parent. The kernel takes the first there.
        let before_turn = if renamed { None } else { Some(self.names.path_of(id)?) };
        self.names.end_turn(number);
        let before = match &self.old {
            Some(old) if fate.is_none() => living(old, number)?,
            _ => None,
        };
        let path = match before_turn {
            Some(path) => path,
            None => self.names.path_of(id)?,
        };
        let content = Content { number, item: &item, before, differs, path };
        // The kernel sends the data of an inode first if its number was in use by another one.
        let replaces = fate.is_some_and(|fate| fate.removed.is_some());
        if differs.xattrs && !replaces {
            self.send_xattrs(&content)?;
        }
        if item.kind() == Some(FileKind::Regular) {
            self.send_file(&content)?;
        }
        if replaces {
            self.send_xattrs(&content)?;
        }
        self.send_attributes(&content)?;
        if self.names.waiting.contains(number) {
            return Ok(());
        }
        self.names.move_waiting(&mut self.out, &mut self.times, number)?;
        if item.kind() == Some(FileKind::Directory) && item.size > 0 {
            self.times.touch(number);
            return Ok(());
        }
        self.put_times(content.path, &item)
    }
}
