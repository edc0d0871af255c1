//! `papilio inspect dump-tree`: the blocks and items of trees, in a format close to that of
//! `btrfs inspect-internal dump-tree`.
//!
//! The walk is depth first unless the breadth is asked for. It continues after a block that cannot
//! be read.

use super::details::write_text;
use super::items::{Choice, describe};
use super::key_text::{key_json, key_text, object_name};
use crate::context::Context;
use crate::output::{JsonArray, Output};
use crate::usage_error::UsageError;
use papilio::format::{LogicalAddress, TreeId, objectid};
use papilio::{Block, FileSystem, TreeBlocks, TreeRoot};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// Show the blocks and items of trees
///
/// Without options, shows all trees, including log trees. The output contains the names of files
/// unless --hide-names is given. A block that cannot be read is also reported on standard error,
/// and the exit status is then 1.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device, and further devices of its file system
    #[arg(value_name = "IMAGE", required = true, value_hint = clap::ValueHint::FilePath)]
    images: Vec<PathBuf>,
    /// Show only this tree: a number, or a name such as root, chunk, extent, dev, fs, csum or uuid
    #[arg(short = 't', long, value_name = "TREE", value_parser = parse_tree)]
    #[arg(conflicts_with_all = ["block", "extents", "device_trees", "roots", "backups", "uuid"])]
    tree: Option<TreeId>,
    /// Show only the block at this logical address; may be given more than once
    #[arg(short = 'b', long, value_name = "ADDRESS")]
    #[arg(conflicts_with_all = ["extents", "device_trees", "roots", "backups", "uuid"])]
    block: Vec<u64>,
    /// With -b, show the blocks below too
    #[arg(long, requires = "block")]
    follow: bool,
    /// Show only the extent and device trees
    #[arg(short = 'e', long)]
    extents: bool,
    /// Show only the root, chunk and device trees
    // btrfs-progs calls it --device, which is a global option here.
    #[arg(short = 'd', long = "device-trees")]
    device_trees: bool,
    /// Show only the roots of the trees
    #[arg(short = 'r', long)]
    roots: bool,
    /// Like --roots, with the backup roots of the superblock
    #[arg(short = 'R', long)]
    backups: bool,
    /// Show only the UUID tree
    #[arg(short = 'u', long)]
    uuid: bool,
    /// Do not search for further devices: use only those that are named
    #[arg(long)]
    noscan: bool,
    /// Show the blocks of each level before those below
    #[arg(long, overrides_with = "dfs")]
    bfs: bool,
    /// Show each block before those below it and these before its right sibling (default)
    #[arg(long, overrides_with = "bfs")]
    dfs: bool,
    /// Omit names, values of attributes and targets of links
    #[arg(long)]
    hide_names: bool,
    /// Show the checksums of blocks
    #[arg(long)]
    csum_headers: bool,
    /// Show the checksums of data
    #[arg(long)]
    csum_items: bool,
    /// Print one JSON array with an element for each block
    #[arg(long)]
    json: bool,
}

/// Parses the id of a tree, a number or a name.
pub fn parse_tree(text: &str) -> Result<TreeId, String> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    if let Ok(number) = u64::from_str_radix(digits, radix) {
        return Ok(TreeId(number));
    }
    // Log, relocation and other internal trees have negative ids.
    if let Ok(number) = text.parse::<i64>() {
        return Ok(TreeId(number.cast_unsigned()));
    }
    let upper = text.to_ascii_uppercase().replace('-', "_");
    let name = upper.strip_suffix("_TREE").unwrap_or(&upper);
    Ok(match name {
        "ROOT" | "TREE_ROOT" => objectid::ROOT_TREE,
        "EXTENT" => objectid::EXTENT_TREE,
        "CHUNK" => objectid::CHUNK_TREE,
        "DEV" | "DEVICE" => objectid::DEV_TREE,
        "FS" => objectid::FS_TREE,
        "CSUM" | "CHECKSUM" => objectid::CSUM_TREE,
        "QUOTA" => objectid::QUOTA_TREE,
        "UUID" => objectid::UUID_TREE,
        "FREE_SPACE" => objectid::FREE_SPACE_TREE,
        "BLOCK_GROUP" => objectid::BLOCK_GROUP_TREE,
        "RAID_STRIPE" => objectid::RAID_STRIPE_TREE,
        "TREE_LOG" | "LOG" => objectid::TREE_LOG,
        "TREE_RELOC" | "RELOC" => objectid::TREE_RELOC,
        "DATA_RELOC" => objectid::DATA_RELOC_TREE,
        _ => return Err("not the number or name of a tree".to_owned()),
    })
}

