//! Mends trees with parts that cannot be visited.
//!
//! Owns [`mend_damages`]. For each part, in this order:
//! 1. a leaf stays if only fields of its items are wrong and can be set ([`sound_items`]);
//! 2. the blocks below it that can be found take its place;
//! 3. the items of a bad leaf that are sound by themselves stay, in order;
//! 4. the rest is lost: the pointer goes, and the losses say so.
//!
//! Trees that can be computed from others are written anew, not left incomplete: the
//! extent tree, block groups, the free-space tree, the device tree.
//!
//! **Order**: the root tree first, as it leads to the others; the space trees last, as they
//! describe the others.

use super::super::check::damage::Damage;
use super::super::check::inventory::Inventory;
use super::editor::{
    Editor, Items, RoundContext, children, current_superblock, encode, encode_node, refuse, set_header,
};
use super::orphans::{Found, FoundSubtree, Orphans};
use super::space_trees::{device_extents, rebuild_space, replace_tree, root_directory};
use super::tree_writer::empty_block;
use papilio_engine::errors::Result;
use papilio_engine::items::sound_items::{self, LeafPlace, readable_items, sound_items};
use papilio_engine::volume::Volume;
use papilio_format::items::root::RootItem;
use papilio_format::node::{KeyPointer, NodeHeader};
use papilio_format::objectid::Objectid;
use papilio_format::{Generation, Key, LogicalAddress, TreeId, objectid};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The outcome of mending damaged parts.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) changes: Vec<String>,
    pub(super) refused: Vec<String>,
    pub(super) losses: Vec<String>,
    /// The parts of trees that lost items.
    pub(super) lost_parts: Vec<Damage>,
}

/// Mends the damaged parts of one group of trees; the caller checks again, and calls this for the
/// next group.
pub(super) fn mend_damages(
    volume: &Arc<Volume>,
    context: &RoundContext,
    orphans: &mut Orphans,
    inventory: &Inventory,
) -> Outcome {
    let mut mender = Mender { volume, context, orphans, inventory, outcome: Outcome::default() };
    let group = |tree: TreeId| match tree {
        objectid::CHUNK_TREE => 0,
        objectid::ROOT_TREE => 1,
        objectid::EXTENT_TREE | objectid::FREE_SPACE_TREE | objectid::BLOCK_GROUP_TREE => 3,
        _ => 2,
    };
    let Some(first) = inventory.damages.iter().map(|damage| group(damage.tree)).min() else {
        return mender.outcome;
    };
    let damages: Vec<Damage> =
        inventory.damages.iter().filter(|damage| group(damage.tree) == first).copied().collect();
    let mut left = BTreeSet::new();
    for damage in &damages {
        if let Err(error) = mender.mend(damage, &mut left) {
            let tree = Objectid(damage.tree.0);
            let text = format!("tree {tree}: mend the part at {}: {error}", damage.key);
            mender.outcome.refused.push(text);
        }
    }
    if !left.is_empty() {
        mender.rebuild(&left);
    }
    mender.outcome
}

/// The items of a bad leaf that stay.
struct Sound {
    items: Items,
    /// The keys of the others.
    lost: Vec<Key>,
    /// The fields that were set, one line each.
    mended: Vec<String>,
    /// Whether the leaf is the one that its parent points to, not an older state of its place.
    is_newest: bool,
}

impl Sound {
    fn new(sound: sound_items::Sound, is_newest: bool) -> Self {
        let line = |(key, field, reason)| format!("item {key}: set {field}: {reason}");
        let (lost, guessed) = (sound.lost.into_iter(), sound.guessed.into_iter());
        Self {
            items: sound.items,
            lost: lost.chain(guessed).map(|(key, _)| key).collect(),
            mended: sound.mended.into_iter().map(line).collect(),
            is_newest,
        }
    }
}

fn rewritten(tree: Objectid, damage: &Damage, count: usize) -> String {
    format!("tree {tree}: write the {count} sound items of leaf {} anew", damage.address)
}

struct Mender<'a> {
    volume: &'a Arc<Volume>,
    context: &'a RoundContext,
    orphans: &'a mut Orphans,
    inventory: &'a Inventory,
    outcome: Outcome,
}

/// Whether a tree is computed from others if it is incomplete.
fn is_computed(tree: TreeId) -> bool {
    matches!(
        tree,
        objectid::EXTENT_TREE
            | objectid::FREE_SPACE_TREE
            | objectid::BLOCK_GROUP_TREE
            | objectid::DEV_TREE
            | objectid::UUID_TREE
    )
}

