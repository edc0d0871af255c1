//! `-o remount`: makes a running mount read-only or writable.
//!
//! Owns [`Remount`]. FUSE's kernel part keeps the switch itself: it refuses changes, and a switch
//! to read-only while files are open for writing. The server commits, and refuses ioctls that
//! change something, which the kernel does not check. If it has the image open for reading, it
//! opens it for writing first. As with the kernel's Btrfs, the switch concerns all mounts of the
//! file system, while `noatime`, `nodev` and the like are of this mount.

use super::access::{allow_changes, flags_of};
use anyhow::{Context as _, bail};
use papilio_fuse::MountOptions;
use papilio_ioctl::client::MountedPath;
use papilio_ioctl::mount_table::MountEntry;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::path::Path;

/// Options of FUSE's kernel part, which mount(8) passes on from the table of mounts.
const OF_THE_KERNEL: [&str; 6] = ["user_id=", "group_id=", "rootmode=", "fd=", "max_read=", "blksize="];

/// A change of a running mount.
pub(super) struct Remount {
    /// The options other than `remount`.
    pub(super) options: String,
}

impl Remount {
    /// Takes the option `remount` out of others; returns `None` if it is not among them.
    pub(super) fn of(options: &str) -> Option<Self> {
        if !options.split(',').any(|option| option == "remount") {
            return None;
        }
        let kept = options.split(',').filter(|option| {
            *option != "remount" && !OF_THE_KERNEL.iter().any(|start| option.starts_with(start))
        });
        Some(Self { options: kept.collect::<Vec<_>>().join(",") })
    }

    /// Changes the mount on `directory`.
    pub(super) fn run(&self, directory: &Path) -> anyhow::Result<()> {
        let shown = directory.display();
        let options = MountOptions::parse(&self.options).map_err(anyhow::Error::msg)?;
        let point = directory.canonicalize().with_context(|| shown.to_string())?;
        let mount = MountEntry::of_papilio_on(&point).context("/proc/self/mountinfo")?;
        if mount.is_none() {
            bail!("{shown}: nothing to remount: Papilio has no mount there");
        }
        let path = MountedPath::open(&point).with_context(|| shown.to_string())?;
        let state = path.state().with_context(|| shown.to_string())?;
        match (options.read_only, state.writable) {
            (true, true) => self.make_read_only(&point, &path, &options),
            (true, false) => change(&point, &options),
            (false, _) => {
                allow_changes(&path, &state, directory)?;
                change(&point, &options).inspect_err(|_| {
                    // The kernel refuses changes as before, and so does the server.
                    if state.read_only || !state.writable {
                        let _ = path.set_read_only(true);
                    }
                })
            }
        }
    }

    fn make_read_only(&self, point: &Path, path: &MountedPath, options: &MountOptions) -> anyhow::Result<()> {
        let shown = point.display();
        // The kernel's caches first. The kernel refuses later writes, or the switch writes them
        // back and the commit below includes them.
        change(point, options)?;
        path.set_read_only(true).with_context(|| format!("{shown}: cannot write the last changes"))
    }
}

/// Changes the flags that the kernel keeps, for this mount and its file system.
fn change(point: &Path, options: &MountOptions) -> anyhow::Result<()> {
    let shown = point.display();
    let mut flags = flags_of(options);
    flags.set(MountFlags::SYNCHRONOUS, options.sync);
    flags.set(MountFlags::DIRSYNC, options.dirsync);
    match rustix::mount::mount_remount(point, flags, c"") {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => bail!("{shown}: in use: files are open for writing"),
        Err(Errno::PERM) => bail!("{shown}: only root may remount"),
        Err(error) => Err(error).with_context(|| shown.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::Remount;

    #[test]
    fn remount_is_taken_out_of_the_options() {
        assert!(Remount::of("ro,noatime").is_none());
        assert!(Remount::of("remounted").is_none());
        let of = |options| Remount::of(options).unwrap().options;
        assert_eq!(of("remount,ro"), "ro");
        assert_eq!(of("rw,user_id=0,group_id=0,remount,nodev,allow_other"), "rw,nodev,allow_other");
    }
}
