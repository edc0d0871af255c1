//! How the mounts of this program's tests are served: over io_uring, which is switched on for as long as there is one.

use papilio_oracle::Need;
pub use papilio_oracle::RingSwitch as Switch;

/// The transport's name among the options.
pub const NAME: &str = "ring";

/// What it takes.
pub const NEEDS: &[Need] = &[Need::Root, Need::Fuse, Need::FuseRing];

pub fn switch() -> Switch {
    Switch::on().unwrap()
}
