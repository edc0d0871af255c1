//! `papilio versions --restore` and `--undelete`: a version comes back.
//!
//! Owns [`Restore`]. The copy is made under a temporary name and renamed at its end, so that a file
//! in its place stays until the copy is complete.
//!
//! Data is shared in one image, and in a mount where the kernel or the server can. There the file
//! of the snapshot is opened by its path, or in a mount of the kernel by its handle, which leads
//! also to snapshots that the mount does not show. Where neither works, its bytes are copied from
//! the devices.

use super::shown_path::shown_path;
use crate::context::Context;
use crate::copy::progress::Progress;
use crate::copy::{self, CopyReport};
use crate::mounted::Mounted;
use crate::path::{ImagePath, Operand};
use crate::sought::SoughtPath;
use anyhow::Context as _;
use papilio::{
    Existing, FileKind, FileSystem, FileVersion, HostOptions, HostPlace, HostSink, ImageCopy,
    ImageCopyOptions, Inode, RenameMode, Share, Source, SourceOptions, TwinFinder,
};
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::mount_table::MountEntry;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A version that comes back.
pub struct Restore<'a> {
    pub context: &'a Context,
    pub place: &'a SoughtPath,
    pub version: &'a FileVersion,
    /// Whether a file in its place is replaced.
    pub force: bool,
}

/// A copy between file systems, and its messages.
struct RestoreReport<'a>(&'a Context);

impl papilio::ExportObserver for RestoreReport<'_> {
    fn problem(&self, problem: papilio::ExportProblem) {
        self.0.error(problem);
    }
}

impl Restore<'_> {
    /// Copies the version to the path that the user asked about.
    pub fn in_place(&self) -> anyhow::Result<()> {
        match &self.place.mounted {
            Some(mounted) => self.to_host(&mounted.path),
            None => {
                let path = self.place.system.subvolume(self.place.subvolume)?.path.unwrap_or_default();
                let path = joined(&[&path, &self.place.path]);
                self.to_image(&ImagePath { image: self.place.image.clone(), path })
            }
        }
    }

    /// Copies the version to another path: in an image, or on the host.
    pub fn to(&self, to: &OsStr) -> anyhow::Result<()> {
        match Operand::parse(to) {
            Operand::Image(path) => self.to_image(&path),
            Operand::Host(path) => self.to_host(&path),
        }
    }

    /// Returns the file of the version, and its path.
    fn source(&self) -> anyhow::Result<(ImagePath, Inode)> {
        let holder = self.version.holders.last().expect("a version has a holder");
        let inode = self.place.system.inode_at(holder.subvolume, holder.inode)?;
        Ok((ImagePath { image: self.place.image.clone(), path: shown_path(holder) }, inode))
    }

    fn to_image(&self, to: &ImagePath) -> anyhow::Result<()> {
        let context = self.context;
        let (from, inode) = self.source()?;
        let fs: FileSystem = context.change(&to.image)?;
        let at = |error: papilio::Error| context.at(to, &error);
        let (parent, name) = fs.parent(&to.path).map_err(at)?;
        let present = parent.lookup(name).map_err(at)?;
        if let Some(present) = &present {
            self.may_replace(to, present.metadata().is_dir())?;
        }
        let report = RestoreReport(context);
        let options = ImageCopyOptions {
            keep_attributes: true,
            owner: (0, 0),
            umask: 0,
            existing: Existing::Refuse,
            one_subvolume: true,
            share: Share::Auto,
        };
        let temporary = temporary_name();
        let mut copy = ImageCopy::new(&report, options, to.image == self.place.image);
        let copied = copy.entry(&from, &inode, to, &parent, &temporary);
        if (copied.is_err() || context.has_failed()) && !inode.metadata().is_dir() {
            // The incomplete copy goes; the error counts.
            let _ = parent.remove_file(&temporary);
            copied?;
            anyhow::bail!("{to}: not restored, as the version cannot be read completely");
        }
        let mode = if present.is_some() { RenameMode::Replace } else { RenameMode::NoReplace };
        parent.rename(&temporary, &parent, name, mode).map_err(at)?;
        Ok(copied?)
    }

    fn to_host(&self, to: &Path) -> anyhow::Result<()> {
        let context = self.context;
        let (from, inode) = self.source()?;
        let name = to.file_name().with_context(|| format!("{}: no file name", to.display()))?;
        let parent = match to.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        if let Ok(present) = to.symlink_metadata() {
            self.may_replace(&to.display(), present.is_dir())?;
        } else if !parent.is_dir() {
            anyhow::bail!("{}: no such directory; restore that first", parent.display());
        }
        let is_directory = inode.metadata().is_dir();
        // Those below a directory have paths of their own.
        let name = name.as_bytes().to_vec();
        let temporary = if is_directory { name.clone() } else { temporary_name() };
        let twins = match &self.place.mounted {
            Some(mounted) => Some(twin_finder(mounted, &self.place.system)?),
            None => None,
        };
        let place = HostPlace::Named { parent: parent.clone(), name: temporary.clone(), in_place: false };
        let options =
            SourceOptions { recursive: true, links: true, xattrs: true, twins, ..SourceOptions::default() };
        let progress = Progress::new(false);
        let report = CopyReport { context, progress: &progress, json: false };
        let host = HostOptions { archive: true, no_clobber: true };
        let mut sink = HostSink::new(&report, host, vec![(from.clone(), place)])?;
        let copied = copy::run(vec![Source { path: from, inode }], options, &mut sink, &report);
        sink.finish();
        if is_directory {
            return copied;
        }
        let written = parent.join(OsStr::from_bytes(&temporary));
        if copied.is_err() || context.has_failed() {
            // The incomplete copy goes; the error counts.
            let _ = std::fs::remove_file(&written);
            copied?;
            anyhow::bail!("{}: not restored, as the version cannot be read completely", to.display());
        }
        std::fs::rename(&written, to).with_context(|| to.display().to_string())
    }

    fn may_replace(&self, to: &dyn std::fmt::Display, is_directory: bool) -> anyhow::Result<()> {
        if is_directory {
            anyhow::bail!("{to}: exists already, and is a directory");
        }
        if !self.force {
            anyhow::bail!("{to}: exists already; -f replaces it");
        }
        Ok(())
    }
}

