//! `papilio check -E`: the extents of a subvolume, and which subvolumes share them.

use crate::context::{Context, of_image};
use crate::output::Output;
use papilio::format::items::file_extent::{FileExtentContent, FileExtentItem};
use papilio::format::{Generation, ItemType, Key, TreeId};
use papilio::{FileSystem, OpenOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Extents by their address: the length, and the subvolumes that refer to them.
type Extents = BTreeMap<u64, (u64, BTreeSet<TreeId>)>;

/// Prints the extents of `subvolume`: tree blocks and data, in the columns of `btrfs check -E`.
///
/// # Errors
/// There is no such subvolume; a tree block that cannot be read.
pub fn report(
    context: &Context,
    image: &Path,
    options: &OpenOptions,
    subvolume: TreeId,
) -> anyhow::Result<()> {
    let fs = context.open_with(image, options)?;
    let named = |error| of_image(image, error);
    let found = fs.subvolume(subvolume).map_err(named)?;
    let mut extents = Extents::new();
    add_extents(&fs, subvolume, &mut extents, true).map_err(named)?;
    for other in fs.subvolumes().map_err(named)? {
        if other.id != subvolume && other.refs > 0 {
            add_extents(&fs, other.id, &mut extents, false).map_err(named)?;
        }
    }
    let mut output = Output::new()?;
    let (count, mut bytes, mut own) = (extents.len(), 0, 0);
    output.text(format_args!("subvolume {subvolume}, UUID {}\n", found.uuid))?;
    output.text(format_args!("Offset\t\tLen\tRoot Refs\tRoots\n"))?;
    for (address, (length, roots)) in extents {
        bytes += length;
        own += if roots.len() == 1 { length } else { 0 };
        let list: Vec<String> = roots.iter().map(ToString::to_string).collect();
        let (refs, list) = (roots.len(), list.join(" "));
        output.text(format_args!("{address}\t{length}\t{refs}\t{list}\n"))?;
    }
    output
        .text(format_args!("{count} extents, {bytes} bytes, {own} of them used by no other subvolume\n"))?;
    Ok(output.finish()?)
}

/// Adds the extents of a subvolume; those of others only where the first one has them, too.
fn add_extents(fs: &FileSystem, id: TreeId, extents: &mut Extents, is_first: bool) -> papilio::Result<()> {
    let mut add = |address: u64, length: u64| {
        if is_first {
            extents.entry(address).or_default();
        }
        if let Some(entry) = extents.get_mut(&address) {
            entry.0 = length;
            entry.1.insert(id);
        }
    };
    let node_size = u64::from(fs.superblock().raw.node_size);
    for root in fs.tree_roots_of(id)? {
        for block in fs.tree_blocks(&root) {
            add(block?.address().0, node_size);
        }
    }
    fs.search_tree(id, Key::MIN..=Key::MAX, Generation(0), &mut |_, key, data| {
        if key.item_type == ItemType::EXTENT_DATA
            && let Ok(item) = FileExtentItem::parse(data)
            && let FileExtentContent::Regular(part) | FileExtentContent::Prealloc(part) = item.content
            && !part.is_hole()
        {
            add(part.disk_address.0, part.disk_length);
        }
        true
    })
}
