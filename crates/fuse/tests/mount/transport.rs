//! The transport of this program's mounts: `/dev/fuse`.

use papilio_oracle::Need;

/// The transport's name in the mount options.
pub const NAME: &str = "classic";

/// Requirements of the transport.
pub const NEEDS: &[Need] = &[Need::Root, Need::Fuse];

/// A stand-in for the kernel's switch, which this transport does not need.
pub struct Switch;

pub fn switch() -> Switch {
    Switch
}