/// Returns the range of keys of a damaged part, in words.
fn range(damage: &Damage) -> String {
    let until = damage.bound.map_or_else(|| "the end".to_owned(), |bound| bound.to_string());
    format!("{} to {until}", damage.key)
}

/// Returns the ranges of keys of a damaged part, in words, that the found blocks do not cover.
fn gaps(damage: &Damage, parts: &[FoundSubtree]) -> Vec<String> {
    let mut gaps = Vec::new();
    if let Some(first) = parts.first()
        && first.pointer.key > damage.key
    {
        gaps.push(format!("from {} to before {}", damage.key, first.pointer.key));
    }
    for pair in parts.windows(2) {
        gaps.push(format!("between {} and {}", pair[0].last, pair[1].pointer.key));
    }
    if let Some(last) = parts.last() {
        gaps.push(match damage.bound {
            Some(bound) => format!("between {} and {bound}", last.last),
            None => format!("after {}", last.last),
        });
    }
    gaps
}

impl Mender<'_> {
    /// Mends one part. Trees that have to be computed are added to `left`.
    fn mend(&mut self, damage: &Damage, left: &mut BTreeSet<TreeId>) -> Result<()> {
        let tree = Objectid(damage.tree.0);
        let sound = if damage.level == 0 { self.sound_items(damage) } else { None };
        let sound = sound.filter(|sound| !sound.items.is_empty());
        if let Some(sound) = sound.as_ref().filter(|sound| sound.lost.is_empty() && sound.is_newest) {
            self.put_items(damage, &sound.items)?;
            self.outcome.changes.extend(sound.mended.iter().map(|line| format!("tree {tree}: {line}")));
            if sound.mended.is_empty() {
                let count = sound.items.len();
                self.outcome.changes.push(rewritten(tree, damage, count));
            }
            return Ok(());
        }
        let Found { parts, is_certain } = self.orphans.take(damage);
        // The leaf itself is newer than blocks that only might belong here.
        let prefers_leaf = !is_certain && sound.as_ref().is_some_and(|sound| sound.is_newest);
        if !parts.is_empty() && !prefers_leaf {
            let count = parts.len();
            self.put(damage, &parts)?;
            let what = format!(
                "tree {tree}: put {count} blocks that were found in the place of block {}",
                damage.address
            );
            self.outcome.changes.push(what);
            if is_computed(damage.tree) {
                return Ok(());
            }
            self.outcome.lost_parts.push(*damage);
            if !is_certain {
                let line = format!("tree {tree}: items in place of block {} may be older", damage.address);
                self.outcome.losses.push(line);
            }
            if !is_certain || !self.orphans.has_all_of(damage) {
                let gaps = gaps(damage, &parts);
                let line = |gap| format!("tree {tree}: items {gap}, if there were any");
                self.outcome.losses.extend(gaps.iter().map(line));
            }
            return Ok(());
        }
        if let Some(Sound { items, lost, mended, .. }) = sound {
            self.put_items(damage, &items)?;
            self.outcome.changes.extend(mended.iter().map(|line| format!("tree {tree}: {line}")));
            self.outcome.changes.push(rewritten(tree, damage, items.len()));
            if !is_computed(damage.tree) {
                self.outcome.lost_parts.push(*damage);
                self.outcome.losses.extend(lost.iter().map(|key| format!("tree {tree}: item {key}")));
            }
            return Ok(());
        }
        if is_computed(damage.tree) {
            left.insert(damage.tree);
            return Ok(());
        }
        self.drop_part(damage)?;
        self.outcome.lost_parts.push(*damage);
        self.outcome.losses.push(format!("tree {tree}: all items from {}", range(damage)));
        let text = format!("tree {tree}: give up block {}, with all below it", damage.address);
        self.outcome.changes.push(text);
        Ok(())
    }

    /// Writes trees anew that can be computed.
    fn rebuild(&mut self, trees: &BTreeSet<TreeId>) {
        for tree in trees {
            let made = match *tree {
                objectid::DEV_TREE => {
                    self.outcome.losses.push("the devices' counters of errors".to_owned());
                    let items = device_extents(self.inventory);
                    replace_tree(self.volume, self.context, self.inventory, *tree, &items)
                        .map(|change| vec![change])
                }
                objectid::UUID_TREE => {
                    replace_tree(self.volume, self.context, self.inventory, *tree, &Items::new())
                        .map(|change| vec![change])
                }
                _ => rebuild_space(self.volume, self.context, self.inventory),
            };
            let space = !matches!(*tree, objectid::DEV_TREE | objectid::UUID_TREE);
            match made {
                Ok(changes) => self.outcome.changes.extend(changes),
                Err(error) => {
                    let text = format!("tree {}: write it anew: {error}", Objectid(tree.0));
                    self.outcome.refused.push(text);
                }
            }
            // They are written together.
            if space {
                return;
            }
        }
    }

    /// Puts blocks in the place of a damaged part.
    fn put(&self, damage: &Damage, parts: &[FoundSubtree]) -> Result<()> {
        let mut parts: Vec<(KeyPointer, u8)> = parts.iter().map(|part| (part.pointer, part.level)).collect();
        for level in 0..damage.level {
            parts = self.raise(damage.tree, level, parts)?;
        }
        let mut pointers: Vec<KeyPointer> = parts.into_iter().map(|(pointer, _)| pointer).collect();
        if damage.parent.is_some() {
            return self.replace_pointer(damage, pointers);
        }
        let mut level = damage.level;
        while pointers.len() > 1 {
            let parts = pointers.iter().map(|pointer| (*pointer, level)).collect();
            pointers =
                self.raise(damage.tree, level, parts)?.into_iter().map(|(pointer, _)| pointer).collect();
            level += 1;
        }
        self.set_root(damage.tree, pointers[0].address, level)
    }

    /// Puts nodes above adjacent blocks of a level; the other blocks stay as they are.
    fn raise(&self, tree: TreeId, level: u8, parts: Vec<(KeyPointer, u8)>) -> Result<Vec<(KeyPointer, u8)>> {
        let geometry = self.volume.geometry();
        let most = (geometry.node_size as usize - NodeHeader::SIZE) / KeyPointer::SIZE;
        let uuid = self.inventory.chunk_tree_uuid;
        let editor = Editor::new(self.volume, self.context);
        let mut raised = Vec::new();
        for run in parts.chunk_by(|a, b| (a.1 == level) == (b.1 == level)) {
            if run[0].1 != level {
                raised.extend_from_slice(run);
                continue;
            }
            for part in run.chunks(most) {
                let address = self.context.take(tree)?;
                let generation = geometry.generation;
                let empty = empty_block(self.volume, uuid, tree, level + 1, address, generation);
                let pointers: Vec<_> = part.iter().map(|(pointer, _)| *pointer).collect();
                editor.write(address, encode_node(&empty, &pointers)?)?;
                raised.push((KeyPointer { key: pointers[0].key, address, generation }, level + 1));
            }
        }
        Ok(raised)
    }

    /// Makes a block the root of a tree. The root of the root tree has the superblock's generation.
    fn set_root(&self, tree: TreeId, address: LogicalAddress, level: u8) -> Result<()> {
        let editor = Editor::new(self.volume, self.context);
        let generation = editor.block(address)?.generation();
        let current = self.volume.geometry().generation;
        if tree == objectid::ROOT_TREE && generation != current {
            let mut bytes = editor.block(address)?.bytes().to_vec();
            let address = self.context.take(tree)?;
            set_header(&mut bytes, |header| (header.address, header.generation) = (address, current))?;
            editor.write(address, bytes)?;
            return editor.set_root(tree, |_, _, _| (address, None, level));
        }
        editor.set_root(tree, |_, _, _| (address, Some(generation.0), level))
    }

    /// Replaces the pointer to a damaged part; without new ones, removes it.
    fn replace_pointer(&self, damage: &Damage, pointers: Vec<KeyPointer>) -> Result<()> {
        let editor = Editor::new(self.volume, self.context);
        let Some(parent) = damage.parent else { return refuse("a root has no pointer") };
        let path = editor.path_to(damage.tree, &damage.key, parent)?;
        let Some(((node, _), above)) = path.split_last() else { return refuse("the path is empty") };
        let mut all = children(node);
        let same = |child: &KeyPointer| (child.key, child.address) == (damage.key, damage.address);
        let Some(slot) = all.iter().position(same) else {
            // Another tree shares the parent, which is mended by now.
            return Ok(());
        };
        if pointers.is_empty() {
            let mut path = path.clone();
            if let Some(step) = path.last_mut() {
                step.1 = slot;
            }
            return editor.remove_child(damage.tree, &path);
        }
        all.splice(slot..slot + 1, pointers);
        editor.store_node(damage.tree, above, node, all)
    }

    /// Gives a damaged part up.
    fn drop_part(&mut self, damage: &Damage) -> Result<()> {
        if damage.parent.is_some() {
            return self.replace_pointer(damage, Vec::new());
        }
        let generation = self.volume.geometry().generation;
        let items = match damage.tree {
            objectid::ROOT_TREE | objectid::CHUNK_TREE => {
                return refuse("nothing of the tree was found");
            }
            tree if objectid::is_subvolume(tree) || tree == objectid::DATA_RELOC_TREE => {
                root_directory(generation)
            }
            objectid::QUOTA_TREE => {
                let (first, last) = super::editor::root_item_keys(damage.tree);
                let editor = Editor::new(self.volume, self.context);
                return editor.replace(objectid::ROOT_TREE, &first, &last, Items::new()).map(drop);
            }
            _ => Items::new(),
        };
        replace_tree(self.volume, self.context, self.inventory, damage.tree, &items).map(drop)
    }

    /// Writes a bad leaf anew with the items that are sound: where it is, if nothing else is there.
    fn put_items(&self, damage: &Damage, items: &Items) -> Result<()> {
        let editor = Editor::new(self.volume, self.context);
        let current = self.volume.geometry().generation;
        // Not later than the parent.
        let limit = match damage.parent {
            Some(parent) => editor.block(parent)?.generation(),
            None => current,
        };
        let bytes = self.raw_leaf(damage).unwrap_or_default();
        let generation = NodeHeader::parse_prefix(&bytes)
            .map_or(limit, |(header, _)| Generation(header.generation.0.min(limit.0)));
        let uuid = self.inventory.chunk_tree_uuid;
        let empty = empty_block(self.volume, uuid, damage.tree, 0, damage.address, generation);
        editor.write(damage.address, encode(&empty, items)?)?;
        let key = items[0].0;
        if damage.parent.is_some() {
            let pointer = KeyPointer { key, address: damage.address, generation };
            return self.replace_pointer(damage, vec![pointer]);
        }
        self.set_root(damage.tree, damage.address, 0)
    }

    /// Reads a copy of a leaf whose checksum and address are right, whatever else is wrong.
    fn raw_leaf(&self, damage: &Damage) -> Option<Vec<u8>> {
        let geometry = self.volume.geometry();
        let copies = self.volume.copies(damage.address).ok()?;
        (0..copies).find_map(|copy| {
            let mut bytes = vec![0; geometry.node_size as usize];
            self.volume.read_copy(damage.address, &mut bytes, copy).ok()?;
            let header = NodeHeader::parse_prefix(&bytes).ok()?.0;
            let good = geometry.checksum_type.verify(&bytes[32..], &bytes[..geometry.checksum_type.size()]);
            (good && header.address == damage.address && header.level == 0).then_some(bytes)
        })
    }

    /// Returns the generation that the pointer to a damaged part says.
    fn named_generation(&self, editor: &Editor<'_>, damage: &Damage) -> Option<Generation> {
        if let Some(parent) = damage.parent {
            let same = |child: &KeyPointer| (child.key, child.address) == (damage.key, damage.address);
            return children(&*editor.block(parent).ok()?)
                .into_iter()
                .find(same)
                .map(|child| child.generation);
        }
        match damage.tree {
            objectid::ROOT_TREE => Some(self.volume.geometry().generation),
            objectid::CHUNK_TREE => current_superblock(self.volume).ok().map(|raw| raw.chunk_root_generation),
            _ => {
                let data = editor.item(objectid::ROOT_TREE, &damage.item).ok()??;
                RootItem::parse(&data).ok().map(|item| item.generation)
            }
        }
    }

    /// Returns the items of a bad leaf that are inside the part's bounds and sound by themselves,
    /// or with a field set.
    fn sound_items(&self, damage: &Damage) -> Option<Sound> {
        let bytes = self.raw_leaf(damage)?;
        let header = NodeHeader::parse_prefix(&bytes).ok()?.0;
        let Damage { tree, address, key, bound, .. } = *damage;
        let place = LeafPlace { tree, address, first: key, bound };
        let geometry = self.volume.geometry();
        let generation = header.generation.0.min(geometry.generation.0);
        let uuid = header.chunk_tree_uuid;
        let empty = empty_block(self.volume, uuid, tree, 0, address, Generation(generation));
        let editor = Editor::new(self.volume, self.context);
        let is_newest = self.named_generation(&editor, damage) == Some(header.generation);
        let readable = readable_items(&bytes, &place)?;
        let (sound, _) = sound_items(&place, &empty, readable, geometry, &editor)?;
        Some(Sound::new(sound, is_newest))
    }
}
