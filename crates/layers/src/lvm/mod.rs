//! LVM2: volume groups with text metadata.
//!
//! - `label`: the header of a physical volume, and its copy of the metadata;
//! - `text`: the syntax of the metadata;
//! - `group`: the volume group that the metadata describes;
//! - `volume`: an open logical volume.
//!
//! Sources: lvm.conf(5), lvmraid(7), vgcfgbackup(8) and the metadata of real volume groups, whose
//! text explains itself; `format_text/layout.h` of LVM2 for the binary headers.

mod group;
mod label;
mod text;
mod volume;

pub use group::{LogicalVolume, VolumeGroup};
pub use label::PhysicalVolume;
pub use volume::{LvmDevice, open_volume};
