//! Reading the chunk tree into the volume.
//!
//! Owns [`read_chunk_tree`]. Kernel counterpart: `btrfs_read_chunk_tree` (`fs/btrfs/volumes.c`).

use crate::btree::Tree;
use crate::errors::Result;
use crate::items::item_error;
use crate::options::OpenOptions;
use crate::volume::Volume;
use papilio_format::items::chunk::ChunkItem;
use papilio_format::items::device::DeviceItem;
use papilio_format::{ItemType, LogicalAddress};

/// Adds the devices and chunks of the chunk tree to the volume, or those that the options hold in
/// its place.
///
/// # Errors
/// A block or item that cannot be read; as [`Volume::install_chunks`].
pub fn read_chunk_tree(volume: &Volume, tree: &Tree, options: &OpenOptions) -> Result<()> {
    let found = options.rescue.found.as_ref();
    if let Some(found) = found.and_then(|found| found.chunk_tree.as_ref()) {
        // The chunks are installed since the volume was opened.
        return volume.install_devices(found.devices.iter().copied());
    }
    let mut devices = Vec::new();
    let mut chunks = Vec::new();
    for item in tree.items() {
        let item = item?;
        let fault = |reason| item_error(tree, &item, reason);
        match item.key.item_type {
            ItemType::DEV_ITEM => devices.push(DeviceItem::parse(item.data()).map_err(fault)?),
            ItemType::CHUNK_ITEM => {
                let chunk = ChunkItem::parse(item.data()).map_err(fault)?;
                chunks.push((LogicalAddress(item.key.offset), chunk));
            }
            _ => {}
        }
    }
    volume.install_chunks(chunks)?;
    volume.install_devices(devices)
}
