//! Paths whose past is looked for: in images, and in mounts by reading their devices.
//!
//! Owns [`SoughtPath`], and [`read_past`], which reads a mount again that changed meanwhile.

use crate::context::{Context, of_image};
use crate::mounted::{Mounted, Target, device_paths};
use crate::output::escaped;
use crate::path::ImagePath;
use crate::usage_error::UsageError;
use anyhow::Context as _;
use papilio::format::{InodeNumber, TreeId};
use papilio::{ErrorKind, FileSystem, HistoryGap, Inode, Subvolume};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Reads of a mount that changes meanwhile.
const ATTEMPTS: u32 = 4;

/// A path whose past is looked for. It need not exist any more.
pub struct SoughtPath {
    /// The open file system.
    pub system: FileSystem,
    /// The image or device.
    pub image: PathBuf,
    /// The subvolume that has, or had, the path.
    pub subvolume: TreeId,
    /// From the root of the subvolume, without a leading slash; empty for the root.
    pub path: Vec<u8>,
    /// The path in a mount, if it is there.
    pub mounted: Option<Mounted>,
    /// The path as the user named it, for messages.
    pub shown: String,
    /// Whether an answer may leave out what cannot be read. Otherwise it is read again, because a
    /// mount may have changed meanwhile.
    pub leaves_out: bool,
}

/// The parts that an answer leaves out, each with the message about it.
#[derive(Debug, Default)]
pub struct LeftOut(Vec<String>);

impl LeftOut {
    /// Notes that something is left out, if that is allowed.
    ///
    /// # Errors
    /// The error, if it is not, or if it is an answer.
    pub fn add(&mut self, place: &SoughtPath, what: &[u8], error: papilio::Error) -> papilio::Result<()> {
        if !place.leaves_out || is_answer(&error) {
            return Err(error);
        }
        let shown = String::from_utf8_lossy(&escaped(what)).into_owned();
        self.0.push(format!("{shown}: left out, because it cannot be read: {error}"));
        Ok(())
    }

    /// Prints the messages. Then the command fails.
    pub fn tell(&self, context: &Context) {
        self.0.iter().for_each(|text| context.error(text));
    }
}

/// Returns the path of a subvolume from the top level, or its id.
pub fn shown_subvolume(subvolume: &Subvolume) -> Vec<u8> {
    match &subvolume.path {
        Some(path) => [b"/", &path[..]].concat(),
        None => format!("<subvolume {}>", subvolume.id).into_bytes(),
    }
}

/// Returns the words for what a history leaves out.
pub fn shown_gap(gap: &HistoryGap<'_>) -> Vec<u8> {
    let new = shown_subvolume(gap.new);
    match gap.old {
        Some(old) => [&shown_subvolume(old)[..], b" -> ", &new].concat(),
        None => new,
    }
}

/// Runs `read` on a path. A mount may change while its devices are read: then that is done again.
///
/// # Errors
/// The path or the file system cannot be opened; the errors of `read`.
pub fn read_past<T>(
    context: &Context,
    target: &Target,
    writes: bool,
    mut read: impl FnMut(&SoughtPath) -> papilio::Result<T>,
) -> anyhow::Result<(SoughtPath, T)> {
    for _ in 1..ATTEMPTS {
        let Target::Mounted(_) = target else { break };
        // An error may come from blocks that were overwritten since, at any point.
        if let Ok(place) = SoughtPath::find(context, target, writes) {
            match read(&place) {
                Ok(found) => return Ok((place, found)),
                Err(error) if is_answer(&error) => return Err(place.explain(error)),
                Err(_) => {}
            }
        }
        context.forget_item_faults();
    }
    let mut place = SoughtPath::find(context, target, writes)?;
    place.leaves_out = true;
    match read(&place) {
        Ok(found) => Ok((place, found)),
        Err(error) => Err(place.explain(error)),
    }
}

/// Whether an error says something about the path, not about blocks.
fn is_answer(error: &papilio::Error) -> bool {
    matches!(error.kind(), ErrorKind::Path(_)) || matches!(error, papilio::Error::Invalid(_))
}

impl SoughtPath {
    /// Finds out which subvolume a path lies in. With `writes`, an image is opened for writing.
    ///
    /// # Errors
    /// The file system cannot be opened, or the path has `..` in it.
    pub fn find(context: &Context, target: &Target, writes: bool) -> anyhow::Result<Self> {
        match target {
            Target::Image(path) => in_image(context, path, writes),
            Target::Mounted(mounted) => in_mount(context, mounted),
        }
    }

