//! Repair: applies the remedies that a check proposes, until a check finds no more to mend.
//!
//! Owns [`mend`], the rounds of checking and mending. [`editor`] changes tree blocks, [`apply`]
//! turns each remedy into such changes.
//!
//! Blocks change where they are, with all their copies; nothing is allocated. A file system that is
//! too damaged for a transaction can so be mended. A crash in between is undone with the undo file.
//!
//! Userspace counterpart: `btrfs check --repair`.

mod apply;
mod editor;

use super::check::{self, CheckOptions, CheckReport};
use crate::errors::Result;
use crate::options::OpenOptions;
use crate::volume::Volume;
use papilio_device::Device;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The most rounds: a mended fault may reveal another, in a few levels.
const MOST_ROUNDS: usize = 8;

/// The outcome of the rounds.
#[derive(Debug)]
pub(crate) struct Mended {
    pub(crate) before: CheckReport,
    pub(crate) after: CheckReport,
    /// Every change that was made, one line each.
    pub(crate) changes: Vec<String>,
    /// Every change that could not be made, and why.
    pub(crate) refused: Vec<String>,
}

impl Mended {
    /// Whether there are fewer faults than before, and none of a new kind.
    pub(crate) fn is_better(&self) -> bool {
        let (before, after) = (&self.before, &self.after);
        let fewer = (after.errors(), after.warnings()) < (before.errors(), before.warnings());
        fewer && after.counts.keys().all(|kind| before.counts.contains_key(kind))
    }
}

/// Checks and mends the file system on the devices in turns, and checks at the end.
pub(crate) fn mend(
    devices: &[Arc<dyn Device>],
    open: &OpenOptions,
    cache_bytes: usize,
    options: &CheckOptions,
) -> Result<Mended> {
    let look = || -> Result<(Arc<Volume>, CheckReport)> {
        let volume = Arc::new(Volume::open(devices.to_vec(), open)?);
        let report = check::check(&volume, cache_bytes, options)?;
        Ok((volume, report))
    };
    let (mut volume, before) = look()?;
    let mut after = before.clone();
    let (mut changes, mut refused) = (Vec::new(), BTreeSet::new());
    for _ in 0..MOST_ROUNDS {
        let mut remedies = std::mem::take(&mut after.remedies);
        remedies.sort_by_key(|remedy| !remedy.only_removes());
        let mut changed = false;
        for remedy in &remedies {
            match apply::apply(&volume, remedy) {
                Ok(true) => {
                    changed = true;
                    changes.push(remedy.to_string());
                }
                Ok(false) => {}
                Err(error) => _ = refused.insert(format!("{remedy}: {error}")),
            }
        }
        if !changed {
            break;
        }
        volume.flush()?;
        (volume, after) = look()?;
    }
    Ok(Mended { before, after, changes, refused: refused.into_iter().collect() })
}
