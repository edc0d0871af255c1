//! Reading a repository to find what is damaged.
//!
//! Owns [`verify`]. Every manifest is read, and every object that a backup uses is looked for. As
//! many objects as wanted are read in full, opened, and compared with their names.

use crate::backups::{Backups, FOLDER};
use crate::description::DESCRIPTION;
use crate::error::{BackupError, Result};
use crate::lock::LOCK;
use crate::manifest::{StoredObject, data_name};
use crate::reader::read_part;
use crate::repository::Repository;
use papilio_keys::{hex, random};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// How much is verified.
#[derive(Clone, Copy, Debug)]
pub struct VerifyOptions {
    /// The part of the objects that is read in full, in percent.
    pub percent: f64,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self { percent: 100.0 }
    }
}

/// Something that is wrong with a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyFault {
    /// The object.
    pub object: String,
    /// The fault.
    pub fault: String,
    /// The ids of the backups that cannot be restored for it, by time.
    pub affects: Vec<String>,
}

/// The results of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// Backups.
    pub backups: usize,
    /// Objects that backups use.
    pub objects: usize,
    /// Objects that were read in full.
    pub read: usize,
    /// Bytes of these as they are stored.
    pub read_bytes: u64,
    /// Objects that no backup uses: the next prune removes them.
    pub orphans: usize,
    /// The faults.
    pub faults: Vec<VerifyFault>,
}

/// The backups that use each object, and those that need each backup.
struct Users<'a> {
    by_object: BTreeMap<&'a str, (&'a StoredObject, BTreeSet<usize>)>,
    /// For each backup, those whose chains have it.
    needed_by: Vec<BTreeSet<usize>>,
}

impl<'a> Users<'a> {
    fn of(backups: &'a Backups) -> Self {
        let all = backups.all();
        let index: HashMap<&str, usize> =
            all.iter().enumerate().map(|(index, backup)| (&backup.id[..], index)).collect();
        let mut needed_by = vec![BTreeSet::new(); all.len()];
        for (number, backup) in all.iter().enumerate() {
            let mut at = backup;
            // A circle ends where the backup is known.
            while needed_by[index[&at.id[..]]].insert(number) {
                let Some(base) = at.manifest.base.and_then(|base| backups.of(base)) else { break };
                at = base;
            }
        }
        let mut by_object: BTreeMap<&str, (&StoredObject, BTreeSet<usize>)> = BTreeMap::new();
        for (number, backup) in all.iter().enumerate() {
            for object in backup.manifest.objects() {
                by_object.entry(&object.0).or_insert_with(|| (object, BTreeSet::new())).1.insert(number);
            }
        }
        Self { by_object, needed_by }
    }

    /// Returns the ids of the backups that need one of these.
    fn affected(&self, backups: &Backups, users: &BTreeSet<usize>) -> Vec<String> {
        let all: BTreeSet<usize> = users.iter().flat_map(|user| &self.needed_by[*user]).copied().collect();
        all.into_iter().map(|number| backups.all()[number].id.clone()).collect()
    }
}

/// Verifies a repository.
///
/// # Errors
/// The store's error. Faults of the repository are in the result.
pub fn verify(repository: &Repository, options: &VerifyOptions) -> Result<Verified> {
    let shared = &repository.shared;
    let backups = repository.backups()?;
    let mut report = Verified { backups: backups.all().len(), ..Verified::default() };
    let mut add = |object: &str, fault: String, affects: Vec<String>| {
        report.faults.push(VerifyFault { object: object.to_owned(), fault, affects });
    };
    for (object, error) in backups.damaged() {
        let fault = match error {
            BackupError::Damaged { fault, .. } => fault.clone(),
            other => other.to_string(),
        };
        add(object, format!("{fault}; the backup of this manifest is lost"), Vec::new());
    }
    let users = Users::of(&backups);
    for (number, backup) in backups.all().iter().enumerate() {
        let is_missing = backup.manifest.base.is_some_and(|base| backups.of(base).is_none());
        if let Err(error) = backups.chain(backup)
            && (is_missing || !matches!(error, BackupError::BaseMissing { .. }))
        {
            add(&backup.object(), error.to_string(), users.affected(&backups, &BTreeSet::from([number])));
        }
    }
    let mut stored: HashMap<String, u64> = HashMap::new();
    for (name, bytes) in shared.list("")? {
        let last = name.rsplit('/').next().unwrap_or_default();
        let is_hash = hex::array::<32>(last).is_some();
        if is_hash && data_name(last) == name {
            if !users.by_object.contains_key(last) {
                report.orphans += 1;
            }
            stored.insert(last.to_owned(), bytes);
        } else if !(name == DESCRIPTION || name == LOCK || is_hash && name == format!("{FOLDER}{last}")) {
            let fault = "a foreign object: the repository did not make it".to_owned();
            report.faults.push(VerifyFault { object: name, fault, affects: Vec::new() });
        }
    }
    let place = |source| BackupError::Store { object: "random numbers".into(), source };
    let seed = u32::from_le_bytes(random::<4>().map_err(place)?);
    let chosen = chosen(users.by_object.keys().copied(), seed, options.percent);
    for (name, (object, numbers)) in &users.by_object {
        report.objects += 1;
        let fault = match stored.get(*name) {
            None => Some("the object is missing".to_owned()),
            Some(bytes) if *bytes != object.2 => Some(format!("{bytes} bytes in place of {}", object.2)),
            Some(_) if !chosen.contains(*name) => None,
            Some(bytes) => {
                report.read += 1;
                report.read_bytes += bytes;
                match read_part(shared, object) {
                    Ok(_) => None,
                    Err(BackupError::Damaged { fault, .. }) => Some(fault),
                    Err(BackupError::Missing(_)) => Some("the object is missing".to_owned()),
                    Err(error) => return Err(error),
                }
            }
        };
        if let Some(fault) = fault {
            let affects = users.affected(&backups, numbers);
            report.faults.push(VerifyFault { object: object.place(), fault, affects });
        }
    }
    Ok(report)
}

/// Chooses a part of the objects, at least one unless it is 0 %. Their names are as good as random.
fn chosen<'a>(names: impl Iterator<Item = &'a str>, seed: u32, percent: f64) -> HashSet<&'a str> {
    let rank = |name: &str| {
        let start = name.get(..8).and_then(|start| u32::from_str_radix(start, 16).ok());
        (start.unwrap_or_default() ^ seed).wrapping_mul(2_654_435_761)
    };
    let mut ranked: Vec<_> = names.collect();
    ranked.sort_by_cached_key(|name| rank(name));
    let count = (ranked.len() as f64 * percent / 100.0).ceil() as usize;
    ranked.truncate(count);
    ranked.into_iter().collect()
}
