//! The versions of a file that snapshots keep.
//!
//! Owns [`FileVersion`], [`file_versions`] and [`file_versions_leaving_out`]. A snapshot keeps the
//! inode number of a file and the transaction that created it, under whatever name. So two searches
//! find a file's versions:
//!
//! - by path: in the subvolume itself and in its family, the subvolumes that snapshots connect with
//!   it. This finds files that a program replaced by a new one of the same name.
//! - by inode: each inode that was found, in all subvolumes. This finds it under other names.
//!
//! Two copies are one version if contents, owner, mode and modification time are the same. Contents
//! are compared by their extents, without reading data; data that was written again counts as
//! changed, even if it is the same.

use papilio_engine::data::{FileExtent, FileExtentKind};
use papilio_engine::errors::{Error, ErrorKind, PathError, Result};
use papilio_engine::jobs::inode_paths::path_in_subvolume;
use papilio_engine::subvolume::Subvolume;
use papilio_format::items::inode::FileKind;
use papilio_format::{Generation, InodeNumber, TreeId, Uuid, objectid};
use papilio_fs::{FileSystem, Inode, Metadata};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};

/// Extents that are read at once.
const EXTENTS_AT_ONCE: usize = 4096;
/// Most inodes that are followed by number.
const FOLLOWED_INODES: usize = 4096;

/// A file in a subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VersionHolder {
    /// The subvolume.
    pub subvolume: TreeId,
    /// The path of the subvolume from the top level, without a slash in front; `None` if it has
    /// none.
    pub subvolume_path: Option<Vec<u8>>,
    /// The path of the file in it, without a leading slash.
    pub path: Vec<u8>,
    /// Its inode there.
    pub inode: InodeNumber,
}

/// A version of a file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FileVersion {
    /// Its metadata in the first of the holders.
    pub metadata: Metadata,
    /// The files that are this version, the subvolume that was created first at the front.
    pub holders: Vec<VersionHolder>,
}

/// The properties that tell one version from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Identity {
    kind: u32,
    owner: (u32, u32),
    modified: (i64, u32),
    size: u64,
    /// Two independent hashes of the extents.
    content: (u64, u64),
}

/// Number, transaction and time of an inode's creation, which every snapshot keeps. A transaction
/// may create inodes of the same number in several subvolumes, so the time belongs to it.
type Created = (InodeNumber, Generation, i64, u32);

/// The transaction and the time of an inode's last change. A transaction may change it before and
/// after it makes a snapshot.
type LastChange = (Generation, i64, u32);

/// Returns the versions of the file at `path`, a path in `subvolume` without a leading slash: the
/// one that was modified last comes last. The file need not exist there any more.
///
/// # Errors
/// [`PathError::NotFound`] if no subvolume has such a file, or a tree block that cannot be read.
pub fn file_versions(fs: &FileSystem, subvolume: TreeId, path: &[u8]) -> Result<Vec<FileVersion>> {
    file_versions_leaving_out(fs, subvolume, path, &mut |_, error| Err(error))
}

/// As [`file_versions`]. A subvolume in which something cannot be read goes to `failed`, which
/// leaves it out by returning `Ok`.
///
/// # Errors
/// [`PathError::NotFound`] if no other subvolume has such a file; the errors of `failed`; the list
/// of subvolumes cannot be read.
pub fn file_versions_leaving_out(
    fs: &FileSystem,
    subvolume: TreeId,
    path: &[u8],
    failed: &mut dyn FnMut(&Subvolume, Error) -> Result<()>,
) -> Result<Vec<FileVersion>> {
    let mut all: Vec<_> = fs.subvolumes()?.into_iter().filter(|found| !found.is_being_deleted()).collect();
    all.sort_by_key(|found| (found.created, found.id));
    let family = family(&all, subvolume);
    let mut search = Search::default();
    for found in all.iter().filter(|found| family.contains(&found.id)) {
        let looked = at_path(fs, found.id, path).and_then(|inode| match inode {
            Some(inode) => search.add(found, path, &inode),
            None => Ok(()),
        });
        if let Err(error) = looked {
            failed(found, error)?;
            search.left_out.insert(found.id);
        }
    }
    if search.versions.is_empty() {
        return Err(Error::path(path, PathError::NotFound));
    }
    search.follow(fs, &all, failed)?;
    let mut versions = search.versions;
    let order: HashMap<TreeId, usize> = all.iter().enumerate().map(|(at, found)| (found.id, at)).collect();
    for version in &mut versions {
        version.holders.sort_by_key(|holder| order.get(&holder.subvolume).copied());
    }
    versions.sort_by_key(|version| {
        let modified = version.metadata.mtime();
        (modified.seconds, modified.nanoseconds, order.get(&version.holders[0].subvolume).copied())
    });
    Ok(versions)
}

