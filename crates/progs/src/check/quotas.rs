//! The numbers of quotas, compared with a count of all extents.
//!
//! Owns [`compare`]. Wrong numbers put no data at risk, but they let writers
//! exceed limits, or stop them early.
//!
//! Locks: none.

use super::remedy::Remedy;
use super::report::{FindingKind, Findings, Place};
use papilio_engine::btree::{Forest, RootPointer, Tree};
use papilio_engine::errors::Result;
use papilio_engine::items::trees::Trees;
use papilio_engine::transaction::quota::groups::{QgroupUsage, QuotaState};
use papilio_engine::transaction::quota::{count_all, count_simple};
use papilio_format::items::qgroup::{QgroupId, QgroupStatusFlags};
use papilio_format::superblock::RawSuperblock;
use papilio_format::{Generation, ItemType, Key, objectid};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Compares the numbers of the qgroups with a count. All trees were read completely.
pub(super) fn compare(forest: &Arc<Forest>, superblock: &RawSuperblock, findings: &mut Findings) {
    let pointer =
        |address, level, generation: Generation| RootPointer { address, level, generation: Some(generation) };
    let root = pointer(superblock.root, superblock.root_level, superblock.generation);
    let chunk_root =
        pointer(superblock.chunk_root, superblock.chunk_root_level, superblock.chunk_root_generation);
    let trees = Trees::new(forest, root, chunk_root);
    if let Err(error) = compare_trees(forest, &trees.root_tree(), &trees, superblock, findings) {
        findings.note("quotas-not-counted", format!("the numbers of quotas were not checked: {error}"));
    }
}

fn compare_trees(
    forest: &Arc<Forest>,
    root_tree: &Tree,
    trees: &Trees,
    superblock: &RawSuperblock,
    findings: &mut Findings,
) -> Result<()> {
    let Some(open) = trees.find(objectid::QUOTA_TREE)? else { return Ok(()) };
    let state = QuotaState::read(&open.tree)?;
    if !state.has(QgroupStatusFlags::ON) {
        findings.note("quotas-not-checked", "quotas: only the structure was checked, not the numbers");
        return Ok(());
    }
    if state.is_simple() {
        report(&state, superblock.generation, count_simple(forest, root_tree, &state)?, findings);
        return Ok(());
    }
    if state.has(QgroupStatusFlags::INCONSISTENT) || state.has(QgroupStatusFlags::RESCAN) {
        findings.note("quotas-inconsistent", "quotas: the numbers are inconsistent until a rescan");
        return Ok(());
    }
    if state.status.header.generation != superblock.generation {
        findings.note("quotas-inconsistent", "quotas: a writer did not count; the numbers need a rescan");
        return Ok(());
    }
    report(&state, superblock.generation, count_all(forest, root_tree.clone(), &state)?, findings);
    Ok(())
}

/// Reports the numbers that differ.
fn report(
    state: &QuotaState,
    generation: Generation,
    counted: BTreeMap<QgroupId, QgroupUsage>,
    findings: &mut Findings,
) {
    for (id, counted) in counted {
        let stored = state.groups[&id].info;
        if stored != counted {
            let (referenced, exclusive) = (counted.referenced, counted.exclusive);
            let message = format_args!(
                "qgroup {id}: {} bytes referenced and {} exclusive are stored; {referenced} and {exclusive} \
                 were counted",
                stored.referenced, stored.exclusive
            );
            findings.add(FindingKind::QgroupNumbers, Place::tree(objectid::QUOTA_TREE), message);
            let key = Key::new(0, ItemType::QGROUP_INFO, id.0);
            let info = counted.to_item(generation);
            findings.mend(Remedy::put(objectid::QUOTA_TREE, key, info.to_bytes().to_vec()));
        }
    }
}
