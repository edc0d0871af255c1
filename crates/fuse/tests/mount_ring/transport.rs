//! The transport of this program's mounts: io_uring, enabled in the kernel while a mount exists.

use papilio_oracle::Need;
pub use papilio_oracle::RingSwitch as Switch;

/// The transport's name in the mount options.
pub const NAME: &str = "ring";

/// Requirements of the transport.
pub const NEEDS: &[Need] = &[Need::Root, Need::Fuse, Need::FuseRing];

pub fn switch() -> Switch {
    Switch::on().unwrap()
}
