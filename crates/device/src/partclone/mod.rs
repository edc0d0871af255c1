//! Images of partclone, which Clonezilla makes: the used blocks of one device, after a bitmap.
//!
//! - [`layout`]: header and bitmap of versions 1 and 2;
//! - [`parts`]: opens images that are compressed and split;
//! - [`reader`]: reads an image from its start to its end, also from a pipe;
//! - [`device`]: reads an image at any place.
//!
//! All numbers are little-endian. Facts about the format come from images that partclone made.

mod device;
mod error;
mod layout;
mod parts;
mod reader;
#[cfg(test)]
mod tests;

pub(crate) use device::PartcloneDevice;
pub use error::{PartcloneError, PartcloneFault};
pub use layout::PartcloneLayout;
pub use parts::open_parts;
pub use reader::PartcloneReader;
