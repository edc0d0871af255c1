//! The image that a command of a scrub is about.

use crate::mounted::Target;
use anyhow::bail;
use std::path::{Path, PathBuf};

/// Returns the image of an operand; a mount is left to its own kernel or server.
pub fn image_of(operand: &Path) -> anyhow::Result<PathBuf> {
    match Target::parse(operand.as_os_str())? {
        Target::Image(path) => Ok(path.image),
        Target::Mounted(_) => {
            bail!("{}: it is mounted; `btrfs scrub` does this for a mount of the kernel", operand.display())
        }
    }
}
