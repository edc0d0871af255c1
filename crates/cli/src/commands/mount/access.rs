//! The access of mounts: the flags of each, and changes that the server of all takes.
//!
//! Owns [`flags_of`] and [`allow_changes`].

use anyhow::{Context as _, bail};
use papilio_fuse::{Atime, MountOptions};
use papilio_ioctl::client::{MountedPath, State};
use rustix::mount::MountFlags;
use std::path::Path;

/// Returns the flags of one mount, without those of the file system.
pub(super) fn flags_of(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NOEXEC, !options.exec);
    flags.set(MountFlags::NOATIME, options.noatime == Atime::Noatime);
    flags.set(MountFlags::NODIRATIME, options.noatime == Atime::Nodiratime);
    flags
}

/// Has the server of a mount take changes, which opens the image for writing if it is open for
/// reading.
///
/// # Errors
/// The file system is read-only since a failure; the image cannot be opened for writing; the caller
/// is not root.
pub(super) fn allow_changes(path: &MountedPath, state: &State, shown: &Path) -> anyhow::Result<()> {
    let shown = shown.display();
    if let Some(cause) = state.failure.as_ref().filter(|_| state.writable) {
        bail!("{shown}: read-only since a failure: {cause}");
    }
    if !rustix::process::geteuid().is_root() {
        bail!("{shown}: only root may remount");
    }
    let Err(error) = path.set_read_only(false) else { return Ok(()) };
    // The server tells its reason in the state.
    let cause = path.state().ok().filter(|state| !state.writable).and_then(|state| state.failure);
    match cause {
        Some(cause) => bail!("{shown}: cannot become writable: {cause}"),
        None => Err(error).with_context(|| shown.to_string()),
    }
}
