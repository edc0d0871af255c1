//! [`UsageSource`]: a file system on an image or in a mount, for commands that show its properties.

use crate::context::Context;
use crate::holder;
use crate::mounted::{Mounted, Target};
use papilio::format::Uuid;
use papilio::{FileSystem, Usage};
use papilio_ioctl::client::MountedPath;
use std::collections::BTreeMap;
use std::path::Path;

/// A file system on an image or in a mount.
pub enum UsageSource {
    /// On an image that is not mounted.
    Image(FileSystem),
    /// In a mount.
    Mounted(Mounted, MountedPath),
}

/// The label and UUIDs of a file system.
pub struct Names {
    /// The label, which may be empty.
    pub label: Vec<u8>,
    /// The UUID that users see.
    pub uuid: Uuid,
    /// The UUID in the tree blocks.
    pub metadata_uuid: Uuid,
    /// The number of devices.
    pub devices: u64,
}

/// Warns of a mount or an image with several profiles for one kind of block groups, as btrfs(8)
/// does. Only under that name.
pub fn warn_of_profiles(context: &Context, path: &Path) -> anyhow::Result<()> {
    if context.arguments().drop_in {
        warn_of_mixed(context, &UsageSource::open(context, path)?.usage()?);
    }
    Ok(())
}

/// As [`warn_of_profiles`], where the use of space is known.
pub fn warn_of_mixed(context: &Context, usage: &Usage) {
    if !context.arguments().drop_in || !usage.has_multiple_profiles() {
        return;
    }
    let mut kinds: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for space in &usage.spaces {
        kinds.entry(space.kind_name()).or_default().push(space.profile.name().to_lowercase());
    }
    context.warning("Multiple block group profiles detected; a balance with the filter convert ends that");
    for (kind, profiles) in kinds.into_iter().filter(|(_, profiles)| profiles.len() > 1) {
        context.warning(format_args!("    {kind}: {}", profiles.join(", ")));
    }
}

impl UsageSource {
    /// Opens an image for reading, or a directory in a mount. A device that is mounted stands for
    /// its mount.
    pub fn open(context: &Context, path: &Path) -> anyhow::Result<Self> {
        let path = holder::place_of(path);
        Ok(match Target::parse(path.as_os_str())? {
            Target::Image(path) => Self::Image(context.open(&path.image)?),
            Target::Mounted(mounted) => {
                let mount = mounted.open()?;
                Self::Mounted(mounted, mount)
            }
        })
    }

    /// Returns the use of space.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        match self {
            Self::Image(fs) => Ok(fs.usage()?),
            Self::Mounted(mounted, mount) => mount.usage().map_err(|error| mounted.at(&error)),
        }
    }

    /// Returns why a mount takes no more changes, if a failure is the reason.
    pub fn failure(&self) -> anyhow::Result<Option<String>> {
        match self {
            Self::Image(_) => Ok(None),
            Self::Mounted(mounted, _) if !mounted.mount.is_papilio() => Ok(None),
            Self::Mounted(mounted, mount) => {
                let state = mount.state().map_err(|error| mounted.at(&error))?;
                // Otherwise it is the reason why a remount was refused.
                Ok(state.failure.filter(|_| state.writable))
            }
        }
    }

    /// Returns the label.
    pub fn label(&self) -> anyhow::Result<Vec<u8>> {
        match self {
            Self::Image(fs) => Ok(fs.label()),
            Self::Mounted(mounted, mount) => mount.label().map_err(|error| mounted.at(&error)),
        }
    }

    /// Returns the label and UUIDs.
    pub fn names(&self) -> anyhow::Result<Names> {
        Ok(match self {
            Self::Image(fs) => {
                let superblock = fs.superblock();
                Names {
                    label: fs.label(),
                    uuid: fs.uuid(),
                    metadata_uuid: superblock.metadata_uuid(),
                    devices: superblock.raw.num_devices,
                }
            }
            Self::Mounted(mounted, mount) => {
                let info = mount.fs_info().map_err(|error| mounted.at(&error))?;
                Names {
                    label: self.label()?,
                    uuid: Uuid::from_bytes(info.fsid),
                    metadata_uuid: Uuid::from_bytes(info.metadata_uuid),
                    devices: info.devices,
                }
            }
        })
    }
}
