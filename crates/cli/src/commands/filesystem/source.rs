//! Where a command learns of a file system: from its image, or from the server that has it mounted.
//!
//! Owns [`Source`].

use crate::context::Context;
use crate::mounted::{Mounted, Target};
use papilio::format::Uuid;
use papilio::{FileSystem, Usage};
use papilio_fuse::ioctl::client::MountedPath;
use std::path::Path;

/// A file system that is asked.
pub enum Source {
    /// On an image that nobody has mounted.
    Image(FileSystem),
    /// In a mount.
    Mounted(Mounted, MountedPath),
}

/// What it is called.
pub struct Names {
    /// Its label, which may be empty.
    pub label: Vec<u8>,
    /// The UUID that users see.
    pub uuid: Uuid,
    /// The one that metadata bears.
    pub metadata_uuid: Uuid,
    /// How many devices it has.
    pub devices: u64,
}

impl Source {
    /// Opens an image for reading, or a directory in a mount.
    pub fn open(context: &Context, path: &Path) -> anyhow::Result<Self> {
        Ok(match Target::parse(path.as_os_str())? {
            Target::Image(path) => Self::Image(context.open(&path.image)?),
            Target::Mounted(mounted) => {
                let asked = mounted.open()?;
                Self::Mounted(mounted, asked)
            }
        })
    }

    /// How space is used.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        match self {
            Self::Image(fs) => Ok(fs.usage()?),
            Self::Mounted(mounted, asked) => asked.usage().map_err(|error| mounted.at(&error)),
        }
    }

    /// The label.
    pub fn label(&self) -> anyhow::Result<Vec<u8>> {
        match self {
            Self::Image(fs) => Ok(fs.label()),
            Self::Mounted(mounted, asked) => asked.label().map_err(|error| mounted.at(&error)),
        }
    }

    /// What it is called.
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
            Self::Mounted(mounted, asked) => {
                let info = asked.fs_info().map_err(|error| mounted.at(&error))?;
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
