//! How the mounts of this program's tests are served: by `/dev/fuse`.

use papilio_oracle::Need;

/// The transport's name among the options.
pub const NAME: &str = "classic";

/// What it takes.
pub const NEEDS: &[Need] = &[Need::Root, Need::Fuse];

/// What has to be held while a mount is there: nothing.
pub struct Switch;

pub fn switch() -> Switch {
    Switch
}
