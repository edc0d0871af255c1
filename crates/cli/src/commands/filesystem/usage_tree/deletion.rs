//! Deleting the entry that the user selected in the interactive tree.
//!
//! Owns [`delete`]: a file, a directory with everything in it, or a subvolume. Paths begin at the
//! top level of the file system, whatever subvolume the options or the mount show.
//!
//! **Invariants**
//! - A directory that contains subvolumes is refused before anything in it goes.
//! - In a mount, no symbolic link is followed and no other mount is entered, also if somebody
//!   changes the path meanwhile.

use crate::context::{describe, of_image};
use crate::mounted::{Mounted, names_from_top};
use crate::output::escaped;
use crate::tree_source::TreeSource;
use anyhow::bail;
use papilio::format::objectid;
use papilio::{FileKind, FileSystem, ImagePath, Inode, PathError, Subvolume};
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::mount_table::MountEntry;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, openat2, statat, unlinkat};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The kind of entry that was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// A file, or a directory with everything in it. Its space is free.
    Files,
    /// A subvolume of an image. Its space is free.
    Subvolume,
    /// A subvolume in a mount, whose space becomes free in the background.
    SubvolumeOfMount,
}

/// Deletes the entry at the path of these names, and commits.
///
/// # Errors
/// There is nothing, or the top directory; a directory contains subvolumes; the mount does not show
/// the path; the file system is read-only. Of a directory, a part may be gone by then.
pub fn delete(source: &TreeSource, names: &[Vec<u8>]) -> anyhow::Result<Deleted> {
    let Some((name, above)) = names.split_last() else { bail!("the top directory cannot be deleted") };
    let shown = shown(names);
    match source {
        TreeSource::Image { fs, path } => {
            let subvolumes = fs.subvolumes().map_err(|error| of_image(path, error))?;
            let deleted = in_image((fs, path), above, name, &subvolumes, &shown)?;
            let committed = fs.sync().and_then(|()| match deleted {
                Deleted::Files => Ok(()),
                _ => fs.clean_subvolumes().and_then(|()| fs.sync()),
            });
            committed.map_err(|error| of_image(path, error))?;
            Ok(deleted)
        }
        TreeSource::Mounted { mounted, root } => {
            let deleted = in_mount(mounted, root, above, name, &shown)?;
            root.sync().map_err(|error| mounted.at(&error))?;
            Ok(deleted)
        }
    }
}

/// Returns a path as text without control characters.
pub fn shown(names: &[Vec<u8>]) -> String {
    format!("/{}", String::from_utf8_lossy(&escaped(&names.join(&b'/'))))
}

/// Refuses a directory that contains subvolumes.
fn check_subvolumes(subvolumes: &[Subvolume], directory: &[u8], shown: &str) -> anyhow::Result<()> {
    let inside = subvolumes.iter().find(|one| {
        let path = one.path.as_deref().unwrap_or_default();
        path.strip_prefix(directory).is_some_and(|rest| rest.first() == Some(&b'/'))
    });
    match inside.and_then(|one| one.path.as_deref()) {
        None => Ok(()),
        Some(path) => bail!(
            "{shown}: contains the subvolume /{}; delete that first",
            String::from_utf8_lossy(&escaped(path))
        ),
    }
}

fn in_image(
    (fs, image): (&FileSystem, &Path),
    above: &[Vec<u8>],
    name: &[u8],
    subvolumes: &[Subvolume],
    shown: &str,
) -> anyhow::Result<Deleted> {
    let inside = [b"/", &[above, &[name.to_vec()]].concat().join(&b'/')[..]].concat();
    let place = ImagePath { image: image.to_owned(), path: inside };
    let named = |error: papilio::Error| anyhow::anyhow!("{}", describe(&place, &error));
    let find = |parent: &Inode, name: &[u8]| match parent.lookup(name) {
        Ok(Some(inode)) => Ok(inode),
        Ok(None) => bail!("{shown}: {}", PathError::NotFound),
        Err(error) => Err(named(error)),
    };
    let mut parent = fs.subvolume_root(objectid::FS_TREE).map_err(named)?;
    for name in above {
        parent = find(&parent, name)?;
    }
    let inode = find(&parent, name)?;
    if inode.is_subvolume_root() {
        fs.delete_subvolume_by_id(inode.tree()).map_err(named)?;
        return Ok(Deleted::Subvolume);
    }
    if inode.file_type() == FileKind::Directory {
        check_subvolumes(subvolumes, &[above, &[name.to_vec()]].concat().join(&b'/'), shown)?;
        empty(inode).map_err(named)?;
        parent.remove_dir(name).map_err(named)?;
    } else {
        parent.remove_file(name).map_err(named)?;
    }
    Ok(Deleted::Files)
}

