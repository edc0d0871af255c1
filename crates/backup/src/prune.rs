//! Deleting backups that retention does not keep.
//!
//! Owns [`plan_prune`] and [`prune`]. Manifests go first, each before that of its base, so a prune
//! that is interrupted leaves whole chains. Then all objects go that no manifest names.

use crate::backups::{Backup, Backups};
use crate::create::known_objects;
use crate::error::{BackupError, Result};
use crate::lock::RepositoryLock;
use crate::manifest::data_name;
use crate::merge::merge;
use crate::repository::Repository;
use crate::retention::Retention;
use std::collections::{HashMap, HashSet};

/// How backups are pruned.
#[derive(Clone, Copy, Debug, Default)]
pub struct PruneOptions {
    /// The backups to keep. Without a rule all are kept, and only objects that no backup uses go.
    pub retention: Retention,
    /// Whether kept backups are joined with the bases that are not kept, so that these can go.
    pub merge: bool,
}

/// Why a backup is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Rules keep it.
    ByRules(Vec<&'static str>),
    /// This kept backup needs it.
    BaseOf(String),
}

/// The plan of a prune.
#[derive(Clone, Debug, Default)]
pub struct PrunePlan {
    /// The backups that stay, by time.
    pub kept: Vec<(Backup, Kept)>,
    /// The backups that go, by time.
    pub removed: Vec<Backup>,
    /// The ids of backups that are joined with the bases that go.
    pub merged: Vec<String>,
}

/// The results of a prune.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// Backups that are gone.
    pub removed: usize,
    /// Backups that were joined.
    pub merged: usize,
    /// Objects that are gone.
    pub objects: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Backups that could not be joined and keep their bases, with the reason.
    pub not_merged: Vec<(String, String)>,
}

/// Returns what a prune would do.
///
/// # Errors
/// A manifest is damaged: the objects that its backup uses are not known.
pub fn plan_prune(backups: &Backups, options: &PruneOptions) -> Result<PrunePlan> {
    plan(backups, options, &HashSet::new())
}

/// As [`plan_prune`]. The backups in `whole` are not joined.
fn plan(backups: &Backups, options: &PruneOptions, whole: &HashSet<String>) -> Result<PrunePlan> {
    if let Some((object, _)) = backups.damaged().first() {
        return Err(BackupError::Invalid(format!(
            "{object}: the manifest is damaged, so the objects of its backup are not known; nothing is \
             deleted until it is there again or was deleted by hand"
        )));
    }
    let all = backups.all();
    let by_rules: HashMap<usize, Vec<&'static str>> = match options.retention.is_empty() {
        true => (0..all.len()).map(|index| (index, vec!["no rule"])).collect(),
        false => options.retention.kept(all).into_iter().collect(),
    };
    // The kept backup for which a base stays.
    let mut needed: HashMap<&str, &str> = HashMap::new();
    for (index, backup) in all.iter().enumerate().filter(|(index, _)| by_rules.contains_key(index)) {
        if options.merge && !whole.contains(&backup.id) {
            continue;
        }
        // A base that is missing is for verify to tell.
        let mut at = &all[index];
        while let Some(base) = at.manifest.base.and_then(|base| backups.of(base)) {
            if needed.insert(&base.id, &backup.id).is_some() {
                break;
            }
            at = base;
        }
    }
    let mut plan = PrunePlan::default();
    for (index, backup) in all.iter().enumerate() {
        match (by_rules.get(&index), needed.get(&backup.id[..])) {
            (Some(rules), _) => plan.kept.push((backup.clone(), Kept::ByRules(rules.clone()))),
            (None, Some(by)) => plan.kept.push((backup.clone(), Kept::BaseOf((*by).to_owned()))),
            (None, None) => plan.removed.push(backup.clone()),
        }
    }
    let removed: HashSet<&str> = plan.removed.iter().map(|backup| &backup.id[..]).collect();
    for (backup, _) in &plan.kept {
        let base = backup.manifest.base.and_then(|base| backups.of(base));
        if base.is_some_and(|base| removed.contains(&base.id[..])) {
            plan.merged.push(backup.id.clone());
        }
    }
    Ok(plan)
}

/// Returns the backups that are joined into one, the base that stays first left out.
fn parts_of<'a>(backups: &'a Backups, backup: &'a Backup, removed: &HashSet<String>) -> Vec<&'a Backup> {
    let mut parts = vec![backup];
    while let Some(base) = parts[parts.len() - 1].manifest.base.and_then(|base| backups.of(base)) {
        if !removed.contains(&base.id) || parts.len() > backups.all().len() {
            break;
        }
        parts.push(base);
    }
    parts.reverse();
    parts
}

/// Prunes a repository.
///
/// # Errors
/// As [`plan_prune`]; the lock was broken; the store's error. Backups that are listed afterwards
/// are whole.
pub fn prune(repository: &Repository, lock: &RepositoryLock, options: &PruneOptions) -> Result<Pruned> {
    let mut backups = repository.backups()?;
    let mut report = Pruned::default();
    let mut whole = HashSet::new();
    let plan = loop {
        let plan = plan(&backups, options, &whole)?;
        if plan.kept.is_empty() && !backups.all().is_empty() {
            return Err(BackupError::Invalid("the rules keep no backup at all; nothing was deleted".into()));
        }
        let Some(id) = plan.merged.first() else { break plan };
        let removed = plan.removed.iter().map(|backup| backup.id.clone()).collect();
        let backup = backups.all().iter().find(|backup| backup.id == *id).expect("it is in the plan");
        let parts = parts_of(&backups, backup, &removed);
        let base = parts[0].manifest.base;
        match merge(repository, lock, &parts, base, 3) {
            Ok(_) => {
                report.merged += 1;
                backups = repository.backups()?;
            }
            // Its chain stays as it is.
            Err(error @ (BackupError::Stream(_) | BackupError::Damaged { .. } | BackupError::Missing(_))) => {
                report.not_merged.push((id.clone(), error.to_string()));
                whole.insert(id.clone());
            }
            Err(error) => return Err(error),
        }
    };
    let shared = &repository.shared;
    lock.check()?;
    let depth = |backup: &Backup| backups.chain(backup).map_or(usize::MAX, |chain| chain.len());
    let mut removed: Vec<(usize, &Backup)> =
        plan.removed.iter().map(|backup| (depth(backup), backup)).collect();
    removed.sort_by_key(|(depth, _)| std::cmp::Reverse(*depth));
    for backup in backups.superseded().iter().chain(removed.iter().map(|(_, backup)| *backup)) {
        shared.delete(&backup.object())?;
    }
    report.removed = plan.removed.len();
    let kept = plan.kept.iter().flat_map(|(backup, _)| backup.manifest.objects());
    let used: HashSet<&str> = kept.map(|object| &object.0[..]).collect();
    lock.check()?;
    for (name, bytes) in known_objects(repository)? {
        if !used.contains(&name[..]) {
            shared.delete(&data_name(&name))?;
            report.objects += 1;
            report.bytes += bytes;
        }
    }
    shared.store.clear_temporary().map_err(|error| shared.failed("tmp", error))?;
    Ok(report)
}
