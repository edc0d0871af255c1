//! In-place conversion of ext2, ext3, ext4 and XFS to Btrfs, and the way back.
//!
//! - [`Conversion::prepare`] reads and checks the source, and says how much room the conversion
//!   needs and what cannot be kept.
//! - [`Conversion::run`] converts. Data stays where it is. The subvolume [`SAVED`] or
//!   [`SAVED_XFS`] keeps the source as the file [`IMAGE`], which shares the data.
//! - [`rollback`] brings the source back, as long as that file is whole.
//!
//! | module | owns |
//! |---|---|
//! | `source` | the face of a file system that can be converted |
//! | `ext`, `xfs` | such file systems, for reading |
//! | `shared` | blocks that several files share |
//! | `block_set` | sets of blocks in little memory |
//! | `layout`, `places` | where the chunks of the new file system lie |
//! | `names`, `items` | the items of files, from the source |
//! | `plan`, `losses` | the first walk, which counts and checks |
//! | `withheld` | the device on which the new file system grows beside the source |
//! | `target`, `sums`, `image` | files, checksums and the image in the new file system |
//! | `image_extents` | the extents of a saved image, and their places |
//! | `convert`, `switch`, `rollback` | the two ways |
//! | `record`, `record_place` | the record that makes a torn switch whole, and a place for it |
//! | `interruption`, `interrupted` | the states that a power cut leaves, and the remedy |
//!
//! **Invariant:** until the last write but the wiping of the old superblock, a power cut leaves the
//! source as it was; from then on, it leaves the new file system. If the device tears that write of
//! 4 KiB, [`finish_interrupted`] or [`undo_interrupted`] makes one of the two whole.

#![forbid(unsafe_code)]

mod block_set;
mod convert;
mod error;
mod ext;
mod image;
mod image_extents;
mod interrupted;
mod interruption;
mod io;
mod items;
mod layout;
mod losses;
mod names;
mod options;
mod places;
mod plan;
mod record;
mod record_place;
mod rollback;
mod shared;
mod source;
mod sums;
mod switch;
mod target;
mod withheld;
mod xfs;

pub use convert::{Conversion, Converted, convert, plan};
pub use error::ConvertError;
pub use interrupted::{find_interrupted, finish_interrupted, undo_interrupted};
pub use interruption::{Finished, Interruption};
pub use losses::Losses;
pub use options::{ConvertOptions, ConvertProgress, ConvertStage, TargetLabel, TargetUuid};
pub use plan::ConvertPlan;
pub use rollback::{RolledBack, rollback};

/// The name of the subvolume that keeps an ext2, ext3 or ext4.
pub const SAVED: &str = "ext2_saved";
/// The name of the subvolume that keeps an XFS.
pub const SAVED_XFS: &str = "xfs_saved";
/// The name of the image in it.
pub const IMAGE: &str = "image";