/// Returns `subvolume` and the subvolumes that snapshots, or snapshots of the same one, connect
/// with it: the one that was created first at the front, without those that are being deleted.
///
/// # Errors
/// A tree block that cannot be read.
pub fn snapshot_family(fs: &FileSystem, subvolume: TreeId) -> Result<Vec<Subvolume>> {
    let mut all: Vec<_> = fs.subvolumes()?.into_iter().filter(|found| !found.is_being_deleted()).collect();
    all.sort_by_key(|found| (found.created, found.id));
    let family = family(&all, subvolume);
    all.retain(|found| family.contains(&found.id));
    Ok(all)
}

/// Returns the subvolumes that snapshots, or snapshots of the same one, connect with `subvolume`.
fn family(all: &[Subvolume], subvolume: TreeId) -> HashSet<TreeId> {
    let uuids = |found: &Subvolume| {
        [found.uuid, found.parent_uuid, found.received_uuid].into_iter().filter(|uuid| !uuid.is_nil())
    };
    let mut of_uuid: HashMap<Uuid, Vec<&Subvolume>> = HashMap::new();
    for found in all {
        uuids(found).for_each(|uuid| of_uuid.entry(uuid).or_default().push(found));
    }
    let mut family = HashSet::from([subvolume]);
    let mut left: Vec<&Subvolume> = all.iter().filter(|found| found.id == subvolume).collect();
    while let Some(found) = left.pop() {
        for uuid in uuids(found) {
            // Each UUID leads to its subvolumes once.
            for relative in of_uuid.remove(&uuid).unwrap_or_default() {
                if family.insert(relative.id) {
                    left.push(relative);
                }
            }
        }
    }
    family
}

/// Returns what is at a path in a subvolume, not in one inside it. Links are not followed.
pub(crate) fn at_path(fs: &FileSystem, subvolume: TreeId, path: &[u8]) -> Result<Option<Inode>> {
    let mut inode = fs.subvolume_root(subvolume)?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        if inode.file_type() != FileKind::Directory {
            return Ok(None);
        }
        match inode.lookup(name)? {
            Some(child) if child.tree() == subvolume => inode = child,
            _ => return Ok(None),
        }
    }
    Ok((inode.number() != objectid::FIRST_INODE && !inode.is_subvolume_stub()).then_some(inode))
}

/// Returns the path of an inode in its subvolume, by its first names.
pub(crate) fn path_of(fs: &FileSystem, id: TreeId, inode: InodeNumber) -> Result<Option<Vec<u8>>> {
    let open = fs.info.trees.subvolume(id)?;
    path_in_subvolume(&open.tree, inode, open.root_directory())
}

/// The versions found so far.
#[derive(Debug, Default)]
struct Search {
    versions: Vec<FileVersion>,
    by_identity: HashMap<Identity, usize>,
    /// Contents by the inode and its last change, which snapshots share.
    contents: HashMap<(Created, LastChange), (u64, u64)>,
    /// Inodes that were found, and those that are to be followed.
    known: HashSet<(TreeId, InodeNumber)>,
    followed: BTreeSet<Created>,
    /// Subvolumes in which something could not be read.
    left_out: HashSet<TreeId>,
}