/// A directory that is being emptied, its name in the one above, and the names that are left in it.
type Emptied = (Inode, Vec<u8>, Vec<Vec<u8>>);

/// Removes everything in a directory.
fn empty(directory: Inode) -> papilio::Result<()> {
    let names = |directory: &Inode| {
        let entries = directory.read_dir()?;
        entries.map(|entry| Ok(entry?.file_name().to_vec())).collect::<papilio::Result<Vec<_>>>()
    };
    let left = names(&directory)?;
    let mut stack: Vec<Emptied> = vec![(directory, Vec::new(), left)];
    while let Some((directory, _, left)) = stack.last_mut() {
        if let Some(name) = left.pop() {
            match directory.lookup(&name)? {
                Some(inode) if inode.file_type() == FileKind::Directory => {
                    let left = names(&inode)?;
                    stack.push((inode, name, left));
                }
                Some(_) => directory.remove_file(&name)?,
                None => {}
            }
        } else if let Some((_, name, _)) = stack.pop()
            && let Some((above, ..)) = stack.last()
        {
            above.remove_dir(&name)?;
        }
    }
    Ok(())
}

fn in_mount(
    mounted: &Mounted,
    root: &MountedPath,
    above: &[Vec<u8>],
    name: &[u8],
    shown: &str,
) -> anyhow::Result<Deleted> {
    let at = |error: std::io::Error| Mounted { path: shown.into(), ..mounted.clone() }.at(&error);
    let subvolumes = root.subvolumes().map_err(at)?;
    let point = MountedPath::open(&mounted.mount.point).map_err(at)?;
    if point.fs_info().map_err(at)?.fsid != root.fs_info().map_err(at)?.fsid {
        bail!("{}: another file system is mounted there now", mounted.mount.point.display());
    }
    let top = names_from_top(&point, &subvolumes).map_err(at)?;
    let Some(below) = above.strip_prefix(&top[..]) else {
        bail!("{shown}: outside of the part of the file system that {} shows", mounted.mount.point.display());
    };
    let parent = open_below(&point, below).map_err(at)?;
    let name_on_host = OsStr::from_bytes(name);
    let stat =
        statat(parent.as_fd(), name_on_host, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| at(error.into()))?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::Directory {
        unlinkat(parent.as_fd(), name_on_host, AtFlags::empty()).map_err(|error| at(error.into()))?;
        return Ok(Deleted::Files);
    }
    check_mounts(&mounted.mount.point, below, name)?;
    let child = open_below(&point, &[below, &[name.to_vec()]].concat()).map_err(at)?;
    if MountedPath::from_file(child).is_subvolume_root().map_err(at)? {
        MountedPath::from_file(parent).delete_subvolume(name).map_err(at)?;
        return Ok(Deleted::SubvolumeOfMount);
    }
    check_subvolumes(&subvolumes, &[above, &[name.to_vec()]].concat().join(&b'/'), shown)?;
    // The descriptor names the directory above, whatever happens to its path. The last name is not
    // followed, and neither is any link below it.
    let path = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(name_on_host);
    fs::remove_dir_all(path).map_err(at)?;
    Ok(Deleted::Files)
}

/// Opens a directory below the mount point, without a symbolic link on the way, and in no other
/// mount.
fn open_below(point: &MountedPath, names: &[Vec<u8>]) -> std::io::Result<File> {
    let path = match names {
        [] => b".".to_vec(),
        names => names.join(&b'/'),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let opened = openat2(point.file().as_fd(), OsStr::from_bytes(&path), flags, Mode::empty(), within)?;
    Ok(File::from(opened))
}

/// Refuses a directory with a mount point in it.
fn check_mounts(point: &Path, below: &[Vec<u8>], name: &[u8]) -> anyhow::Result<()> {
    let mut directory: PathBuf = point.to_path_buf();
    directory.extend(below.iter().map(|name| OsStr::from_bytes(name)));
    directory.push(OsStr::from_bytes(name));
    let inside = MountEntry::all()?.into_iter().find(|mount| mount.point.starts_with(&directory));
    match inside {
        None => Ok(()),
        Some(mount) => bail!("{}: something is mounted there; unmount it first", mount.point.display()),
    }
}
