//! The backups of a repository.
//!
//! Owns [`Backups`] and [`Backup`]: finding one by its name, and the chain that one needs. Of two
//! manifests for one snapshot, the one that was written last counts. The other one is left by a
//! merge that was interrupted, and the next prune deletes it.

use crate::error::{BackupError, Result};
use crate::manifest::{BaseName, MOST_MANIFEST, Manifest};
use crate::shared::Shared;
use papilio_keys::hex;
use std::collections::{HashMap, HashSet};

/// The folder of manifests.
pub const FOLDER: &str = "backups/";
/// The fewest digits that name a backup.
const FEWEST_DIGITS: usize = 4;

/// A backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// The id: 64 hexadecimal digits.
    pub id: String,
    /// The manifest.
    pub manifest: Manifest,
}

impl Backup {
    /// Returns the start of the id, which is enough in practice.
    pub fn short_id(&self) -> &str {
        &self.id[..12]
    }

    /// Returns the name of the manifest's object.
    pub fn object(&self) -> String {
        format!("{FOLDER}{}", self.id)
    }
}

/// All backups.
#[derive(Debug, Default)]
pub struct Backups {
    /// By time, the oldest first.
    all: Vec<Backup>,
    /// Manifests whose snapshot has a later one.
    superseded: Vec<Backup>,
    damaged: Vec<(String, BackupError)>,
    foreign: Vec<String>,
    by_uuid: HashMap<BaseName, usize>,
}

impl Backups {
    pub(crate) fn load(shared: &Shared) -> Result<Self> {
        let mut this = Self::default();
        for (name, _) in shared.list(FOLDER)? {
            let Some(id) = name.strip_prefix(FOLDER).filter(|id| hex::array::<32>(id).is_some()) else {
                this.foreign.push(name);
                continue;
            };
            let read = shared.open_named(&name, MOST_MANIFEST);
            match read.and_then(|bytes| Manifest::parse(&name, &bytes)) {
                Ok(manifest) => this.all.push(Backup { id: id.to_owned(), manifest }),
                Err(error @ BackupError::Damaged { .. }) => this.damaged.push((name, error)),
                // A prune deleted it meanwhile.
                Err(BackupError::Missing(_)) => {}
                Err(error) => return Err(error),
            }
        }
        this.sort();
        Ok(this)
    }

    fn sort(&mut self) {
        self.all.sort_by(|a, b| {
            let order = |backup: &Backup| (backup.manifest.time, backup.manifest.written);
            order(a).cmp(&order(b)).then_with(|| a.id.cmp(&b.id))
        });
        let mut newest: HashMap<BaseName, (u64, String)> = HashMap::new();
        for backup in &self.all {
            let candidate = (backup.manifest.written, backup.id.clone());
            let known = newest.entry(backup.manifest.snapshot).or_insert_with(|| candidate.clone());
            *known = candidate.max(known.clone());
        }
        let (kept, superseded) = std::mem::take(&mut self.all)
            .into_iter()
            .partition(|backup| newest[&backup.manifest.snapshot].1 == backup.id);
        (self.all, self.superseded) = (kept, superseded);
        let numbered = self.all.iter().enumerate();
        self.by_uuid = numbered.map(|(index, backup)| (backup.manifest.snapshot, index)).collect();
    }

    /// Returns the backups by time, the oldest first.
    pub fn all(&self) -> &[Backup] {
        &self.all
    }

    /// Returns the manifests whose snapshot has a later one.
    pub fn superseded(&self) -> &[Backup] {
        &self.superseded
    }

    /// Returns the manifests that cannot be read, with their faults.
    pub fn damaged(&self) -> &[(String, BackupError)] {
        &self.damaged
    }

    /// Returns the objects among the manifests that are none.
    pub fn foreign(&self) -> &[String] {
        &self.foreign
    }

    /// Returns the backup of a snapshot.
    pub fn of(&self, snapshot: BaseName) -> Option<&Backup> {
        self.by_uuid.get(&snapshot).map(|index| &self.all[*index])
    }

    /// Returns the backup that a user names: by its id or the start of it, by `latest`, or by the
    /// snapshot's name, of which the last backup counts.
    ///
    /// # Errors
    /// There is none, or the start of an id is that of several.
    pub fn find(&self, text: &str) -> Result<&Backup> {
        if text == "latest" {
            return self.all.last().ok_or_else(|| BackupError::NoBackup(text.into()));
        }
        if let Some(named) = self.all.iter().rfind(|backup| backup.manifest.name == text) {
            return Ok(named);
        }
        let mut found = self.all.iter().filter(|backup| backup.id.starts_with(text));
        match (found.next(), found.next()) {
            (Some(one), None) if text.len() >= FEWEST_DIGITS => Ok(one),
            (Some(_), Some(_)) if text.len() >= FEWEST_DIGITS => Err(BackupError::Ambiguous(text.into())),
            _ => Err(BackupError::NoBackup(text.into())),
        }
    }

    /// Returns the backups that one needs, from a full one to itself.
    ///
    /// # Errors
    /// A base is missing; bases form a circle.
    pub fn chain<'a>(&'a self, backup: &'a Backup) -> Result<Vec<&'a Backup>> {
        let (mut chain, mut seen) = (vec![backup], HashSet::from([backup.manifest.snapshot]));
        while let Some(base) = chain[chain.len() - 1].manifest.base {
            let last = chain[chain.len() - 1].short_id();
            if !seen.insert(base) {
                return Err(BackupError::Invalid(format!("backup {last}: its bases form a circle")));
            }
            let missing = || BackupError::BaseMissing { backup: last.to_owned(), base: base.uuid };
            chain.push(self.of(base).ok_or_else(missing)?);
        }
        chain.reverse();
        Ok(chain)
    }
}
