//! Mounting a file system again that is mounted already.
//!
//! Owns [`join`]. As with the kernel's Btrfs, both mounts are views of one file system: the new
//! mount shows the subvolume's directory in the file system of the running one. So they share the
//! kernel's caches, and the server ends with the last of them. Options of the file system are those
//! of the first mount. Each mount has its own `ro`, `noatime`, `nodev` and the like.
//!
//! A writable mount beside read-only ones has the server open the image for writing, and the kernel
//! allow changes of the file system. The other mounts stay read-only.
//!
//! The file system's root is the top level where root has mounted first, and then each subvolume
//! can be shown. Otherwise it is the subvolume that was mounted first.
//!
//! A second FUSE connection to the server would not do: each has caches of its own, which would not
//! hear of the other's changes.

use super::access::{allow_changes, flags_of};
use crate::holder;
use anyhow::{Context as _, bail};
use papilio::device::split_partition;
use papilio::format::{TreeId, objectid};
use papilio::{FoundDevice, Subvolume, SubvolumeChoice};
use papilio_fuse::MountOptions;
use papilio_fuse::whole_mount::WholeMount;
use papilio_ioctl::client::{MountedPath, State};
use papilio_ioctl::mount_table::MountEntry;
use rustix::mount::MountFlags;
use rustix::process::Pid;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Mounts on `directory` what a running server of the file system on `image` has. Returns false if
/// there is no such server, or this user may not mount so; then the image is to be opened.
///
/// # Errors
/// The running mount cannot show what the options ask for.
pub(super) fn join(image: &Path, directory: &Path, options: &MountOptions) -> anyhow::Result<bool> {
    // Only root may make bind mounts. For others the message about the busy image says enough.
    if !rustix::process::geteuid().is_root() {
        return Ok(false);
    }
    let (mount, path, whole) = match running(image) {
        Some((mount, path)) => (Some(mount), path, None),
        None => match unseen(image) {
            Some((path, whole)) => (None, path, Some(whole)),
            None => return Ok(false),
        },
    };
    let Ok(state) = path.state() else { return Ok(false) };
    let shown = image.display();
    let point =
        mount.as_ref().map_or_else(|| "no directory here".to_owned(), |m| m.point.display().to_string());
    let wanted = options.ownership.to_string();
    if wanted != state.ownership {
        bail!(
            "{shown}: mounted on {point} with {}: the options uid, gid, umask and idmap must be the same",
            if state.ownership.is_empty() { "the image's own owners" } else { &state.ownership }
        );
    }
    let subvolumes = path.subvolumes().with_context(|| point.to_string())?;
    let target = chosen(options, &state, &subvolumes).with_context(|| shown.to_string())?;
    let inside =
        inside(target, &state, &subvolumes).with_context(|| format!("{shown}: mounted on {point}"))?;
    let directory = directory.canonicalize().with_context(|| directory.display().to_string())?;
    let whole = match (whole, &mount) {
        (Some(whole), _) => Ok(whole),
        (None, _) => WholeMount::of(path.file()),
    };
    let is_read_only = !state.writable || state.read_only;
    if is_read_only && !options.read_only {
        allow_changes(&path, &state, image)?;
        let allowed = match &whole {
            Ok(whole) => whole.allow_changes(),
            Err(_) => papilio_fuse::whole_mount::allow_changes(path.file()),
        };
        allowed.with_context(|| format!("{shown}: the kernel keeps it read-only on {point}"))?;
    }
    match (whole, &mount) {
        (Ok(whole), _) => whole.attach(Path::new(OsStr::from_bytes(inside)), &directory),
        (Err(error), None) => Err(error),
        // This process may not open file handles.
        (Err(_), Some(mount)) => {
            let place = place_of(inside, mount).with_context(|| format!("{shown}: mounted on {point}"))?;
            rustix::mount::mount_bind(place, &directory).map_err(Into::into)
        }
    }
    .and_then(|()| set_flags(&directory, options))
    .with_context(|| directory.display().to_string())?;
    Ok(true)
}

/// Returns whether the file system on an image is mounted on a directory already, with the
/// subvolume that the options choose: `mount -a` runs twice.
pub(super) fn is_mounted(image: &Path, directory: &Path, options: &MountOptions) -> bool {
    let Some((mount, path)) = running(image) else { return false };
    let (Ok(state), Ok(subvolumes)) = (path.state(), path.subvolumes()) else { return false };
    let Ok(target) = chosen(options, &state, &subvolumes) else { return false };
    let Ok(inside) = inside(target, &state, &subvolumes) else { return false };
    let (Ok(directory), Ok(mounts)) = (directory.canonicalize(), MountEntry::all()) else { return false };
    let newest = mounts.into_iter().rev().find(|other| other.point == directory);
    let is_read_only = rustix::fs::statvfs(&directory)
        .is_ok_and(|found| found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    newest.is_some_and(|other| {
        if is_read_only != options.read_only {
            return false;
        }
        let shown = other.root.as_os_str().as_bytes();
        other.device == mount.device && shown.strip_prefix(b"/").unwrap_or(shown) == inside
    })
}

/// Returns the running mount of the file system on an image: by the image itself, or by the UUID of
/// a file system on several devices.
fn running(image: &Path) -> Option<(MountEntry, MountedPath)> {
    let open = |mount: MountEntry| Some((mount.clone(), MountedPath::open(&mount.point).ok()?));
    if let Some(mount) = holder::mount_of_image(image) {
        // Another partition of the image is another file system.
        let same = split_partition(&mount.source).1 == split_partition(image).1;
        let found = if same { open(mount) } else { None };
        // A mount of a seed shows the file system that builds on it, once a device was added.
        return found.filter(|(_, path)| !has_other_uuid(path, image));
    }
    holder::mount_of_member(image, MountEntry::is_papilio)
}

/// Whether a mount shows another file system than the one on an image.
fn has_other_uuid(path: &MountedPath, image: &Path) -> bool {
    let (Ok(info), Ok(Some(found))) = (path.fs_info(), FoundDevice::read(image)) else { return false };
    info.fsid != *found.fsid.as_bytes()
}

/// Returns the file system of a server that has the image open while no mount of it is in sight:
/// all were detached while in use, or are in other namespaces.
fn unseen(image: &Path) -> Option<(MountedPath, WholeMount)> {
    let file = split_partition(image).0;
    let process = Pid::from_raw(holder::lock_holder(file)?)?;
    let whole =
        WholeMount::of_server(process, &image.canonicalize().unwrap_or_else(|_| image.into())).ok()?;
    let path = MountedPath::from_file(whole.open_root().ok()?);
    let server = path.server().ok()?;
    // Another partition of the image is another file system.
    let is_same = split_partition(&server.source).1 == split_partition(image).1
        && is_same_file(split_partition(&server.source).0, file);
    (is_same && !has_other_uuid(&path, image)).then_some((path, whole))
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place =
        |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino(), found.rdev()));
    place(one).is_some() && place(one) == place(other)
}

