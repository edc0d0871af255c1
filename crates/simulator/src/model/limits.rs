//! Changes of quotas and limits.
//!
//! The numbers of qgroups are not modelled; the file system's own count of all extents is their
//! judge ([`crate::quota_numbers`]).

use crate::model::quotas::{Limits, Quotas};
use crate::model::{Model, Place, ROOT, Refusal, Verdict};
use papilio::{PathError, QuotaError};

impl Model {
    /// Returns the quotas that are on.
    pub fn quotas(&self) -> Option<Quotas> {
        self.quotas
    }

    /// Turns quotas on; changes nothing if they are on.
    pub fn enable_quotas(&mut self, quotas: Quotas) {
        self.quotas.get_or_insert(quotas);
    }

    /// Turns quotas off, and forgets all limits.
    pub fn disable_quotas(&mut self) {
        self.quotas = None;
        for subvolume in self.subvolumes.values_mut() {
            subvolume.limits = Limits::default();
        }
    }

    /// Counts all extents anew.
    ///
    /// # Errors
    /// Quotas are off, or simple.
    pub fn rescan_quotas(&self) -> Verdict {
        match self.quotas {
            Some(Quotas::Full) => Ok(()),
            Some(Quotas::Simple) => Err(Refusal::Quota(QuotaError::Simple)),
            None => Err(Refusal::Quota(QuotaError::Off)),
        }
    }

    /// Sets or removes a limit of the subvolume at `path`.
    ///
    /// # Errors
    /// As for a path; also if it is no subvolume, or quotas are off.
    pub fn limit(&mut self, path: &[u8], bytes: Option<u64>, exclusive: bool) -> Verdict {
        let place = self.resolve(path, false)?;
        if place.node != ROOT {
            return Err(PathError::NoSubvolume.into());
        }
        if self.quotas.is_none() {
            return Err(Refusal::Quota(QuotaError::Off));
        }
        let limits = &mut self.subvolumes.get_mut(&place.subvolume).expect("a path leads there").limits;
        *if exclusive { &mut limits.exclusive } else { &mut limits.referenced } = bytes;
        Ok(())
    }

    /// Returns the limits of the subvolume that a place is in.
    pub fn limits(&self, place: Place) -> Limits {
        self.subvolumes[&place.subvolume].limits
    }

    /// Returns whether any subvolume has a limit.
    pub fn is_limited(&self) -> bool {
        self.subvolumes.values().any(|subvolume| subvolume.limits != Limits::default())
    }
}
