//! Paths of the host for files of a mounted file system.
//!
//! Owns [`HostPaths`]: which directory of the file system each of its mounts shows. A mount of the
//! kernel names that directory in the table of mounts. One of Papilio shows a subvolume, which its
//! server tells, and a bind mount a directory in it.

use crate::mounted::Mounted;
use papilio::Subvolume;
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::mount_table::MountEntry;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The mounts of a file system, the one that the user named first.
pub struct HostPaths(Vec<ShownMount>);

/// A mount, and the directory that it shows.
struct ShownMount {
    /// From the top level, with a slash in front, and none at the end; empty for the top level.
    directory: Vec<u8>,
    point: PathBuf,
}

impl HostPaths {
    /// Reads the table of mounts.
    pub fn of(mounted: &Mounted, mount: &MountedPath, subvolumes: &[Subvolume]) -> anyhow::Result<Self> {
        let own = &mounted.mount;
        let mut shown = Vec::new();
        for entry in MountEntry::all()?.into_iter().filter(|entry| entry.fstype == own.fstype) {
            let root = match (own.is_papilio(), entry.device == own.device) {
                (false, false) => continue,
                (false, true) => Vec::new(),
                (true, true) => subvolume_of(mount, subvolumes),
                (true, false) if entry.source != own.source => continue,
                // The server may have gone.
                (true, false) => match MountedPath::open(&entry.point) {
                    Ok(other) => subvolume_of(&other, subvolumes),
                    Err(_) => continue,
                },
            };
            let below = entry.root.as_os_str().as_bytes();
            let directory = [&root[..], if below == b"/" { b"" } else { below }].concat();
            shown.push((entry.id != own.id, ShownMount { directory, point: entry.point }));
        }
        shown.sort_by_key(|(is_other, _)| *is_other);
        Ok(Self(shown.into_iter().map(|(_, shown)| shown).collect()))
    }

    /// Returns the path of the host for a path from the top level, if a mount shows it.
    pub fn find(&self, path: &[u8]) -> Option<Vec<u8>> {
        self.0.iter().find_map(|shown| {
            let rest = path.strip_prefix(&shown.directory[..])?;
            if !rest.is_empty() && !rest.starts_with(b"/") {
                return None;
            }
            let point = shown.point.as_os_str().as_bytes();
            let point = point.strip_suffix(b"/").unwrap_or(point);
            let path = [point, rest].concat();
            // Another mount may lie over it.
            PathBuf::from(OsStr::from_bytes(&path)).symlink_metadata().is_ok().then_some(path)
        })
    }
}

/// Returns the path of the subvolume that a mount of Papilio shows; empty for the top level.
fn subvolume_of(mount: &MountedPath, subvolumes: &[Subvolume]) -> Vec<u8> {
    let Ok(state) = mount.state() else { return Vec::new() };
    match subvolumes.iter().find(|one| one.id == state.root).and_then(|one| one.path.as_deref()) {
        None | Some(b"") => Vec::new(),
        Some(path) => [b"/", path].concat(),
    }
}