/// The output of the dump and its format.
struct Dump<'a> {
    context: &'a Context,
    output: Output,
    array: Option<JsonArray>,
    choice: Choice,
    csum_headers: bool,
}

impl Args {
    /// Shows the trees.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        let (image, further) = self.images.split_first().expect("one image is required");
        context.confine_to_images([image.clone()]);
        let system = context.open_last_commit(image, further, !self.noscan)?;
        let mut output = Output::new()?;
        let array = match self.json {
            true => Some(JsonArray::begin(&mut output)?),
            false => None,
        };
        let choice = Choice { hide_names: self.hide_names, checksums: self.csum_items };
        let mut dump = Dump { context, output, array, choice, csum_headers: self.csum_headers };
        for &address in &self.block {
            let blocks = system.tree_blocks_at(LogicalAddress(address), self.follow);
            dump.blocks(None, blocks.breadth_first(self.bfs))?;
        }
        if self.block.is_empty() {
            self.trees(&system, &mut dump)?;
        }
        let Dump { mut output, array, .. } = dump;
        match array {
            Some(array) => array.end(&mut output)?,
            None if self.block.is_empty() => {
                let raw = &system.superblock().raw;
                output.text(format_args!(
                    "total bytes {}\nbytes used {}\nuuid {}\n",
                    raw.total_bytes, raw.bytes_used, raw.fsid
                ))?;
            }
            None => {}
        }
        Ok(output.finish()?)
    }

    fn trees(&self, system: &FileSystem, dump: &mut Dump<'_>) -> anyhow::Result<()> {
        let roots = match self.tree {
            Some(id) => system.tree_roots_of(id)?,
            None => system.tree_roots()?,
        };
        for root in roots.iter().filter(|root| self.tree.is_some() || self.wants(root.id)) {
            if self.roots || self.backups {
                dump.root(root)?;
            } else {
                dump.blocks(Some(root), system.tree_blocks(root).breadth_first(self.bfs))?;
            }
        }
        if self.backups {
            dump.backups(system)?;
        }
        Ok(())
    }

    fn wants(&self, id: TreeId) -> bool {
        if !(self.extents || self.device_trees || self.uuid) {
            return true;
        }
        let extents = [objectid::EXTENT_TREE, objectid::DEV_TREE];
        let devices = [objectid::ROOT_TREE, objectid::CHUNK_TREE, objectid::DEV_TREE];
        (self.extents && extents.contains(&id))
            || (self.device_trees && devices.contains(&id))
            || (self.uuid && id == objectid::UUID_TREE)
    }
}

/// Returns the heading of a tree.
fn tree_title(root: &TreeRoot) -> String {
    let name = match root.id {
        objectid::ROOT_TREE => "root tree",
        objectid::CHUNK_TREE => "chunk tree",
        objectid::TREE_LOG if root.key.is_none() => "log root tree",
        objectid::TREE_LOG => "log tree",
        objectid::EXTENT_TREE => "extent tree",
        objectid::DEV_TREE => "device tree",
        objectid::FS_TREE => "fs tree",
        objectid::CSUM_TREE => "checksum tree",
        objectid::QUOTA_TREE => "quota tree",
        objectid::UUID_TREE => "uuid tree",
        objectid::FREE_SPACE_TREE => "free space tree",
        objectid::BLOCK_GROUP_TREE => "block group tree",
        objectid::RAID_STRIPE_TREE => "raid stripe tree",
        objectid::TREE_RELOC => "relocation tree",
        objectid::DATA_RELOC_TREE => "data reloc tree",
        id if objectid::is_subvolume(id) => "file tree",
        _ => "unknown tree",
    };
    match &root.key {
        Some(key) => format!("{name} {}", key_text(key)),
        None => name.to_owned(),
    }
}

