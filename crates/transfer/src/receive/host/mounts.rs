//! Subvolumes of a mounted Btrfs, by the identity that a stream gives.
//!
//! Owns [`Mounts`]: the mounts of one file system, through which its subvolumes are opened. They
//! are opened before the process is confined to a directory.

use super::super::target::SentSubvolume;
use super::tree::open_beneath;
use papilio_engine::errors::{Error, Result};
use papilio_format::{TreeId, Uuid};
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::mount_table::MountEntry;
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::path::Path;

/// The mounts of a file system.
#[derive(Debug)]
pub struct Mounts {
    /// The root directories of mounts that show a whole subvolume, with its id.
    roots: Vec<(MountedPath, TreeId)>,
}

impl Mounts {
    /// Opens the mounts of the file system that contains `directory`, or only the one at `root`.
    ///
    /// # Errors
    /// The table of mounts cannot be read, or `root` is not the root of a subvolume.
    pub fn around(directory: &Path, root: Option<&Path>) -> io::Result<Self> {
        if let Some(root) = root {
            let open = MountedPath::open(root)?;
            if !open.is_subvolume_root()? {
                return Err(io::Error::other("not the root of a subvolume"));
            }
            let id = open.subvolume_id()?;
            return Ok(Self { roots: vec![(open, id)] });
        }
        let Some(own) = MountEntry::of(directory)? else { return Ok(Self { roots: Vec::new() }) };
        let mut roots: Vec<(MountedPath, TreeId)> = Vec::new();
        for mount in MountEntry::all()?.into_iter().filter(|mount| mount.device == own.device) {
            // Mounts that cannot be reached, or show a part of a subvolume, are of no use.
            let open = MountedPath::open(&mount.point).ok();
            if let Some(open) = open.filter(|open| open.is_subvolume_root().unwrap_or(false))
                && let Ok(id) = open.subvolume_id()
                && roots.iter().all(|(_, known)| *known != id)
            {
                roots.push((open, id));
            }
        }
        Ok(Self { roots })
    }

    /// Opens the subvolume that a sender names: received with this UUID, or this UUID's own. The
    /// UUID decides; among several the transaction of the last change. It must be read-only.
    ///
    /// # Errors
    /// It is missing, can have changed, or no mount shows it.
    pub fn find(&self, sent: SentSubvolume, asked: &MountedPath) -> Result<MountedPath> {
        let host = |source| Error::Host { path: "the parent".into(), source };
        let (mut other, mut changed, mut hidden) = (None, None, None);
        for id in asked.subvolumes_by_uuid(sent.uuid).map_err(host)? {
            let Some(found) = self.open(id, asked).map_err(host)? else {
                hidden = Some(id);
                continue;
            };
            let info = found.subvolume_info().map_err(host)?;
            let is = |uuid: [u8; 16], generation| {
                Uuid::from_bytes(uuid) == sent.uuid && generation == sent.ctransid.0
            };
            let same = is(info.received_uuid, info.sent) || is(info.uuid, info.changed);
            match found.is_subvolume_read_only().map_err(host)? {
                true if same => return Ok(found),
                true => other = other.or(Some(found)),
                false => changed = Some(id),
            }
        }
        if let Some(found) = other {
            return Ok(found);
        }
        let uuid = sent.uuid;
        Err(Error::Invalid(match (changed, hidden) {
            (Some(id), _) => format!(
                "the parent with UUID {uuid}, subvolume {id}, is not the one that was sent: it changed since"
            ),
            (None, Some(id)) => {
                format!("the parent with UUID {uuid}, subvolume {id}, is in no mount of the file system")
            }
            (None, None) => format!("no subvolume has the parent's UUID {uuid}"),
        }))
    }

    /// Opens the root of a subvolume through one of the mounts.
    fn open(&self, id: TreeId, asked: &MountedPath) -> io::Result<Option<MountedPath>> {
        let (mut at, mut path) = (id, Vec::new());
        loop {
            if let Some((root, _)) = self.roots.iter().find(|(_, tree)| *tree == at) {
                let open = open_beneath(root, &path, OFlags::RDONLY | OFlags::DIRECTORY)?;
                let open = MountedPath::from_file(File::from(open));
                return Ok(Some(open).filter(|open| open.subvolume_id().ok() == Some(id)));
            }
            let Some((parent, name)) = asked.containing_subvolume(at)? else { return Ok(None) };
            path = if path.is_empty() { name } else { [&name, &b"/"[..], &path].concat() };
            at = parent;
        }
    }
}