/// Joins the parts of a path that are not empty, each with a slash in front.
fn joined(parts: &[&[u8]]) -> Vec<u8> {
    let parts = parts.iter().filter(|part| !part.is_empty());
    parts.flat_map(|part| [b"/", *part].concat()).collect()
}

fn temporary_name() -> Vec<u8> {
    format!(".papilio-restore-{:016x}", fastrand::u64(..)).into_bytes()
}

/// A mount, and the path from the top level of the directory that it shows.
struct Shown {
    root: Vec<u8>,
    point: PathBuf,
}

/// Returns a function that opens files of snapshots in the mounts of a file system.
fn twin_finder(mounted: &Mounted, system: &FileSystem) -> anyhow::Result<TwinFinder> {
    let entry = &mounted.mount;
    let mut mounts = Vec::new();
    for other in MountEntry::all()?.into_iter().filter(|other| other.device == entry.device) {
        let root = match other.is_papilio() {
            false => other.root.as_os_str().as_bytes().to_vec(),
            true => {
                let Ok(state) = MountedPath::open(&other.point).and_then(|point| point.state()) else {
                    continue;
                };
                let Some(path) = system.subvolume(state.root)?.path else { continue };
                [b"/", &path[..]].concat()
            }
        };
        let root = if root == b"/" { Vec::new() } else { root };
        mounts.push(Shown { root, point: other.point });
    }
    let by_handle = if entry.is_papilio() { None } else { MountedPath::open(&entry.point).ok() };
    Ok(Arc::new(move |path: &ImagePath, inode: &Inode| {
        if inode.file_type() != FileKind::Regular {
            return None;
        }
        let by_path = mounts.iter().find_map(|mount| {
            let rest = path.path.strip_prefix(&mount.root[..])?.strip_prefix(b"/")?;
            let opened = MountedPath::open(&mount.point.join(OsStr::from_bytes(rest))).ok()?;
            (opened.subvolume_id().ok()? == inode.tree()).then_some(())?;
            is_same(opened.file(), inode).then(|| opened.file().try_clone().ok())?
        });
        by_path.or_else(|| {
            let metadata = inode.metadata();
            let opened = by_handle.as_ref()?.open_inode(inode.tree(), inode.number(), metadata.generation());
            opened.ok().filter(|file| is_same(file, inode))
        })
    }))
}

/// Whether an open file is in the state of an inode. Subvolumes that are writable may change.
fn is_same(file: &File, inode: &Inode) -> bool {
    let known = inode.metadata();
    file.metadata().is_ok_and(|found| {
        found.is_file()
            && found.size() == known.size()
            && (found.mtime(), found.mtime_nsec())
                == (known.mtime().seconds, known.mtime().nanoseconds.into())
            && (found.ctime(), found.ctime_nsec())
                == (known.ctime().seconds, known.ctime().nanoseconds.into())
    })
}

/// Returns where a destination is, if in an image.
pub fn image_of(to: &OsString) -> Option<PathBuf> {
    match Operand::parse(to) {
        Operand::Image(path) => Some(path.image),
        Operand::Host(_) => None,
    }
}
