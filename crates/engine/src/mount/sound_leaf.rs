//! Leaves made of the sound items of bad ones.
//!
//! Owns [`SoundItems`], and [`rescue_forest`], which reads with it. An item that the reader refuses
//! would otherwise hide all others of its leaf.
//!
//! **Invariant**: the checksum of the leaf is right, or checksums are ignored. Every item that is
//! left out or changed is a fault of the forest.
//!
//! **Locks**: none.
//!
//! Kernel counterpart: none; `fs/btrfs/tree-checker.c` refuses the leaf.

use crate::btree::{Forest, RescueParts, SoundLeaves, TreeBlock};
use crate::items::mended_fields::Alone;
use crate::items::sound_items::{LeafPlace, Sound, readable_items, sound_items};
use crate::options::rescue::{ItemFault, ItemUse};
use crate::volume::Volume;
use papilio_format::node::{NodeExpectation, NodeHeader, owner_allowed};
use papilio_format::{Generation, Geometry, Key, TreeId};
use std::sync::Arc;

/// Makes leaves of the sound items of bad ones.
#[derive(Debug)]
pub struct SoundItems;

/// Returns a forest for walks of damaged trees, which reads the sound items of bad leaves.
pub fn rescue_forest(volume: &Arc<Volume>, cache_bytes: usize) -> Arc<Forest> {
    let parts = RescueParts { sound_leaves: Some(Box::new(SoundItems)), ..RescueParts::default() };
    Forest::for_rescue(Arc::clone(volume), cache_bytes, parts)
}

impl SoundLeaves for SoundItems {
    fn sound_leaf(
        &self,
        tree: TreeId,
        bytes: &[u8],
        expected: &NodeExpectation,
        bound: Option<Key>,
        geometry: &Geometry,
    ) -> Option<(TreeBlock, Vec<ItemFault>)> {
        let header = NodeHeader::parse_prefix(bytes).ok()?.0;
        let is_expected = header.address == expected.address
            && header.fsid == geometry.metadata_uuid
            && header.level == 0
            && expected.level.is_none_or(|level| level == 0)
            && expected.generation.is_none_or(|generation| generation == header.generation)
            && header.generation.0 <= geometry.generation.0.saturating_add(1)
            && expected.owner.is_none_or(|owner| owner_allowed(owner, header.owner));
        if !is_expected {
            return None;
        }
        let first = expected.first_key.unwrap_or(Key::MIN);
        let place = LeafPlace { tree: header.owner, address: header.address, first, bound };
        let readable = readable_items(bytes, &place)?;
        let mut empty = bytes.to_vec();
        let written = NodeHeader { item_count: 0, flags: header.flags | 1, ..header };
        empty[..NodeHeader::SIZE].copy_from_slice(&written.to_bytes());
        empty[NodeHeader::SIZE..].fill(0);
        // Generations of items are compared with that of the last commit.
        let newest = Generation(geometry.generation.0.max(header.generation.0));
        let geometry = Geometry { generation: newest, ..*geometry };
        let (sound, bytes) = sound_items(&place, &empty, readable, geometry, &Alone)?;
        if sound.items.is_empty() {
            return None;
        }
        let block = TreeBlock::partial(bytes, &geometry).ok()?;
        Some((block, faults(tree, &header, sound)))
    }
}

fn faults(tree: TreeId, header: &NodeHeader, sound: Sound) -> Vec<ItemFault> {
    let block = header.address;
    let fault =
        |key, used, reason: &str| ItemFault { tree, block, key: Some(key), used, reason: reason.to_owned() };
    let Sound { lost, mended, guessed, made, moved, .. } = sound;
    let lost = lost.iter().map(|(key, reason)| fault(*key, ItemUse::LeftOut, reason));
    let mended = mended.iter().map(|(key, field, reason)| fault(*key, ItemUse::FieldSet(field), reason));
    let guessed = guessed.iter().map(|(key, reason)| fault(*key, ItemUse::Guessed, reason));
    let made = made.iter().map(|key| fault(*key, ItemUse::Guessed, "the inode has no item"));
    let moved = moved.iter().map(|key| fault(*key, ItemUse::Moved, "its key is out of order"));
    lost.chain(mended).chain(guessed).chain(made).chain(moved).collect()
}