/// Returns the subvolume that the options choose.
fn chosen<'a>(
    options: &MountOptions,
    state: &State,
    subvolumes: &'a [Subvolume],
) -> anyhow::Result<&'a Subvolume> {
    let by_id = |id: TreeId| {
        let found = subvolumes.iter().find(|subvolume| subvolume.id == id && subvolume.path.is_some());
        found.with_context(|| format!("no such subvolume: {id}"))
    };
    match &options.subvolume {
        SubvolumeChoice::Default => by_id(state.default_subvolume),
        SubvolumeChoice::Id(id) => by_id(*id),
        SubvolumeChoice::Path(path) => {
            let wanted: Vec<_> = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).collect();
            let wanted = wanted.join(&b'/');
            let found = subvolumes.iter().find(|subvolume| subvolume.path.as_deref() == Some(&wanted));
            let found =
                found.with_context(|| format!("no such subvolume: {}", String::from_utf8_lossy(path)))?;
            if options.expected_subvolume.is_some_and(|expected| expected != found.id) {
                bail!("mount options subvol and subvolid conflict: the path is subvolume {}", found.id);
            }
            Ok(found)
        }
        _ => by_id(objectid::FS_TREE),
    }
}

/// Returns the path of a subvolume from the root of the file system in the kernel.
fn inside<'a>(target: &'a Subvolume, state: &State, subvolumes: &[Subvolume]) -> anyhow::Result<&'a [u8]> {
    let root = subvolumes.iter().find(|subvolume| subvolume.id == state.root);
    let root = root.and_then(|root| root.path.as_deref()).context("its subvolume has no path")?;
    let path = target.path.as_deref().unwrap_or_default();
    let Some(inside) = below(path, root) else {
        bail!(
            "it shows only the subvolume {}; to mount others beside it, mount one that contains them first",
            String::from_utf8_lossy(root)
        );
    };
    Ok(inside)
}

/// Returns the directory that is `inside` the file system of the running mount.
fn place_of(inside: &[u8], mount: &MountEntry) -> anyhow::Result<PathBuf> {
    // A mount may show a part only, or be covered.
    let mounts = MountEntry::all().context("/proc/self/mountinfo")?;
    let of_server = mounts.iter().filter(|other| other.device == mount.device);
    let mut places = of_server.filter_map(|other| {
        let shown = other.root.as_os_str().as_bytes();
        let rest = below(inside, shown.strip_prefix(b"/").unwrap_or(shown))?;
        let place = other.point.join(OsStr::from_bytes(rest));
        let found = MountEntry::of(&place).ok().flatten()?;
        (found.id == other.id).then_some(place)
    });
    places.next().context("no mount of it that this process sees shows the subvolume")
}

/// Returns the part of `path` below `root`; `None` if it is not below.
fn below<'a>(path: &'a [u8], root: &[u8]) -> Option<&'a [u8]> {
    match path.strip_prefix(root)? {
        rest if root.is_empty() || rest.is_empty() => Some(rest),
        rest => rest.strip_prefix(b"/"),
    }
}

/// Gives a new mount its flags, instead of those of the mount that it was made from.
fn set_flags(directory: &Path, options: &MountOptions) -> std::io::Result<()> {
    rustix::mount::mount_remount(directory, MountFlags::BIND | flags_of(options), c"").map_err(|error| {
        let _ = rustix::mount::unmount(directory, rustix::mount::UnmountFlags::DETACH);
        error.into()
    })
}

#[cfg(test)]
mod tests {
    use super::below;

    #[test]
    fn paths_below_others_are_found() {
        assert_eq!(below(b"a/b", b"a"), Some(&b"b"[..]));
        assert_eq!(below(b"a/b", b""), Some(&b"a/b"[..]));
        assert_eq!(below(b"a", b"a"), Some(&b""[..]));
        assert_eq!(below(b"", b""), Some(&b""[..]));
        assert_eq!(below(b"ab", b"a"), None);
        assert_eq!(below(b"a", b"a/b"), None);
        assert_eq!(below(b"", b"a"), None);
    }
}