impl Dump<'_> {
    fn root(&mut self, root: &TreeRoot) -> anyhow::Result<()> {
        let generation = root.generation.map(|generation| generation.0);
        if let Some(array) = &mut self.array {
            let value = json!({
                "tree": root.id.0,
                "name": object_name(root.id.0),
                "key": root.key.as_ref().map(key_json),
                "address": root.address.0,
                "level": root.level,
                "generation": generation,
            });
            return Ok(array.push(&mut self.output, &value)?);
        }
        let generation = generation.map_or("-".to_owned(), |generation| generation.to_string());
        Ok(self.output.text(format_args!(
            "{} {} level {} generation {generation}\n",
            tree_title(root),
            root.address,
            root.level
        ))?)
    }

    fn backups(&mut self, system: &FileSystem) -> anyhow::Result<()> {
        if self.array.is_some() {
            return Err(UsageError::new("dump-tree: --backups has no JSON form; see dump-super -f").into());
        }
        for (index, backup) in system.superblock().raw.super_roots.iter().enumerate() {
            let details = super::dump_super::backup_details(backup);
            self.output.text(format_args!("backup root {index}\n"))?;
            write_text(&mut self.output, &details, 1)?;
        }
        Ok(())
    }

    fn blocks(&mut self, root: Option<&TreeRoot>, blocks: TreeBlocks) -> anyhow::Result<()> {
        if let (Some(root), None) = (root, &self.array) {
            self.output.text(format_args!("{}\n", tree_title(root)))?;
        }
        for block in blocks {
            match (block, &self.array) {
                (Ok(block), None) => self.block_text(&block)?,
                (Ok(block), Some(_)) => self.block_json(root, &block)?,
                (Err(error), _) => {
                    match self.context.arguments().drop_in {
                        // btrfs(8) tells of it, and what it printed counts.
                        true => self.context.warning(&error),
                        false => self.context.error(&error),
                    }
                    self.bad_block(root, &error.to_string())?;
                }
            }
        }
        Ok(())
    }

    fn bad_block(&mut self, root: Option<&TreeRoot>, error: &str) -> anyhow::Result<()> {
        match &mut self.array {
            Some(array) => {
                let value = json!({ "tree": root.map(|root| root.id.0), "error": error });
                Ok(array.push(&mut self.output, &value)?)
            }
            None => Ok(self.output.text(format_args!("BAD BLOCK: {error}\n"))?),
        }
    }

    fn block_text(&mut self, block: &Block) -> anyhow::Result<()> {
        let header = block.header();
        let node = block.node();
        let kind = if block.level() == 0 { "leaf" } else { "node" };
        let owner = object_name(header.owner.0);
        let level = if block.level() == 0 { String::new() } else { format!("level {} ", header.level) };
        // The unit is bytes in a leaf, and pointers in a node.
        let free = match block.level() {
            0 => node.free_space(),
            _ => node.free_space() / papilio::format::node::KeyPointer::SIZE,
        };
        self.output.text(format_args!(
            "{kind} {} {level}items {} free space {free} generation {} owner {owner}\n",
            header.address, header.item_count, header.generation
        ))?;
        let (flags, revision) = split_flags(header.flags);
        let csum = match self.csum_headers {
            true => format!(" csum {}", block.geometry().checksum_type.stored(&header.csum)),
            false => String::new(),
        };
        self.output.text(format_args!(
            "{kind} {} flags {flags:#x}({}) backref revision {revision}{csum}\n",
            header.address,
            block_flags_text(flags)
        ))?;
        self.output.text(format_args!("fs uuid {}\nchunk uuid {}\n", header.fsid, header.chunk_tree_uuid))?;
        for child in block.children() {
            let (address, generation) = (child.address, child.generation);
            self.output
                .text(format_args!("\t{} block {address} gen {generation}\n", key_text(&child.key)))?;
        }
        for item in block.items() {
            let key = &item.header.key;
            self.output.text(format_args!(
                "\titem {} {} itemoff {} itemsize {}\n",
                item.slot,
                key_text(key),
                item.header.offset,
                item.header.size
            ))?;
            match &item.decoded {
                Ok(decoded) => {
                    let details = describe(key, decoded, block.geometry(), self.choice);
                    write_text(&mut self.output, &details, 2)?;
                }
                Err(reason) => self.output.text(format_args!("\t\tBAD ITEM: {reason}\n"))?,
            }
        }
        Ok(())
    }

    fn block_json(&mut self, root: Option<&TreeRoot>, block: &Block) -> anyhow::Result<()> {
        let header = block.header();
        let (flags, revision) = split_flags(header.flags);
        let children = block.children().map(|child| {
            json!({
                "key": key_json(&child.key),
                "address": child.address.0,
                "generation": child.generation.0,
            })
        });
        let children: Value = children.collect();
        let choice = self.choice;
        let items = block.items().map(|item| {
            let key = &item.header.key;
            let mut object = Map::new();
            object.insert("slot".into(), item.slot.into());
            object.insert("key".into(), key_json(key));
            object.insert("offset".into(), item.header.offset.into());
            object.insert("size".into(), item.header.size.into());
            match &item.decoded {
                Ok(decoded) => {
                    let details = describe(key, decoded, block.geometry(), choice);
                    object.insert("fields".into(), details.to_json().into());
                }
                Err(reason) => drop(object.insert("error".into(), reason.to_string().into())),
            }
            Value::Object(object)
        });
        let items: Value = items.collect();
        let mut value = json!({
            "tree": root.map(|root| root.id.0),
            "root_key": root.and_then(|root| root.key.as_ref()).map(key_json),
            "address": header.address.0,
            "level": header.level,
            "generation": header.generation.0,
            "owner": header.owner.0,
            "owner_name": object_name(header.owner.0),
            "flags": flags,
            "backref_revision": revision,
            "fsid": header.fsid.to_string(),
            "chunk_tree_uuid": header.chunk_tree_uuid.to_string(),
            "checksum": block.geometry().checksum_type.stored(&header.csum).to_string(),
            "free_space": block.node().free_space(),
        });
        match block.level() {
            0 => value["items"] = items,
            _ => value["children"] = children,
        }
        match &mut self.array {
            Some(array) => Ok(array.push(&mut self.output, &value)?),
            None => Ok(()),
        }
    }
}

/// Splits a block's flags into the flags proper and the revision of back references in the top
/// byte.
fn split_flags(flags: u64) -> (u64, u64) {
    (flags & ((1 << 56) - 1), flags >> 56)
}

fn block_flags_text(flags: u64) -> String {
    let names = [(1, "WRITTEN"), (2, "RELOC")];
    let known: Vec<&str> = names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    known.join("|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_parsed_by_name_and_number() {
        assert_eq!(parse_tree("5"), Ok(objectid::FS_TREE));
        assert_eq!(parse_tree("0x100"), Ok(TreeId(256)));
        assert_eq!(parse_tree("-9"), Ok(objectid::DATA_RELOC_TREE));
        assert_eq!(parse_tree("FS_TREE"), Ok(objectid::FS_TREE));
        assert_eq!(parse_tree("free-space"), Ok(objectid::FREE_SPACE_TREE));
        assert_eq!(parse_tree("csum"), Ok(objectid::CSUM_TREE));
        assert!(parse_tree("nonsense").is_err());
    }
}