impl Search {
    fn add(&mut self, subvolume: &Subvolume, path: &[u8], inode: &Inode) -> Result<()> {
        if !self.known.insert((subvolume.id, inode.number())) {
            return Ok(());
        }
        let metadata = inode.metadata();
        let created = created(inode);
        if self.followed.len() < FOLLOWED_INODES {
            self.followed.insert(created);
        }
        let modified = metadata.mtime();
        let changed = metadata.ctime();
        let key = (created, (metadata.last_changed(), changed.seconds, changed.nanoseconds));
        let content = match self.contents.get(&key) {
            Some(known) => *known,
            None => {
                let content = content_of(inode)?;
                self.contents.insert(key, content);
                content
            }
        };
        let identity = Identity {
            kind: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            modified: (modified.seconds, modified.nanoseconds),
            size: metadata.size(),
            content,
        };
        let holder = VersionHolder {
            subvolume: subvolume.id,
            subvolume_path: subvolume.path.clone(),
            path: path.to_vec(),
            inode: inode.number(),
        };
        let version = *self.by_identity.entry(identity).or_insert_with(|| {
            self.versions.push(FileVersion { metadata: *metadata, holders: Vec::new() });
            self.versions.len() - 1
        });
        self.versions[version].holders.push(holder);
        Ok(())
    }

    /// Looks for the inodes that were found in all subvolumes. They may have other names there.
    fn follow(
        &mut self,
        fs: &FileSystem,
        all: &[Subvolume],
        failed: &mut dyn FnMut(&Subvolume, Error) -> Result<()>,
    ) -> Result<()> {
        let inodes: Vec<Created> = self.followed.iter().copied().collect();
        for subvolume in all {
            if self.left_out.contains(&subvolume.id) {
                continue;
            }
            if let Err(error) = self.follow_in(fs, subvolume, &inodes) {
                failed(subvolume, error)?;
            }
        }
        Ok(())
    }

    fn follow_in(&mut self, fs: &FileSystem, subvolume: &Subvolume, inodes: &[Created]) -> Result<()> {
        for wanted in inodes {
            let number = wanted.0;
            if self.known.contains(&(subvolume.id, number)) {
                continue;
            }
            let inode = match fs.inode_at(subvolume.id, number) {
                Ok(inode) => inode,
                Err(error) if error.kind() == ErrorKind::Path(PathError::NotFound) => continue,
                Err(error) => return Err(error),
            };
            // Another file may have the number in another subvolume.
            if created(&inode) == *wanted
                && let Some(path) = path_of(fs, subvolume.id, number)?
            {
                self.add(subvolume, &path, &inode)?;
            }
        }
        Ok(())
    }
}

fn created(inode: &Inode) -> Created {
    let metadata = inode.metadata();
    let time = metadata.btime();
    (inode.number(), metadata.generation(), time.seconds, time.nanoseconds)
}

/// Returns hashes of what an inode contains.
fn content_of(inode: &Inode) -> Result<(u64, u64)> {
    let mut hashers = [DefaultHasher::new(), DefaultHasher::new()];
    hashers[1].write_u8(1);
    let mut add = |value: &dyn Fn(&mut DefaultHasher)| hashers.iter_mut().for_each(value);
    match inode.file_type() {
        FileKind::Regular => {
            let file = inode.open()?;
            let mut at = 0;
            loop {
                let extents = file.extents(at, EXTENTS_AT_ONCE)?;
                let Some(last) = extents.last() else { break };
                at = last.start.0.saturating_add(last.length.max(1));
                for extent in &extents {
                    add(&|hasher| hash_extent(extent, hasher));
                    if extent.kind == FileExtentKind::Inline {
                        let data = file.read_all()?;
                        add(&|hasher| data.hash(hasher));
                    }
                }
                if extents.len() < EXTENTS_AT_ONCE {
                    break;
                }
            }
        }
        FileKind::Symlink => {
            let target = inode.read_link()?;
            add(&|hasher| target.hash(hasher));
        }
        _ => {}
    }
    Ok((hashers[0].finish(), hashers[1].finish()))
}

fn hash_extent(extent: &FileExtent, hasher: &mut DefaultHasher) {
    let FileExtent { start, length, kind, address, offset, .. } = extent;
    (start, length, kind, address, offset).hash(hasher);
}
