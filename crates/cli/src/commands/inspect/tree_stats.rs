//! `papilio inspect tree-stats`, in the format of `btrfs inspect-internal tree-stats`, with the
//! fill of the blocks.

use super::dump_tree::parse_tree;
use super::key_text::{key_json, object_name};
use crate::context::Context;
use crate::output::{JsonArray, Output};
use crate::units::Units;
use papilio::TreeStats;
use papilio::format::{TreeId, objectid};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Show statistics of trees
///
/// Without -t, shows the root, extent, checksum and top-level trees. A seek is a block that is not
/// stored directly after its left sibling.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image or device
    #[arg(value_name = "IMAGE", value_hint = clap::ValueHint::FilePath)]
    image: PathBuf,
    /// Show only this tree: a number or a name, as in dump-tree; may be given more than once
    #[arg(short = 't', long, value_name = "TREE", value_parser = parse_tree)]
    tree: Vec<TreeId>,
    /// Print sizes in bytes
    #[arg(short = 'b', long)]
    raw: bool,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Shows the statistics.
    pub fn run(self, context: &Context) -> anyhow::Result<()> {
        context.confine_to_images([self.image.clone()]);
        let system = context.open_last_commit(&self.image, &[], true)?;
        let usual = [objectid::ROOT_TREE, objectid::EXTENT_TREE, objectid::CSUM_TREE, objectid::FS_TREE];
        let trees = if self.tree.is_empty() { usual.to_vec() } else { self.tree.clone() };
        let units = if self.raw { Units::BYTES } else { Units::HUMAN };
        let mut output = Output::new()?;
        let mut array = match self.json {
            true => Some(JsonArray::begin(&mut output)?),
            false => None,
        };
        for id in trees {
            for stats in system.tree_stats(id)? {
                for error in &stats.errors {
                    context.error(error);
                }
                match &mut array {
                    Some(array) => array.push(&mut output, &to_json(&stats))?,
                    None => print(&mut output, &stats, units)?,
                }
            }
        }
        if let Some(array) = array {
            array.end(&mut output)?;
        }
        Ok(output.finish()?)
    }
}

fn print(output: &mut Output, stats: &TreeStats, units: Units) -> anyhow::Result<()> {
    let layout = &stats.layout;
    let size = |bytes| units.text(bytes);
    output.text(format_args!("Calculating size of {} tree\n", tree_name(stats.root.id)))?;
    output.text(format_args!(
        "\tTotal size: {}\n\t\tInline data: {}\n\tTotal seeks: {}\n\t\tForward seeks: {}\n",
        size(stats.bytes()),
        size(stats.inline_bytes),
        layout.seeks(),
        layout.forward_seeks
    ))?;
    let average = layout.seek_bytes.checked_div(layout.seeks()).unwrap_or(0);
    output.text(format_args!(
        "\t\tBackward seeks: {}\n\t\tAvg seek len: {}\n",
        layout.backward_seeks,
        size(average)
    ))?;
    // btrfs-progs counts a tree without a cluster as one.
    output.text(format_args!(
        "\tTotal clusters: {}\n\t\tAvg cluster size: {}\n\t\tMin cluster size: {}\n\t\tMax cluster size: {}\n",
        layout.clusters.max(1),
        size(layout.cluster_bytes / layout.clusters.max(1)),
        size(layout.cluster_min),
        size(layout.cluster_max)
    ))?;
    output.text(format_args!(
        "\tTotal disk spread: {}\n\tLevels: {}\n\tTotal nodes: {}\n",
        size(layout.spread()),
        stats.levels(),
        stats.blocks()
    ))?;
    for level in 0..stats.levels() {
        let blocks = stats.blocks_by_level[level];
        output.text(format_args!("\t\tOn level {level}: {blocks:>8}"))?;
        if level > 0 {
            let fanout = stats.blocks_by_level[level - 1].checked_div(blocks).unwrap_or(0);
            output.text(format_args!("  (avg fanout {fanout})"))?;
        }
        output.bytes(b"\n")?;
    }
    output.text(format_args!(
        "\tItems: {}\n\t\tItem bytes: {}\n\t\tUnused in leaves: {} ({:.1}% full)\n\t\tUnused in nodes: {}\n",
        stats.items,
        size(stats.item_bytes),
        size(stats.leaf_free_bytes),
        100.0 * stats.leaf_fill(),
        size(stats.node_free_bytes)
    ))?;
    if stats.bad_blocks > 0 {
        output.text(format_args!("\tBlocks that cannot be read: {}\n", stats.bad_blocks))?;
    }
    Ok(())
}

fn tree_name(id: TreeId) -> String {
    match id {
        objectid::ROOT_TREE => "root".to_owned(),
        objectid::EXTENT_TREE => "extent".to_owned(),
        objectid::CSUM_TREE => "csum".to_owned(),
        objectid::FS_TREE => "fs".to_owned(),
        other => object_name(other.0),
    }
}

fn to_json(stats: &TreeStats) -> Value {
    let layout = &stats.layout;
    json!({
        "tree": stats.root.id.0,
        "name": object_name(stats.root.id.0),
        "root_key": stats.root.key.as_ref().map(key_json),
        "levels": stats.levels(),
        "blocks": stats.blocks(),
        "blocks_by_level": stats.blocks_by_level[..stats.levels()],
        "block_size": stats.block_bytes,
        "size": stats.bytes(),
        "leaves": stats.leaves(),
        "items": stats.items,
        "item_bytes": stats.item_bytes,
        "inline_bytes": stats.inline_bytes,
        "leaf_free_bytes": stats.leaf_free_bytes,
        "node_free_bytes": stats.node_free_bytes,
        "leaf_fill": stats.leaf_fill(),
        "forward_seeks": layout.forward_seeks,
        "backward_seeks": layout.backward_seeks,
        "seek_bytes": layout.seek_bytes,
        "clusters": layout.clusters,
        "cluster_bytes": layout.cluster_bytes,
        "cluster_min": layout.cluster_min,
        "cluster_max": layout.cluster_max,
        "spread": layout.spread(),
        "bad_blocks": stats.bad_blocks,
    })
}