    /// As [`Self::find`], for reading, with a handle that does not stay: afterwards the file system
    /// can be opened for writing.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn probe(context: &Context, path: &ImagePath) -> anyhow::Result<Self> {
        let system = context.open_with(&path.image, &context.options_for(&path.image))?;
        in_system(context, system, path)
    }

    /// Adds the image to an error.
    pub fn explain(&self, error: papilio::Error) -> anyhow::Error {
        of_image(&self.image, error)
    }

    /// The file needs a name.
    ///
    /// # Errors
    /// The path is the root of a subvolume.
    pub fn must_be_in_subvolume(&self) -> Result<(), UsageError> {
        match self.path.is_empty() {
            true => Err(UsageError::new(format!("{}: a subvolume; give a file in it", self.shown))),
            false => Ok(()),
        }
    }

    /// Returns what has the path now, in its subvolume.
    ///
    /// # Errors
    /// A tree block that cannot be read.
    pub fn present(&self) -> papilio::Result<Option<Inode>> {
        let mut inode = self.system.subvolume_root(self.subvolume)?;
        for name in self.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            if !inode.metadata().is_dir() {
                return Ok(None);
            }
            match inode.lookup(name)? {
                Some(child) if child.tree() == self.subvolume => inode = child,
                _ => return Ok(None),
            }
        }
        Ok(Some(inode))
    }
}

fn in_image(context: &Context, path: &ImagePath, writes: bool) -> anyhow::Result<SoughtPath> {
    let system = if writes { context.change(&path.image)? } else { context.open(&path.image)? };
    in_system(context, system, path)
}

/// Finds out which subvolume of an open file system a path lies in.
fn in_system(context: &Context, system: FileSystem, path: &ImagePath) -> anyhow::Result<SoughtPath> {
    let at = |error: papilio::Error| context.at(path, &error);
    let mut inode = system.root().map_err(at)?;
    let mut rest: Vec<&[u8]> = Vec::new();
    let mut exists = true;
    for name in path.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
        if name == b".." {
            return Err(UsageError::new(format!("{path}: .. is not allowed here")).into());
        }
        if exists
            && inode.metadata().is_dir()
            && let Some(child) = inode.lookup(name).map_err(at)?
        {
            if child.tree() != inode.tree() {
                rest.clear();
            } else {
                rest.push(name);
            }
            inode = child;
        } else {
            exists = false;
            rest.push(name);
        }
    }
    Ok(SoughtPath {
        image: path.image.clone(),
        subvolume: inode.tree(),
        path: rest.join(&b'/'),
        mounted: None,
        shown: path.to_string(),
        system,
        leaves_out: false,
    })
}

fn in_mount(context: &Context, mounted: &Mounted) -> anyhow::Result<SoughtPath> {
    let (directory, rest) = split(&mounted.path)?;
    let inside = Mounted { path: directory.clone(), mount: mounted.mount.clone() };
    let opened = inside.open()?;
    let at = |error: std::io::Error| inside.at(&error);
    let subvolume = opened.subvolume_id().map_err(at)?;
    let mut path = match opened.is_subvolume_root().map_err(at)? {
        true => Vec::new(),
        false => {
            let inode = InodeNumber(directory.metadata()?.ino());
            opened.directory_path(subvolume, inode).map_err(at)?
        }
    };
    path.extend(rest);
    if path.last() == Some(&b'/') {
        path.pop();
    }
    let (image, further) = device_paths(&inside)?;
    let system = context.open_last_commit(&image, &further, true)?;
    let shown = mounted.to_string();
    Ok(SoughtPath {
        image,
        subvolume,
        path,
        mounted: Some(mounted.clone()),
        shown,
        system,
        leaves_out: false,
    })
}

/// Splits a path on the host into a directory that exists and the rest, without a leading slash.
fn split(path: &Path) -> anyhow::Result<(PathBuf, Vec<u8>)> {
    if path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) || path.file_name().is_none() {
        return Ok((path.canonicalize().with_context(|| path.display().to_string())?, Vec::new()));
    }
    let mut names = Vec::new();
    let mut above = path;
    loop {
        let Some(name) = above.file_name() else {
            return Err(UsageError::new(format!("{}: .. is not allowed here", path.display())).into());
        };
        names.push(name.as_bytes());
        above = match above.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if above.is_dir() {
            break;
        }
    }
    names.reverse();
    let directory = above.canonicalize().with_context(|| above.display().to_string())?;
    Ok((directory, names.join(&b'/')))
}
